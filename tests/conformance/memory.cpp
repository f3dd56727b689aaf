// SPDX-License-Identifier: Apache-2.0
#include "conformance/case_tools.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/pool.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

namespace weft::conformance {
namespace {

using byte_buffer = buffer<std::uint8_t>;

verdict memory_is_of_the_device_asked_for(context& c) {
  for (const device& d : c.m().devices()) {
    const byte_buffer memory{d, 4097};
    require(memory.on() == d, "a buffer is of another device");
    require(address_range(d, memory.data()).device == d.id(), "the address is of another device");
    require_equal(memory.size(), 4097U, "size");
    require_equal(memory.size_bytes().value(), 4097U, "bytes");
  }
  return holds();
}

verdict free_memory_goes_down_and_comes_back(context& c) {
  const device on = c.m()[0];
  warm(on);
  const bytes before = on.free_memory();
  constexpr std::size_t size = 8U << 20;
  {
    byte_buffer memory{on, size};
    require(on.free_memory() + bytes{size} <= before, "free memory did not go down by the allocation");
    byte_buffer moved{std::move(memory)};
    require(on.free_memory() + bytes{size} <= before, "moving a buffer freed it");
    require(moved.size() == size, "a moved buffer lost its size");
    memory = std::move(moved);
  }
  on.synchronize();
  require_equal(on.free_memory().value(), before.value(), "free memory after the buffer");
  return holds();
}

verdict too_much_is_out_of_memory(context& c) {
  const device on = c.m()[0];
  const byte_buffer holder{on, 1U << 20};
  const bytes free = on.free_memory();
  const std::size_t asked = static_cast<std::size_t>(free.value()) + 1;
  const std::string what =
      expect_error({errc::out_of_memory}, "one byte more than is free", [&] { const byte_buffer memory(on, asked); });
  require(what.find(to_string(on.id())) != std::string::npos, "the error does not name the device: " + what);
  require(
      what.find(std::to_string(asked)) != std::string::npos || what.find(to_string(bytes{asked})) != std::string::npos,
      "the error does not say what was asked: " + what);
  require_equal(on.free_memory().value(), free.value(), "free memory after a refused allocation");
  for (const device& d : c.m().devices()) {
    const auto data = pattern(4097, d.id().index());
    require_same(contents(filled(d, data)), data, to_string(d.id()) + " after a refused allocation");
  }
  return holds();
}

verdict overflow_is_an_error(context& c) {
  const device on = c.m()[0];
  constexpr std::size_t huge = std::numeric_limits<std::size_t>::max() / 4;
  expect_error({errc::invalid_argument}, "a number of elements whose bytes wrap around",
               [&] { const buffer<std::uint64_t> memory(on, huge); });
  expect_error({errc::invalid_argument, errc::out_of_memory}, "all bytes there are",
               [&] { const byte_buffer memory(on, std::numeric_limits<std::size_t>::max()); });
  return holds();
}

verdict nothing_is_a_legal_size(context& c) {
  const byte_buffer none{c.m()[0], 0};
  require(none.empty(), "a buffer of nothing is not empty");
  require_equal(none.size_bytes().value(), 0U, "bytes of nothing");
  const byte_buffer other{c.m()[0], 0};
  copy(none, other);
  fill(none, std::uint8_t{1});
  copy(none, std::vector<std::uint8_t>{});
  const byte_buffer never;
  require(never.empty() && never.data() == nullptr, "a default-made buffer owns something");
  return holds();
}

verdict data_goes_there_and_back(context& c) {
  for (const device& d : c.m().devices()) {
    for (const std::size_t size : sizes_to_try()) {
      if (size > (1U << 20) && d.id().value() > 1) continue;
      const auto data = pattern(size, size + d.id().index());
      require_same(contents(filled(d, data)), data, std::to_string(size) + " bytes over " + to_string(d.id()));
    }
  }
  return holds();
}

verdict ranges_are_exact(context& c) {
  const auto data = pattern(10000, 1);
  auto expected = pattern(20000, 2);
  const byte_buffer memory = filled(c.m()[0], expected);
  for (const auto& [offset, size] :
       {std::pair<std::size_t, std::size_t>{0, 1}, {1, 4096}, {4095, 2}, {10003, 9997}, {19999, 1}}) {
    const auto source = std::span{data}.subspan(size % 3, std::min<std::size_t>(size, 9990));
    copy(memory.subspan(offset, source.size()), source);
    std::copy(source.begin(), source.end(), expected.begin() + static_cast<std::ptrdiff_t>(offset));
    require_same(contents(memory), expected, "after writing " + std::to_string(size) + " at " + std::to_string(offset));
    std::vector<std::uint8_t> part(source.size());
    copy(part, memory.subspan(offset, source.size()));
    require_same(part, source, "reading " + std::to_string(size) + " at " + std::to_string(offset));
  }
  expect_error({errc::out_of_range}, "a range past the end", [&] { static_cast<void>(memory.subspan(19999, 2)); });
  expect_error({errc::out_of_range}, "a range that begins past the end",
               [&] { static_cast<void>(memory.subspan(20001, 0)); });
  expect_error({errc::out_of_range}, "a range that wraps around",
               [&] { static_cast<void>(memory.subspan(1, std::numeric_limits<std::size_t>::max())); });
  expect_error({errc::out_of_range}, "the last of too many", [&] { static_cast<void>(memory.span().last(20001)); });
  return holds();
}

template <class T>
void check_fill(const device& on, const T& value, const std::string& what) {
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{257}, std::size_t{70001}}) {
    constexpr std::size_t margin = 3;
    const std::size_t total = count + 2 * margin;
    auto expected = pattern(total * sizeof(T), 9);
    std::vector<T> start(total);
    std::memcpy(start.data(), expected.data(), expected.size());
    const buffer<T> memory{on, total};
    copy(memory, start);
    fill(memory.subspan(margin, count), value);
    for (std::size_t i = 0; i < count; ++i) std::memcpy(expected.data() + (margin + i) * sizeof(T), &value, sizeof(T));
    copy(start, memory);
    std::vector<std::uint8_t> got(expected.size());
    std::memcpy(got.data(), start.data(), got.size());
    require_same(got, expected, what + ", " + std::to_string(count) + " elements");
  }
}

