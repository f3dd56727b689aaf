// SPDX-License-Identifier: Apache-2.0
// The doctor on recorded machines (tests/doctor), on broken records, and on this computer.
#include "cli/tool_runner.hpp"
#include "doctor/checks/checks.hpp"
#include "doctor/gather.hpp"
#include "doctor/record.hpp"
#include "support/paths.hpp"
#include "support/rounds.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <sys/stat.h>
#include <vector>

namespace weft::test {
namespace doctor_test {

using nlohmann::ordered_json;
using tool::all_checks;
using tool::diagnose;
using tool::machine_facts;
using tool::system_record;

std::string machines_folder() { return samples::source_folder() + "/tests/doctor/"; }

ordered_json case_of(const std::string& name) {
  return ordered_json::parse(read_text(machines_folder() + name + ".json"));
}

/// A machine as --collect writes it: whole in its file, or another one with changes (RFC 7396).
ordered_json machine_of(const std::string& name) {
  ordered_json one = case_of(name);
  if (one.contains("machine")) return one.at("machine");
  ordered_json machine = machine_of(one.at("of"));
  machine.merge_patch(one.at("change"));
  return machine;
}

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator{machines_folder()})
    names.push_back(entry.path().stem().string());
  std::ranges::sort(names);
  return names;
}

/// Words with one blank between them, however lines were broken.
std::string in_one_line(const std::string& text) {
  std::string line;
  for (const char letter : text) {
    const bool is_blank = letter == ' ' || letter == '\n';
    if (!is_blank || (!line.empty() && line.back() != ' ')) line += is_blank ? ' ' : letter;
  }
  return line;
}

class recorded_machine : public testing::TestWithParam<std::string> {};

TEST_P(recorded_machine, is_diagnosed_as_its_file_says) {
  const ordered_json expected = case_of(GetParam()).at("expect");
  // kept for people: weft doctor --from build/…/doctor/NAME.json
  const std::string folder = samples::build_folder() + "/doctor";
  std::filesystem::create_directories(folder);
  const std::string file = folder + "/" + GetParam() + ".json";
  write_text(file, machine_of(GetParam()).dump(1));

  const tool_result run = run_tool({"doctor", "--from", file, "--json"});
  EXPECT_EQ(run.exit_code, expected.at("exit")) << run.err << run.out;
  std::map<std::string, std::string> wrong, part_of;
  std::set<std::string> unknown;
  for (const auto& check : run.field("checks")) {
    const std::string name = check.at("name");
    const std::string verdict = check.at("verdict");
    if (check.at("part_of").is_string()) {
      part_of[name] = check.at("part_of");
    } else if (verdict == "failed" || verdict == "warning") {
      wrong[name] = verdict;
      EXPECT_FALSE(check.at("advice").empty()) << name;
      EXPECT_GT(check.at("decisive"), 0) << name;
      EXPECT_FALSE(check.at("effect").is_null()) << name;
    } else if (verdict == "unknown") {
      unknown.insert(name);
    }
    EXPECT_FALSE(check.at("summary").get<std::string>().empty()) << name;
  }
  EXPECT_EQ(wrong, (expected.at("wrong").get<std::map<std::string, std::string>>())) << run.out;
  EXPECT_EQ(part_of, (expected.at("part_of").get<std::map<std::string, std::string>>()));
  EXPECT_EQ(unknown, expected.at("unknown").get<std::set<std::string>>());

  const tool_result shown = run_tool({"doctor", "--from", file});
  for (const auto& check : run.field("checks")) {
    const std::string name = check.at("name");
    EXPECT_NE(shown.out.find(name), std::string::npos) << name << " is told nowhere\n" << shown.out;
  }
  EXPECT_EQ(shown.exit_code, expected.at("exit"));
  for (const auto& words : expected.at("says"))
    EXPECT_NE(in_one_line(shown.out).find(in_one_line(words)), std::string::npos) << words << "\n" << shown.out;
}

INSTANTIATE_TEST_SUITE_P(doctor, recorded_machine, testing::ValuesIn(machine_names()),
                         [](const auto& about) { return about.param; });

