// SPDX-License-Identifier: Apache-2.0
#include "weft/profile/machine_profile.hpp"

#include <gtest/gtest.h>

#include <random>

namespace machine_profile_test {

using std::chrono::nanoseconds;
using weft::device_id;
using weft::device_profile;
using weft::machine_profile;
using weft::profile_context;
using weft::summarise;
using weft::trace_kind;
using weft::trace_record;

constexpr device_id host{};
constexpr device_id gpu0{0};
constexpr device_id gpu1{1};
constexpr device_id gpu2{2};

trace_record record(trace_kind kind, device_id device, std::int64_t from, std::int64_t to) {
  trace_record made;
  made.kind = kind;
  made.device = device;
  made.name = "k";
  made.started = nanoseconds{from};
  made.ended = nanoseconds{to};
  return made;
}

trace_record copy(device_id from, device_id to, std::int64_t begin, std::int64_t end, std::uint64_t bytes) {
  trace_record made = record(trace_kind::copy, from.value() < 0 ? to : from, begin, end);
  made.from = from;
  made.to = to;
  made.bytes = bytes;
  return made;
}

void expect_parts(const device_profile& d, std::int64_t compute, std::int64_t transfer, std::int64_t synchronisation,
                  std::int64_t idle) {
  EXPECT_EQ(d.compute.count(), compute) << d.name;
  EXPECT_EQ(d.transfer.count(), transfer) << d.name;
  EXPECT_EQ(d.synchronisation.count(), synchronisation) << d.name;
  EXPECT_EQ(d.idle.count(), idle) << d.name;
}

TEST(machine_profile, gives_each_instant_to_the_first_part_that_applies) {
  const std::vector<trace_record> records{
      copy(host, gpu0, 100, 200, 64),
      record(trace_kind::wait, gpu0, 150, 260),    // 60 of them behind nothing
      record(trace_kind::kernel, gpu0, 180, 240),  // hides 20 of the copy, leaves 20 of the wait
      record(trace_kind::host_call, gpu1, 120, 130),
      record(trace_kind::fill, gpu1, 300, 340),
  };
  const machine_profile p = summarise(records, {.device_names = {"a", "b"}});
  EXPECT_EQ(p.wall.count(), 240);
  ASSERT_EQ(p.devices.size(), 2U);
  expect_parts(p.devices[0], 60, 80, 20, 80);
  EXPECT_EQ(p.devices[0].overlapped_transfer.count(), 20);
  EXPECT_EQ(p.devices[0].waits, 1U);
  expect_parts(p.devices[1], 0, 40, 10, 190);
  EXPECT_EQ(p.devices[1].fills, 1U);
  EXPECT_EQ(p.compute().count(), 60);
  EXPECT_EQ(p.transfer().count(), 120);
  EXPECT_EQ(p.synchronisation().count(), 30);
  EXPECT_EQ(p.idle().count(), 270);
}

TEST(machine_profile, counts_a_copy_at_both_of_its_ends_and_not_where_it_was_ordered) {
  trace_record peer = copy(gpu0, gpu1, 0, 10, 1000);
  peer.device = gpu2;
  trace_record within = copy(gpu0, gpu0, 20, 30, 5);
  const machine_profile p = summarise(std::vector{peer, within}, {.device_names = {"a", "b", "c"}});
  expect_parts(p.devices[0], 0, 20, 0, 10);
  expect_parts(p.devices[1], 0, 10, 0, 20);
  expect_parts(p.devices[2], 0, 0, 0, 30);
  EXPECT_EQ(p.devices[0].bytes_out, 1000U);
  EXPECT_EQ(p.devices[0].bytes_in, 0U);
  EXPECT_EQ(p.devices[0].bytes_within, 5U);
  EXPECT_EQ(p.devices[0].copies, 2U);
  EXPECT_EQ(p.devices[1].bytes_in, 1000U);
  EXPECT_EQ(p.devices[1].copies, 1U);
  EXPECT_EQ(p.devices[2].copies, 0U);
}

TEST(machine_profile, tells_the_spread_of_each_kernel) {
  std::vector<trace_record> records;
  for (const std::int64_t length : {40, 10, 30, 20}) {
    records.push_back(record(trace_kind::kernel, gpu0, 1000, 1000 + length));
    records.back().name = "blur";
    records.back().items = 7;
  }
  records.push_back(record(trace_kind::kernel, gpu1, 0, 500));
  records.back().name = "saxpy";
  records.back().failed = true;
  const machine_profile p = summarise(records);
  ASSERT_EQ(p.kernels.size(), 2U);
  EXPECT_EQ(p.kernels[0].name, "saxpy") << "the longest total first";
  const weft::kernel_profile& blur = p.kernels[1];
  EXPECT_EQ(blur.count, 4U);
  EXPECT_EQ(blur.items, 28);
  EXPECT_EQ(blur.total.count(), 100);
  EXPECT_EQ(blur.shortest.count(), 10);
  EXPECT_EQ(blur.median.count(), 20);
  EXPECT_EQ(blur.longest.count(), 40);
  EXPECT_EQ(p.failed, 1U);
}

TEST(machine_profile, rates_a_pair_over_the_time_in_which_any_of_its_copies_ran) {
  const machine_profile p = summarise(std::vector{copy(gpu0, gpu1, 0, 100, 500), copy(gpu0, gpu1, 50, 200, 500),
                                                  copy(gpu1, gpu0, 0, 10, 1), copy(host, gpu0, 7, 7, 3)});
  ASSERT_EQ(p.pairs.size(), 3U);
  EXPECT_EQ(p.pairs[0].from, gpu0);
  EXPECT_EQ(p.pairs[0].to, gpu1);
  EXPECT_EQ(p.pairs[0].bytes, 1000U);
  EXPECT_EQ(p.pairs[0].copies, 2U);
  EXPECT_DOUBLE_EQ(p.pairs[0].bytes_per_second(), 1000 / 200e-9);
  EXPECT_EQ(p.pairs[1].from, host);
  EXPECT_EQ(p.pairs[1].bytes_per_second(), 0.0) << "no time passed: no rate";
}

TEST(machine_profile, a_profile_of_nothing_is_empty_and_a_device_without_work_all_idle) {
  const machine_profile nothing = summarise({}, {.device_names = {"a"}});
  EXPECT_EQ(nothing.wall.count(), 0);
  ASSERT_EQ(nothing.devices.size(), 1U);
  expect_parts(nothing.devices[0], 0, 0, 0, 0);
  EXPECT_FALSE(to_string(nothing).empty());
  const machine_profile one =
      summarise(std::vector{record(trace_kind::kernel, gpu0, 5, 9)}, {.device_names = {"", ""}});
  expect_parts(one.devices[1], 0, 0, 0, 4);
}

TEST(machine_profile, does_not_take_spans_and_marks_for_work) {
  const std::vector<trace_record> records{record(trace_kind::span, host, 0, 1'000'000),
                                          record(trace_kind::mark, gpu0, 2'000'000, 2'000'000),
                                          record(trace_kind::kernel, gpu0, 10, 20)};
  EXPECT_EQ(summarise(records).wall.count(), 10);
}

TEST(machine_profile, leaves_out_the_time_in_which_nobody_recorded) {
  const std::vector<trace_record> records{record(trace_kind::kernel, gpu0, 0, 30),
                                          record(trace_kind::wait, gpu0, 90, 100)};
  profile_context context;
  context.paused = {{nanoseconds{20}, nanoseconds{80}}};
  const machine_profile p = summarise(records, context);
  EXPECT_EQ(p.wall.count(), 40);
  expect_parts(p.devices[0], 20, 0, 10, 10);
}

TEST(machine_profile, a_device_id_of_no_machine_takes_one_entry) {
  const machine_profile p = summarise(std::vector{record(trace_kind::kernel, device_id{2'000'000'000}, 0, 1)});
  ASSERT_EQ(p.devices.size(), 1U);
  EXPECT_EQ(p.devices[0].name, "gpu2000000000");
}

/// The same, worked out instant by instant.
struct by_instant {
  std::int64_t compute = 0, transfer = 0, synchronisation = 0, idle = 0, overlapped = 0;
};
by_instant look_at_each(const std::vector<trace_record>& records, device_id d, const profile_context& context) {
  const auto within = [](const trace_record& r, std::int64_t t) {
    return r.started.count() <= t && t < r.ended.count();
  };
  std::int64_t first = INT64_MAX, last = INT64_MIN;
  for (const trace_record& r : records) {
    first = std::min(first, r.started.count());
    last = std::max({last, r.ended.count(), r.started.count()});
  }
  by_instant sum;
  for (std::int64_t t = first; t < last; ++t) {
    bool paused = false, compute = false, transfer = false, waiting = false;
    for (const weft::time_range& p : context.paused) paused |= p.begin.count() <= t && t < p.end.count();
    for (const trace_record& r : records) {
      if (!within(r, t)) continue;
      compute |= r.kind == trace_kind::kernel && r.device == d;
      transfer |=
          (r.kind == trace_kind::fill && r.device == d) || (r.kind == trace_kind::copy && (r.from == d || r.to == d));
      waiting |= (r.kind == trace_kind::wait || r.kind == trace_kind::host_call) && r.device == d;
    }
    if (paused) continue;
    ++(compute ? sum.compute : transfer ? sum.transfer : waiting ? sum.synchronisation : sum.idle);
    if (compute && transfer) ++sum.overlapped;
  }
  return sum;
}

TEST(machine_profile, parts_of_random_records_sum_to_the_wall_time_and_agree_with_each_instant) {
  constexpr unsigned seed = 20240611;
  std::mt19937 random{seed};
  const auto number = [&random](int low, int high) { return std::uniform_int_distribution{low, high}(random); };
  for (int round = 0; round < 400; ++round) {
    std::vector<trace_record> records;
    for (int i = number(1, 25); i > 0; --i) {
      const int begin = number(-50, 150);
      const device_id on{number(-1, 2)};
      // some end before they begin: a clock that was set back must not make time negative
      trace_record r = record(static_cast<trace_kind>(number(0, 4)), on, begin, begin + number(-3, 60));
      r.from = device_id{number(-1, 2)};
      r.to = device_id{number(-1, 2)};
      r.bytes = 1;
      records.push_back(r);
    }
    profile_context context{.device_names = {"a", "b", "c"}};
    for (int i = number(0, 2); i > 0; --i) {
      const int begin = number(-60, 200);
      context.paused.push_back({nanoseconds{begin}, nanoseconds{begin + number(0, 40)}});
    }
    const machine_profile p = summarise(records, context);
    ASSERT_EQ(p.devices.size(), 3U);
    nanoseconds all{0};
    for (const device_profile& d : p.devices) {
      const by_instant expected = look_at_each(records, d.device, context);
      expect_parts(d, expected.compute, expected.transfer, expected.synchronisation, expected.idle);
      EXPECT_EQ(d.overlapped_transfer.count(), expected.overlapped);
      for (const nanoseconds part : {d.compute, d.transfer, d.synchronisation, d.idle}) EXPECT_GE(part.count(), 0);
      EXPECT_EQ(d.compute + d.transfer + d.synchronisation + d.idle, p.wall);
      EXPECT_LE(d.overlapped_transfer, d.compute);
      all += d.compute + d.transfer + d.synchronisation;
    }
    EXPECT_LE(all, p.wall * 3);
    ASSERT_FALSE(testing::Test::HasFailure()) << "round " << round << " of seed " << seed;
  }
}

TEST(machine_profile, reads_as_tables_that_say_when_they_are_simulated) {
  std::vector<trace_record> records{copy(host, gpu0, 0, 1'000'000, 1 << 20),
                                    record(trace_kind::kernel, gpu0, 1'000'000, 4'000'000)};
  records[1].name = "two\nlines";
  machine_profile p = summarise(records, {.device_names = {"gpu0"}, .simulated = true, .dropped = 3});
  std::string text = to_string(p);
  EXPECT_EQ(text,
            "profile of 4.000 ms, simulated: a virtual clock, not a measurement\n"
            "3 records did not fit, and are not in here\n"
            "\n"
            "device            compute           transfer  synchronisation          idle  hidden transfer     in  out"
            "  kernels  copies\n"
            "gpu0    3.000 ms (75.0 %)  1.000 ms (25.0 %)     0 ns (0.0 %)  0 ns (0.0 %)             0 ns  1 MiB  0 B"
            "        1       1\n"
            "\n"
            "kernel     runs     total  shortest    median   longest\n"
            "two lines     1  3.000 ms  3.000 ms  3.000 ms  3.000 ms\n"
            "\n"
            "from  to    bytes  copies        rate\n"
            "host  gpu0  1 MiB       1  1.049 GB/s\n")
      << text;
  p.simulated = false;
  EXPECT_EQ(to_string(p).find("simulated"), std::string::npos);
}

}  // namespace machine_profile_test
