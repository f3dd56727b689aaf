// SPDX-License-Identifier: Apache-2.0
#include "conformance/case_tools.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/scatter.hpp"

#include <array>
#include <atomic>
#include <numeric>

namespace weft::conformance {
namespace {

using byte_buffer = buffer<std::uint8_t>;

/// Two devices; the pair with access where there is one.
device_pair two(const machine& m) { return offered_pair(m); }

/// Copies between ranges inside larger memory, and looks at what lies around the destination.
void check_copy(const machine& m, const device_pair& pair, std::size_t size, std::size_t src_offset,
                std::size_t dst_offset, const copy_options& options, const std::string& what,
                place at = place::current()) {
  constexpr std::size_t margin = 64;
  const auto data = pattern(src_offset + size + margin, 1);
  auto expected = pattern(dst_offset + size + margin, 2);
  const byte_buffer src = filled(m[pair.from], data);
  const byte_buffer dst = filled(m[pair.to], expected);
  const copy_report report = copy(dst.subspan(dst_offset, size), src.subspan(src_offset, size), options);
  for (std::size_t i = 0; i < size; ++i) expected[dst_offset + i] = data[src_offset + i];
  const std::string title = what + ", " + text(pair) + ", " + std::to_string(size) + " bytes";
  require_same(contents(dst), expected, title, at);
  require_same(contents(src), data, title + ": the source", at);
  require_equal(report.size.value(), size, title + ": bytes reported", at);
}

verdict every_pair_delivers(context& c) {
  const auto run = [&](const std::string& how) {
    for (const device_pair& pair : all_pairs(c.m())) {
      for (const std::size_t size : {std::size_t{257}, std::size_t{70001}})
        check_copy(c.m(), pair, size, 0, 0, {}, how);
    }
    for (const std::size_t size : sizes_to_try()) check_copy(c.m(), two(c.m()), size, 0, 0, {}, how);
  };
  run("without access");
  const auto leases = enable_all_peers(c.m());
  run("with access");
  return holds();
}

verdict without_access_a_copy_is_staged_or_the_drivers_and_says_so(context& c) {
  const device_pair pair = two(c.m());
  const bool is_direct = capability_between(c.m(), pair.from, pair.to)->can_copy;
  const auto data = pattern(300007, 3);
  const byte_buffer src = filled(c.m()[pair.from], data);
  const byte_buffer dst{c.m()[pair.to], data.size()};
  const copy_counters before = counters(c.m());
  const copy_report report = copy(dst, src);
  const copy_counters after = counters(c.m());
  require(report.path == (is_direct ? copy_path::direct : copy_path::staged),
          "the report says " + std::string{to_string(report.path)});
  require_same(contents(dst), data, "copied data");
  const copy_counters::one &taken = is_direct ? after.direct : after.staged,
                           &taken_before = is_direct ? before.direct : before.staged,
                           &other = is_direct ? after.staged : after.direct,
                           &other_before = is_direct ? before.staged : before.direct;
  require_equal(taken.copies, taken_before.copies + 1, "copies of that way");
  require_equal(taken.bytes, taken_before.bytes + data.size(), "bytes of that way");
  require_equal(other.copies, other_before.copies, "copies of the other way");
  return holds();
}

verdict with_access_a_copy_can_be_direct_and_says_so(context& c) {
  const device_pair pair = two(c.m());
  enable_peer(c.m(), pair.from, pair.to);
  if (can_access_peer(c.m(), pair.to, pair.from)) enable_peer(c.m(), pair.to, pair.from);
  const auto data = pattern(300007, 4);
  const byte_buffer src = filled(c.m()[pair.from], data);
  const byte_buffer dst{c.m()[pair.to], data.size()};
  const copy_counters before = counters(c.m());
  const copy_report report = copy(dst, src, by_way(copy_path::direct));
  const copy_counters after = counters(c.m());
  require(report.path == copy_path::direct, "the report says " + std::string{to_string(report.path)});
  require_same(contents(dst), data, "direct data");
  require_equal(after.direct.copies, before.direct.copies + 1, "direct copies");
  require_equal(after.direct.bytes, before.direct.bytes + data.size(), "direct bytes");
  require_equal(after.staged.copies, before.staged.copies, "staged copies");
  return holds();
}

verdict a_direct_copy_without_access_is_refused(context& c) {
  const device_pair pair = two(c.m());
  if (capability_between(c.m(), pair.from, pair.to)->can_copy) not_here("the driver copies directly without access");
  const auto old = pattern(4097, 6);
  const byte_buffer src = filled(c.m()[pair.from], pattern(4097, 5));
  const byte_buffer dst = filled(c.m()[pair.to], old);
  expect_error({errc::peer_unsupported, errc::not_enabled}, "a direct copy without access",
               [&] { copy(dst, src, by_way(copy_path::direct)); });
  require_same(contents(dst), old, "destination of a refused copy");
  return holds();
}

verdict a_wish_to_stage_is_honoured_with_access(context& c) {
  const device_pair pair = two(c.m());
  const auto leases = enable_all_peers(c.m());
  const copy_counters before = counters(c.m());
  const auto data = pattern(300007, 7);
  const byte_buffer src = filled(c.m()[pair.from], data);
  const byte_buffer dst{c.m()[pair.to], data.size()};
  const copy_report report = copy(dst, src, by_way(copy_path::staged));
  const copy_counters after = counters(c.m());
  require(report.path == copy_path::staged, "the report says " + std::string{to_string(report.path)});
  require_equal(after.direct.copies, before.direct.copies, "direct copies");
  require_same(contents(dst), data, "staged data");
  return holds();
}

verdict size_zero_does_nothing(context& c) {
  const machine& m = c.m();
  const device_id first{0};
  const device_id last{m.device_count() - 1};
  const copy_counters before = counters(m);
  copy_peer(m, nullptr, last, nullptr, first, bytes{0});
  copy_peer(stream{m[first]}, nullptr, last, nullptr, first, bytes{0}).wait();
  const auto old = pattern(257, 8);
  const byte_buffer dst = filled(m[last], old);
  const byte_buffer src = filled(m[first], pattern(257, 9));
  copy_peer(m, dst.data(), last, src.data(), first, bytes{0});
  copy(dst.subspan(100, 0), src.subspan(7, 0));
  require_same(contents(dst), old, "destination of copies of nothing");
  require_equal(counters(m).direct.bytes, before.direct.bytes, "direct bytes");
  require_equal(counters(m).staged.bytes, before.staged.bytes, "staged bytes");
  return holds();
}

verdict null_is_an_error(context& c) {
  const device_id first{0};
  const device_id last{c.m().device_count() - 1};
  const auto old = pattern(257, 8);
  const byte_buffer dst = filled(c.m()[last], old);
  const byte_buffer src = filled(c.m()[first], pattern(257, 9));
  expect_error({errc::invalid_argument}, "a null destination",
               [&] { copy_peer(c.m(), nullptr, last, src.data(), first, bytes{1}); });
  expect_error({errc::invalid_argument}, "a null source",
               [&] { copy_peer(c.m(), dst.data(), last, nullptr, first, bytes{1}); });
  expect_error({errc::invalid_argument}, "a null source in a stream",
               [&] { copy_peer(stream{c.m()[first]}, dst.data(), last, nullptr, first, bytes{1}).wait(); });
  require_same(contents(dst), old, "destination of refused copies");
  return holds();
}

verdict past_the_end_is_an_error(context& c) {
  const device_id first{0};
  const device_id last{c.m().device_count() - 1};
  const auto old = pattern(257, 8);
  const byte_buffer dst = filled(c.m()[last], old);
  const byte_buffer large = filled(c.m()[first], pattern(1000, 9));
  const byte_buffer small = filled(c.m()[first], pattern(10, 9));
  expect_error({errc::out_of_range}, "one byte past the destination",
               [&] { copy_peer(c.m(), dst.data(), last, large.data(), first, bytes{258}); });
  expect_error({errc::out_of_range}, "one byte past the end from an offset",
               [&] { copy_peer(c.m(), dst.data() + 1, last, large.data(), first, bytes{257}); });
  expect_error({errc::out_of_range}, "one byte past the source",
               [&] { copy_peer(c.m(), dst.data(), last, small.data(), first, bytes{11}); });
  expect_error({errc::out_of_range}, "2^63 bytes",
               [&] { copy_peer(c.m(), dst.data(), last, large.data(), first, bytes{1ULL << 63}); });
  expect_error({errc::out_of_range}, "a size that wraps around",
               [&] { copy_peer(c.m(), dst.data() + 1, last, large.data() + 1, first, bytes{~0ULL}); });
  require_same(contents(dst), old, "destination of refused copies");
  return holds();
}

verdict an_unknown_device_comes_first(context& c) {
  const device_id good{0};
  for (const device_id bad : {device_id{-1}, unknown_device(c.m())}) {
    for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{1}}) {
      expect_error({errc::invalid_device}, "an unknown destination device",
                   [&] { copy_peer(c.m(), nullptr, bad, nullptr, good, bytes{size}); });
      expect_error({errc::invalid_device}, "an unknown source device",
                   [&] { copy_peer(c.m(), nullptr, good, nullptr, bad, bytes{size}); });
      expect_error({errc::invalid_device}, "an unknown device in a stream",
                   [&] { copy_peer(stream{c.m()[good]}, nullptr, good, nullptr, bad, bytes{size}).wait(); });
    }
  }
  return holds();
}

