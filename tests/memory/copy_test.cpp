// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/copy.hpp"

#include "support/samples.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/mapping.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/pool.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace copy_test {

using samples::byte_buffer;
using samples::contents;
using samples::data;
using samples::error_of;
using samples::filled;
using samples::gpu0;
using samples::gpu1;
using samples::gpu2;
using samples::play;
using samples::wired;
using weft::copy_path;
using weft::errc;
using weft::event;
using weft::machine;
using weft::stream;

weft::copy_options by(copy_path path, weft::device_id via = {}) {
  weft::copy_options made;
  made.route.path = path;
  made.route.via = via;
  return made;
}

TEST(device_span, as_elements_of_another_type_is_the_same_memory) {
  const machine m = play(wired(2));
  const weft::buffer<std::uint32_t> words{m[1], 6};
  weft::copy(words, std::vector<std::uint32_t>{1, 2, 3, 4, 5, 6});
  const auto pairs = words.span().subspan(2, 4).as<const std::uint64_t>();
  ASSERT_EQ(pairs.size(), 2u);
  EXPECT_EQ(pairs.on(), gpu1);
  std::vector<std::uint64_t> got(pairs.size());
  weft::copy(got, pairs);
  EXPECT_EQ(got, (std::vector<std::uint64_t>{3 + (std::uint64_t{4} << 32), 5 + (std::uint64_t{6} << 32)}));
  const auto refused = [&](std::size_t first, std::size_t count) {
    return error_of([&] { static_cast<void>(words.span().subspan(first, count).as<std::uint64_t>()); });
  };
  EXPECT_EQ(refused(0, 3).code, errc::invalid_argument) << "no whole number";
  EXPECT_EQ(refused(1, 2).code, errc::invalid_argument) << "not aligned";
  EXPECT_NE(refused(1, 2).what.find("as elements of 8 bytes aligned to 8"), std::string::npos) << refused(1, 2).what;
}

// The bytes lie on gpu1; the device that they are mapped for reaches both ends, and the owners each other not at all.
TEST(copy, through_a_peer_mapping_is_made_by_the_device_it_is_for) {
  const machine m = play(wired(3));
  const weft::peer_access to_source{m, gpu2, gpu1}, to_target{m, gpu2, gpu0};
  const byte_buffer source{m[1], 1000}, target{m[0], 1000};
  weft::copy(source, data(1000, 7));
  const weft::peer_mapping<std::uint8_t> view{m, source.span(), gpu2};
  const stream order{m[2]};
  weft::copy(order, target, view.span()).wait();
  EXPECT_TRUE(samples::same(contents(target), data(1000, 7)));
}

// ---- boxes ----------------------------------------------------------------------------------------------------------

struct plane {
  std::size_t pitch, slice, offset;
};

/// What a copy of a box must leave in dst.
void reference(data& dst, const plane& to, const data& src, const plane& from, const weft::box_extent& extent) {
  for (std::size_t z = 0; z < extent.depth; ++z) {
    for (std::size_t y = 0; y < extent.height; ++y) {
      for (std::size_t x = 0; x < extent.width; ++x) {
        dst[to.offset + z * to.slice + y * to.pitch + x] = src[from.offset + z * from.slice + y * from.pitch + x];
      }
    }
  }
}

