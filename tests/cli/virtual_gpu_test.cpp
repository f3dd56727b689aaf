// SPDX-License-Identifier: Apache-2.0
// The tool with --backend cuda and --backend hip on the virtual driver: every command ends well, says that nothing of
// it is a GPU's, and its documents hold.
#include "cli/tool_runner.hpp"
#include "support/paths.hpp"

#include <gtest/gtest.h>

#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace weft::test {
namespace virtual_gpu_test {

/// Four GPUs, or one that is offered as four, as a vendor's driver shows them.
struct gpus {
  const char* name;
  int count;
  std::string backend = "cuda";
};

void PrintTo(const gpus& one, std::ostream* out) { *out << one.name; }

class virtual_gpu_tool : public testing::TestWithParam<gpus> {
 protected:
  [[nodiscard]] tool_environment machine(words more_environment) const {
    tool_environment here;
    here.set = std::move(more_environment);  // first: of two values the first is read
    for (const char* const which : {"WEFT_CUDA_DRIVER=", "WEFT_CUDA_NVRTC=", "WEFT_CUDA_NVML="})
      here.set.push_back(std::string{which} + samples::virtual_cuda_library());
    for (const char* const which : {"WEFT_HIP_DRIVER=", "WEFT_HIP_HIPRTC="})
      here.set.push_back(std::string{which} + samples::virtual_hip_library());
    here.set.push_back("WEFT_VIRTUAL_CUDA_DEVICES=" + std::to_string(GetParam().count));
    if (GetParam().count == 1) here.set.push_back("WEFT_VIRTUAL_CUDA_SMS=32");  // enough for four parts
    here.set.push_back("XDG_CACHE_HOME=" + folder_.path().string());            // measured rates
    here.folder = folder_.path();                                               // a demo writes into it
    return here;
  }
  [[nodiscard]] tool_result run(const words& command, words more_environment = {}) const {
    words all{"--backend", GetParam().backend};
    if (GetParam().count == 1) all = with(all, {"--logical-devices", "4"});
    return run_tool(with(all, command), machine(std::move(more_environment)));
  }

  /// What NVIDIA's libraries tell beside the driver.
  [[nodiscard]] static bool has_nvidias_libraries() { return GetParam().backend == "cuda"; }