verdict the_raw_form_copies(context& c) {
  const device_pair pair = two(c.m());
  const auto data = pattern(70001, 10);
  const byte_buffer src = filled(c.m()[pair.from], data);
  const byte_buffer dst = filled(c.m()[pair.to], pattern(70001, 11));
  copy_peer(c.m(), dst.data(), pair.to, src.data(), pair.from, bytes{data.size()});
  require_same(contents(dst), data, "the whole");
  copy_peer(stream{c.m()[pair.to]}, dst.data() + 3, pair.to, src.data() + 1001, pair.from, bytes{5000}).wait();
  auto expected = data;
  for (std::size_t i = 0; i < 5000; ++i) expected[3 + i] = data[1001 + i];
  require_same(contents(dst), expected, "a part in a stream");
  return holds();
}

verdict swapped_devices_never_corrupt(context& c) {
  const device_pair pair = two(c.m());
  const auto data = pattern(4097, 12);
  const auto old = pattern(4097, 13);
  const byte_buffer src = filled(c.m()[pair.from], data);
  const byte_buffer dst = filled(c.m()[pair.to], old);
  bool refused = false;
  try {
    copy_peer(c.m(), dst.data(), pair.from, src.data(), pair.to, bytes{data.size()});
  } catch (const error_exception& e) {
    refused = true;
    require(e.code() == errc::wrong_device, "swapped devices gave " + to_string(e.cause()));
  }
  require_same(contents(dst), refused ? old : data, "destination after swapped devices");
  return holds();
}

