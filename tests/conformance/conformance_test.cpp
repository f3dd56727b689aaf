// SPDX-License-Identifier: Apache-2.0
// The suite over every machine that the host backend can play, and the suite itself on machines that lie.
#include "conformance/conformance.hpp"

#include "support/paths.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <set>
#include <string>

namespace conformance_test {

using weft::verdict_kind;

struct subject {
  std::string name;
  weft::machine_options options;
};

void PrintTo(const subject& one, std::ostream* out) { *out << one.name; }

weft::machine_options with_sim(std::string_view name) {
  weft::machine_options options;
  options.backend = "host";
  if (!name.empty()) options.sim = std::string{name};
  return options;
}

std::vector<subject> subjects() {
  std::vector<subject> made;
  made.push_back({"the_default_host_machine", with_sim({})});
  for (const std::string_view name : weft::shipped_topologies()) {
    if (weft::load_topology(name)->faults.empty()) made.push_back({std::string{name}, with_sim(name)});
  }
  subject separate{"without_unified_memory", with_sim({})};
  separate.options.machine = *weft::load_topology("pcie_4");
  for (auto& device : separate.options.machine->devices) device.capabilities = weft::capability::none;
  made.push_back(separate);
  subject one{"one_device", with_sim({})};
  one.options.devices = 1;
  made.push_back(one);
  for (const bool strict : {false, true}) {
    subject s{strict ? "strict_addresses" : "plain_addresses", with_sim("pair_nvlink")};
    s.options.strict = strict;
    made.push_back(s);
  }
  subject checked{"checked_access", with_sim("pcie_4")};
  checked.options.check_access = true;
  made.push_back(checked);
  subject single{"one_operation_at_a_time", with_sim("pair_nvlink")};
  single.options.max_in_flight = 1;
  made.push_back(single);
  for (const std::string_view name : {std::string_view{}, std::string_view{"pcie_4"}, std::string_view{"dgx_h100"}}) {
    subject s{"virtual_time_" + std::string{name.empty() ? "host" : name}, with_sim(name)};
    s.options.clock = weft::clock_kind::virtual_time;
    made.push_back(s);
  }
  return made;
}

class conformance : public testing::TestWithParam<subject> {};

TEST_P(conformance, nothing_falls_short_and_what_is_not_offered_has_a_reason) {
  weft::run_options run;
  const auto results = weft::run_conformance([] { return weft::machine{GetParam().options}; }, run);
  ASSERT_EQ(results.size(), weft::conformance_cases().size());
  std::size_t holding = 0;
  for (const weft::case_result& result : results) {
    if (result.verdict == verdict_kind::holds) {
      ++holding;
      continue;
    }
    EXPECT_FALSE(result.why.empty()) << result.group << ": " << result.name;
    if (result.verdict == verdict_kind::not_offered) {
      std::printf("not offered by %s: %s, because %s\n", GetParam().name.c_str(), result.name.c_str(),
                  result.why.c_str());
    }
    EXPECT_NE(result.verdict, verdict_kind::falls_short) << result.group << ": " << result.name << "\n  " << result.why;
  }
  EXPECT_GT(holding, results.size() / 4) << "a machine that offers next to nothing proves next to nothing";
}

INSTANTIATE_TEST_SUITE_P(machines, conformance, testing::ValuesIn(subjects()),
                         [](const auto& each) { return each.param.name; });

TEST(conformance_suite, has_sentences_that_differ_and_known_groups) {
  std::set<std::string_view> names;
  const std::set<std::string_view> groups{"selection", "memory",       "address_range", "streams_events", "barriers",
                                          "kernels",   "peer_query",   "peer_enable",   "peer_copy",      "peer_map",
                                          "routes",    "library_wide", "blocks",        "faults"};
  std::set<std::string_view> seen;
  for (const weft::conformance_case& one : weft::conformance_cases()) {
    EXPECT_TRUE(names.insert(one.name).second) << one.name;
    EXPECT_TRUE(groups.contains(one.group)) << one.group;
    EXPECT_NE(one.name.find(' '), std::string_view::npos) << one.name << " is not a sentence";
    seen.insert(one.group);
  }
  EXPECT_EQ(seen, groups);
}

TEST(conformance_suite, has_every_sentence_that_the_checklist_names) {
  std::ifstream file{samples::source_folder() + "/docs/porting/checklist.md"};
  ASSERT_TRUE(file.is_open());
  std::set<std::string_view> names;
  for (const weft::conformance_case& one : weft::conformance_cases()) names.insert(one.name);
  std::size_t found = 0;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| ")) continue;
    // a row names tests in `code`, where a * stands for all, and sentences in *italics*
    bool in_code = false;
    std::size_t begin = std::string::npos;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '`') in_code = !in_code;
      if (in_code || line[i] != '*') continue;
      if (begin == std::string::npos) {
        begin = i + 1;
        continue;
      }
      const std::string_view sentence = std::string_view{line}.substr(begin, i - begin);
      begin = std::string::npos;
      if (sentence.ends_with("…")) continue;
      EXPECT_TRUE(names.contains(sentence)) << sentence;
      ++found;
    }
  }
  EXPECT_GT(found, 90U);
}

TEST(conformance_suite, filters_by_part_of_a_name_or_by_group) {
  const auto open = [] { return weft::machine{with_sim("pair_nvlink")}; };
  weft::run_options run;
  run.filter = "address_range";
  int told = 0;
  run.after_each = [&](const weft::case_result& result) {
    ++told;
    EXPECT_EQ(result.group, "address_range");
  };
  const auto results = weft::run_conformance(open, run);
  EXPECT_EQ(static_cast<int>(results.size()), told);
  EXPECT_GE(told, 3);
  run.after_each = nullptr;
  run.filter = "a device is not a peer of itself";
  EXPECT_EQ(weft::run_conformance(open, run).size(), 1U);
}