verdict fills_set_exactly_their_elements(context& c) {
  const device on = c.m()[0];
  check_fill<std::uint8_t>(on, 0x5C, "bytes");
  check_fill<std::uint16_t>(on, 0x1234, "two bytes");
  check_fill<std::uint32_t>(on, 0x12345678, "four bytes");
  check_fill<double>(on, 1.0 / 3.0, "eight bytes");
  check_fill<std::array<std::uint32_t, 4>>(on, {1, 2, 3, 4}, "sixteen bytes");
  const buffer<std::uint32_t> memory{on, 100003};
  const stream order{on};
  fill(order, memory, 1U);
  fill(order, memory.subspan(1, 50000), 2U).wait();
  std::vector<std::uint32_t> got(memory.size());
  copy(got, memory);
  require_all<std::uint32_t>(got, [](std::size_t i) { return i >= 1 && i < 50001 ? 2U : 1U; }, "fills in a stream");
  return holds();
}

verdict freed_memory_is_not_found(context& c) {
  const auto data = pattern(257, 1);
  device_span<std::uint8_t> gone;
  {
    const byte_buffer memory{c.m()[0], 257};
    gone = memory.span();
  }
  c.m()[0].synchronize();
  expect_error({errc::not_found}, "writing to freed memory", [&] { copy(gone, data); });
  expect_error({errc::not_found}, "reading freed memory", [&] {
    std::vector<std::uint8_t> out(257);
    copy(out, gone);
  });
  expect_error({errc::not_found}, "filling freed memory", [&] { fill(gone, std::uint8_t{1}); });
  expect_error({errc::not_found}, "copying freed memory by its address", [&] {
    const byte_buffer other{c.m()[0], 100};
    const byte_buffer dst{c.m()[0], 100};
    if (gone.data() >= other.data() && gone.data() < other.data() + 100) raise(errc::not_found, "reused");
    if (gone.data() >= dst.data() && gone.data() < dst.data() + 100) raise(errc::not_found, "reused");
    copy_peer(c.m(), dst.data(), c.m()[0].id(), gone.data(), c.m()[0].id(), bytes{100});
  });
  return holds();
}