verdict one_device_is_no_peer(context& c) {
  const device on = c.m()[0];
  const auto data = pattern(70001, 14);
  const byte_buffer src = filled(on, data);
  const byte_buffer dst{on, data.size()};
  const copy_counters before = counters(c.m());
  const copy_report report = copy(dst, src);
  const copy_counters after = counters(c.m());
  require(report.path == copy_path::same_device, "the report says " + std::string{to_string(report.path)});
  require_equal(after.same_device.copies, before.same_device.copies + 1, "copies on one device");
  require_equal(after.direct.copies, before.direct.copies, "direct copies");
  require_same(contents(dst), data, "data on one device");
  copy_peer(c.m(), dst.data(), on.id(), src.data(), on.id(), bytes{17});
  return holds();
}

verdict overlap_is_an_error(context& c) {
  const auto data = pattern(4096, 15);
  const byte_buffer memory = filled(c.m()[0], data);
  expect_error({errc::invalid_argument}, "a copy one byte up",
               [&] { copy(memory.subspan(1, 100), memory.subspan(0, 100)); });
  expect_error({errc::invalid_argument}, "a copy one byte down",
               [&] { copy(memory.subspan(0, 100), memory.subspan(1, 100)); });
  expect_error({errc::invalid_argument}, "a copy onto itself", [&] { copy(memory, memory); });
  expect_error({errc::invalid_argument}, "the raw form",
               [&] { copy_peer(c.m(), memory.data() + 99, c.m()[0].id(), memory.data(), c.m()[0].id(), bytes{100}); });
  require_same(contents(memory), data, "memory after refused copies");
  copy(memory.subspan(100, 100), memory.subspan(0, 100));
  auto expected = data;
  for (std::size_t i = 0; i < 100; ++i) expected[100 + i] = data[i];
  require_same(contents(memory), expected, "neighbours do not overlap");
  return holds();
}