TEST(copy, is_relayed_only_where_rights_cover_both_steps_and_else_staged) {
  const machine m = play(samples::shipped("dgx_h100"));
  const weft::peer_access in{m, gpu1, gpu0}, out{m, gpu1, gpu2};
  const data source = samples::pattern(std::size_t{4} << 20, 1);
  const auto path_of = [&](weft::device_span<std::uint8_t> dst, weft::device_span<std::uint8_t> src) {
    weft::copy(src, source);
    weft::fill(dst, std::uint8_t{0});
    const copy_path path = weft::copy(dst, src).path;
    EXPECT_TRUE(samples::same(contents(dst), source)) << to_string(path);
    return path;
  };
  const byte_buffer from{m[0], source.size()}, to{m[2], source.size()};
  ASSERT_EQ(path_of(to, from), copy_path::relayed) << "no memory has rights of its own yet";

  const weft::memory_pool near{m[0], {.shareable = true}}, far{m[2], {.shareable = true}};
  const byte_buffer pooled_from{near, source.size()}, pooled_to{far, source.size()};
  EXPECT_EQ(path_of(to, from), copy_path::relayed) << "peer access covers both";
  EXPECT_EQ(path_of(to, pooled_from), copy_path::staged);
  EXPECT_EQ(path_of(pooled_to, from), copy_path::staged);
  near.set_access(m[1], weft::access_right::read);
  EXPECT_EQ(path_of(to, pooled_from), copy_path::relayed) << "gpu1 may read the source";
  EXPECT_EQ(path_of(pooled_to, pooled_from), copy_path::staged);
  far.set_access(m[1], weft::access_right::read);
  EXPECT_EQ(path_of(pooled_to, pooled_from), copy_path::staged) << "gpu1 may not write the destination";
  far.set_access(m[1], weft::access_right::read_write);
  EXPECT_EQ(path_of(pooled_to, pooled_from), copy_path::relayed);

  weft::mapping mapped_from{weft::physical_block{m[0], weft::bytes{source.size()}}};
  weft::mapping mapped_to{weft::physical_block{m[2], weft::bytes{source.size()}}};
  mapped_from.grant(gpu0, weft::access_right::read_write);
  mapped_to.grant(gpu2, weft::access_right::read_write);
  const auto dst = mapped_to.span<std::uint8_t>(), src = mapped_from.span<std::uint8_t>();
  EXPECT_EQ(path_of(dst, src), copy_path::staged);
  mapped_from.grant(gpu1, weft::access_right::read);
  mapped_to.grant(gpu1, weft::access_right::read_write);
  EXPECT_EQ(path_of(dst, src), copy_path::relayed);
}

TEST(box_copy, moves_exactly_its_elements_on_every_path) {
  const machine m = play(wired(3));
  const auto leases = weft::enable_all_peers(m);
  const std::vector<weft::box_extent> extents{{1, 1, 1}, {17, 5, 1}, {300, 40, 7}, {1, 33, 3}, {2000, 60, 2}};
  for (const weft::box_extent& extent : extents) {
    const plane from{extent.width + 3, (extent.width + 3) * (extent.height + 1), 11};
    const plane to{extent.width + 8, (extent.width + 8) * extent.height, 5};
    const std::size_t src_size = from.offset + from.slice * extent.depth;
    const std::size_t dst_size = to.offset + to.slice * extent.depth;
    const data source = samples::pattern(src_size, 1), before = samples::pattern(dst_size, 2);
    data expected = before;
    reference(expected, to, source, from, extent);
    const byte_buffer src = filled(m[0], source);
    for (const auto& [where, options] :
         {std::pair{0, by(copy_path::same_device)}, std::pair{1, by(copy_path::direct)},
          std::pair{1, by(copy_path::staged)}, std::pair{1, by(copy_path::relayed, gpu2)}}) {
      const byte_buffer dst = filled(m[where], before);
      const weft::box<std::uint8_t> to_box{dst.span(), {}, to.offset, to.pitch, to.slice};
      const weft::box<std::uint8_t> from_box{src.span(), {}, from.offset, from.pitch, from.slice};
      const auto report = weft::copy_box(to_box, from_box, extent, options);
      EXPECT_EQ(report.path, options.route.path);
      EXPECT_EQ(report.size.value(), extent.width * extent.height * extent.depth);
      ASSERT_TRUE(samples::same(contents(dst), expected))
          << weft::to_string(options.route.path) << " " << extent.width << "x" << extent.height;
    }
  }
}

TEST(box_copy, whose_extent_overflows_is_refused) {
  const machine m = play(wired(1));
  const byte_buffer a{m[0], 1000}, b{m[0], 1000};
  const std::size_t huge = std::size_t{1} << 32;
  const auto refused = [&](const weft::box_extent& extent, std::size_t pitch, std::size_t slice) {
    return error_of([&] {
             weft::copy_box(weft::box<std::uint8_t>{a.span(), {}, 0, pitch, slice},
                            weft::box<std::uint8_t>{b.span(), {}, 0, pitch, slice}, extent);
           })
        .code;
  };
  EXPECT_EQ(refused({1, huge + 1, 1}, huge, 0), errc::out_of_range) << "2^32 rows of a pitch of 2^32 wrap to the start";
  EXPECT_EQ(refused({1, 1, huge + 1}, 1, huge), errc::out_of_range);
  EXPECT_EQ(refused({huge, huge, 1}, huge, 0), errc::out_of_range);
  EXPECT_EQ(refused({1, 5, 1}, 250, 0), errc::out_of_range) << "one byte too far";
  EXPECT_EQ(refused({1, 4, 1}, 250, 0), errc::not_ready) << "this one fits";
  EXPECT_EQ(refused({4, 0, 2}, 1, 0), errc::not_ready) << "nothing to copy, whatever its pitches";
}