verdict memory_of_a_reset_keeps_its_address_until_it_is_freed(context& c) {
  const device on = c.m()[0];
  constexpr std::size_t size = 70001;
  const memory_pool pool{on};
  std::vector<byte_buffer> before;
  for (int i = 0; i < 4; ++i) {
    before.emplace_back(on, size);
    before.emplace_back(pool, size);
  }
  on.reset();
  const auto data = pattern(size, 5);
  std::vector<byte_buffer> after;
  for (std::size_t i = 0; i < before.size(); ++i) after.push_back(filled(on, data));
  before.clear();
  for (std::size_t i = 0; i < 8; ++i) static_cast<void>(filled(on, pattern(size, i)));
  for (const byte_buffer& one : after) require_same(contents(one), data, "memory from after the reset");
  return holds();
}

verdict memory_goes_back_after_its_work(context& c) {
  const device on = c.m()[0];
  const stream order{on};
  const auto data = pattern(70001, 3);
  const byte_buffer kept{on, data.size()};
  gate closed{c.m(), order};
  {
    const byte_buffer brief{on, data.size()};
    copy(order, brief, data);
    copy(order, kept, brief);
  }
  // Memory handed out now must not be that of the buffer whose work is still held.
  std::vector<byte_buffer> others;
  for (int i = 0; i < 20; ++i) {
    others.emplace_back(on, data.size());
    const stream aside{on};
    fill(aside, others.back(), std::uint8_t{0xDD}).wait();
  }
  closed.open();
  order.synchronize();
  require_same(contents(kept), data, "data that went through a buffer that was let go");
  return holds();
}

verdict pinned_memory_is_of_host_and_device(context& c) {
  const device on = c.m()[0];
  pinned_buffer<std::uint8_t> staging{on, 70001};
  const auto data = pattern(staging.size(), 4);
  std::copy(data.begin(), data.end(), staging.host().begin());
  require(address_range(on, staging.data()).kind == memory_kind::pinned, "the address is not known as pinned");
  const byte_buffer memory{on, staging.size()};
  copy(memory, staging);
  std::fill(staging.host().begin(), staging.host().end(), std::uint8_t{0});
  copy(staging, memory);
  require_same(staging.host(), data, "pinned memory there and back");
  return holds();
}

verdict unified_memory_is_seen_by_all(context& c) {
  constexpr std::size_t count = 5003;
  unified_buffer<std::uint32_t> shared{c.m()[0], count};
  const auto start = numbers(count, 6);
  std::copy(start.begin(), start.end(), shared.host().begin());
  std::uint32_t k = 1;
  std::vector<std::uint32_t> expected = start;
  for (const device& d : c.m().devices()) {
    const buffer<std::uint32_t> mine{d, count};
    const stream order{d};
    weave(order, shared, mine, k).wait();
    weave(order, mine, shared, k).wait();
    for (std::size_t i = 0; i < count; ++i) expected[i] = woven(woven(expected[i], k, i), k, i);
    require_all<std::uint32_t>(
        shared.host(), [&](std::size_t i) { return expected[i]; }, "seen by the host after " + to_string(d.id()));
    ++k;
  }
  require(address_range(c.m()[0], shared.data()).kind == memory_kind::unified, "the address is not known as unified");
  return holds();
}