verdict unequal_sizes_are_an_error(context& c) {
  const byte_buffer a{c.m()[0], 100};
  const byte_buffer b{c.m()[0], 101};
  expect_error({errc::incompatible}, "101 elements into 100", [&] { copy(a, b); });
  expect_error({errc::incompatible}, "100 elements into 101", [&] { copy(b, a); });
  return holds();
}

verdict a_stream_orders_only_its_own(context& c) {
  const device_pair pair = two(c.m());
  const auto data = pattern(4097, 16);
  const auto old = pattern(4097, 17);
  const byte_buffer src = filled(c.m()[pair.from], data);
  const byte_buffer held = filled(c.m()[pair.to], old);
  const byte_buffer free = filled(c.m()[pair.to], old);
  const stream slow{c.m()[pair.from]};
  const stream fast{c.m()[pair.from]};
  gate closed{c.m(), slow};
  const event late = copy(slow, held, src);
  copy(fast, free, src).wait();
  require(!late.ready(), "a copy overtook what was before it in its stream");
  {
    std::vector<std::uint8_t> seen(old.size());
    copy(fast, seen, free).wait();
    require_same(seen, data, "the other stream's copy");
  }
  closed.open();
  late.wait();
  require_same(contents(held), data, "the held copy");
  return holds();
}

verdict any_devices_stream_may_copy(context& c) {
  const device_pair pair = two(c.m());
  const auto data = pattern(70001, 18);
  const byte_buffer src = filled(c.m()[pair.from], data);
  const auto leases = enable_all_peers(c.m());
  for (const device& by : c.m().devices()) {
    const byte_buffer dst{c.m()[pair.to], data.size()};
    copy(stream{by}, dst, src).wait();
    require_same(contents(dst), data, "a copy in a stream of " + to_string(by.id()));
  }
  return holds();
}

verdict a_synchronous_copy_comes_after_earlier_work(context& c) {
  const device_pair pair = two(c.m());
  const std::size_t size = (3U << 20) + 5;
  const auto data = pattern(size, 19);
  const byte_buffer other = filled(c.m()[pair.from], data);
  const byte_buffer src{c.m()[pair.from], size};
  const byte_buffer dst{c.m()[pair.to], size};
  copy(c.m()[pair.from].default_stream(), src, other);
  fill(c.m()[pair.to].default_stream(), dst, std::uint8_t{0xEE});
  copy(dst, src);
  std::vector<std::uint8_t> seen(size);
  copy(stream{c.m()[pair.to]}, seen, dst).wait();  // a stream that knows of nothing: the data must be there
  require_same(seen, data, "a synchronous copy after work in both default streams");
  return holds();
}

verdict events_on_both_sides_keep_order(context& c) {
  const device_pair pair = two(c.m());
  constexpr std::size_t count = 4099;
  constexpr std::uint32_t rounds = 64;
  const buffer<std::uint32_t> src{c.m()[pair.from], count};
  const buffer<std::uint32_t> dst{c.m()[pair.to], count};
  const stream producer{c.m()[pair.from]};
  const stream mover{c.m()[pair.from]};
  const stream consumer{c.m()[pair.to]};
  std::vector<std::vector<std::uint32_t>> made;
  std::vector<std::vector<std::uint32_t>> seen(rounds, std::vector<std::uint32_t>(count));
  for (std::uint32_t r = 0; r < rounds; ++r) made.push_back(numbers(count, r));
  event moved;
  event consumed;
  for (std::uint32_t r = 0; r < rounds; ++r) {
    producer.wait(moved);  // never overwrite what is still being read
    copy(producer, src, made[r]);
    mover.wait(producer.record());  // never read what is not there yet
    mover.wait(consumed);
    moved = copy(mover, dst, src);
    consumer.wait(moved);
    consumed = copy(consumer, seen[r], dst);
  }
  consumed.wait();
  for (std::uint32_t r = 0; r < rounds; ++r) {
    require_all<std::uint32_t>(seen[r], [&](std::size_t i) { return made[r][i]; }, "round " + std::to_string(r));
  }
  return holds();
}

