// SPDX-License-Identifier: Apache-2.0
#include "conformance/case_tools.hpp"
#include "weft/memory/fill.hpp"

namespace weft::conformance {
namespace {

constexpr std::size_t elements = 5003;

verdict a_kernel_reads_and_writes_through_a_mapping(context& c) {
  const device_pair pair = offered_pair(c.m());
  const peer_access lease{c.m(), pair.from, pair.to};
  const auto start = numbers(elements, 1);
  const buffer<std::uint32_t> theirs{c.m()[pair.to], elements};
  copy(theirs, start);
  const stream order{c.m()[pair.from]};
  buffer<std::uint32_t> mine{c.m()[pair.from], elements};
  {
    const peer_mapping<std::uint32_t> view{c.m(), theirs, pair.from};
    require(view.span().on() == pair.from, "a mapping is not of the device that uses it");
    require_equal(view.span().size(), elements, "size of the mapping");
    weave(order, view.span(), mine, 3).wait();
    weave(order, mine, view.span(), 4).wait();
  }
  std::vector<std::uint32_t> got(elements);
  copy(got, mine);
  require_all<std::uint32_t>(got, [&](std::size_t i) { return woven(start[i], 3, i); }, "read through the mapping");
  std::vector<std::uint32_t> back(elements);
  copy(back, theirs);
  require_all<std::uint32_t>(back, [&](std::size_t i) { return woven(got[i], 4, i); }, "written through the mapping");
  return holds();
}

verdict a_mapping_covers_exactly_its_range(context& c) {
  const device_pair pair = offered_pair(c.m());
  const peer_access lease{c.m(), pair.from, pair.to};
  for (const auto& [offset, size] : {std::pair<std::size_t, std::size_t>{1, 1}, {1023, 7}, {1024, 1024}, {1, 4001}}) {
    const auto start = numbers(elements, 2);
    const buffer<std::uint32_t> theirs{c.m()[pair.to], elements};
    copy(theirs, start);
    const peer_mapping<std::uint32_t> view{c.m(), theirs.subspan(offset, size), pair.from};
    const memory_description known = address_range(c.m()[pair.from], view.span().data());
    require(known.base == view.span().data(), "the mapping does not begin where it says");
    require_equal(known.size.value(), size * sizeof(std::uint32_t), "bytes of the mapping");
    require(known.kind == memory_kind::mapped, "the mapping is not known as one");
    require(known.device == pair.from, "the mapping is not known as that of " + to_string(pair.from));
    const buffer<std::uint32_t> mine{c.m()[pair.from], size};
    fill(mine, 77U);
    weave(stream{c.m()[pair.from]}, mine, view.span(), 1).wait();
    std::vector<std::uint32_t> got(elements);
    copy(got, theirs);
    require_all<std::uint32_t>(
        got, [&](std::size_t i) { return i >= offset && i < offset + size ? woven(77, 1, i - offset) : start[i]; },
        "range of " + std::to_string(size) + " at " + std::to_string(offset));
    expect_error({errc::out_of_range, errc::not_found}, "a copy past the end of a mapping", [&] {
      std::vector<std::uint32_t> more(size + 1, 0);
      const auto wider = detail::make<device_span<std::uint32_t>>(detail::state_of(view.span()), pair.from,
                                                                  view.span().data(), size + 1);
      copy(wider, more);
    });
  }
  return holds();
}

verdict a_mapping_needs_access_and_does_not_enable_it(context& c) {
  const device_pair pair = offered_pair(c.m());
  const buffer<std::uint32_t> theirs{c.m()[pair.to], elements};
  expect_error({can_access_peer(c.m(), pair.from, pair.to) ? errc::not_enabled : errc::peer_unsupported},
               "a mapping without access", [&] {
                 static_cast<void>(map_peer_memory(c.m(), theirs.data(), pair.to, pair.from, theirs.size_bytes()));
               });
  require(!peer_enabled(c.m(), pair.from, pair.to), "a mapping that failed enabled access");
  enable_peer(c.m(), pair.from, pair.to);
  void* const view = map_peer_memory(c.m(), theirs.data(), pair.to, pair.from, theirs.size_bytes());
  unmap_peer_memory(c.m(), view, pair.from);
  require(peer_enabled(c.m(), pair.from, pair.to), "unmapping disabled access");
  return holds();
}

verdict a_mapping_without_a_path_is_refused(context& c) {
  const auto pair = pair_without_path(c.m());
  if (!pair) not_here("every pair has access");
  const buffer<std::uint32_t> theirs{c.m()[pair->to], elements};
  const std::string what = expect_error({errc::peer_unsupported}, "a mapping without a path", [&] {
    static_cast<void>(map_peer_memory(c.m(), theirs.data(), pair->to, pair->from, theirs.size_bytes()));
  });
  require(what.find(to_string(pair->from)) != std::string::npos && what.find(to_string(pair->to)) != std::string::npos,
          "the error does not name both devices: " + what);
  return holds();
}

verdict wrong_arguments_of_map(context& c) {
  const device_pair pair = offered_pair(c.m());
  enable_peer(c.m(), pair.from, pair.to);
  if (can_access_peer(c.m(), pair.to, pair.from)) enable_peer(c.m(), pair.to, pair.from);
  const buffer<std::uint32_t> theirs{c.m()[pair.to], elements};
  const buffer<std::uint32_t> mine{c.m()[pair.from], elements};
  const auto map = [&](void* address, device_id owner, device_id by, std::uint64_t size) {
    return
        [&c, address, owner, by, size] { static_cast<void>(map_peer_memory(c.m(), address, owner, by, bytes{size})); };
  };
  expect_error({errc::invalid_argument}, "mapping null", map(nullptr, pair.to, pair.from, 4));
  expect_error({errc::invalid_argument}, "mapping nothing", map(theirs.data(), pair.to, pair.from, 0));
  expect_error({errc::invalid_device}, "mapping for an unknown device",
               map(theirs.data(), pair.to, unknown_device(c.m()), 4));
  expect_error({errc::invalid_device}, "mapping of an unknown owner", map(theirs.data(), device_id{-1}, pair.from, 4));
  expect_error({errc::out_of_range}, "mapping past the end",
               map(theirs.data(), pair.to, pair.from, theirs.size_bytes().value() + 1));
  expect_error({errc::out_of_range}, "mapping with a size that wraps",
               map(theirs.data() + 1, pair.to, pair.from, ~0ULL));
  int local = 0;
  expect_error({errc::not_found}, "mapping host memory", map(&local, pair.to, pair.from, 4));
  expect_error({errc::wrong_device}, "mapping memory of another owner", map(mine.data(), pair.to, pair.from, 4));
  return holds();
}

verdict wrong_arguments_of_unmap(context& c) {
  const device_pair pair = offered_pair(c.m());
  enable_peer(c.m(), pair.from, pair.to);
  const buffer<std::uint32_t> theirs{c.m()[pair.to], elements};
  void* const view = map_peer_memory(c.m(), theirs.data(), pair.to, pair.from, theirs.size_bytes());
  expect_error({errc::wrong_device}, "unmapping for another device", [&] { unmap_peer_memory(c.m(), view, pair.to); });
  expect_error({errc::invalid_device, errc::wrong_device}, "unmapping for an unknown device",
               [&] { unmap_peer_memory(c.m(), view, unknown_device(c.m())); });
  unmap_peer_memory(c.m(), view, pair.from);
  expect_error({errc::not_found}, "unmapping twice", [&] { unmap_peer_memory(c.m(), view, pair.from); });
  int local = 0;
  expect_error({errc::not_found}, "unmapping an unknown address", [&] { unmap_peer_memory(c.m(), &local, pair.from); });
  expect_error({errc::not_found, errc::invalid_argument}, "unmapping null",
               [&] { unmap_peer_memory(c.m(), nullptr, pair.from); });
  const buffer<std::uint32_t> mine{c.m()[pair.from], elements};
  expect_error({errc::not_found}, "unmapping an allocation", [&] { unmap_peer_memory(c.m(), mine.data(), pair.from); });
  return holds();
}

verdict after_unmap_the_address_is_unknown(context& c) {
  const device_pair pair = offered_pair(c.m());
  enable_peer(c.m(), pair.from, pair.to);
  const buffer<std::uint32_t> theirs{c.m()[pair.to], elements};
  const auto start = numbers(elements, 5);
  copy(theirs, start);
  device_span<std::uint32_t> gone;
  {
    const peer_mapping<std::uint32_t> view{c.m(), theirs, pair.from};
    gone = view.span();
  }
  const buffer<std::uint32_t> mine{c.m()[pair.from], elements};
  fill(mine, 1U);
  expect_error({errc::not_found}, "the range of an ended mapping",
               [&] { static_cast<void>(address_range(c.m()[pair.from], gone.data())); });
  expect_error({errc::not_found, errc::illegal_access}, "a kernel with an ended mapping",
               [&] { weave(stream{c.m()[pair.from]}, mine, gone, 1).wait(); });
  std::vector<std::uint32_t> got(elements);
  copy(got, theirs);
  require_all<std::uint32_t>(got, [&](std::size_t i) { return start[i]; }, "memory after the mapping ended");
  return holds();
}

verdict disable_takes_the_mapping_away(context& c) {
  const device_pair pair = offered_pair(c.m());
  enable_peer(c.m(), pair.from, pair.to);
  const buffer<std::uint32_t> theirs{c.m()[pair.to], elements};
  fill(theirs, 9U);
  const peer_mapping<std::uint32_t> view{c.m(), theirs, pair.from};
  disable_peer(c.m(), pair.from, pair.to);
  expect_error({errc::not_enabled}, "a fill through a mapping after disable", [&] { fill(view.span(), 5U); });
  std::vector<std::uint32_t> got(elements);
  copy(got, theirs);
  require_all<std::uint32_t>(got, [](std::size_t) { return 9U; }, "memory after the refused fill");
  expect_fault(c, pair.from, view.span(), "a kernel through a mapping after disable");
  return holds();
}

verdict two_mappings_are_two(context& c) {
  const device_pair pair = offered_pair(c.m());
  enable_peer(c.m(), pair.from, pair.to);
  const buffer<std::uint32_t> theirs{c.m()[pair.to], elements};
  fill(theirs, 9U);
  const buffer<std::uint32_t> mine{c.m()[pair.from], elements};
  std::optional<peer_mapping<std::uint32_t>> first{std::in_place, c.m(), theirs, pair.from};
  const peer_mapping<std::uint32_t> second{c.m(), theirs, pair.from};
  first.reset();
  weave(stream{c.m()[pair.from]}, second.span(), mine, 6).wait();
  std::vector<std::uint32_t> got(elements);
  copy(got, mine);
  require_all<std::uint32_t>(got, [&](std::size_t i) { return woven(9, 6, i); }, "through the mapping that is left");
  return holds();
}

verdict a_mapping_without_memory_keeps_its_address_until_it_ends(context& c) {
  const device_pair pair = offered_pair(c.m());
  const peer_access lease{c.m(), pair.from, pair.to};
  const auto map = [&](const buffer<std::uint32_t>& memory) {
    return peer_mapping<std::uint32_t>{c.m(), memory, pair.from};
  };
  std::optional<buffer<std::uint32_t>> freed{std::in_place, c.m()[pair.to], elements};
  std::optional<peer_mapping<std::uint32_t>> ended{map(*freed)};
  freed.reset();
  const auto data = numbers(elements, 3);
  const buffer<std::uint32_t> theirs{c.m()[pair.to], elements};
  copy(theirs, data);
  const peer_mapping<std::uint32_t> view = map(theirs);
  expect_error({errc::not_found}, "a copy through a mapping whose memory was freed",
               [&] { copy(ended->span(), data); });
  ended.reset();
  std::vector<std::uint32_t> got(elements);
  copy(got, view.span());
  require_all<std::uint32_t>(got, [&](std::size_t i) { return data[i]; }, "a mapping from after another has ended");
  return holds();
}

verdict a_mapping_is_made_in_stream_order(context& c) {
  const device_pair pair = offered_pair(c.m());
  const auto data = numbers(elements, 4);
  const buffer<std::uint32_t> theirs{c.m()[pair.to], elements};
  copy(theirs, data);
  const bytes size{elements * sizeof(std::uint32_t)};
  const stream order{c.m()[pair.from]};
  gate closed{c.m(), order};
  enable_peer(order, pair.to);
  const auto made = map_peer_memory(order, theirs.data(), pair.to, size);
  require(made.address() == nullptr, "the mapping was made before its turn");
  closed.open();
  made.done().wait();
  require(made.address() != nullptr, "the mapping was not made in its turn");
  const auto view = detail::make<device_span<std::uint32_t>>(detail::state_of(c.m()).get(), pair.from,
                                                             static_cast<std::uint32_t*>(made.address()), elements,
                                                             memory_kind::mapped);
  std::vector<std::uint32_t> got(elements);
  copy(got, view);
  require_all<std::uint32_t>(got, [&](std::size_t i) { return data[i]; }, "through a mapping made in a stream");
  unmap_peer_memory(order, made.address()).wait();
  expect_error({errc::not_found}, "a mapping that was unmapped in a stream", [&] { copy(got, view); });
  expect_error({errc::not_found}, "the same once more", [&] { unmap_peer_memory(order, made.address()).wait(); });
  return holds();
}

verdict a_copy_goes_through_a_mapping(context& c) {
  const device_pair pair = offered_pair(c.m());
  enable_peer(c.m(), pair.from, pair.to);
  const auto data = numbers(elements, 8);
  const buffer<std::uint32_t> theirs{c.m()[pair.to], elements};
  fill(theirs, 0U);
  const peer_mapping<std::uint32_t> view{c.m(), theirs, pair.from};
  copy(view.span(), data);
  std::vector<std::uint32_t> got(elements);
  copy(got, theirs);
  require_all<std::uint32_t>(got, [&](std::size_t i) { return data[i]; }, "written by a copy into the mapping");
  std::vector<std::uint32_t> through(elements);
  copy(through, view.span());
  require_all<std::uint32_t>(through, [&](std::size_t i) { return data[i]; }, "read by a copy from the mapping");
  return holds();
}

}  // namespace

void add_peer_map(case_list& list) {
  constexpr std::string_view group = "peer_map";
  constexpr auto access = feature::peer_access;
  list.insert(
      list.end(),
      {{"a kernel reads and writes another device's memory through a mapping", group,
        a_kernel_reads_and_writes_through_a_mapping, access},
       {"a mapping covers exactly the range that was asked for", group, a_mapping_covers_exactly_its_range, access},
       {"a mapping needs enabled access, and does not enable it", group, a_mapping_needs_access_and_does_not_enable_it,
        access},
       {"a mapping without a path is peer_unsupported, and both devices are named", group,
        a_mapping_without_a_path_is_refused, feature::missing_path},
       {"null, nothing, too much, unknown and foreign memory cannot be mapped", group, wrong_arguments_of_map, access},
       {"unknown, ended and foreign mappings cannot be unmapped", group, wrong_arguments_of_unmap, access},
       {"after unmap the address is unknown", group, after_unmap_the_address_is_unknown, access},
       {"disable takes the mapping away, and using it is a fault", group, disable_takes_the_mapping_away, access},
       {"two mappings of one range end separately", group, two_mappings_are_two, access},
       {"a mapping whose memory was freed keeps its address until it is unmapped", group,
        a_mapping_without_memory_keeps_its_address_until_it_ends, access},
       {"a mapping is made and ended in the order of a stream", group, a_mapping_is_made_in_stream_order, access},
       {"a copy goes through a mapping", group, a_copy_goes_through_a_mapping, access}});
}

}  // namespace weft::conformance