TEST(doctor, has_a_heading_in_the_troubleshooting_page_for_every_check) {
  std::set<std::string> headings, names;
  std::istringstream page{read_text(samples::source_folder() + "/docs/how-to/troubleshooting.md")};
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("### ")) headings.insert(line.substr(4));
  }
  for (const tool::check& one : all_checks()) names.insert(std::string{one.name});
  EXPECT_EQ(headings, names);
  EXPECT_GE(names.size(), 33U);
}

TEST(doctor, finds_the_same_in_what_it_has_collected) {
  const scratch_folder folder;
  const std::string file = folder / "here.json";
  const tool_result here = run_tool({"doctor", "--collect", file, "--json"});
  EXPECT_TRUE(here.exit_code == 0 || here.exit_code == 1 || here.exit_code == 3) << here.err;
  const tool_result there = run_tool({"doctor", "--from", file, "--json"});
  EXPECT_EQ(there.exit_code, here.exit_code) << there.err;
  EXPECT_EQ(there.field("checks"), here.field("checks"));
  EXPECT_EQ(there.field("gpus"), here.field("gpus"));
}

TEST(doctor, collects_neither_serial_numbers_nor_names_nor_secrets) {
  const scratch_folder folder;
  const std::string file = folder / "here.json";
  tool_environment environment;
  environment.set = {"NCCL_DEBUG=INFO",         "CUDA_VISIBLE_DEVICES=0",   "MY_PASSWORD=hush-mine",
                     "WEFT_SECRET=hush-secret", "NVIDIA_API_KEY=hush-key",  "WEFT_WORLD_TOKEN=hush-token",
                     "WEFT_JOIN=hush-place",    "NVIDIA_PASSWD=hush-short", "CUDA_my_secret=hush-small"};
  static_cast<void>(run_tool({"doctor", "--collect", file}, environment));
  const std::string text = read_text(file);
  EXPECT_NE(text.find("NCCL_DEBUG"), std::string::npos);
  std::array<char, 256> host{};
  ASSERT_EQ(::gethostname(host.data(), host.size() - 1), 0);
  for (const std::string& secret : std::vector<std::string>{
           "hush", '"' + std::string{host.data()} + '"', "product_serial", "product_uuid", "machine-id", "unique_id"})
    EXPECT_EQ(text.find(secret), std::string::npos) << secret;
}