verdict unaligned_ranges_on_every_path(context& c) {
  const device_pair pair = two(c.m());
  const auto leases = enable_all_peers(c.m());
  std::vector<copy_path> paths{copy_path::automatic, copy_path::staged};
  if (can_access_peer(c.m(), pair.from, pair.to)) paths.push_back(copy_path::direct);
  for (const copy_path path : paths) {
    const std::string name{to_string(path)};
    for (const std::size_t size : {1U, 2U, 3U, 7U, 8U, 9U, 31U, 63U, 64U, 65U, 255U, 256U, 257U, 4095U, 4097U}) {
      check_copy(c.m(), pair, size, 1, 3, by_way(path), name);
      check_copy(c.m(), pair, size, 4095, 0, by_way(path), name);
    }
    check_copy(c.m(), pair, (5U << 20) + 3, 13, 4091, by_way(path), name);
  }
  for (const std::size_t size : {1U, 257U, 4097U}) check_copy(c.m(), {pair.to, pair.to}, size, 5, 7, {}, "same device");
  return holds();
}

verdict boxes_leave_the_padding_alone(context& c) {
  const device_pair pair = two(c.m());
  const auto leases = enable_all_peers(c.m());
  constexpr std::size_t width = 37, height = 11, depth = 3;
  constexpr std::size_t src_pitch = 41, src_slice = 41 * 13, src_offset = 5;
  constexpr std::size_t dst_pitch = 64, dst_slice = 64 * 12, dst_offset = 9;
  for (const copy_path path : {copy_path::automatic, copy_path::staged}) {
    for (const device_id from : {pair.from, pair.to}) {
      if (from == pair.to && path == copy_path::staged) continue;
      const auto data = pattern(src_offset + src_slice * depth, 20);
      auto expected = pattern(dst_offset + dst_slice * depth, 21);
      const byte_buffer src = filled(c.m()[from], data);
      const byte_buffer dst = filled(c.m()[pair.to], expected);
      const box<std::uint8_t> to{
          .memory = dst, .host = {}, .offset = dst_offset, .pitch = dst_pitch, .slice = dst_slice};
      const box<std::uint8_t> at{
          .memory = src, .host = {}, .offset = src_offset, .pitch = src_pitch, .slice = src_slice};
      copy_box(to, at, {width, height, depth}, by_way(path));
      for (std::size_t z = 0; z < depth; ++z) {
        for (std::size_t y = 0; y < height; ++y) {
          for (std::size_t x = 0; x < width; ++x) {
            expected[dst_offset + z * dst_slice + y * dst_pitch + x] =
                data[src_offset + z * src_slice + y * src_pitch + x];
          }
        }
      }
      require_same(contents(dst), expected, "a box, " + std::string{to_string(path)});
    }
  }
  const byte_buffer small{c.m()[0], 100};
  const byte_buffer large{c.m()[0], 1000};
  const box<std::uint8_t> narrow{.memory = small, .host = {}, .offset = 0, .pitch = 5, .slice = 0};
  const box<std::uint8_t> wide{.memory = large, .host = {}, .offset = 0, .pitch = 100, .slice = 0};
  expect_error({errc::invalid_argument}, "a pitch smaller than a row", [&] { copy_box(narrow, wide, {10, 2, 1}); });
  expect_error({errc::out_of_range}, "a box past the end", [&] { copy_box(wide, wide, {10, 11, 1}); });
  return holds();
}

verdict boxes_come_from_and_go_to_the_host(context& c) {
  constexpr std::size_t width = 17, height = 9;
  const auto data = pattern(20 * height, 22);
  const byte_buffer memory{c.m()[0], 32 * height};
  fill(memory, std::uint8_t{0x11});
  auto host = data;
  const box<std::uint8_t> there{.memory = memory, .host = {}, .offset = 0, .pitch = 32, .slice = 0};
  copy_box(there, box<std::uint8_t>{.memory = {}, .host = host, .offset = 0, .pitch = 20, .slice = 0},
           {width, height, 1});
  const auto seen = contents(memory);
  std::vector<std::uint8_t> back(20 * height, 0x77);
  copy_box(box<std::uint8_t>{.memory = {}, .host = back, .offset = 0, .pitch = 20, .slice = 0}, there,
           {width, height, 1});
  for (std::size_t y = 0; y < height; ++y) {
    for (std::size_t x = 0; x < 20; ++x) {
      const bool inside = x < width;
      require_equal(seen[y * 32 + x], inside ? data[y * 20 + x] : std::uint8_t{0x11}, "row " + std::to_string(y));
      require_equal(back[y * 20 + x], inside ? data[y * 20 + x] : std::uint8_t{0x77},
                    "row " + std::to_string(y) + " back");
    }
  }
  return holds();
}

