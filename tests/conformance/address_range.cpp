// SPDX-License-Identifier: Apache-2.0
#include "conformance/case_tools.hpp"

namespace weft::conformance {
namespace {

constexpr std::size_t size = 70001;

template <class Buffer>
void check_range(const device& on, const Buffer& memory, memory_kind kind, const std::string& what) {
  for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, memory.size() - 1}) {
    const memory_description known = address_range(on, memory.data() + offset);
    const std::string at = what + " at " + std::to_string(offset);
    require(known.base == memory.data(), at + ": the base is wrong");
    require_equal(known.size.value(), memory.size_bytes().value(), at + ": size");
    require(known.kind == kind, at + " is known as " + std::string{to_string(known.kind)});
    require(known.device == memory.on().id(), at + " is known as memory of " + to_string(known.device));
  }
}

verdict device_memory_is_described(context& c) {
  for (const device& d : c.m().devices()) {
    const buffer<std::uint8_t> memory{d, size};
    check_range(d, memory, memory_kind::device, "device memory");
    check_range(c.m()[0], memory, memory_kind::device, "device memory, asked through another device");
  }
  return holds();
}

verdict pinned_memory_is_described(context& c) {
  const pinned_buffer<std::uint8_t> memory{c.m()[0], size};
  check_range(c.m()[0], memory, memory_kind::pinned, "pinned memory");
  return holds();
}

verdict unified_memory_is_described(context& c) {
  const unified_buffer<std::uint8_t> memory{c.m()[0], size};
  check_range(c.m()[0], memory, memory_kind::unified, "unified memory");
  return holds();
}

verdict other_addresses_are_not_found(context& c) {
  const device on = c.m()[0];
  const auto ask = [&](const void* address) {
    return [&on, address] { static_cast<void>(address_range(on, address)); };
  };
  int local = 0;
  expect_error({errc::not_found}, "the range of null", ask(nullptr));
  expect_error({errc::not_found}, "the range of a local variable", ask(&local));
  const std::uint8_t* freed = nullptr;
  {
    const buffer<std::uint8_t> memory{on, size};
    freed = memory.data();
  }
  on.synchronize();
  expect_error({errc::not_found}, "the range of freed memory", ask(freed));
  return holds();
}

verdict one_past_the_end_is_not_found_or_another(context& c) {
  const device on = c.m()[0];
  const buffer<std::uint8_t> first{on, size};
  const buffer<std::uint8_t> second{on, size};
  for (const auto* memory : {&first, &second}) {
    const std::uint8_t* const end = memory->data() + memory->size();
    const bool is_neighbour = end == first.data() || end == second.data();
    if (is_neighbour) continue;
    expect_error({errc::not_found}, "one past the end", [&] { static_cast<void>(address_range(on, end)); });
  }
  return holds();
}

}  // namespace

void add_address_range(case_list& list) {
  constexpr std::string_view group = "address_range";
  list.insert(list.end(), {{"any address inside device memory gives base, size, kind and device", group,
                            device_memory_is_described},
                           {"any address inside pinned memory gives base, size, kind and device", group,
                            pinned_memory_is_described, feature::pinned_memory},
                           {"any address inside unified memory gives base, size, kind and device", group,
                            unified_memory_is_described, feature::unified_memory},
                           {"null, host and freed addresses are not found", group, other_addresses_are_not_found},
                           {"one past the end is not found", group, one_past_the_end_is_not_found_or_another}});
}

}  // namespace weft::conformance