  scratch_folder folder_;
};

const std::vector<words> commands{
    {},
    {"devices"},
    {"doctor", "--run", "--check", "p2p-data"},  // the others look at this computer
    {"topo", "--verify", "--measure"},
    {"route", "0", "1", "64M"},
    {"explain", "launch", "1M", "--rate", "1G"},
    {"explain", "all_reduce", "1M"},
    {"bench", "copy", "-s", "1,1000003", "--samples", "3"},
    {"bench", "launch", "--quick", "--scenario", "overhead"},
    {"bench", "queue", "--quick", "-s", "64", "--pairs", "0-1,3-2"},
    {"bench", "queue", "--quick", "-s", "8", "--pairs", "1-0", "--ends", "kernel"},
    {"bench", "collective", "--quick", "-s", "1000"},
    {"bench", "ipc", "--quick", "-s", "1M"},
};

TEST_P(virtual_gpu_tool, runs_every_command_and_says_that_no_figure_is_one_of_a_gpu) {
  for (const words& command : commands) {
    const auto ended = run(command);
    const std::string name = command.empty() ? "weft" : command.front() + (command.size() > 1 ? " " + command[1] : "");
    EXPECT_EQ(ended.exit_code, 0) << name << "\n" << ended.out << ended.err;
    EXPECT_TRUE(has(ended.out, "4 devices of a virtual driver: CPU memory, not a GPU figure")) << name << "\n"
                                                                                               << ended.out;
    EXPECT_FALSE(has(ended.err, "is not known"))
        << name << ": settings of the virtual driver are no slips: " << ended.err;
    EXPECT_EQ(has(ended.err, "offered as 4 logical devices"), GetParam().count == 1) << name << ended.err;
  }
}

TEST_P(virtual_gpu_tool, keeps_measured_rates_for_later_commands_until_the_computer_starts_again) {
  if (GetParam().count == 1) GTEST_SKIP() << "a part of a GPU has no address of its own";
  const words here{"XDG_CACHE_HOME=" + folder_.path().string()};
  const auto rate_known = [](const tool_result& run) {
    return !run.document()["route"]["predicted_seconds"].is_null();
  };
  const words asked{"route", "0", "1", "64M", "--json"};
  EXPECT_FALSE(rate_known(run(asked, here)));
  const auto measured = run(with(asked, {"--measure"}), here);
  EXPECT_TRUE(rate_known(measured)) << measured.out;
  EXPECT_EQ(measured.field("rates"), "measured now");
  const auto later = run(asked, here);
  EXPECT_TRUE(rate_known(later)) << later.out;
  EXPECT_TRUE(has(later.out, "measured at 20")) << later.out;
  const auto explained = run({"explain", "all_reduce", "64M", "--json"}, here);
  EXPECT_TRUE(has(explained.field("rates").dump(), "measured at 20")) << explained.out;
  EXPECT_FALSE(explained.field("candidates").front().at("predicted_seconds").is_null()) << explained.out;
  // a command that sees two of them measures these
  const auto file = folder_ / "weft/rates.json";
  auto document = nlohmann::json::parse(read_text(file));
  for (auto& lane : document["lanes"]) lane["time_utc"] = "2001-02-03T04:05:06Z";
  write_text(file, document.dump());
  const auto of_two = run(with(asked, {"--measure"}), with(here, {"WEFT_VIRTUAL_CUDA_DEVICES=2"}));
  EXPECT_TRUE(rate_known(of_two)) << of_two.out;
  const auto of_others = run({"route", "2", "3", "64M", "--json"}, here);
  EXPECT_TRUE(rate_known(of_others)) << "the rates of the others are kept";
  EXPECT_EQ(of_others.field("rates"), "measured at 2001-02-03T04:05:06Z and later") << "and so are their times";
  // lanes that are none, an earlier start of the computer, then what is no JSON
  document["lanes"] = "none";
  write_text(file, document.dump());
  EXPECT_FALSE(rate_known(run(asked, here)));
  EXPECT_TRUE(rate_known(run(with(asked, {"--measure"}), here)));
  document = nlohmann::json::parse(read_text(file));
  for (const auto& lane : document["lanes"]) EXPECT_TRUE(lane.is_object()) << lane;
  document["start"] = "another";
  write_text(file, document.dump());
  EXPECT_FALSE(rate_known(run(asked, here)));
  EXPECT_TRUE(run({"explain", "all_reduce", "64M", "--json"}, here).field("rates").is_null());
  write_text(file, "{");
  EXPECT_FALSE(rate_known(run(asked, here)));
}

TEST_P(virtual_gpu_tool, tells_why_the_driver_offers_no_peer_access) {
  if (!has_nvidias_libraries()) GTEST_SKIP() << "NVML tells";
  if (GetParam().count == 1) GTEST_SKIP() << "parts of one GPU reach each other";
  const words apart{"WEFT_VIRTUAL_CUDA_TOPOLOGY=" + samples::source_folder() + "/topologies/ring_3_no_p2p.json"};
  const auto shown = run({"topo", "--json"}, apart);
  EXPECT_TRUE(has(shown.out, "for the chipset does not support it")) << shown.out.substr(0, 4000) << shown.err;
  const auto asked = run_tool({"doctor", "--check", "p2p-status"}, machine(apart));
  EXPECT_TRUE(has(asked.out, "6 of 6 ordered pairs of GPUs have no peer access: ")) << asked.out;
}

TEST_P(virtual_gpu_tool, writes_documents_that_hold_to_their_schemas_and_are_marked) {
  std::vector<words> all = commands;
  // the longest, which goes through what the others do
  if (std::string{GetParam().name} == "four_gpus") all.push_back({"demo", "-q"});
  std::vector<tool_result> documents;
  for (const words& command : all) {
    documents.push_back(run(with({"--json"}, command)));
    const auto document = documents.back().document();
    EXPECT_EQ(document.value("virtual_driver", false), true) << documents.back().out << documents.back().err;
    EXPECT_EQ(document.value("simulated", true), false) << documents.back().out;
    EXPECT_EQ(document["machine"]["drivers"].size(), 1U) << document["machine"];
    EXPECT_EQ(document["machine"]["drivers"].size(), 1U) << document["machine"];
    if (document.contains("note")) {
      EXPECT_TRUE(has(document.at("note").dump(), "a virtual driver")) << document.at("note");
    }
  }
  const auto checked = check_documents(documents);
  if (checked.exit_code == no_checker) GTEST_SKIP() << checked.err;
  EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
}

TEST_P(virtual_gpu_tool, marks_the_results_that_it_writes_to_a_file) {
  const auto ended = run({"bench", "copy", "-s", "4K", "--samples", "3", "--pairs", "0-1", "-o", "copies.json"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  const auto written = nlohmann::json::parse(read_text(folder_ / "copies.json"), nullptr, false);
  EXPECT_EQ(written.value("virtual_driver", false), true) << written;
}

TEST_P(virtual_gpu_tool, never_writes_over_results_that_are_not_of_a_virtual_driver_nor_the_other_way_round) {
  const words virtual_ones{"bench", "copy", "-s", "4K", "--samples", "1", "--pairs", "0-1"};
  const words plain_ones{"--backend", "host", "bench", "queue", "-s", "8", "--quick", "--pairs", "0-1"};
  tool_environment here;
  here.folder = folder_.path();
  ASSERT_EQ(run(with(virtual_ones, {"-o", "virtual.json"})).exit_code, 0);
  ASSERT_EQ(run_tool(with(plain_ones, {"-o", "plain.json"}), here).exit_code, 0);
  const std::string virtual_before = read_text(folder_ / "virtual.json");
  const std::string plain_before = read_text(folder_ / "plain.json");
  const auto over_plain = run(with(virtual_ones, {"-o", "plain.json"}));
  EXPECT_EQ(over_plain.exit_code, 2);
  EXPECT_TRUE(has(over_plain.err, "plain.json holds results without a virtual driver")) << over_plain.err;
  const auto over_virtual = run_tool(with(plain_ones, {"-o", "virtual.json"}), here);
  EXPECT_EQ(over_virtual.exit_code, 2);
  EXPECT_TRUE(has(over_virtual.err, "virtual.json holds results of a virtual driver")) << over_virtual.err;
  EXPECT_EQ(read_text(folder_ / "virtual.json"), virtual_before);
  EXPECT_EQ(read_text(folder_ / "plain.json"), plain_before);
  EXPECT_EQ(run(with(virtual_ones, {"-o", "virtual.json"})).exit_code, 0) << "over its own kind it may";
}

TEST_P(virtual_gpu_tool, puts_copies_by_a_kernel_beside_those_of_the_engine) {
  const words command{"bench", "copy", "-s", "5,4K", "--samples", "3", "--pairs", "0-0,0-1", "--budget", "60s"};
  const auto ended = run(with(command, {"--json"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  std::set<std::string> names;
  for (const auto& row : ended.field("results")) {
    names.insert(row.at("name").get<std::string>());
    EXPECT_EQ(row.at("verified"), true) << row;
    EXPECT_EQ(row.at("kernel_on").is_null(), row.at("by") == "engine") << row;
  }
  const std::set<std::string> wanted{"virtual_driver/copy/same_device/4KiB/gpu0-gpu0",
                                     "virtual_driver/copy/same_device_by_kernel/4KiB/gpu0-gpu0",
                                     "virtual_driver/copy/direct/4KiB/gpu0-gpu1",
                                     "virtual_driver/copy/direct_by_kernel/4KiB/gpu0-gpu1",
                                     "virtual_driver/copy/staged/4KiB/gpu0-gpu1",
                                     "virtual_driver/copy/same_device/5B/gpu0-gpu0",
                                     "virtual_driver/copy/same_device_by_kernel/5B/gpu0-gpu0",
                                     "virtual_driver/copy/direct/5B/gpu0-gpu1",
                                     "virtual_driver/copy/direct_by_kernel/5B/gpu0-gpu1",
                                     "virtual_driver/copy/staged/5B/gpu0-gpu1"};
  EXPECT_EQ(names, wanted);
  const auto text = run(command);
  EXPECT_TRUE(has(text.out, "by a kernel")) << text.out;
  EXPECT_FALSE(has(run(with(command, {"--by", "engine"})).out, "by a kernel"));
}

TEST_P(virtual_gpu_tool, runs_the_kernel_of_a_copy_where_access_goes_one_way_on_the_device_that_has_it) {
  if (GetParam().count == 1) GTEST_SKIP() << "parts of one GPU reach each other both ways";
  const auto ended = run({"bench", "copy", "-s", "4K", "--samples", "1", "--pairs", "0-1,1-0", "--by", "kernel",
                          "--json", "--budget", "60s"},
                         {"WEFT_VIRTUAL_CUDA_P2P=one_way"});
  const auto rows = ended.field("results");
  ASSERT_EQ(rows.size(), 2U) << ended.err;
  for (const auto& row : rows) {
    EXPECT_EQ(row.at("kernel_on"), 0) << row;
    EXPECT_EQ(row.at("verified"), true) << row;
  }
}

TEST_P(virtual_gpu_tool, measures_messages_to_kernels_and_between_them) {
  const words command{"bench",  "queue",       "--quick", "-s",     "8,64",   "--pairs",  "0-1",
                      "--mode", "host_staged", "--ends",  "kernel", "--json", "--budget", "60s"};
  const auto ended = run(command);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  const auto rows = ended.field("results");
  ASSERT_EQ(rows.size(), 2U) << "8 bytes alone have kernels at their ends";
  EXPECT_EQ(rows[0].at("name"), "virtual_driver/queue/host_staged/round_trip_to_kernel/8B/gpu0-gpu1");
  EXPECT_EQ(rows[1].at("name"), "virtual_driver/queue/host_staged/round_trip_of_kernels/8B/gpu0-gpu1");
  for (const auto& row : rows) {
    EXPECT_EQ(row.at("verified"), true) << row;
    // a difference of two times that the other work of this machine has swallowed is no figure
    EXPECT_TRUE(row.at("seconds").is_object() || has(row.at("why").get<std::string>(), "lost in the noise")) << row;
  }
}

TEST_P(virtual_gpu_tool, measures_messages_that_are_brought_to_a_kernel) {
  const words command{"bench",  "queue",  "--quick", "-s",     "8",      "--pairs",  "0-1",
                      "--mode", "direct", "--ends",  "kernel", "--json", "--budget", "60s"};
  // HIP has no windows across the bus
  for (const auto& [windows, way] :
       {std::pair{samples::virtual_cuda_library(), has_nvidias_libraries() ? "stores" : "copies"},
        std::pair{std::string{"none"}, "copies"}}) {
    const auto ended = run(command, {"WEFT_CUDA_GDRCOPY=" + windows});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    const auto rows = ended.field("results");
    ASSERT_EQ(rows.size(), 2U) << ended.out;
    EXPECT_EQ(rows[0].at("delivery"), way) << rows[0];
    EXPECT_EQ(rows[0].at("verified"), true) << rows[0];
    EXPECT_EQ(rows[1].at("delivery"), "in_place") << "queues for kernels alone need no host";
  }
}

TEST_P(virtual_gpu_tool, shows_how_each_device_is) {
  if (!has_nvidias_libraries()) GTEST_SKIP() << "NVML tells";
  const words changed{"WEFT_VIRTUAL_CUDA_HEALTH=celsius=83,reasons=0x244,memory_errors=2,busy=none"};
  const auto text = run({"devices"}, changed);
  EXPECT_TRUE(has(text.out, "83 C")) << text.out;
  EXPECT_TRUE(has(text.out, "the power limit; heat, by the hardware; 0x200")) << text.out;
  EXPECT_TRUE(has(text.out, "gen 4 x16")) << text.out;
  const auto ended = run({"devices", "--json"}, changed);
  for (const auto& device : ended.field("devices")) {
    const auto& health = device.at("health");
    EXPECT_GE(health.at("celsius"), 83) << device;
    EXPECT_EQ(health.at("watts"), 100) << device;
    EXPECT_TRUE(health.at("busy").is_null()) << device;
    EXPECT_EQ(health.at("memory_errors"), 2) << device;
    EXPECT_EQ(health.at("held_down_by").size(), 3U) << device;
    EXPECT_TRUE(device.at("health_why").is_null()) << device;
  }
}

TEST_P(virtual_gpu_tool, says_why_nothing_tells_how_a_device_is) {
  if (!has_nvidias_libraries()) GTEST_SKIP() << "NVML tells";
  const auto text = run({"devices"}, {"WEFT_CUDA_NVML=none"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_FALSE(has(text.out, "temperature")) << text.out;
  const auto ended = run({"devices", "--json"}, {"WEFT_CUDA_NVML=none"});
  for (const auto& device : ended.field("devices")) {
    EXPECT_TRUE(device.at("health").is_null()) << device;
    EXPECT_TRUE(has(device.at("health_why").dump(), "WEFT_CUDA_NVML")) << device;
  }
}

TEST_P(virtual_gpu_tool, conforms) {
  const auto ended = run({"conform"});
  EXPECT_EQ(ended.exit_code, 0) << ended.out << ended.err;
  EXPECT_TRUE(has(ended.out, "of a virtual driver")) << ended.out;
  EXPECT_TRUE(has(ended.out, " 0 fall short") || !has(ended.out, "fall short")) << ended.out;
}

TEST_P(virtual_gpu_tool, has_ranks_in_processes) {
  const auto ended = run({"--json", "bench", "collective", "--collective", "all", "-s", "1K,300000", "--samples", "3",
                          "--processes", "3"});
  ASSERT_EQ(ended.exit_code, 0) << ended.out << ended.err;
  const nlohmann::json rows = ended.field("results");
  EXPECT_EQ(rows.size(), 16U);
  for (const nlohmann::json& row : rows) {
    EXPECT_EQ(row.at("verified"), true) << row;
    EXPECT_FALSE(row.at("seconds").is_null()) << row;
  }
}

TEST_P(virtual_gpu_tool, says_why_processes_have_no_symmetric_memory_and_that_nothing_ran) {
  const auto ended =
      run({"bench", "collective", "--quick", "-s", "1K", "--processes", "2"}, {"WEFT_VIRTUAL_CUDA_P2P=none"});
  if (GetParam().count == 1) return;  // parts of one GPU reach each other
  EXPECT_EQ(ended.exit_code, 6) << ended.out << ended.err;
  EXPECT_TRUE(has(ended.out, "there is no peer path between them")) << ended.out << ended.err;
  EXPECT_TRUE(has(ended.err, "nothing was measured: rank")) << ended.err;
}

TEST_P(virtual_gpu_tool, still_names_a_variable_that_is_a_slip) {
  EXPECT_TRUE(has(run({"devices"}, {"WEFT_CUDA_DRIVRE=x"}).err, "did you mean WEFT_CUDA_DRIVER?"));
}

INSTANTIATE_TEST_SUITE_P(machines, virtual_gpu_tool,
                         testing::Values(gpus{"four_gpus", 4}, gpus{"one_as_four", 1}, gpus{"four_of_hip", 4, "hip"}),
                         [](const testing::TestParamInfo<gpus>& one) { return std::string{one.param.name}; });

}  // namespace virtual_gpu_test
}  // namespace weft::test