verdict a_batch_does_each_part_once(context& c) {
  const device_pair pair = two(c.m());
  const auto leases = enable_all_peers(c.m());
  constexpr std::size_t parts = 200;
  constexpr std::size_t piece = 61;
  const auto data = pattern(parts * piece, 23);
  auto expected = pattern(parts * piece * 2, 24);
  const byte_buffer src = filled(c.m()[pair.from], data);
  const byte_buffer dst = filled(c.m()[pair.to], expected);
  std::vector<copy_part> batch;
  for (std::size_t i = 0; i < parts; ++i) {
    const std::size_t from = ((i * 37) % parts) * piece;
    const std::size_t to = i < parts / 2 ? i * piece : i * piece * 2 - parts / 2 * piece;
    batch.push_back(part(dst.subspan(to, piece), src.subspan(from, piece)));
    for (std::size_t k = 0; k < piece; ++k) expected[to + k] = data[from + k];
  }
  const stream order{c.m()[pair.from]};
  copy_batch(order, batch).wait();
  require_same(contents(dst), expected, "a scattered batch");
  copy_batch(order, {}).wait();
  const byte_buffer again = filled(c.m()[pair.to], pattern(parts * piece, 25));
  std::vector<copy_part> neighbours;
  for (std::size_t i = 0; i < parts; ++i) {
    neighbours.push_back(part(again.subspan(i * piece, piece), src.subspan(i * piece, piece)));
  }
  copy_batch(order, neighbours).wait();
  require_same(contents(again), data, "a batch of neighbours");
  const std::array overlapping{part(again.subspan(0, 10), src.subspan(0, 10)),
                               part(again.subspan(5, 10), src.subspan(50, 10))};
  expect_error({errc::invalid_argument}, "a batch whose parts overlap", [&] { copy_batch(order, overlapping).wait(); });
  return holds();
}

verdict a_stop_before_the_start_copies_nothing(context& c) {
  const device_pair pair = two(c.m());
  const auto old = pattern(70001, 27);
  const byte_buffer src = filled(c.m()[pair.from], pattern(70001, 26));
  const byte_buffer dst = filled(c.m()[pair.to], old);
  std::stop_source stopped;
  stopped.request_stop();
  expect_error({errc::cancelled}, "a copy that was stopped before", [&] { copy(dst, src, until(stopped)); });
  require_same(contents(dst), old, "destination of a stopped copy");
  std::stop_source later;
  const stream order{c.m()[pair.from]};
  event ended;
  {
    gate closed{c.m(), order};
    ended = copy(order, dst, src, until(later));
    later.request_stop();
    closed.open();
  }
  expect_error({errc::cancelled}, "a copy that was stopped while it was queued", [&] { ended.wait(); });
  require_same(contents(dst), old, "destination of a copy stopped in the queue");
  return holds();
}

verdict a_report_is_complete(context& c) {
  const device_pair pair = two(c.m());
  const auto data = pattern((2U << 20) + 1, 28);
  const byte_buffer src = filled(c.m()[pair.from], data);
  const byte_buffer dst{c.m()[pair.to], data.size()};
  const copy_report report = copy(dst, src);
  require_equal(report.size.value(), data.size(), "bytes");
  require(report.path != copy_path::automatic, "the path is not told");
  if (c.m().clock() == clock_kind::virtual_time)
    require(report.simulated, "a time of the model is not called simulated");
  require_time(c.m());
  require(report.duration.count() > 0, "no duration");
  require(report.bytes_per_second() > 0, "no rate");
  return holds();
}

