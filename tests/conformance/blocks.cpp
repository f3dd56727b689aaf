// SPDX-License-Identifier: Apache-2.0
#include "conformance/case_tools.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/mapping.hpp"

namespace weft::conformance {
namespace {

constexpr std::size_t count = 5003;

/// Ends the case on a backend without blocks, with its reason.
bytes granule_of(const machine& m) {
  try {
    return granularity(m).minimum;
  } catch (const error_exception& e) {
    if (e.code() != errc::unsupported) fall_short("the granularity: " + to_string(e.cause()));
    not_here(e.cause().what);
  }
}

device_span<std::uint32_t> numbers_in(const mapping& where, device_id by) {
  return where.span<std::uint32_t>(by).first(count);
}

verdict a_new_mapping_has_no_rights(context& c) {
  const bytes granule = granule_of(c.m());
  for (const device& d : c.m().devices()) {
    const mapping fresh{physical_block{d, granule}};
    require(fresh.access_of(d.id()) == access_right::none, "a new mapping gives " + to_string(d.id()) + " a right");
    expect_error({errc::invalid_argument}, "a copy into a new mapping",
                 [&] { copy(numbers_in(fresh, d.id()), numbers(count, 1)); });
  }
  return holds();
}

verdict a_right_to_read_is_no_right_to_write(context& c) {
  const bytes granule = granule_of(c.m());
  const device_id on{0};
  mapping held{physical_block{c.m()[on], granule}};
  held.grant(on, access_right::read_write);
  const auto start = numbers(count, 2);
  copy(numbers_in(held, on), start);
  held.grant(on, access_right::read);
  expect_error({errc::invalid_argument}, "a copy into what may only be read",
               [&] { copy(numbers_in(held, on), numbers(count, 3)); });
  std::vector<std::uint32_t> got(count);
  copy(got, numbers_in(held, on));
  require_all<std::uint32_t>(got, [&](std::size_t i) { return start[i]; }, "memory that may only be read");
  return holds();
}

verdict a_peer_reaches_what_it_was_granted(context& c) {
  const bytes granule = granule_of(c.m());
  const device_pair pair = offered_pair(c.m());
  mapping shown{physical_block{c.m()[pair.to], granule}};
  mapping hidden{physical_block{c.m()[pair.to], granule}};
  for (mapping* one : {&shown, &hidden}) one->grant(pair.to, access_right::read_write);
  const auto start = numbers(count, 4);
  copy(numbers_in(shown, pair.to), start);
  shown.grant(pair.from, access_right::read);
  buffer<std::uint32_t> mine{c.m()[pair.from], count};
  weave(stream{c.m()[pair.from]}, numbers_in(shown, pair.from), mine, 5).wait();
  std::vector<std::uint32_t> got(count);
  copy(got, mine);
  require_all<std::uint32_t>(got, [&](std::size_t i) { return woven(start[i], 5, i); }, "read by the peer");
  expect_error({errc::invalid_argument}, "a copy by a peer without a right",
               [&] { copy(got, numbers_in(hidden, pair.from)); });
  expect_fault(c, pair.from, numbers_in(hidden, pair.from), "a kernel of a peer without a right");
  return holds();
}

verdict a_mapping_grows_in_place(context& c) {
  const bytes granule = granule_of(c.m());
  const device_id on{0};
  mapping grown{address_reservation{c.m(), bytes{2 * granule.value()}}, physical_block{c.m()[on], granule}};
  grown.grant(on, access_right::read_write);
  const auto start = numbers(count, 6);
  copy(numbers_in(grown, on), start);
  void* const address = grown.address();
  grown.grow(physical_block{c.m()[on], granule});
  require(grown.address() == address, "growing moved the memory");
  std::vector<std::uint32_t> got(count);
  copy(got, numbers_in(grown, on));
  require_all<std::uint32_t>(got, [&](std::size_t i) { return start[i]; }, "memory that has grown");
  const auto whole = grown.span<std::uint32_t>(on);
  fill(whole, 77U);
  copy(got, whole.subspan(granule.size() / sizeof(std::uint32_t) - 2, count));
  require_all<std::uint32_t>(got, [](std::size_t) { return 77U; }, "a range over both blocks");
  return holds();
}

verdict memory_counts_until_the_last_mapping_ends(context& c) {
  const bytes granule = granule_of(c.m());
  const device on = c.m()[0];
  warm(on);
  {
    const physical_block first{on, granule};
  }
  const bytes before = on.free_memory();
  {
    std::optional<physical_block> block{std::in_place, on, granule};
    const mapping held{*block};
    block.reset();
    require(on.free_memory() < before, "memory came back while it was mapped");
  }
  require_equal(on.free_memory().value(), before.value(), "free memory after block and mapping have gone");
  return holds();
}

}  // namespace

void add_blocks(case_list& list) {
  constexpr std::string_view group = "blocks";
  list.insert(list.end(), {{"a new mapping gives no device any right", group, a_new_mapping_has_no_rights},
                           {"a right to read is no right to write", group, a_right_to_read_is_no_right_to_write},
                           {"a peer reaches the mapping that it was granted, and no other", group,
                            a_peer_reaches_what_it_was_granted, feature::peer_access},
                           {"a mapping grows in place", group, a_mapping_grows_in_place},
                           {"a block's memory counts until its last mapping has ended", group,
                            memory_counts_until_the_last_mapping_ends}});
}

}  // namespace weft::conformance