verdict prefetch_and_advice_keep_the_data(context& c) {
  constexpr std::size_t count = 70001;
  unified_buffer<std::uint8_t> shared{c.m()[0], count};
  auto data = pattern(count, 7);
  std::copy(data.begin(), data.end(), shared.host().begin());
  const auto range = shared.span().as<const std::byte>();
  for (const memory_advice advice : {memory_advice::read_mostly, memory_advice::preferred_location,
                                     memory_advice::accessed_by, memory_advice::none}) {
    for (const device& d : c.m().devices()) {
      advise(d, range, advice);
      prefetch(d, range);
      d.synchronize();
      shared.host()[17] = static_cast<std::uint8_t>(d.id().value() + 1);  // a write after "read mostly" is seen as well
      data[17] = shared.host()[17];
      require_same(contents(shared), data, "unified memory after prefetch");
    }
  }
  const byte_buffer plain{c.m()[0], 64};
  const auto other = plain.span().as<const std::byte>();
  expect_error({errc::invalid_argument}, "prefetch of plain memory", [&] { prefetch(c.m()[0], other); });
  expect_error({errc::invalid_argument}, "advice for plain memory",
               [&] { advise(c.m()[0], other, memory_advice::read_mostly); });
  prefetch(c.m()[0], range.first(0));
  prefetch(c.m()[0], unified_buffer<std::byte>{c.m()[0], 0}.span());  // has no address
  advise(c.m()[0], unified_buffer<std::byte>{c.m()[0], 0}.span(), memory_advice::read_mostly);
  return holds();
}

verdict memory_of_the_user_can_be_adopted(context& c) {
  const device on = c.m()[0];
  std::vector<std::uint8_t> own = pattern(70001, 8);
  const auto data = own;
  {
    const adopted_memory<std::uint8_t> adopted{on, std::span{own}};
    require(address_range(on, own.data() + 5).kind == memory_kind::adopted, "the address is not known as adopted");
    const byte_buffer memory{on, own.size()};
    copy(memory, adopted.span());
    require_same(contents(memory), data, "read from adopted memory");
    fill(adopted.span().subspan(1, 100), std::uint8_t{0x42});
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    require_equal(own[i], i >= 1 && i < 101 ? std::uint8_t{0x42} : data[i], "adopted memory at " + std::to_string(i));
  }
  expect_error({errc::not_found}, "the range of memory that is no longer adopted",
               [&] { static_cast<void>(address_range(on, own.data())); });
  return holds();
}

verdict a_pool_never_hands_out_too_little(context& c) {
  const memory_pool pool{c.m()[0]};
  std::vector<byte_buffer> live;
  std::vector<std::vector<std::uint8_t>> data;
  std::uint64_t state = 12345;
  const auto next = [&] { return (state = state * 6364136223846793005ULL + 1442695040888963407ULL) >> 33; };
  for (int i = 0; i < 400; ++i) {
    if (live.size() > 12) {
      const std::size_t gone = next() % live.size();
      require_same(contents(live[gone]), data[gone], "pooled memory before it went back");
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(gone));
      data.erase(data.begin() + static_cast<std::ptrdiff_t>(gone));
    }
    const std::size_t size = next() % 60000 + 1;
    live.emplace_back(pool, size);
    require(address_range(c.m()[0], live.back().data()).size.value() >= size, "a block smaller than the buffer");
    data.push_back(pattern(size, next()));
    copy(live.back(), data.back());
  }
  for (std::size_t i = 0; i < live.size(); ++i) require_same(contents(live[i]), data[i], "pooled memory");
  const pool_statistics seen = pool.statistics();
  require_equal(seen.hits + seen.misses, 400U, "allocations counted");
  require(seen.hits > 0, "no block was ever used again");
  return holds();
}

verdict a_pool_counts_exactly(context& c) {
  const device on = c.m()[0];
  warm(on);
  const bytes before = on.free_memory();
  memory_pool pool{on};
  require_equal(pool.statistics().reserved.value(), 0U, "reserved by a new pool");
  {
    const byte_buffer first{pool, 1000};
    const byte_buffer second{pool, 100000};
    const pool_statistics seen = pool.statistics();
    require(seen.used.value() >= 101000 && seen.used.value() <= 101000 * 5 / 4 + 1024, "used: " + to_string(seen.used));
    require(seen.reserved >= seen.used, "used more than is reserved");
    require(seen.used_high == seen.used, "high water of use");
    require_equal(seen.misses, 2U, "misses");
  }
  on.synchronize();
  require_equal(pool.statistics().used.value(), 0U, "used after all went back");
  require(pool.statistics().reserved.value() > 0, "the pool kept nothing");
  {
    const byte_buffer again{pool, 1000};
  }
  require_equal(pool.statistics().hits, 1U, "hits");
  on.synchronize();
  pool.trim_to(bytes{0});
  require_equal(pool.statistics().reserved.value(), 0U, "reserved after trimming");
  require_equal(on.free_memory().value(), before.value(), "free memory after trimming");
  return holds();
}