verdict counters_are_the_sum_of_reports(context& c) {
  const device_pair pair = two(c.m());
  const auto leases = enable_all_peers(c.m());
  const copy_counters before = counters(c.m());
  copy_counters expected = before;
  const auto count = [&](const copy_report& report) {
    copy_counters::one* slot = nullptr;
    switch (report.path) {
      case copy_path::host_to_device:
        slot = &expected.host_to_device;
        break;
      case copy_path::device_to_host:
        slot = &expected.device_to_host;
        break;
      case copy_path::same_device:
        slot = &expected.same_device;
        break;
      case copy_path::direct:
        slot = &expected.direct;
        break;
      case copy_path::staged:
        slot = &expected.staged;
        break;
      case copy_path::relayed:
        slot = &expected.relayed;
        break;
      case copy_path::automatic:
      case copy_path::host:
        fall_short("a report says " + std::string{to_string(report.path)});
    }
    slot->copies += 1;
    slot->bytes += report.size.value();
  };
  for (const std::size_t size : {1U, 4097U, 300007U}) {
    auto data = pattern(size, 29);
    const byte_buffer a{c.m()[pair.from], size};
    const byte_buffer b{c.m()[pair.to], size};
    const byte_buffer b2{c.m()[pair.to], size};
    count(copy(a, data));
    count(copy(b, a));
    count(copy(b2, b, {}));
    count(copy(b, a, by_way(copy_path::staged)));
    count(copy(data, b2));
  }
  const copy_counters after = counters(c.m());
  const auto same = [&](const copy_counters::one& got, const copy_counters::one& want, const std::string& name) {
    require_equal(got.copies, want.copies, name + " copies");
    require_equal(got.bytes, want.bytes, name + " bytes");
    require_equal(got.failed, want.failed, name + " failed");
  };
  same(after.host_to_device, expected.host_to_device, "host to device");
  same(after.device_to_host, expected.device_to_host, "device to host");
  same(after.same_device, expected.same_device, "same device");
  same(after.direct, expected.direct, "direct");
  same(after.staged, expected.staged, "staged");
  same(after.relayed, expected.relayed, "relayed");
  return holds();
}

verdict scatter_and_gather_move_every_element_once(context& c) {
  const auto leases = enable_all_peers(c.m());
  const auto devices = c.m().devices();
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1000003}, std::size_t{4097}}) {
    const auto shares = even_split(count, devices.size());
    require_equal(std::accumulate(shares.begin(), shares.end(), std::size_t{0}), count, "sum of the shares");
    for (const std::size_t share : shares) {
      require(share >= count / devices.size() && share <= count / devices.size() + 1, "the remainder is not spread");
    }
    const auto data = pattern(count, 30);
    const byte_buffer whole = filled(devices[0], data);
    std::vector<byte_buffer> parts;
    for (std::size_t i = 0; i < devices.size(); ++i) parts.emplace_back(devices[i], shares[i]);
    scatter(std::span{parts}, whole);
    std::size_t offset = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      require_same(contents(parts[i]), std::span{data}.subspan(offset, shares[i]), "share of gpu" + std::to_string(i));
      offset += shares[i];
    }
    const byte_buffer collected{devices.back(), count};
    gather(collected, std::span{parts});
    require_same(contents(collected), data, "gathered");
    std::vector<std::uint8_t> on_host(count);
    gather(on_host, std::span{parts});
    require_same(on_host, data, "gathered on the host");
  }
  std::vector<byte_buffer> wrong;
  wrong.emplace_back(devices[0], 10);
  const byte_buffer whole{devices[0], 11};
  expect_error({errc::incompatible}, "shares of another sum", [&] { scatter(std::span{wrong}, whole); });
  expect_error({errc::incompatible}, "gathering another sum", [&] { gather(whole, std::span{wrong}); });
  return holds();
}

verdict broadcast_and_all_to_all_deliver(context& c) {
  const auto leases = enable_all_peers(c.m());
  const auto devices = c.m().devices();
  const auto data = pattern(70001, 31);
  const byte_buffer root = filled(devices[0], data);
  std::vector<byte_buffer> copies;
  for (const device& d : devices) copies.emplace_back(d, data.size());
  replicate(std::span{copies}, root);
  for (std::size_t i = 0; i < copies.size(); ++i) {
    require_same(contents(copies[i]), data, "replica on gpu" + std::to_string(i));
  }
  constexpr std::size_t block = 1031;
  const std::size_t n = devices.size();
  std::vector<byte_buffer> out;
  std::vector<byte_buffer> in;
  std::vector<std::vector<std::uint8_t>> sent;
  for (std::size_t i = 0; i < n; ++i) {
    sent.push_back(pattern(block * n, 40 + i));
    out.push_back(filled(devices[i], sent.back()));
    in.emplace_back(devices[i], block * n);
  }
  std::vector<stream> streams;
  for (const device& d : devices) streams.emplace_back(d);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < n; ++k) {
      copy(streams[i], in[k].subspan(i * block, block), out[i].subspan(k * block, block));
    }
  }
  c.m().synchronize();
  for (std::size_t k = 0; k < n; ++k) {
    const auto got = contents(in[k]);
    for (std::size_t i = 0; i < n; ++i) {
      require_same(std::span{got}.subspan(i * block, block), std::span{sent[i]}.subspan(k * block, block),
                   "block of gpu" + std::to_string(i) + " on gpu" + std::to_string(k));
    }
  }
  return holds();
}