// ---- cancellation ---------------------------------------------------------------------------------------------------

TEST(staged_copy, what_was_submitted_of_one_that_fails_ends_before_what_comes_next_in_the_stream) {
  int failed_in_the_middle = 0;
  for (std::uint64_t nth = 1; nth < 9; ++nth) {
    weft::topology layout = wired(2);
    weft::topology_fault fault;
    fault.what = weft::topology_fault::kind::call_fails;
    fault.call = "copy";
    fault.nth = nth + 2;  // two fill the memory
    layout.faults.push_back(fault);
    const machine m = play(layout, weft::clock_kind::virtual_time);
    constexpr std::size_t size = 8'000'000;
    const byte_buffer src = filled(m[0], samples::pattern(size, 1)), dst = filled(m[1], samples::pattern(size, 2));
    const stream order{m[1]};
    samples::gate held;
    held.hold(order);
    if (error_of([&] { weft::copy(order, dst, src, by(copy_path::staged)); }).code == errc::not_ready) continue;
    ++failed_in_the_middle;
    weft::fill(order, dst, std::uint8_t{7});
    held.open();
    order.synchronize();
    EXPECT_TRUE(samples::same(contents(dst), data(size, 7))) << nth;
  }
  EXPECT_GT(failed_in_the_middle, 3);
}

TEST(cancelled_copy, a_cancelled_staged_copy_ends_between_chunks_and_leaves_a_prefix) {
  for (const copy_path path : {copy_path::staged, copy_path::relayed}) {
    const weft::topology layout = wired(3);
    const machine m = play(layout, weft::clock_kind::virtual_time);
    const auto leases = weft::enable_all_peers(m);
    constexpr std::size_t size = 8'000'000;
    const data source = samples::pattern(size, 1), before = samples::pattern(size, 2);
    const byte_buffer src = filled(m[0], source), dst = filled(m[1], before);
    const stream order{m[0]};
    std::stop_source stop;
    weft::copy_options options = by(path, path == copy_path::relayed ? gpu2 : weft::device_id{});
    options.stop = stop.get_token();
    const double whole =
        weft::route(weft::route_facts_of(layout), gpu0, gpu1, weft::bytes{size}, options.route)->predicted_seconds;
    const event done = weft::copy(order, dst, src, options);
    EXPECT_EQ(done.wait_for(std::chrono::nanoseconds{static_cast<std::int64_t>(whole * 0.5e9)}),
              weft::wait_outcome::timed_out);
    stop.request_stop();
    EXPECT_EQ(error_of([&] { done.wait(); }).code, errc::cancelled);
    const data after = contents(dst);
    const auto end =
        static_cast<std::size_t>(std::mismatch(after.begin(), after.end(), source.begin()).first - after.begin());
    EXPECT_GT(end, size / 10);
    EXPECT_LT(end, size * 9 / 10);
    EXPECT_TRUE(std::equal(after.begin() + static_cast<std::ptrdiff_t>(end), after.end(),
                           before.begin() + static_cast<std::ptrdiff_t>(end)))
        << "behind the prefix nothing has changed";
    weft::copy(order, dst, src, by(path, options.route.via)).wait();
    EXPECT_TRUE(samples::same(contents(dst), source)) << "the next copy is not hurt";
  }
}

TEST(cancelled_copy, a_copy_stopped_before_its_start_moves_nothing) {
  const machine m = play(wired(2));
  const data before = samples::pattern(5000, 2);
  const byte_buffer src = filled(m[0], samples::pattern(5000, 1)), dst = filled(m[1], before);
  std::stop_source stop;
  stop.request_stop();
  weft::copy_options options;
  options.stop = stop.get_token();
  EXPECT_EQ(error_of([&] { weft::copy(dst, src, options); }).code, errc::cancelled);
  const stream order{m[1]};
  EXPECT_EQ(error_of([&] { weft::copy(order, dst, src, options).wait(); }).code, errc::cancelled);
  EXPECT_TRUE(samples::same(contents(dst), before));
}

// ---- batches --------------------------------------------------------------------------------------------------------