verdict a_pool_has_a_limit(context& c) {
  const memory_pool pool{c.m()[0], {.max_size = bytes{1U << 20}}};
  expect_error({errc::out_of_memory}, "more than the pool may take",
               [&] { const byte_buffer memory(pool, (1U << 20) + 1); });
  std::vector<byte_buffer> held;
  expect_error({errc::out_of_memory}, "piece by piece", [&] {
    for (int i = 0; i < 200; ++i) held.emplace_back(pool, 10000);
  });
  require(pool.statistics().reserved <= bytes{1U << 20}, "the pool took more than it may");
  require(held.size() >= 60,
          "the limit leaves room for " + std::to_string(held.size()) + " blocks of 10000 bytes only");
  held.clear();
  const byte_buffer fits{pool, 500000};
  return holds();
}

verdict a_pool_keeps_what_it_was_told(context& c) {
  const memory_pool pool{c.m()[0], {.keep = bytes{0}}};
  {
    const byte_buffer memory{pool, 100000};
  }
  c.m()[0].synchronize();
  require_equal(pool.statistics().reserved.value(), 0U, "kept by a pool that keeps nothing");
  return holds();
}

verdict a_pool_waits_for_work(context& c) {
  const device on = c.m()[0];
  const memory_pool pool{on};
  const stream order{on};
  const auto data = pattern(70001, 12);
  const byte_buffer kept{on, data.size()};
  gate closed{c.m(), order};
  {
    const byte_buffer brief{pool, data.size()};
    copy(order, brief, data);
    copy(order, kept, brief);
  }
  std::vector<byte_buffer> others;
  for (int i = 0; i < 4; ++i) {
    others.emplace_back(pool, data.size());
    fill(stream{on}, others.back(), std::uint8_t{0xDD}).wait();
  }
  closed.open();
  order.synchronize();
  require_same(contents(kept), data, "data that went through a pooled buffer that was let go");
  return holds();
}

}  // namespace

void add_memory(case_list& list) {
  constexpr std::string_view group = "memory";
  list.insert(
      list.end(),
      {{"memory is of the device that was asked", group, memory_is_of_the_device_asked_for},
       {"free memory goes down by an allocation and comes back", group, free_memory_goes_down_and_comes_back},
       {"more than is free is out_of_memory, naming device and size, and harms no device", group,
        too_much_is_out_of_memory},
       {"a size that wraps around is an error", group, overflow_is_an_error},
       {"nothing is a legal size", group, nothing_is_a_legal_size},
       {"data of any size goes to a device and back", group, data_goes_there_and_back},
       {"ranges are read and written exactly, and end at the end", group, ranges_are_exact},
       {"a fill sets exactly its elements, of any size", group, fills_set_exactly_their_elements},
       {"freed memory is not found", group, freed_memory_is_not_found},
       {"memory that went with a reset keeps its address until it is freed", group,
        memory_of_a_reset_keeps_its_address_until_it_is_freed},
       {"memory is used again only after the work submitted with it", group, memory_goes_back_after_its_work},
       {"pinned memory is read and written by host and device", group, pinned_memory_is_of_host_and_device,
        feature::pinned_memory},
       {"unified memory is seen by the host and every device", group, unified_memory_is_seen_by_all,
        feature::unified_memory},
       {"prefetch and advice keep the data, and are refused for other memory", group, prefetch_and_advice_keep_the_data,
        feature::unified_memory},
       {"memory of the user can be adopted, and is given back as it is", group, memory_of_the_user_can_be_adopted},
       {"a pool never hands out too little, and uses blocks again", group, a_pool_never_hands_out_too_little},
       {"a pool counts what it has and uses, and trims to it", group, a_pool_counts_exactly},
       {"a pool keeps to its limit", group, a_pool_has_a_limit},
       {"a pool that is to keep nothing gives everything back", group, a_pool_keeps_what_it_was_told},
       {"a pool hands a block out again only after the work submitted with it", group, a_pool_waits_for_work}});
}

}  // namespace weft::conformance
