// SPDX-License-Identifier: Apache-2.0
#include "weft/profile/chrome_trace.hpp"

#include <gtest/gtest.h>

#ifdef WEFT_HAS_JSON
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <utility>

namespace chrome_trace_test {

using nlohmann::json;
using std::chrono::nanoseconds;
using weft::chrome_trace;
using weft::chrome_trace_context;
using weft::device_id;
using weft::trace_kind;
using weft::trace_record;

trace_record record(trace_kind kind, int device, std::uint64_t stream, std::int64_t from, std::int64_t to) {
  trace_record made;
  made.kind = kind;
  made.device = device_id{device};
  made.stream = stream;
  made.name = "saxpy";
  made.started = nanoseconds{from};
  made.ended = nanoseconds{to};
  return made;
}

json parsed(const std::string& text) {
  json document = json::parse(text, nullptr, false);
  EXPECT_FALSE(document.is_discarded()) << text.substr(0, 2000);
  return document.is_discarded() ? json{{"traceEvents", json::array()}} : document;
}

std::vector<json> events_of(const json& document, const std::string& phase) {
  std::vector<json> list;
  for (const json& event : document.at("traceEvents")) {
    if (event.at("ph") == phase) list.push_back(event);
  }
  return list;
}

std::int64_t ns_of(const json& microseconds) { return std::llround(microseconds.get<double>() * 1000); }

TEST(chrome_trace, writes_a_complete_event_for_each_record_with_times_to_the_nanosecond) {
  trace_record kernel = record(trace_kind::kernel, 1, 7, 5'000'001'234, 5'000'003'240);
  kernel.submitted = nanoseconds{5'000'000'234};
  kernel.items = 99;
  kernel.launch = 4;
  kernel.failed = true;
  trace_record copy = record(trace_kind::copy, 0, 0, 5'000'000'000, 5'000'001'000);
  copy.name = "";
  copy.bytes = std::numeric_limits<std::uint64_t>::max();
  copy.to = device_id{0};
  const json document = parsed(chrome_trace(std::vector{kernel, copy}, {.device_names = {"", "fast one"}}));
  const auto events = events_of(document, "X");
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].at("name"), "copy") << "what has no name is called by its kind";
  EXPECT_EQ(events[0].at("ts"), 0) << "times count from the first record";
  EXPECT_EQ(events[0].at("args"),
            (json{{"from", "host"}, {"to", "gpu0"}, {"bytes", std::numeric_limits<std::uint64_t>::max()}}));
  EXPECT_EQ(events[1].at("name"), "saxpy");
  EXPECT_EQ(events[1].at("cat"), "kernel");
  EXPECT_EQ(events[1].at("ts"), 1.234);
  EXPECT_EQ(events[1].at("dur"), 2.006);
  EXPECT_EQ(events[1].at("args"), (json{{"queued_us", 1}, {"items", 99}, {"launch", 4}, {"failed", true}}));
  EXPECT_NE(events[0].at("pid"), events[1].at("pid"));
  EXPECT_EQ(document.at("otherData").at("clock"), "wall");
  EXPECT_EQ(document.at("otherData").at("dropped_records"), 0);
}

TEST(chrome_trace, names_a_process_for_each_device_and_a_thread_for_each_stream) {
  const json document =
      parsed(chrome_trace(std::vector{record(trace_kind::kernel, 1, 7, 0, 1), record(trace_kind::span, -1, 3, 0, 1),
                                      record(trace_kind::kernel, 1, 2, 0, 1)},
                          {.device_names = {"", "fast one"}}));
  std::map<std::string, std::vector<std::string>> names;
  for (const json& event : events_of(document, "M")) {
    if (event.at("args").contains("name")) names[event.at("name")].push_back(event.at("args").at("name"));
  }
  EXPECT_EQ(names["process_name"], (std::vector<std::string>{"host", "gpu1 fast one"}));
  EXPECT_EQ(names["thread_name"], (std::vector<std::string>{"stream 3", "stream 2", "stream 7"}));
  for (const json& event : document.at("traceEvents")) EXPECT_GT(event.at("pid").get<int>(), 0) << "0 is the idle task";
}

trace_record copy_to(int device, std::uint64_t stream, std::int64_t from, std::int64_t to, std::uint64_t launch = 0) {
  trace_record made = record(trace_kind::copy, device, stream, from, to);
  made.to = device_id{device};
  made.bytes = 1000;
  made.launch = launch;
  return made;
}

TEST(chrome_trace, names_the_process_of_a_counter_that_has_no_thread) {
  const json document = parsed(chrome_trace(std::vector{copy_to(1, 7, 0, 100)}));
  std::map<std::int64_t, std::string> names;
  for (const json& event : events_of(document, "M")) {
    if (event.at("name") == "process_name") names[event.at("pid")] = event.at("args").at("name");
  }
  EXPECT_EQ(names, (std::map<std::int64_t, std::string>{{1, "host"}, {3, "gpu1"}}));
  EXPECT_FALSE(events_of(document, "C").empty());
  for (const json& counter : events_of(document, "C")) EXPECT_TRUE(names.contains(counter.at("pid"))) << counter;
}