TEST(copy_batch, a_batch_of_neighbours_is_one_copy_and_of_others_many) {
  const machine m = play(wired(2));
  const auto leases = weft::enable_all_peers(m);
  const data source = samples::pattern(6400, 1);
  const byte_buffer src = filled(m[0], source), dst{m[1], 6400};
  const stream order{m[0]};
  std::vector<weft::copy_part> parts;
  for (std::size_t i = 0; i < 64; ++i)
    parts.push_back(weft::part(dst.subspan(i * 100, 100), src.subspan(i * 100, 100)));
  weft::copy_batch(order, parts).wait();
  EXPECT_EQ(weft::counters(m).direct.copies, 1U);
  EXPECT_EQ(weft::counters(m).direct.bytes, 6400U);
  EXPECT_TRUE(samples::same(contents(dst), source));
  parts.clear();
  for (std::size_t i = 0; i < 64; ++i)
    parts.push_back(weft::part(dst.subspan(i * 100, 99), src.subspan((63 - i) * 100, 99)));
  weft::copy_batch(order, parts).wait();
  EXPECT_EQ(weft::counters(m).direct.copies, 65U);
  data expected = source;
  for (std::size_t i = 0; i < 64; ++i)
    std::copy_n(source.begin() + static_cast<std::ptrdiff_t>((63 - i) * 100), 99,
                expected.begin() + static_cast<std::ptrdiff_t>(i * 100));
  EXPECT_TRUE(samples::same(contents(dst), expected));
}

TEST(copy_batch, refuses_what_it_would_not_do) {
  const machine m = play(wired(2));
  const byte_buffer a{m[0], 100}, b{m[0], 100};
  const stream order{m[0]};
  const std::vector<weft::copy_part> parts{weft::part(b.span(), a.span())};
  EXPECT_EQ(error_of([&] { weft::copy_batch(order, parts, {.verify = weft::verification::full}).wait(); }).code,
            errc::invalid_argument);
}

TEST(copy_batch, does_not_join_two_allocations_that_happen_to_be_neighbours) {
  const machine m = play(wired(1));
  std::vector<byte_buffer> sources, targets;
  std::vector<weft::copy_part> parts;
  for (std::uint64_t i = 0; i < 8; ++i) {
    sources.push_back(filled(m[0], samples::pattern(256, i)));
    targets.emplace_back(m[0], 256);
  }
  for (std::size_t i = 0; i < 8; ++i) parts.push_back(weft::part(targets[i], sources[i]));
  const stream order{m[0]};
  weft::copy_batch(order, parts).wait();
  for (std::size_t i = 0; i < 8; ++i) EXPECT_TRUE(samples::same(contents(targets[i]), samples::pattern(256, i)));
}