std::vector<weft::case_result> run_with_fault(const weft::topology_fault& fault, const std::string& filter) {
  const auto loaded = weft::load_topology("pair_nvlink");
  EXPECT_TRUE(loaded.has_value());
  weft::machine_options options;
  options.machine = *loaded;
  options.machine->faults.push_back(fault);
  options.verify_peers = weft::peer_verification::never;  // the cases look for themselves
  weft::run_options run;
  run.filter = filter;
  return weft::run_conformance([&] { return weft::machine{options}; }, run);
}

std::string fallen(const std::vector<weft::case_result>& results, std::string_view name) {
  for (const weft::case_result& result : results) {
    if (result.name == name && result.verdict == verdict_kind::falls_short) return result.why;
  }
  return {};
}

TEST(conformance_suite, finds_a_link_that_changes_a_byte_and_says_where) {
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::corrupts;
  fault.from = weft::device_id{0};
  fault.to = weft::device_id{1};
  fault.nth = 0;
  const std::string why =
      fallen(run_with_fault(fault, "peer_copy"), "a copy arrives between every ordered pair, with access or without");
  EXPECT_NE(why.find("offset"), std::string::npos) << why;
  EXPECT_NE(why.find("expected"), std::string::npos) << why;
  EXPECT_NE(why.find("got"), std::string::npos) << why;
}

TEST(conformance_suite, finds_a_pair_that_advertises_access_and_drops_the_data) {
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::drops_data;
  fault.from = weft::device_id{0};
  fault.to = weft::device_id{1};
  fault.nth = 0;
  const std::string why =
      fallen(run_with_fault(fault, "peer_query"), "what is written over every offered pair arrives");
  EXPECT_NE(why.find("gpu0 -> gpu1"), std::string::npos) << why;
}

TEST(conformance_suite, finds_a_copy_that_fails) {
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::copy_fails;
  fault.from = weft::device_id{0};
  fault.to = weft::device_id{1};
  fault.nth = 1;
  const std::string why =
      fallen(run_with_fault(fault, "peer_copy"), "a copy arrives between every ordered pair, with access or without");
  EXPECT_NE(why.find("copy_failed"), std::string::npos) << why;
}

weft::machine without_unified_memory() {
  auto loaded = weft::load_topology("pair_nvlink");
  for (auto& device : loaded->devices) {
    device.capabilities = static_cast<weft::capability>(static_cast<std::uint32_t>(device.capabilities) &
                                                        ~static_cast<std::uint32_t>(weft::capability::unified_memory));
  }
  weft::machine_options options;
  options.machine = *loaded;
  return weft::machine{options};
}

TEST(conformance_suite, reports_a_pass_that_the_machine_did_not_promise) {
  const weft::conformance_case unexpected{"unified memory works although nobody says so", "memory",
                                          [](weft::conformance::context&) { return weft::verdict{}; },
                                          weft::conformance::feature::unified_memory};
  const weft::case_result result = weft::run_case(unexpected, without_unified_memory);
  EXPECT_EQ(result.verdict, verdict_kind::falls_short);
  EXPECT_NE(result.why.find("it holds, but"), std::string::npos) << result.why;
}

TEST(conformance_suite, takes_a_refusal_as_not_offered_only_when_it_is_one) {
  const auto judge = [](weft::verdict (*run)(weft::conformance::context&)) {
    return weft::run_case({"a case", "memory", run, weft::conformance::feature::unified_memory},
                          without_unified_memory);
  };
  const auto refused = judge([](weft::conformance::context&) -> weft::verdict {
    weft::raise(weft::errc::unsupported, "gpu0 has no unified memory");
  });
  EXPECT_EQ(refused.verdict, verdict_kind::not_offered) << refused.why;
  EXPECT_NE(refused.why.find("gpu0"), std::string::npos) << refused.why;
  const auto broken = judge(
      [](weft::conformance::context&) -> weft::verdict { weft::raise(weft::errc::out_of_memory, "gpu0 is full"); });
  EXPECT_EQ(broken.verdict, verdict_kind::falls_short);
  EXPECT_NE(broken.why.find("gpu0 is full"), std::string::npos) << broken.why;
}

TEST(conformance_suite, expects_of_the_host_what_every_topology_has) {
  for (const std::string_view name : weft::shipped_topologies()) {
    const weft::machine m = weft::machine::load(name);
    for (const auto promised : weft::conformance::always_offered(weft::backend_kind::host)) {
      EXPECT_EQ(weft::conformance::absence(m, promised), "") << name << ": " << to_string(promised);
    }
  }
}

TEST(conformance_suite, finds_what_is_wrong_with_the_machine_that_is_faulty_on_purpose) {
  weft::run_options run;
  run.filter = "what is written over every offered pair arrives";  // others wait long for what that machine never does
  const auto results = weft::run_conformance([] { return weft::machine::load("faulty_4"); }, run);
  const std::string why = fallen(results, "what is written over every offered pair arrives");
  EXPECT_NE(why.find("gpu0 -> gpu1"), std::string::npos) << why;
}

TEST(conformance_suite, says_not_offered_of_all_that_the_empty_backend_refuses) {
  weft::machine_options options;
  options.backend = "null";
  const auto results = weft::run_conformance([&] { return weft::machine{options}; });
  for (const weft::case_result& result : results) {
    EXPECT_NE(result.verdict, verdict_kind::falls_short) << result.name << ": " << result.why;
    if (result.verdict == verdict_kind::not_offered) {
      EXPECT_FALSE(result.why.empty()) << result.name;
    }
  }
}

}  // namespace conformance_test