TEST(chrome_trace, draws_an_arrow_from_each_copy_to_the_kernel_that_waited_for_it) {
  trace_record of_launch = record(trace_kind::kernel, 1, 9, 400, 500);
  of_launch.launch = 5;
  const std::vector<trace_record> records{
      copy_to(0, 3, 0, 100),
      record(trace_kind::kernel, 0, 3, 100, 200),  // one stream: an arrow
      record(trace_kind::kernel, 0, 3, 200, 300),  // its copy has one already
      copy_to(1, 4, 100, 300, 5),
      of_launch,  // one launch in two streams: an arrow
      copy_to(2, 6, 0, 900),
      record(trace_kind::kernel, 2, 6, 800, 950),  // not over yet when the kernel began: none
      copy_to(2, 7, 950, 960),
      record(trace_kind::kernel, 2, 8, 970, 990)};  // another stream: none
  const json document = parsed(chrome_trace(records));
  const auto starts = events_of(document, "s");
  const auto ends = events_of(document, "f");
  ASSERT_EQ(starts.size(), 2U) << document;
  ASSERT_EQ(ends.size(), 2U);
  std::set<std::pair<std::int64_t, std::int64_t>> arrows;
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(starts[i].at("id"), ends[i].at("id"));
    EXPECT_EQ(ends[i].at("bp"), "e") << "the end binds to the event that encloses it";
    arrows.emplace(ns_of(starts[i].at("ts")), ns_of(ends[i].at("ts")));
    // an arrow's ends lie in events of their tracks
    for (const json* end : {&starts[i], &ends[i]}) {
      const auto complete = events_of(document, "X");
      EXPECT_TRUE(std::any_of(complete.begin(), complete.end(), [&](const json& event) {
        return event.at("tid") == end->at("tid") && event.at("ts") == end->at("ts");
      })) << *end;
    }
  }
  EXPECT_EQ(arrows, (std::set<std::pair<std::int64_t, std::int64_t>>{{0, 100}, {100, 400}}));
}

TEST(chrome_trace, counts_bytes_under_way_and_work_that_is_submitted_and_not_over) {
  std::vector<trace_record> records{copy_to(0, 1, 100, 300), copy_to(1, 1, 200, 300),
                                    record(trace_kind::kernel, 0, 1, 300, 400)};
  for (trace_record& r : records) r.submitted = nanoseconds{50};
  const auto counters = events_of(parsed(chrome_trace(records)), "C");
  std::map<std::string, std::vector<std::pair<std::int64_t, std::int64_t>>> seen;
  for (const json& one : counters) {
    seen[one.at("name").get<std::string>() + " " + std::to_string(one.at("pid").get<int>())].emplace_back(
        ns_of(one.at("ts")), one.at("args").at("value").get<std::int64_t>());
  }
  using values = std::vector<std::pair<std::int64_t, std::int64_t>>;
  EXPECT_EQ(seen["bytes in flight 1"], (values{{0, 1000}, {100, 2000}, {200, 0}}));
  EXPECT_EQ(seen["work submitted 2"], (values{{0, 2}, {200, 1}, {300, 0}}))
      << "before the first record started, time is 0";
  EXPECT_EQ(seen["work submitted 3"], (values{{0, 1}, {200, 0}}));
}

TEST(chrome_trace, takes_a_submission_at_0_for_unknown_but_not_on_a_virtual_clock) {
  const std::vector<trace_record> records{record(trace_kind::kernel, 0, 0, 3000, 5000)};
  for (const bool simulated : {false, true}) {
    const json document = parsed(chrome_trace(records, {.simulated = simulated}));
    EXPECT_EQ(events_of(document, "C").empty(), !simulated);
    const json kernel = events_of(document, "X").at(0);
    EXPECT_EQ(kernel.contains("args"), simulated);
    if (simulated) {
      EXPECT_EQ(kernel.at("args"), (json{{"queued_us", 3}}));
    }
  }
}

TEST(chrome_trace, says_when_its_clock_is_virtual) {
  const json document = parsed(chrome_trace(std::vector{record(trace_kind::kernel, 0, 0, 0, 1)}, {.simulated = true}));
  EXPECT_EQ(document.at("otherData").at("clock"), "virtual, simulated: not a measurement");
  for (const json& event : events_of(document, "M")) {
    if (event.at("name") != "process_name") continue;
    EXPECT_EQ(event.at("args").at("name"), "gpu0 (simulated)");
  }
}

TEST(chrome_trace, an_empty_trace_is_valid) { EXPECT_TRUE(parsed(chrome_trace({})).at("traceEvents").empty()); }