TEST(doctor, shows_one_check_with_all_that_it_has_seen) {
  const scratch_folder folder;
  write_text(folder / "m.json", machine_of("x4_riser").dump());
  const tool_result run = run_tool({"doctor", "--from", folder / "m.json", "--check", "pci-link"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("0000:17:00.0: now gen 4 x16"), std::string::npos) << run.out;
  EXPECT_EQ(run.out.find("persistence"), std::string::npos) << run.out;
  // the code is of that check alone
  write_text(folder / "m.json", machine_of("memory_worn_out").dump());
  EXPECT_EQ(run_tool({"doctor", "--from", folder / "m.json", "--check", "pci-link"}).exit_code, 0);
  EXPECT_EQ(run_tool({"doctor", "--from", folder / "m.json", "--check", "gpu-memory"}).exit_code, 1);
  const tool_result none = run_tool({"doctor", "--check", "pci-lnk"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.err.find("did you mean pci-link?"), std::string::npos) << none.err;
}

TEST(doctor, tells_what_is_wrong_with_a_file_that_is_no_record) {
  const scratch_folder folder;
  const auto refuse = [&](const std::string& file, const std::string& words) {
    const tool_result run = run_tool({"doctor", "--from", file});
    EXPECT_EQ(run.exit_code, 2) << run.out;
    EXPECT_NE(run.err.find(words), std::string::npos) << run.err;
  };
  refuse(folder / "absent.json", "No such file");
  write_text(folder / "a.json", "{");
  refuse(folder / "a.json", "no JSON document");
  write_text(folder / "b.json", R"({"schema": "weft.topo/1"})");
  refuse(folder / "b.json", "weft doctor --collect writes one");
  write_text(folder / "c.json", R"({"schema": "weft.machine/1", "files": {"/proc/cmdline": 3}})");
  refuse(folder / "c.json", "/proc/cmdline of files is not a text");
  refuse(folder.path(), "no plain file");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  refuse(folder / "pipe", "no plain file");
}

/// Calls `change` for every part of a document.
void for_each_part(ordered_json& part, const std::function<void(ordered_json&)>& change) {
  change(part);
  if (!part.is_structured()) return;
  for (auto& one : part) for_each_part(one, change);
}

TEST(doctor, survives_records_in_which_any_part_is_of_another_kind) {
  const std::vector<ordered_json> others{nullptr,
                                         18446744073709551615ULL,
                                         -1e300,
                                         "x,-",
                                         "99999999999999999999-0",
                                         ordered_json::array({nullptr}),
                                         ordered_json::object({{"a", 1}})};
  for (const char* name : {"x4_riser", "nvlink_down", "no_permission"}) {
    ordered_json machine = machine_of(name);
    std::size_t refused = 0;
    std::size_t tried = 0;
    for_each_part(machine, [&](ordered_json& part) {
      const ordered_json kept = part;
      for (const ordered_json& other : others) {
        // 13 and 7 have no divisor in common, so that each meets each kind of part
        if (++tried % (samples::by_night() ? 5 : 13) != 0) continue;
        part = other;
        try {
          const system_record record{machine, "a record"};
          const auto found = diagnose(machine_facts{record});
          EXPECT_EQ(found.findings.size(), all_checks().size());
        } catch (const tool::failure&) {
          ++refused;
        }
      }
      part = kept;
    });
    EXPECT_GT(tried, 10 * refused) << name;
  }
}

TEST(doctor, reads_access_control_from_configuration_space) {
  std::array<std::byte, 4096> space{};
  const auto put = [&](std::size_t at, std::uint32_t word) {
    for (std::size_t i = 0; i < 4; ++i) space[at + i] = static_cast<std::byte>(word >> (8 * i));
  };
  EXPECT_FALSE(tool::acs_of(space));
  put(0x100, 0x14820001);  // AER, the next at 0x148
  put(0x148, 0x0001000d);  // ACS, the last
  put(0x14c, 0x001d005f);
  const auto state = tool::acs_of(space);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->can, 0x5f);
  EXPECT_EQ(state->does, 0x1d);
  put(0x148, 0x10010003);  // a list in a circle
  EXPECT_FALSE(tool::acs_of(space));
  put(0x148, 0xffc1000d);
  put(0x100, 0xffc20001);  // at the end of the space, where its registers would not fit
  put(0xffc, 0x0000000d);
  EXPECT_FALSE(tool::acs_of(space));
  EXPECT_FALSE(tool::acs_of(std::span{space}.first(64)));
}

TEST(doctor, reads_temperatures_and_users_of_gpus_of_amd_from_the_files_of_their_driver) {
  const scratch_folder root;
  const auto put = [&](const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root / file).parent_path());
    write_text(root / file, text);
  };
  for (const char* address : {"0000:05:00.0", "0001:c6:00.0"}) {
    const std::string folder = std::string{"sys/bus/pci/devices/"} + address + "/";
    put(folder + "vendor", "0x1002\n");
    put(folder + "class", "0x120000\n");
    put(folder + "hwmon/hwmon7/temp2_input", "61500\n");
    put(folder + "hwmon/hwmon7/temp2_label", "junction\n");
    put(folder + "hwmon/hwmon7/temp2_crit", "100000\n");
  }
  put("sys/bus/pci/devices/0000:17:00.0/vendor", "0x10de\n");
  const std::string kfd = "sys/class/kfd/kfd/";
  put(kfd + "topology/nodes/0/gpu_id", "0\n");
  put(kfd + "topology/nodes/1/gpu_id", "4242\n");
  put(kfd + "topology/nodes/1/properties", "cpu_cores_count 0\nlocation_id 1280\ndomain 0\n");
  put(kfd + "topology/nodes/2/gpu_id", "77\n");
  put(kfd + "topology/nodes/2/properties", "location_id 50688\ndomain 1\n");
  put(kfd + "proc/100/vram_4242", "4096\n");
  put(kfd + "proc/101/vram_4242", "1000\n");
  put(kfd + "proc/101/vram_77", "0\n");
  put(kfd + "proc/" + std::to_string(::getpid()) + "/vram_77", "500\n");
  const tool::json found = tool::gather_amd(root.path().string());
  ASSERT_EQ(found.size(), 2U) << found;
  EXPECT_EQ(found.at("0000:05:00.0").at("users"), (tool::json{{"processes", 2}, {"memory", 5096}}));
  EXPECT_EQ(found.at("0001:c6:00.0").at("users"), (tool::json{{"processes", 0}, {"memory", 0}}))
      << "this process is no other";
  EXPECT_EQ(found.at("0000:05:00.0").at("temperatures"),
            tool::json::array({{{"name", "junction"}, {"celsius", 61}, {"limit", 100}}}));
  EXPECT_TRUE(tool::gather_amd((root / "nothing").string()).empty());
}