TEST(copy_batch, may_mix_paths) {
  const machine m = play(wired(3));
  const weft::peer_access lease{m, gpu0, gpu1};
  const data source = samples::pattern(300'000, 1);
  const byte_buffer src = filled(m[0], source), near{m[1], 100'000}, far{m[2], 100'000};
  data host(100'000);
  const stream order{m[0]};
  const std::vector<weft::copy_part> parts{weft::part(near, src.subspan(0, 100'000)),
                                           weft::part(far, src.subspan(100'000, 100'000)),
                                           weft::part(host, src.subspan(200'000, 100'000))};
  weft::copy_batch(order, parts).wait();
  const auto piece = [&](std::ptrdiff_t i) {
    return data(source.begin() + i * 100'000, source.begin() + (i + 1) * 100'000);
  };
  EXPECT_TRUE(samples::same(contents(near), piece(0)));
  EXPECT_TRUE(samples::same(contents(far), piece(1)));
  EXPECT_TRUE(samples::same(host, piece(2)));
  const auto counted = weft::counters(m);
  EXPECT_EQ(counted.direct.copies, 1U);
  EXPECT_EQ(counted.staged.copies, 1U);
}

// ---- counters -------------------------------------------------------------------------------------------------------

TEST(copy_counters, are_the_sum_of_what_was_done_by_path_failures_included) {
  weft::topology layout = wired(3);
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::copy_fails;
  fault.from = gpu1;
  fault.to = gpu0;
  fault.nth = 2;
  layout.faults.push_back(fault);
  const machine m = play(layout);
  const auto leases = weft::enable_all_peers(m);
  const byte_buffer a = filled(m[0], samples::pattern(1000, 1)), a2{m[0], 1000}, b{m[1], 1000};
  const stream order{m[0]};
  weft::copy(a2, a);
  weft::copy(order, b, a).wait();
  weft::copy(b, a, by(copy_path::staged));
  weft::copy(order, b, a, by(copy_path::relayed, gpu2)).wait();
  weft::copy(a2, b);
  EXPECT_EQ(error_of([&] { weft::copy(a2, b); }).code, errc::copy_failed);
  weft::copy(order, a2, b).wait();
  static_cast<void>(contents(a2));
  const auto c = weft::counters(m);
  const auto expect = [](const weft::copy_counters::one& got, std::uint64_t copies, std::uint64_t failed,
                         const char* path) {
    // what failed was not taken: it counts as failed alone
    EXPECT_EQ(got.copies, copies) << path;
    EXPECT_EQ(got.bytes, copies * 1000) << path;
    EXPECT_EQ(got.failed, failed) << path;
  };
  expect(c.host_to_device, 1, 0, "host_to_device");
  expect(c.device_to_host, 1, 0, "device_to_host");
  expect(c.same_device, 1, 0, "same_device");
  expect(c.direct, 3, 1, "direct");
  expect(c.staged, 1, 0, "staged");
  expect(c.relayed, 1, 0, "relayed");
}

TEST(copy_counters, count_a_refusal_in_a_stream_as_one_of_a_synchronous_copy) {
  weft::topology layout = wired(2);
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::call_fails;
  fault.nth = 0;
  for (const char* const call : {"copy", "copy_batch"}) {
    fault.call = call;
    layout.faults.push_back(fault);
  }
  const machine m = play(layout);
  const byte_buffer a{m[0], 1000}, b{m[0], 1000}, far{m[1], 1000};
  const stream order{m[0]};
  EXPECT_EQ(error_of([&] { weft::copy(b, a); }).code, errc::resource_exhausted);
  EXPECT_EQ(weft::counters(m).same_device.failed, 1U);
  EXPECT_EQ(error_of([&] { weft::copy(order, b, a); }).code, errc::resource_exhausted);
  EXPECT_EQ(weft::counters(m).same_device.failed, 2U);
  for (const weft::copy_part& part : {weft::part(b, a), weft::part(far, a)})
    EXPECT_EQ(error_of([&] { weft::copy_batch(order, {&part, 1}); }).code, errc::resource_exhausted);
  EXPECT_EQ(weft::counters(m).same_device.failed, 3U) << "a batch as well";
  EXPECT_EQ(weft::counters(m).staged.failed, 1U);
  EXPECT_EQ(weft::counters(m).same_device.copies, 0U);
}

TEST(traffic, counts_what_crossed_each_link_once) {
  const weft::topology layout = wired(2);
  const machine m = play(layout);
  const auto leases = weft::enable_all_peers(m);
  const byte_buffer a = filled(m[0], samples::pattern(1000, 1)), b{m[1], 1000};
  weft::copy(b, a);
  weft::copy(b, a, by(copy_path::staged));
  const auto seen = m.traffic().bytes_on_link;
  ASSERT_EQ(seen.size(), layout.links.size());
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const auto& link = layout.links[i];
    const bool up0 = link.from == 2 && link.to == 0, down0 = link.from == 0 && link.to == 2,
               up1 = link.from == 2 && link.to == 1, across = link.from == 0 && link.to == 1;
    EXPECT_EQ(seen[i], up0 || down0 || up1 || across ? 1000U : 0U) << link.from << " to " << link.to;
  }
}

TEST(fill, writes_every_pattern_size_at_any_offset_and_nothing_beside) {
  const machine m = play(wired(1));
  const auto check = [&]<class T>(T value) {
    const weft::buffer<T> memory{m[0], 1000};
    std::vector<T> expected(1000);
    const data raw = samples::pattern(1000 * sizeof(T), sizeof(T));
    std::memcpy(static_cast<void*>(expected.data()), raw.data(), raw.size());
    weft::copy(memory, expected);
    weft::fill(memory.subspan(3, 501), value);
    std::fill_n(expected.begin() + 3, 501, value);
    std::vector<T> got(1000);
    weft::copy(got, memory);
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), raw.size()), 0) << sizeof(T) << " bytes";
  };
  struct sixteen {
    std::uint64_t a, b;
  };
  check(std::uint8_t{7});
  check(std::uint16_t{0x1234});
  check(std::uint32_t{0x12345678});
  check(3.25);
  check(sixteen{0x0123456789abcdef, 0xfedcba9876543210});
}

}  // namespace copy_test
