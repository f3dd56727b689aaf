// SPDX-License-Identifier: Apache-2.0
#include "cli/tool_runner.hpp"
#include "pictures/trace_file.hpp"
#include "pictures/trace_picture.hpp"
#include "support/faults.hpp"
#include "support/paths.hpp"
#include "weft/profile/chrome_trace.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <sys/stat.h>
#include <vector>

namespace weft::test {
namespace trace_test {

using std::chrono::nanoseconds;
using tool::read_trace;
using tool::trace_file;
using tool::trace_svg;

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

trace_record record(trace_kind kind, int device, std::uint64_t stream, std::int64_t from, std::int64_t to,
                    std::string name) {
  trace_record made;
  made.kind = kind;
  made.device = device_id{device};
  made.stream = stream;
  made.started = nanoseconds{from};
  made.ended = nanoseconds{to};
  made.name = std::move(name);
  return made;
}

/// One of each kind, on two devices and the host.
std::string sample_trace(bool simulated = false) {
  std::vector<trace_record> records{
      record(trace_kind::span, -1, 0, 0, 90'000, "launch of blur"),
      record(trace_kind::copy, 0, 0, 0, 20'000, "host \xe2\x86\x92 gpu0"),
      record(trace_kind::kernel, 0, 0, 20'000, 60'000, "blur"),
      record(trace_kind::wait, 1, 3, 0, 60'000, "waits for gpu0"),
      record(trace_kind::host_call, 1, 3, 60'000, 62'000, "host call"),
      record(trace_kind::fill, 1, 3, 62'000, 70'000, "fill"),
      record(trace_kind::kernel, 1, 3, 70'000, 90'000, "blur"),
      record(trace_kind::mark, 1, 3, 80'000, 80'000, "half"),
  };
  records.back().failed = records[6].failed = true;
  return chrome_trace(records, {.device_names = {"gpu0", "<fast> & \"new\""}, .simulated = simulated});
}

trace_file read_sample(bool simulated = false) {
  auto trace = read_trace(sample_trace(simulated));
  EXPECT_TRUE(trace) << trace.error().what;
  return trace ? *trace : trace_file{};
}

TEST(trace_file, has_the_tracks_that_were_recorded_in_order) {
  const trace_file trace = read_sample();
  ASSERT_EQ(trace.tracks.size(), 3U);
  EXPECT_EQ(trace.tracks[0].process, "host");
  EXPECT_EQ(trace.tracks[1].process, "gpu0");
  EXPECT_EQ(trace.tracks[2].process, "gpu1 <fast> & \"new\"");
  EXPECT_EQ(trace.tracks[2].name, "stream 3");
  ASSERT_EQ(trace.tracks[2].events.size(), 4U);
  EXPECT_EQ(trace.tracks[2].events[3].name, "blur");
  EXPECT_EQ(trace.tracks[2].events[3].category, "kernel");
  EXPECT_EQ(trace.tracks[2].events[3].start, 70);
  EXPECT_EQ(trace.tracks[2].events[3].duration, 20);
  EXPECT_TRUE(trace.tracks[2].events[3].failed);
  EXPECT_EQ(trace.events, 7U);
  EXPECT_EQ(trace.end - trace.start, 90);
  EXPECT_EQ(trace.not_drawn, 1U) << "the mark";
  EXPECT_FALSE(trace.simulated);
  EXPECT_TRUE(read_sample(true).simulated);
}

TEST(trace_file, a_trace_of_other_programs_is_read_as_far_as_it_says_the_same) {
  const auto trace = read_trace(R"([
    {"ph": "B", "ts": 1, "pid": 1, "tid": 1}, {"ph": "E", "ts": 2, "pid": 1, "tid": 1},
    {"ph": "X", "ts": -5.5, "dur": 1, "pid": "renderer", "tid": 10, "name": 7},
    {"ph": "X", "ts": 3, "dur": 0, "pid": "renderer", "tid": 9, "name": "a", "cat": "gc"},
    {"ph": "M", "name": "thread_name", "pid": "renderer", "tid": 11, "args": {"name": "without events"}},
    {"ph": "M", "name": "num_cpus", "args": 3}, {"ph": "X", "ts": 4, "dur": 1}])");
  ASSERT_TRUE(trace) << trace.error().what;
  EXPECT_EQ(trace->not_drawn, 2U);
  ASSERT_EQ(trace->tracks.size(), 3U);
  EXPECT_EQ(trace->tracks[0].process, "process 0");
  EXPECT_EQ(trace->tracks[1].process, "process renderer");
  EXPECT_EQ(trace->tracks[1].name, "thread 9") << "by number, not by letter";
  EXPECT_EQ(trace->tracks[2].name, "thread 10");
  EXPECT_EQ(trace->tracks[2].events[0].name, "without a name");
  EXPECT_EQ(trace->start, -5.5);
}

TEST(trace_file, a_wrong_trace_is_refused_with_the_place_and_the_expectation) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "not JSON"},
      {"{\"traceEvents\": [", "not JSON: parse error at line 1, column 18"},
      {"{}", "no \"traceEvents\""},
      {"7", "it is a number: this is no Chrome trace"},
      {R"({"traceEvents": {}})", "traceEvents is an object, expected a list"},
      {R"([1])", "traceEvents[0] is a number, expected an object"},
      {R"([{"ph": "X", "ts": 0, "dur": 1}, {"ts": 1}])", "traceEvents[1] has no \"ph\""},
      {R"([{"ph": 1}])", "traceEvents[0].ph is a number, expected a text"},
      {R"([{"ph": "X", "dur": 1}])", "traceEvents[0] has no \"ts\""},
      {R"([{"ph": "X", "ts": 1}])", "traceEvents[0] has no \"dur\""},
      {R"([{"ph": "X", "ts": "1", "dur": 1}])", "traceEvents[0].ts is a text, expected a number of microseconds"},
      {R"([{"ph": "X", "ts": 1, "dur": -1}])", "traceEvents[0].dur is -1, expected 0 to"},
      {R"([{"ph": "X", "ts": 1e300, "dur": 1}])", "traceEvents[0].ts is 1e+300, expected"},
      {R"([{"ph": "X", "ts": 1, "dur": 1, "pid": []}])", "traceEvents[0].pid is a list, expected a whole number"},
      {R"([{"ph": "X", "ts": 1, "dur": 1, "tid": 1.5}])", "traceEvents[0].tid is a number, expected a whole number"},
      {"[\"\xff\"]", "not JSON"},
      {R"([{"ph": "X", "ts": 0, "dur": 1}, {"ph": "X", "ts": 1e999, "dur": 1}])", "traceEvents[1]: number overflow"},
      {R"([{"ph": "X", "args": )" + std::string(100, '[') + std::string(100, ']') + "}]",
       "traceEvents[0] is nested deeper than 64 levels"},
  };
  samples::played_faults(std::size(cases));
  for (const auto& [text, expected] : cases) {
    const auto trace = read_trace(text);
    ASSERT_FALSE(trace) << text;
    EXPECT_TRUE(has(trace.error().what, expected)) << text << ": " << trace.error().what;
  }
}

TEST(trace_file, however_deep_or_changed_is_read_or_refused_and_drawn) {
  EXPECT_FALSE(read_trace(std::string(2'000'000, '[')));
  const std::string deep = "{\"traceEvents\":[],\"x\":" + std::string(200'000, '[') + std::string(200'000, ']') + "}";
  EXPECT_TRUE(read_trace(deep));

  constexpr unsigned seed = 4711;
  std::mt19937 random{seed};
  const std::string whole = sample_trace();
  const std::string pieces[] = {"null",  "-1",    "1e308",  "\"\"",    "[]",      "{}",
                                "\"X\"", "\"M\"", "\"ph\"", "\\uffff", "\\u0000", "9999999999999999999999",
                                "}",     "]",     ",",      "\""};
  int read = 0;
  constexpr int rounds = 800;
  samples::played_faults(rounds);
  for (int round = 0; round < rounds; ++round) {
    std::string text = whole;
    for (auto edits = 1 + random() % 3; edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      switch (random() % 5) {
        case 0:
          text[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          text.erase(at, 1 + random() % 40);
          break;
        case 2:
          text.insert(at, pieces[random() % std::size(pieces)]);
          break;
        case 3: {  // a value of another kind, where it still parses
          const auto colon = text.find(':', at);
          if (colon == std::string::npos) break;
          const auto end = text.find_first_of(",}]", colon);
          text.replace(colon + 1, end - colon - 1, pieces[random() % std::size(pieces)]);
          break;
        }
        default:
          text.resize(at + 1);
      }
    }
    const auto trace = read_trace(text);
    if (!trace) {
      EXPECT_FALSE(trace.error().what.empty());
      continue;
    }
    ++read;
    const std::string svg = trace_svg(*trace, "t");
    EXPECT_TRUE(svg.starts_with("<svg") && svg.ends_with("</svg>\n")) << "round " << round << " of seed " << seed;
    EXPECT_FALSE(has(svg, "nan") || has(svg, "\"inf") || has(svg, "\"-inf")) << svg;
  }
  EXPECT_GT(read, 50) << "the changes must leave something to draw";
}

TEST(trace_picture, shows_each_track_and_event_with_a_legend_of_what_is_there) {
  const std::string svg = trace_svg(read_sample(), "t.json");
  for (const char* words : {">host<", ">gpu0<", ">gpu1 &lt;fast&gt; &amp; &quot;new&quot;<", ">stream 3<", ">kernel<",
                            ">copy<", ">fill<", ">wait<", ">host function<", ">launch or stage<", ">red edge: failed<",
                            "<title>blur: kernel, 40 us from 20 us</title>",
                            "<title>blur: kernel, 20 us from 70 us, failed</title>", ">time, us<"}) {
    EXPECT_TRUE(has(svg, words)) << words;
  }
  EXPECT_FALSE(has(svg, ">other<"));
  EXPECT_EQ(count_of(svg, " bad\""), 1U);
  EXPECT_FALSE(has(svg, "SIMULATED"));
  EXPECT_EQ(svg, trace_svg(read_sample(), "t.json"));
}

TEST(trace_picture, says_simulated_across_itself) {
  const std::string svg = trace_svg(read_sample(true), "t.json");
  EXPECT_TRUE(has(svg, ">SIMULATED</text>"));
  EXPECT_TRUE(has(svg, "time, us of a virtual clock (simulated: not a measurement)"));
}

TEST(trace_picture, puts_an_event_where_its_time_is) {
  const std::string svg = trace_svg(read_sample(), "t.json");
  std::smatch found;
  const std::regex blur{"<rect x=\"([0-9.]+)\" y=\"[0-9.]+\" width=\"([0-9.]+)\"[^>]*><title>blur: kernel, 40 us"};
  ASSERT_TRUE(std::regex_search(svg, found, blur)) << svg;
  EXPECT_NEAR(std::stod(found[1]), 190 + 1100.0 * 20 / 90, 0.01);
  EXPECT_NEAR(std::stod(found[2]), 1100.0 * 40 / 90, 0.01);
}

TEST(trace_picture, a_picture_of_very_many_events_stays_small_and_counts_them_all) {
  std::vector<trace_record> records;
  for (int i = 0; i < 50'000; ++i) {
    records.push_back(record(i % 3 == 0 ? trace_kind::copy : trace_kind::kernel, 0, 0, i * 100, i * 100 + 90, "k"));
  }
  const auto trace = read_trace(chrome_trace(records));
  ASSERT_TRUE(trace);
  const std::string svg = trace_svg(*trace, "t");
  EXPECT_LT(svg.size(), 600'000U);
  // every event is in one of the runs
  std::size_t sum = 0;
  const std::regex run{"<title>([0-9]+) events:"};
  for (std::sregex_iterator i{svg.begin(), svg.end(), run}, end; i != end; ++i) sum += std::stoul((*i)[1]);
  sum += count_of(svg, "<title>k: ");
  EXPECT_EQ(sum, records.size());
}

TEST(trace_picture, a_picture_of_overlapping_events_on_many_tracks_stays_small_too) {
  trace_file trace;
  trace.end = 1000;
  for (int t = 0; t < 400; ++t) {
    trace.tracks.push_back({"p", std::to_string(t), {}});
    for (int i = 0; i < 500; ++i) trace.tracks.back().events.push_back({"e", "kernel", i * 1.0, 500, false});
  }
  const std::string svg = trace_svg(trace, "t");
  EXPECT_LT(svg.size(), 10'000'000U);
  EXPECT_TRUE(has(svg, ">and 144 more tracks<"));
}

TEST(trace_picture, a_picture_of_nothing_says_so) {
  EXPECT_TRUE(has(trace_svg({}, "empty.json"), "nothing was recorded"));
  const auto instant = read_trace(R"([{"ph": "X", "ts": 5, "dur": 0, "name": "a"}])");
  ASSERT_TRUE(instant);
  EXPECT_TRUE(has(trace_svg(*instant, "t"), "<title>a: event, 0 ns from 0 ns</title>"));
}

TEST(trace_picture, is_well_formed_whatever_names_hold) {
  if (run_program({"xmllint", "--version"}).exit_code != 0) GTEST_SKIP() << "xmllint (libxml2-utils) is not here";
  const scratch_folder folder;
  std::vector<trace_record> records;
  std::mt19937 random{8};
  for (int i = 0; i < 300; ++i) {
    std::string name = i == 0 ? "\xef\xbf\xbf\xef\xbf\xbe]]>&<\"'--" : "";
    for (auto n = random() % 40; n > 0; --n) name += static_cast<char>(random() % 256);
    records.push_back(
        record(static_cast<trace_kind>(i % 7), i % 5 - 1, 0, i * 1'000'000, i * 1'000'000 + 900'000, name));
  }
  const auto trace =
      read_trace(chrome_trace(records, {.device_names = {"<a>", "&", "\xff", "\x01"}, .simulated = true}));
  ASSERT_TRUE(trace) << trace.error().what;
  write_text(folder / "wild.svg", trace_svg(*trace, "<t> & co"));
  write_text(folder / "empty.svg", trace_svg({}, ""));
  const auto checked =
      run_program({"xmllint", "--noout", (folder / "wild.svg").string(), (folder / "empty.svg").string()});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
}

TEST(trace_view, draws_a_picture_beside_the_trace_or_where_it_is_told_to) {
  const scratch_folder folder;
  write_text(folder / "t.json", sample_trace(true));
  const std::string input = (folder / "t.json").string();
  const auto run = run_tool({"trace", "view", input});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "7 events on 3 tracks, 90.0 us (simulated)")) << run.out;
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"t.json", "t.svg"}));
  EXPECT_TRUE(has(read_text(folder / "t.svg"), "SIMULATED"));
  EXPECT_EQ(run_tool({"trace", "view", input, "-o", (folder / "other.svg").string()}).exit_code, 0);
  EXPECT_EQ(read_text(folder / "other.svg"), read_text(folder / "t.svg"));
  write_text(folder / "one.json", R"([{"ph": "X", "ts": 1, "dur": 5}])");
  EXPECT_TRUE(has(run_tool({"trace", "view", (folder / "one.json").string()}).out, "1 event on 1 track, 5.00 us"));
  write_text(folder / "plain", sample_trace());
  EXPECT_EQ(run_tool({"trace", "view", (folder / "plain").string()}).exit_code, 0);
  EXPECT_TRUE(has(read_text(folder / "plain.svg"), "<svg"));
}

TEST(trace_view, prints_a_document_that_its_schema_describes) {
  const scratch_folder folder;
  write_text(folder / "t.json", sample_trace(true));
  const auto run = run_tool({"trace", "view", (folder / "t.json").string(), "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto document = run.document();
  EXPECT_EQ(document.at("schema"), "weft.trace.view/1");
  EXPECT_EQ(document.at("clock"), "virtual");
  EXPECT_EQ(document.at("simulated"), true);
  EXPECT_EQ(document.at("events"), 7);
  EXPECT_EQ(document.at("not_drawn"), 9);  // a graph of eight points among them
  EXPECT_EQ(document.at("seconds"), 90e-6);
  EXPECT_EQ(document.at("tracks").size(), 3U);
  EXPECT_EQ(document.at("output"), (folder / "t.svg").string());
  const std::string schemas = samples::source_folder() + "/share/weft/schema/weft.trace.view-1.json";
  const auto schema = nlohmann::json::parse(read_text(schemas), nullptr, false);
  ASSERT_TRUE(schema.is_object());
  for (const auto& key : schema.at("required")) EXPECT_TRUE(document.contains(key.get<std::string>())) << key;
  for (const auto& [key, value] : document.items()) EXPECT_TRUE(schema.at("properties").contains(key)) << key;
  if (run_program({"python3", "-c", "import jsonschema"}).exit_code != 0) GTEST_SKIP() << "no python3-jsonschema";
  write_text(folder / "doc.json", run.out);
  const auto checked = run_program({"python3", "-c",
                                    "import json, sys, jsonschema; "
                                    "jsonschema.Draft7Validator(json.load(open(sys.argv[1]))).validate("
                                    "json.load(open(sys.argv[2])))",
                                    schemas, (folder / "doc.json").string()});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
}

TEST(trace_view, a_trace_that_cannot_be_drawn_says_why_and_leaves_no_picture) {
  const scratch_folder folder;
  const std::string input = (folder / "t.json").string();
  write_text(folder / "t.json", R"({"traceEvents": [{"ph": "X", "ts": "soon", "dur": 1}]})");
  const auto bad = run_tool({"trace", "view", input});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_TRUE(has(bad.err, input + ": traceEvents[0].ts is a text")) << bad.err;
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"t.json"}));
  const auto itself = run_tool({"trace", "view", input, "-o", input});
  EXPECT_EQ(itself.exit_code, 2);
  EXPECT_TRUE(has(itself.err, "is the trace itself")) << itself.err;
  EXPECT_TRUE(has(read_text(folder / "t.json"), "soon"));