TEST(doctor, keeps_lines_of_the_kernel_that_tell_of_faults) {
  EXPECT_TRUE(tool::is_about_gpus("[1.0] NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus."));
  EXPECT_TRUE(tool::is_about_gpus("[1.0] amdgpu 0000:05:00.0: amdgpu: GPU reset begin!"));
  EXPECT_TRUE(tool::is_about_gpus("[1.0] DMAR: [DMA Read] Request device [65:00.0] fault addr ffff"));
  EXPECT_FALSE(tool::is_about_gpus("[1.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15"));
  EXPECT_FALSE(tool::is_about_gpus("[1.0] usb 1-1: device descriptor read error"));
}

/// One finding of a machine.
tool::finding finding_of(const ordered_json& machine, std::string_view name) {
  const system_record record{machine, "a record"};
  const auto found = diagnose(machine_facts{record});
  const auto at = std::ranges::find(all_checks(), name, &tool::check::name) - all_checks().begin();
  return found.findings.at(static_cast<std::size_t>(at));
}

TEST(doctor, counts_the_gpus_whose_memory_is_sound) {
  EXPECT_EQ(finding_of(machine_of("dgx_h100"), "gpu-memory").summary, "no errors on 8 GPUs");
}

TEST(doctor, resets_a_gpu_once_that_has_errors_and_a_row_that_waits) {
  ordered_json machine = machine_of("dgx_h100");
  ordered_json& gpu = machine["nvml"]["gpus"]["0000:1b:00.0"];
  gpu["memory_errors"] = 3;
  gpu["remapped_rows"] = {{"corrected", 0}, {"uncorrected", 1}, {"pending", true}, {"failed", false}};
  const tool::finding found = finding_of(machine, "gpu-memory");
  EXPECT_EQ(found.found, tool::verdict::failed);
  EXPECT_EQ(found.about, words{"0000:1b:00.0"});
  EXPECT_EQ(std::ranges::count(found.steps, "$ sudo nvidia-smi --gpu-reset -i 0000:1b:00.0"), 1) << found.summary;
}

TEST(doctor, tells_the_variable_that_chooses_gpus_from_one_that_names_none) {
  ordered_json machine = machine_of("dgx_h100");
  const auto environment = [&](const char* value) {
    machine["process"]["environment"]["CUDA_VISIBLE_DEVICES"] = value;
    return finding_of(machine, "environment");
  };
  for (const char* some : {"7", "0,9", "GPU-01234567"}) {
    const tool::finding found = environment(some);
    EXPECT_EQ(found.found, tool::verdict::ok) << some;
    EXPECT_EQ(found.summary, "CUDA_VISIBLE_DEVICES chooses the GPUs that programs see") << some;
  }
  for (const char* none : {"8", "9,0", "-1", ""}) EXPECT_EQ(environment(none).found, tool::verdict::failed) << none;
}