TEST(chrome_trace, gives_overlapping_records_of_a_stream_tracks_of_their_own) {
  const json document = parsed(
      chrome_trace(std::vector{record(trace_kind::span, -1, 0, 0, 100), record(trace_kind::span, -1, 0, 50, 150),
                               record(trace_kind::span, -1, 0, 100, 120), record(trace_kind::mark, -1, 0, 60, 60)}));
  const auto spans = events_of(document, "X");
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_NE(spans[0].at("tid"), spans[1].at("tid"));
  EXPECT_EQ(spans[0].at("tid"), spans[2].at("tid")) << "the first track is free again";
  const auto marks = events_of(document, "i");
  ASSERT_EQ(marks.size(), 1U);
  EXPECT_EQ(marks[0].at("tid"), spans[0].at("tid"));
  EXPECT_FALSE(marks[0].contains("dur"));
}

TEST(chrome_trace, never_has_two_overlapping_events_on_one_track) {
  constexpr unsigned seed = 99;
  std::mt19937_64 random{seed};
  for (int round = 0; round < 60; ++round) {
    std::vector<trace_record> records;
    // real clocks show large numbers: microseconds as doubles must still tell nanoseconds apart
    const auto origin = static_cast<std::int64_t>(random() % 4'000'000'000'000'000'000ULL);
    for (int i = 0; i < 200; ++i) {
      const auto from = origin + static_cast<std::int64_t>(random() % 2000);
      records.push_back(record(static_cast<trace_kind>(random() % 7), static_cast<int>(random() % 4) - 1, random() % 3,
                               from, from + static_cast<std::int64_t>(random() % 100) - 5));
    }
    const json document = parsed(chrome_trace(records));
    std::map<std::pair<int, int>, std::vector<std::pair<std::int64_t, std::int64_t>>> tracks;
    std::map<int, std::set<int>> processes_of_thread;
    std::size_t seen = events_of(document, "i").size();
    for (const json& event : events_of(document, "X")) {
      ASSERT_GE(event.at("dur").get<double>(), 0);
      const std::int64_t start = ns_of(event.at("ts"));
      tracks[{event.at("pid"), event.at("tid")}].emplace_back(start, start + ns_of(event.at("dur")));
      processes_of_thread[event.at("tid")].insert(event.at("pid").get<int>());
      ++seen;
    }
    EXPECT_EQ(seen, records.size()) << "nothing is left out";
    for (auto& [track, events] : tracks) {
      std::sort(events.begin(), events.end());
      for (std::size_t i = 1; i < events.size(); ++i) {
        ASSERT_LE(events[i - 1].second, events[i].first) << "round " << round << " of seed " << seed;
      }
    }
    for (const auto& [thread, processes] : processes_of_thread) EXPECT_EQ(processes.size(), 1U) << thread;
  }
}

TEST(chrome_trace, a_trace_of_the_longest_time_does_not_overflow) {
  using limits = std::numeric_limits<std::int64_t>;
  const json document = parsed(chrome_trace(
      std::vector{record(trace_kind::kernel, 0, 0, limits::min(), limits::max()),
                  record(trace_kind::kernel, std::numeric_limits<int>::max(), 0, limits::max(), limits::min())}));
  const auto events = events_of(document, "X");
  EXPECT_EQ(events[0].at("ts"), 0);
  EXPECT_DOUBLE_EQ(events[0].at("dur"), 18446744073709551.615);
  EXPECT_EQ(events[1].at("dur"), 0);
}

TEST(chrome_trace, escapes_whatever_a_name_holds) {
  const std::pair<std::string, std::string> names[] = {
      {"say \"hi\" \\ \n\t\x01", "say \"hi\" \\ \n\t\x01"},
      {"gpu0 \xe2\x86\x92 gpu1 \xf0\x9f\x98\x80 \xc3\xa9", "gpu0 \xe2\x86\x92 gpu1 \xf0\x9f\x98\x80 \xc3\xa9"},
      {"\x80", "\xef\xbf\xbd"},                                                  // a letter's rest without its start
      {"a\xc3", "a\xef\xbf\xbd"},                                                // cut off
      {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},                                  // longer than needed
      {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},                  // a surrogate
      {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},  // past the last letter
      {std::string{"nul\0in", 6}, std::string{"nul\0in", 6}},
      {"\x7f", "\x7f"},
  };
  for (const auto& [given, expected] : names) {
    trace_record r = record(trace_kind::kernel, 0, 0, 0, 1);
    r.name = given;
    const std::string text = chrome_trace(std::vector{r}, {.device_names = {given}});
    EXPECT_EQ(std::count_if(text.begin(), text.end(),
                            [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7f; }),
              0)
        << text;
    const json document = parsed(text);
    ASSERT_EQ(events_of(document, "X").size(), 1U);
    EXPECT_EQ(events_of(document, "X")[0].at("name"), expected);
  }
}

TEST(chrome_trace, is_json_whatever_bytes_a_name_holds) {
  std::mt19937 random{5};
  std::vector<trace_record> records;
  for (int i = 0; i < 2000; ++i) {
    records.push_back(record(trace_kind::kernel, 0, 0, i, i + 1));
    records.back().name.clear();
    for (auto n = random() % 12; n > 0; --n) records.back().name += static_cast<char>(random() % 256);
  }
  EXPECT_EQ(events_of(parsed(chrome_trace(records)), "X").size(), 2000U);
}

}  // namespace chrome_trace_test
#endif