  const auto absent = run_tool({"trace", "view", (folder / "no.json").string()});
  EXPECT_EQ(absent.exit_code, 4);
  EXPECT_TRUE(has(absent.err, "cannot read " + (folder / "no.json").string() + ": No such file")) << absent.err;
  const auto directory = run_tool({"trace", "view", folder.path().string()});
  EXPECT_EQ(directory.exit_code, 4);
  EXPECT_TRUE(has(directory.err, "Is a directory")) << directory.err;
  write_text(folder / "good.json", sample_trace());
  EXPECT_EQ(run_tool({"trace", "view", (folder / "good.json").string(), "-o", "/dev/full"}).exit_code, 4);
  EXPECT_EQ(
      run_tool({"trace", "view", (folder / "good.json").string(), "-o", (folder / "no/t.svg").string()}).exit_code, 4);
}

TEST(trace_view, a_pipe_is_refused_without_a_wait_and_a_dash_reads_standard_input) {
  const scratch_folder folder;
  const std::string fifo = (folder / "fifo").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const auto run = run_tool({"trace", "view", fifo});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_TRUE(has(run.err, fifo + " is a pipe or a device, not a file")) << run.err;
  EXPECT_TRUE(has(run_tool({"trace", "view", "-"}).err, "name the picture with -o"));
  EXPECT_EQ(run_tool({"trace", "view", fifo, "-o", ""}).exit_code, 2);
  write_text(folder / "t.json", sample_trace());
  const std::string picture = (folder / "t.svg").string();
  const auto piped = run_program({"sh", "-c", "cat \"$1\" | \"$0\" trace view - -o \"$2\"", samples::tool(),
                                  (folder / "t.json").string(), picture});
  EXPECT_EQ(piped.exit_code, 0) << piped.err;
  EXPECT_TRUE(has(read_text(picture), "<svg"));
  const auto itself = run_program(
      {"sh", "-c", "exec \"$0\" trace view - -o \"$1\" < \"$1\"", samples::tool(), (folder / "t.json").string()});
  EXPECT_EQ(itself.exit_code, 2);
  EXPECT_TRUE(has(itself.err, "is the trace itself")) << itself.err;
  EXPECT_EQ(read_text(folder / "t.json"), sample_trace());
}

TEST(trace_view, a_file_that_is_too_large_is_refused) {
  const scratch_folder folder;
  // sparse: a size without its bytes
  std::ofstream{folder / "large.json"}.close();
  std::filesystem::resize_file(folder / "large.json", tool::most_trace_bytes + (1 << 20));
  const auto run = run_tool({"trace", "view", (folder / "large.json").string()});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_TRUE(has(run.err, "traces of up to 268435456")) << run.err;
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"large.json"}));
}

TEST(trace, without_a_word_asks_what_is_to_be_done) {
  const auto run = run_tool({"trace"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_TRUE(has(run.err, "weft trace view")) << run.err;
  const auto slip = run_tool({"trace", "viw", "x"});
  EXPECT_EQ(slip.exit_code, 2);
  EXPECT_TRUE(has(slip.err, "did you mean view?")) << slip.err;
  EXPECT_EQ(run_tool({"trace", "view"}).exit_code, 2);
}

}  // namespace trace_test
}  // namespace weft::test