TEST(doctor, says_why_nothing_was_measured) {
  ordered_json machine = machine_of("dgx_h100");
  machine["work"] = {{"measured_on", "link"},
                     {"kernels", ordered_json::array()},
                     {"pairs", ordered_json::array()},
                     {"host", {{{"device", "0000:1b:00.0"}, {"node", nullptr}, {"why", "no memory"}}}}};
  const tool::finding found = finding_of(machine, "host-rate");
  EXPECT_EQ(found.summary, "nothing was measured: 0000:1b:00.0: no memory");
  EXPECT_EQ(found.facts.size(), 1U) << "else it counts as not run";
}

TEST(doctor, asks_only_drivers_that_are_there_for_peers) {
  ordered_json machine{{"schema", "weft.machine/1"}, {"pci", {"0000:03:00.0", "0000:04:00.0"}}};
  for (const std::string address : {"0000:03:00.0", "0000:04:00.0"}) {
    const std::string folder = tool::pci_folder + address;
    machine["files"][folder + "/class"] = "0x038000";
    machine["files"][folder + "/vendor"] = "0x8086";
    machine["links"][folder] = "../../../devices/pci0000:00/0000:00:01.0/" + address;
  }
  const tool::finding found = finding_of(machine, "p2p-status");
  EXPECT_EQ(found.found, tool::verdict::unknown);
  EXPECT_FALSE(has(found.summary, "amdgpu")) << found.summary;
}

TEST(doctor, takes_no_size_from_a_window_that_no_bus_has) {
  ordered_json machine = machine_of("mi300x_8");
  for (const auto& address : machine.at("pci")) {
    machine["files"][tool::pci_folder + address.get<std::string>() + "/resource"] =
        "0x0000000000000000 0x7fffffffffffffff 0x0\n-9223372036854775808 9223372036854775807 0x0";
  }
  EXPECT_EQ(finding_of(machine, "pci-window").found, tool::verdict::unknown);
}

TEST(doctor, draws_rates_in_the_order_of_numbers_and_says_what_they_are) {
  ordered_json machine{{"schema", "weft.machine/1"}, {"simulated", true}};
  ordered_json pairs = ordered_json::array();
  for (int to = 1; to < 12; ++to) {
    pairs.push_back({{"from", "gpu0"},
                     {"to", "gpu" + std::to_string(to)},
                     {"offered", true},
                     {"arrived", true},
                     {"outcome", "arrived"},
                     {"bytes_per_second", 1e9 * to}});
  }
  machine["work"] = {{"measured_on", "host_memory"}, {"kernels", ordered_json::array()}, {"pairs", pairs}};
  const scratch_folder folder;
  write_text(folder / "m.json", machine.dump());
  const words command{"doctor", "--from", folder / "m.json", "-o", folder / "page.html"};
  EXPECT_EQ(run_tool(command).exit_code, 0);
  const std::string page = read_text(folder / "page.html");
  EXPECT_TRUE(has(page, "in the order gpu0 to gpu11;"));
  EXPECT_TRUE(has(page, "gpu0 to gpu10: 10 GB/s"));
  EXPECT_TRUE(has(page, "CPU memory, not a GPU figure"));
  EXPECT_TRUE(has(page, ">simulated</text>"));
  EXPECT_TRUE(has(page, "id=\"acs\""));
  EXPECT_EQ(run_tool(with(command, {"--check", "p2p-data"})).exit_code, 0);
  const std::string one_check = read_text(folder / "page.html");
  EXPECT_TRUE(has(one_check, "id=\"p2p-data\""));
  EXPECT_FALSE(has(one_check, "id=\"acs\"")) << "of one check, the page is of that one";
}

TEST(doctor, writes_no_page_over_the_record) {
  const scratch_folder folder;
  const std::string file = folder / "m.html";
  const std::string record = machine_of("pcie_4").dump();
  write_text(file, record);
  const tool_result from = run_tool({"doctor", "--from", file, "-o", file});
  EXPECT_EQ(from.exit_code, 2);
  EXPECT_TRUE(has(from.err, file + " is the file of --from too: name another one")) << from.err;
  EXPECT_EQ(read_text(file), record);
  EXPECT_EQ(run_tool({"doctor", "--collect", folder / "c.html", "-o", folder / "c.html"}).exit_code, 2);
  EXPECT_EQ(folder.names(), words{"m.html"});
}