verdict a_foreign_stream_is_refused(context& c) {
  const machine other = c.open();
  const byte_buffer src = filled(c.m()[0], pattern(257, 50));
  const auto old = pattern(257, 51);
  const byte_buffer dst = filled(c.m()[0], old);
  const stream foreign{other[0]};
  expect_error({errc::wrong_device}, "a copy in a stream of another machine", [&] { copy(foreign, dst, src).wait(); });
  const byte_buffer theirs{other[0], 257};
  expect_error({errc::wrong_device, errc::not_found}, "a copy between two machines", [&] { copy(dst, theirs); });
  require_same(contents(dst), old, "destination of refused copies");
  return holds();
}

}  // namespace

void add_peer_copy(case_list& list) {
  constexpr std::string_view group = "peer_copy";
  constexpr auto pair = feature::two_devices;
  list.insert(
      list.end(),
      {{"a copy arrives between every ordered pair, with access or without", group, every_pair_delivers, pair},
       {"without access a copy is staged, or the driver's own, and says so", group,
        without_access_a_copy_is_staged_or_the_drivers_and_says_so, pair},
       {"with access a copy can be direct, and says so", group, with_access_a_copy_can_be_direct_and_says_so,
        feature::peer_access},
       {"a direct copy without access is refused and moves nothing", group, a_direct_copy_without_access_is_refused,
        pair},
       {"a wish to stage is honoured where a direct copy was possible", group, a_wish_to_stage_is_honoured_with_access,
        pair},
       {"a copy of size 0 does nothing, even with null addresses", group, size_zero_does_nothing},
       {"a null address with a size is invalid_argument", group, null_is_an_error},
       {"a copy past the end of either side is out_of_range and moves nothing", group, past_the_end_is_an_error},
       {"an unknown device is invalid_device before anything else is looked at", group, an_unknown_device_comes_first},
       {"the raw form copies whole allocations and parts", group, the_raw_form_copies, pair},
       {"devices named the wrong way round are refused or do no harm", group, swapped_devices_never_corrupt, pair},
       {"a copy on one device works and is not counted as one between peers", group, one_device_is_no_peer},
       {"overlapping ranges are invalid_argument and stay as they were", group, overlap_is_an_error},
       {"a copy between different sizes is incompatible", group, unequal_sizes_are_an_error},
       {"a copy is ordered in its own stream only", group, a_stream_orders_only_its_own, pair},
       {"a copy may be ordered in a stream of any device", group, any_devices_stream_may_copy, pair},
       {"a synchronous copy comes after earlier work on both devices, and its data is visible at once", group,
        a_synchronous_copy_comes_after_earlier_work, pair},
       {"events on both sides keep a copy from reading early and from being overwritten", group,
        events_on_both_sides_keep_order, pair},
       {"unaligned ranges of any size arrive on every path, and nothing around them changes", group,
        unaligned_ranges_on_every_path, pair},
       {"a box is copied between devices without touching the padding", group, boxes_leave_the_padding_alone, pair},
       {"a box is copied from and to the host", group, boxes_come_from_and_go_to_the_host},
       {"a batch does each part once", group, a_batch_does_each_part_once, pair},
       {"a copy that is stopped before it starts moves nothing", group, a_stop_before_the_start_copies_nothing, pair},
       {"a report has path, bytes and duration", group, a_report_is_complete, pair},
       {"the counters are the sum of the reports", group, counters_are_the_sum_of_reports, pair},
       {"scatter and gather move every element once, the remainder spread", group,
        scatter_and_gather_move_every_element_once},
       {"replicas and an all-to-all exchange arrive", group, broadcast_and_all_to_all_deliver},
       {"a stream or memory of another machine is refused", group, a_foreign_stream_is_refused}});
}

}  // namespace weft::conformance
