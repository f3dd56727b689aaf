// SPDX-License-Identifier: Apache-2.0
#include "weft/core/trace.hpp"

#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace trace_test {

using std::chrono::nanoseconds;
using weft::trace_kind;
using weft::trace_record;

trace_record sample() {
  trace_record made;
  made.kind = trace_kind::copy;
  made.device = weft::device_id{1};
  made.stream = 2;
  made.name = "gpu0 → gpu1";
  made.started = nanoseconds{10};
  made.ended = nanoseconds{20};
  made.bytes = 30;
  made.items = 40;
  return made;
}

TEST(trace_hash, is_another_for_each_thing_that_can_differ) {
  std::vector<trace_record> differing(10, sample());
  differing[1].kind = trace_kind::fill;
  differing[2].device = weft::device_id{2};
  differing[3].stream = 3;
  differing[4].name = "gpu0 → gpu2";
  differing[5].started = nanoseconds{11};
  differing[6].ended = nanoseconds{21};
  differing[7].bytes = 31;
  differing[8].items = 41;
  differing[9].failed = true;
  std::set<std::uint64_t> seen{weft::trace_hash({})};
  for (const trace_record& r : differing) seen.insert(weft::trace_hash({&r, 1}));
  EXPECT_EQ(seen.size(), 11U);
}

TEST(trace_hash, depends_on_the_order_and_on_nothing_that_a_run_may_choose) {
  trace_record other = sample();
  other.bytes = 31;
  const std::vector<trace_record> ab{sample(), other}, ba{other, sample()};
  EXPECT_NE(weft::trace_hash(ab), weft::trace_hash(ba));
  trace_record same = sample();
  same.submitted = nanoseconds{5};
  same.launch = 7;
  const trace_record once = sample();
  EXPECT_EQ(weft::trace_hash({&same, 1}), weft::trace_hash({&once, 1}));
}

TEST(trace_hash, the_hash_of_nothing_is_the_start_of_fnv_1a) { EXPECT_EQ(weft::trace_hash({}), 0xcbf29ce484222325U); }

TEST(trace_sink, keeps_what_it_has_room_for_and_counts_the_rest) {
  weft::trace_sink sink{3};
  for (std::uint64_t i = 0; i < 5; ++i) {
    trace_record r = sample();
    r.bytes = i;
    sink.add(std::move(r));
  }
  const auto taken = sink.take();
  ASSERT_EQ(taken.size(), 3U);
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(taken[i].bytes, i);
  EXPECT_EQ(sink.dropped(), 2U);
  EXPECT_TRUE(sink.take().empty());
  sink.add(sample());
  EXPECT_EQ(sink.take().size(), 1U) << "room again after a take";
}

TEST(trace_sink, loses_nothing_to_several_threads) {
  weft::trace_sink sink;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&sink] {
      for (int i = 0; i < 500; ++i) sink.add(sample());
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(sink.take().size(), 2000U);
  EXPECT_EQ(sink.dropped(), 0U);
}

}  // namespace trace_test