TEST(doctor, writes_a_page_without_scripts_that_takes_hostile_names_as_text) {
  const scratch_folder folder;
  ordered_json machine = machine_of("x4_riser");
  machine["nvml"]["gpus"]["0000:66:00.0"]["name"] = "<script>alert(1)</script>";
  machine["process"]["environment"]["CUDA_LAUNCH_BLOCKING"] = "1";
  write_text(folder / "m.json", machine.dump());
  const tool_result run = run_tool({"doctor", "--from", folder / "m.json", "-o", folder / "page.html"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const std::string page = read_text(folder / "page.html");
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;"), std::string::npos);
  EXPECT_EQ(page.find("<?xml"), std::string::npos);
  std::size_t pictures = 0;
  for (auto at = page.find("<svg"); at != std::string::npos; at = page.find("<svg", at + 1)) ++pictures;
  EXPECT_EQ(pictures, 2U);
  for (const char* reference : {" src=", " href=", "url(", "@import"})
    EXPECT_EQ(page.find(reference), std::string::npos);
  EXPECT_NE(page.find("4 of 16 lanes"), std::string::npos);
  EXPECT_EQ(run_tool({"doctor", "-o", folder / "page.pdf"}).exit_code, 2);
}

TEST(doctor, finds_the_pair_of_a_simulated_machine_that_loses_data) {
  const tool_result run = run_tool({"doctor", "--run", "--sim", "faulty_4"});
  EXPECT_EQ(run.exit_code, 1) << run.err;
  EXPECT_NE(in_one_line(run.out).find("WRONG DATA over 1 of 12 ordered pairs: 0000:17:00.0 to 0000:18:00.0. Direct "
                                      "copies fail over 1 of 12 ordered pairs: 0000:18:00.0 to "),
            std::string::npos)
      << run.out;
  EXPECT_NE(run.out.find("4 simulated devices"), std::string::npos) << run.out;
  const tool_result well = run_tool({"doctor", "--run", "--sim", "pcie_4", "--clock", "virtual", "--json"});
  EXPECT_EQ(well.exit_code, 0) << well.out;
  for (const auto& check : well.field("checks")) {
    EXPECT_EQ(check.at("verdict"), check.at("needs_work") ? "ok" : "not_applicable") << check;
  }
}

TEST(doctor, says_that_data_is_wrong_only_where_a_wrong_byte_was_seen) {
  const scratch_folder folder;
  ordered_json machine = ordered_json::parse(read_text(samples::source_folder() + "/topologies/pcie_4.json"));
  const words command{"doctor", "--run", "--clock", "virtual", "--sim", folder / "m.json"};
  const auto p2p_data = [&](const ordered_json& fault) {
    machine["faults"] = ordered_json::array({fault});
    write_text(folder / "m.json", machine.dump());
    const tool_result run = run_tool(with(command, {"--json"}));
    EXPECT_EQ(run.exit_code, 1) << run.err;
    EXPECT_FALSE(has(run.out, "WRONG DATA")) << run.out;
    for (const auto& check : run.field("checks")) {
      if (check.at("name") == "p2p-data") return check;
    }
    return nlohmann::json{};
  };
  // a kernel has lost the device before, or had no memory, which is the failure
  for (const ordered_json& fault :
       {ordered_json{{"kind", "device_lost"}, {"device", "gpu1"}},
        ordered_json{{"kind", "call_fails"}, {"call", "allocate"}, {"device", "gpu1"}, {"nth", 0}}}) {
    const nlohmann::json found = p2p_data(fault);
    EXPECT_EQ(found.at("verdict"), "unknown") << found;
    EXPECT_TRUE(has(found.at("summary"), "6 of 12 ordered pairs could not be tried: ")) << found;
  }
  const std::string shown = in_one_line(run_tool(command).out);
  EXPECT_TRUE(has(shown, "unknown p2p-data 6 of 12 ordered pairs could not be tried")) << shown;
  EXPECT_TRUE(has(shown, "4 simulated devices: 1 failure, 1 check not finished")) << shown;
  const nlohmann::json found = p2p_data({{"kind", "copy_fails"}, {"from", "gpu0"}, {"to", "gpu1"}, {"nth", 0}});
  EXPECT_EQ(found.at("verdict"), "failed") << found;
  EXPECT_TRUE(has(found.at("summary"), "Direct copies fail over 1 of 12 ordered pairs: ")) << found;
}

TEST(doctor, takes_a_wrong_byte_from_the_reason_in_files_that_have_no_outcome) {
  ordered_json machine = machine_of("iommu_translates");
  machine["work"]["pairs"][1]["why"] = "commands: copy_failed: gpu0 cannot reach gpu2";
  const scratch_folder folder;
  write_text(folder / "m.json", machine.dump());
  const tool_result run = run_tool({"doctor", "--from", folder / "m.json"});
  EXPECT_EQ(run.exit_code, 1) << run.err;
  const std::string shown = in_one_line(run.out);
  EXPECT_TRUE(has(shown, "WRONG DATA over 7 of 12 ordered pairs: ")) << shown;
  EXPECT_TRUE(has(shown, "Direct copies fail over 1 of 12 ordered pairs: 0000:17:00.0 to 0000:65:00.0.")) << shown;
}

TEST(doctor, takes_a_machine_for_simulated_that_the_environment_or_the_clock_simulates) {
  const scratch_folder folder;
  tool_environment environment;
  environment.set = {"WEFT_TOPOLOGY=pcie_4"};
  const words command{"doctor", "--run", "--collect", folder / "m.json"};
  for (const tool_result& run :
       {run_tool(command, environment), run_tool(with(command, {"--clock", "virtual", "--backend", "host"}))}) {
    EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
    EXPECT_TRUE(has(run.out, "4 simulated devices: nothing wrong was found")) << run.out;
    EXPECT_EQ(ordered_json::parse(read_text(folder / "m.json")).value("simulated", false), true);
  }
}

TEST(doctor, has_nothing_to_do_for_a_simulated_machine_without_work) {
  EXPECT_EQ(run_tool({"doctor", "--sim", "pcie_4"}).exit_code, 2);
  EXPECT_EQ(run_tool({"doctor", "--from", "x.json", "--run"}).exit_code, 2);
}

TEST(doctor, refuses_a_choice_of_devices_where_it_uses_none) {
  for (const words& choice : {words{"--backend", "host"}, {"--logical-devices", "2"}, {"--clock", "virtual"}}) {
    const tool_result plain = run_tool(with({"doctor"}, choice));
    EXPECT_EQ(plain.exit_code, 2) << choice[0];
    EXPECT_TRUE(has(plain.err, choice[0]) && has(plain.err, "add --run")) << plain.err;
    const tool_result of_file = run_tool(with({"doctor", "--from", "x.json"}, choice));
    EXPECT_EQ(of_file.exit_code, 2) << choice[0];
    EXPECT_TRUE(has(of_file.err, "--from looks at a file")) << of_file.err;
  }
}

TEST(doctor, documents_are_valid_by_their_schemas) {
  const scratch_folder folder;
  std::vector<tool_result> runs{run_tool({"doctor", "--json"}),
                                run_tool({"doctor", "--run", "--sim", "faulty_4", "--json"})};
  for (const std::string& name : machine_names()) {
    write_text(folder / "m.json", machine_of(name).dump());
    runs.push_back(run_tool({"doctor", "--from", folder / "m.json", "--json"}));
    runs.push_back({0, machine_of(name).dump(), ""});
  }
  static_cast<void>(run_tool({"doctor", "--collect", folder / "here.json"}));
  runs.push_back({0, read_text(folder / "here.json"), ""});
  const tool_result checked = check_documents(runs);
  if (checked.exit_code == no_checker) GTEST_SKIP() << checked.err;
  EXPECT_EQ(checked.exit_code, 0) << checked.out;
}

}  // namespace doctor_test
}  // namespace weft::test
