// SPDX-License-Identifier: Apache-2.0
#include "command_line/commands.hpp"

#include "bench/copy/copy_bench.hpp"
#include "bench/queue/queue_bench.hpp"
#include "cli/tool_runner.hpp"
#include "support/paths.hpp"
#include "weft/core/topology.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace weft::test {
namespace commands_test {

using nlohmann::json;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::size_t begin = 0;
  for (std::size_t end = line.find('\t'); end != std::string::npos; end = line.find('\t', begin)) {
    cells.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  cells.push_back(line.substr(begin));
  return cells;
}

json schema_of(const std::string& kind) {
  std::string name = kind;
  name.replace(name.find('/'), 1, "-");
  return json::parse(read_text(samples::source_folder() + "/share/weft/schema/" + name + ".json"), nullptr, false);
}

/// The fields that every document has, and that of its own schema's top level.
void expect_document(const tool_result& run, const std::string& kind, bool simulated) {
  const json document = run.document();
  ASSERT_EQ(document.value("schema", ""), kind) << run.out.substr(0, 400) << run.err;
  EXPECT_EQ(document.at("simulated"), simulated);
  const json schema = schema_of(kind);
  ASSERT_TRUE(schema.is_object()) << kind << " has no schema file";
  for (const auto& key : schema.at("required"))
    EXPECT_TRUE(document.contains(key.get<std::string>())) << kind << ": " << key;
}

const words small_bench{"bench", "copy", "-s", "1,4K,1000003", "--samples", "3"};

TEST(summary, is_ten_lines_and_four_next_commands) {
  const auto run = run_tool({});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const auto lines = lines_of(run.out);
  ASSERT_EQ(lines.size(), 16U) << run.out;
  EXPECT_EQ(lines[10], "");
  EXPECT_EQ(lines[11], "next");
  for (std::size_t i = 12; i < 16; ++i) EXPECT_TRUE(lines[i].starts_with("  weft ")) << lines[i];
}

TEST(summary, every_next_command_runs) {
  const auto run = run_tool({"--json"});
  expect_document(run, "weft.summary/1", false);
  const json document = run.document();
  ASSERT_EQ(document.at("next").size(), 4U);
  for (const auto& next : document.at("next")) {
    const std::string command = next.at("command");
    const auto help = run_program({"sh", "-c", samples::tool() + command.substr(4) + " --help"});
    EXPECT_EQ(help.exit_code, 0) << command << help.err;
  }
}

TEST(summary, tells_the_links_of_many_devices_too) {
  const scratch_folder folder;
  write_text(folder / "m.json", R"({"schema": "weft.topology/1", "name": "m", "devices": [
    {"memory": "1GiB", "count": 65, "uplink": {"generation": 4, "lanes": 16}}]})");
  const auto run = run_tool({"--sim", (folder / "m.json").string()});
  EXPECT_TRUE(has(run.out, "links     PHB\n")) << run.out << run.err;
}

TEST(version, names_the_tool_and_the_commit) {
  const auto run = run_tool({"--version"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_TRUE(run.out.starts_with("weft ")) << run.out;
  EXPECT_TRUE(has(run.out, "commit"));
}

TEST(devices, lists_devices_and_backends_with_numbers_as_numbers) {
  const auto run = run_tool({"devices", "--json", "--sim", "dgx_h100"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  expect_document(run, "weft.devices/1", true);
  const json document = run.document();
  ASSERT_EQ(document.at("devices").size(), 8U);
  const json& second = document.at("devices")[1];
  EXPECT_EQ(second.at("index"), 1);
  EXPECT_EQ(second.at("backend"), "host");
  EXPECT_EQ(second.at("compute_units"), 132);
  EXPECT_EQ(second.at("memory_bytes"), std::uint64_t{80} << 30);
  EXPECT_EQ(second.at("pci_address"), "0000:43:00.0");
  EXPECT_EQ(second.at("simulated"), true);
  EXPECT_TRUE(second.at("capabilities").is_array());
  std::set<std::string> uuids;
  for (const json& device : document.at("devices")) uuids.insert(device.at("uuid"));
  EXPECT_EQ(uuids.size(), 8U);
  ASSERT_FALSE(document.at("backends").empty());
  for (const json& backend : document.at("backends")) {
    EXPECT_EQ(backend.at("available").get<bool>(), backend.at("why").is_null()) << backend;
  }
  ASSERT_EQ(document.at("engines").size(), 2U);
  for (const json& engine : document.at("engines")) {
    EXPECT_EQ(engine.at("available").get<bool>(), engine.at("why").is_null()) << engine;
    EXPECT_EQ(engine.at("available").get<bool>(), engine.at("what").is_string()) << engine;
  }
  EXPECT_EQ(document.at("engines")[1].at("why"), "this process has opened no MPI");
}

TEST(devices, letters_of_several_bytes_do_not_move_columns) {
  const scratch_folder folder;
  write_text(folder / "m.json", R"({"schema": "weft.topology/1", "name": "m", "devices": [
    {"name": "\u00e4\u00f6\u00fc\u00e4\u00f6\u00fc", "memory": "1GiB"}, {"name": "aouaou", "memory": "1GiB"}]})");
  const auto run = run_tool({"devices", "--sim", (folder / "m.json").string()});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::string plain = "gpu1    aouaou  host";
  EXPECT_TRUE(has(run.out, plain)) << run.out;
  EXPECT_TRUE(has(run.out, "gpu0    \u00e4\u00f6\u00fc\u00e4\u00f6\u00fc  host")) << run.out;
}

TEST(devices, what_a_device_does_not_have_is_null_with_a_reason) {
  const json document = run_tool({"devices", "--json"}).document();
  for (const json& device : document.at("devices")) {
    EXPECT_TRUE(device.at("pci_address").is_null());
    EXPECT_TRUE(device.at("why").is_string());
  }
}

TEST(devices, text_on_a_pipe_has_no_colour_unless_asked_for) {
  EXPECT_FALSE(has(run_tool({"devices"}).out, "\x1b["));
  EXPECT_TRUE(has(run_tool({"devices", "--color", "always"}).out, "\x1b["));
  EXPECT_TRUE(has(run_tool({"devices"}, {{"CLICOLOR_FORCE=1"}, {}, {}}).out, "\x1b["));
  EXPECT_FALSE(has(run_tool({"devices"}, {{"CLICOLOR_FORCE=1", "NO_COLOR=1"}, {}, {}}).out, "\x1b["));
  EXPECT_FALSE(has(run_tool({"devices", "--color=never"}, {{"CLICOLOR_FORCE=1"}, {}, {}}).out, "\x1b["));
}

TEST(machine, an_unknown_topology_is_a_usage_error_with_the_nearest_name) {
  const auto run = run_tool({"devices", "--sim", "dgx_h10"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_TRUE(run.out.empty());
  EXPECT_TRUE(has(run.err, "dgx_h100")) << run.err;
}

TEST(machine, a_bad_topology_file_is_a_usage_error_with_its_line) {
  const scratch_folder folder;
  write_text(folder / "bad.json",
             "{\n  \"schema\": \"weft.topology/1\",\n  \"name\": \"bad\",\n  \"devices\": \"three\"\n}\n");
  const auto run = run_tool({"--sim", (folder / "bad.json").string()});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_TRUE(has(run.err, "bad.json:4")) << run.err;
  EXPECT_TRUE(has(run.err, "devices")) << run.err;
}

TEST(machine, an_absent_backend_ends_with_3) {
  for (const words& command :
       {words{"--backend", "abacus"}, words{"--backend", "abacus", "devices"}, words{"topo", "--backend", "null"}}) {
    const auto run = run_tool(command);
    if (command[0] == "topo") continue;  // the empty backend has no device, which is no error for a matrix
    EXPECT_EQ(run.exit_code, 3) << run.out << run.err;
    EXPECT_TRUE(has(run.err, "abacus")) << run.err;
  }
}

TEST(machine, an_unknown_variable_is_a_warning_on_stderr_and_in_the_document) {
  const auto run = run_tool({"devices", "--json"}, {{"WEFT_DEVICE=3"}, {}, {}});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_TRUE(has(run.err, "WEFT_DEVICE")) << run.err;
  ASSERT_FALSE(run.document().at("warnings").empty());
  EXPECT_TRUE(has(run.document().at("warnings")[0], "WEFT_DEVICES"));
}

TEST(machine, the_environment_chooses_the_topology_and_a_flag_wins) {
  EXPECT_EQ(run_tool({"devices", "--json"}, {{"WEFT_TOPOLOGY=pair_nvlink"}, {}, {}}).document().at("devices").size(),
            2U);
  EXPECT_EQ(run_tool({"devices", "--json", "--sim", "one"}, {{"WEFT_TOPOLOGY=pair_nvlink"}, {}, {}})
                .document()
                .at("devices")
                .size(),
            1U);
}

TEST(topo, the_matrix_has_the_layout_of_nvidia_smi) {
  const auto run = run_tool({"topo", "-m", "--sim", "dgx_h100"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const auto lines = lines_of(run.out);
  ASSERT_GT(lines.size(), 10U);
  const auto header = cells_of(lines[0]);
  ASSERT_EQ(header.size(), 11U) << lines[0];
  EXPECT_EQ(header[0], "");
  EXPECT_EQ(header[1], "GPU0");
  EXPECT_EQ(header[9], "CPU Affinity");
  EXPECT_EQ(header[10], "NUMA Affinity");
  for (std::size_t i = 0; i < 8; ++i) {
    const auto row = cells_of(lines[i + 1]);
    ASSERT_EQ(row.size(), header.size());
    EXPECT_EQ(row[0], "GPU" + std::to_string(i));
    for (std::size_t j = 0; j < 8; ++j) EXPECT_EQ(row[j + 1], i == j ? " X " : "NV18");
    EXPECT_EQ(row[10], i < 4 ? "0" : "1");
  }
  EXPECT_EQ(lines[9], "");
  EXPECT_EQ(lines[10], "Legend:");
}

TEST(topo, the_p2p_matrix_shows_who_may_map_whom) {
  const auto run = run_tool({"topo", "-m", "--p2p", "--sim", "two_socket_8"});
  const auto lines = lines_of(run.out);
  ASSERT_GT(lines.size(), 9U) << run.err;
  for (std::size_t i = 0; i < 8; ++i) {
    const auto row = cells_of(lines[i + 1]);
    for (std::size_t j = 0; j < 8; ++j)
      EXPECT_EQ(row[j + 1], i == j ? " X " : i / 4 == j / 4 ? "OK" : "NS") << lines[i + 1];
  }
}

TEST(topo, every_ordered_pair_is_in_the_document) {
  const auto run = run_tool({"topo", "--json", "--sim", "two_socket_8"});
  expect_document(run, "weft.topo/1", true);
  const json document = run.document();
  EXPECT_EQ(document.at("engines").size(), 2U);
  ASSERT_EQ(document.at("pairs").size(), 56U);
  std::size_t offered = 0;
  for (const json& pair : document.at("pairs")) {
    EXPECT_NE(pair.at("from"), pair.at("to"));
    if (pair.at("can_access")) {
      ++offered;
      EXPECT_GT(pair.at("bandwidth_bytes_per_second").get<double>(), 1e9) << pair;
      EXPECT_GT(pair.at("latency_seconds").get<double>(), 0) << pair;
      EXPECT_EQ(pair.at("measured"), false);
    } else {
      EXPECT_TRUE(pair.at("why").is_string()) << pair;
    }
  }
  EXPECT_EQ(offered, 24U);
}

TEST(topo, figures_that_are_not_known_are_null_with_a_reason_until_measured) {
  for (const json& pair : run_tool({"topo", "--json"}).field("pairs")) {
    EXPECT_TRUE(pair.at("bandwidth_bytes_per_second").is_null()) << pair;
    EXPECT_TRUE(pair.at("why").is_string()) << pair;
  }
  for (const json& pair : run_tool({"topo", "--json", "--measure"}).field("pairs")) {
    EXPECT_GT(pair.at("bandwidth_bytes_per_second").get<double>(), 0) << pair;
    EXPECT_EQ(pair.at("measured"), true);
  }
}

TEST(topo, a_measurement_of_this_hosts_memory_is_not_called_one_of_the_link) {
  EXPECT_TRUE(
      has(run_tool({"topo", "--p2p", "--measure", "--sim", "pair_nvlink"}).out, "measured: host memory, not the link"));
  for (const json& pair : run_tool({"topo", "--json", "--measure", "--sim", "pair_nvlink"}).field("pairs"))
    EXPECT_EQ(pair.at("measured_on"), "host_memory") << pair;
  const auto simulated = run_tool({"topo", "--json", "--measure", "--sim", "pair_nvlink", "--clock", "virtual"});
  for (const json& pair : simulated.field("pairs")) EXPECT_EQ(pair.at("measured_on"), "link") << pair;
  for (const json& pair : run_tool({"topo", "--json", "--sim", "pair_nvlink"}).field("pairs"))
    EXPECT_TRUE(pair.at("measured_on").is_null()) << pair;
}

TEST(topo, a_measurement_without_any_peer_access_says_so_instead_of_an_empty_table) {
  const auto run = run_tool({"topo", "--measure", "--sim", "ring_3_no_p2p"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "No pair has peer access: weft bench copy measures staged copies.\n")) << run.out;
  EXPECT_FALSE(has(run.out, "figures")) << run.out;
}

TEST(topo, a_pair_that_drops_data_is_found_and_ends_with_1) {
  const auto run = run_tool({"topo", "--verify", "--json", "--sim", "faulty_4"});
  EXPECT_EQ(run.exit_code, 1) << run.err;
  bool found = false;
  for (const json& pair : run.field("pairs")) {
    if (pair.at("from") == 0 && pair.at("to") == 1) {
      found = true;
      EXPECT_EQ(pair.at("verified"), false) << pair;
      EXPECT_EQ(pair.at("trusted"), false) << pair;
    }
  }
  EXPECT_TRUE(found);
  EXPECT_TRUE(has(run.err, "peer access is offered, but data does not arrive: ")) << run.err;
  EXPECT_TRUE(has(run_tool({"topo", "--p2p", "--verify", "--sim", "faulty_4"}).out, "BAD"));
  const auto good = run_tool({"topo", "--p2p", "--verify", "--sim", "pair_nvlink"});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_TRUE(has(good.out, "1/1")) << good.out;
}

TEST(topo, a_pair_that_could_not_be_tried_or_whose_copy_fails_is_not_called_one_that_drops_data) {
  const scratch_folder folder;
  json machine = json::parse(read_text(samples::source_folder() + "/topologies/pcie_4.json"));
  machine["faults"] = json::array({{{"kind", "call_fails"}, {"call", "allocate"}, {"device", "gpu1"}, {"nth", 0}},
                                   {{"kind", "copy_fails"}, {"from", "gpu2"}, {"to", "gpu3"}, {"nth", 0}}});
  write_text(folder / "m.json", machine.dump());
  const words command{"topo", "--p2p", "--verify", "--sim", folder / "m.json"};
  const auto shown = run_tool(command);
  EXPECT_EQ(shown.exit_code, 1) << shown.err;
  EXPECT_TRUE(has(shown.out, "FAIL = Offered, but a copy")) << shown.out;
  EXPECT_TRUE(has(shown.out, "?    = Offered, but could not be tried")) << shown.out;
  EXPECT_TRUE(has(shown.err, "gpu0 to gpu1: peer access is offered, but could not be tried: ")) << shown.err;
  EXPECT_TRUE(has(shown.err, "gpu2 to gpu3: peer access is offered, but fails: ")) << shown.err;
  std::map<std::string, int> outcomes;
  for (const json& pair : run_tool(with(command, {"--json"})).field("pairs")) {
    ++outcomes[pair.at("outcome")];
    EXPECT_EQ(pair.at("verified").is_null(), pair.at("outcome") == "not_tried") << pair;
    EXPECT_EQ(pair.at("trusted"), pair.at("outcome") != "failed") << pair;
  }
  EXPECT_EQ(outcomes, (std::map<std::string, int>{{"arrived", 5}, {"failed", 1}, {"not_tried", 6}}));
}

TEST(topo, writes_each_format_and_nothing_else) {
  const scratch_folder folder;
  for (const char* name : {"m.svg", "m.json", "m.dot", "m.txt"}) {
    const auto run = run_tool({"topo", "--sim", "pair_nvlink", "-o", (folder / name).string()});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_TRUE(has(run.err, name)) << run.err;
  }
  EXPECT_EQ(folder.names(), (words{"m.dot", "m.json", "m.svg", "m.txt"}));
  EXPECT_TRUE(has(read_text(folder / "m.svg"), "<svg"));
  EXPECT_TRUE(has(read_text(folder / "m.dot"), "graph"));
  EXPECT_TRUE(has(read_text(folder / "m.txt"), "\tGPU0\tGPU1"));
  EXPECT_EQ(json::parse(read_text(folder / "m.json")).at("schema"), "weft.topo/1");
}

TEST(topo, an_unknown_ending_is_a_usage_error) {
  const scratch_folder folder;
  const auto run = run_tool({"topo", "-o", (folder / "m.svgg").string()});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_TRUE(has(run.err, ".svg")) << run.err;
  EXPECT_TRUE(folder.names().empty());
}

TEST(output_file, an_unwritable_path_is_an_error_and_leaves_nothing) {
  const scratch_folder folder;
  write_text(folder / "file", "not a folder");
  const std::string target = (folder / "file").string() + "/m.svg";
  const auto run = run_tool({"topo", "-o", target});
  EXPECT_EQ(run.exit_code, 4);
  EXPECT_TRUE(has(run.err, target)) << run.err;
  EXPECT_EQ(folder.names(), words{"file"});
}

TEST(output_file, benchmarks_find_out_before_they_measure_that_it_has_no_place) {
  const scratch_folder folder;
  for (const words& what : {words{"queue", "--pairs", "0-1", "--quick"}, {"copy", "--pairs", "0-1", "-s", "8"}}) {
    for (const std::string& target : {(folder / "none/r.json").string(), folder.path().string()}) {
      words line{"bench", "-o", target};
      line.insert(line.begin() + 1, what.begin(), what.end());
      const auto run = run_tool(line);
      EXPECT_EQ(run.exit_code, 4);
      EXPECT_TRUE(has(run.err, "cannot write " + target)) << run.err;
      EXPECT_EQ(run.out, "") << what[0];
    }
  }
}

TEST(output_file, a_full_disk_is_an_error_and_the_device_stays_a_device) {
  const auto run = run_tool({"topo", "-o", "/dev/full"});
  EXPECT_EQ(run.exit_code, 4);
  EXPECT_TRUE(has(run.err, "/dev/full")) << run.err;
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
}

TEST(output_file, a_write_that_fails_leaves_the_old_file_as_it_was) {
  const scratch_folder folder;
  write_text(folder / "m.svg", "old");
  // A file size limit of a kilobyte stands for the full disk.
  const auto run =
      run_program({"bash", "-c", "trap '' XFSZ; ulimit -f 1; exec \"$0\" topo --sim mi300x_8 -q -o m.svg > /dev/null",
                   samples::tool()},
                  {{}, {}, folder.path()});
  EXPECT_EQ(run.exit_code, 4) << run.err;
  EXPECT_TRUE(has(run.err, "m.svg")) << run.err;
  EXPECT_EQ(read_text(folder / "m.svg"), "old");
  EXPECT_EQ(folder.names(), words{"m.svg"});
}

TEST(output_file, a_link_is_written_through_and_kept) {
  const scratch_folder folder;
  write_text(folder / "real.svg", "old");
  std::filesystem::create_symlink("real.svg", folder / "link.svg");
  EXPECT_EQ(run_tool({"topo", "-o", (folder / "link.svg").string()}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link.svg"));
  EXPECT_TRUE(has(read_text(folder / "real.svg"), "<svg"));
}

TEST(output_file, a_link_to_no_file_yet_is_written_through_too) {
  const scratch_folder folder;
  std::filesystem::create_symlink("real.svg", folder / "link.svg");
  EXPECT_EQ(run_tool({"topo", "-o", (folder / "link.svg").string()}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link.svg"));
  EXPECT_TRUE(has(read_text(folder / "real.svg"), "<svg"));
  std::filesystem::create_symlink("circle.svg", folder / "circle.svg");
  EXPECT_EQ(run_tool({"topo", "-o", (folder / "circle.svg").string()}).exit_code, 4);
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "circle.svg"));
}

TEST(output_file, what_the_shell_has_opened_is_written_on_and_not_replaced) {
  const scratch_folder folder;
  write_text(folder / "t.json", R"([{"ph": "X", "ts": 1, "dur": 5}])");
  for (const char* name : {"/dev/stdout", "/dev/fd/1"}) {
    write_text(folder / "log", "kept\n");
    const auto run =
        run_program({"sh", "-c", "exec \"$0\" trace view t.json -q -o \"$1\" >> log", samples::tool(), name},
                    {{}, {}, folder.path()});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    const std::string log = read_text(folder / "log");
    EXPECT_TRUE(log.starts_with("kept\n<svg")) << log;
    EXPECT_TRUE(log.ends_with("t.json: 1 event on 1 track, 5.00 us\n")) << log;
  }
  EXPECT_EQ(folder.names(), (words{"log", "t.json"}));
}

TEST(standard_output, a_full_disk_there_is_an_error_too) {
  for (const words& line : {words{"devices"}, words{"help", "--man"}, words{"completion", "bash"},
                            words{"devices", "--sim", "dgx_h100_x2", "--json"}}) {
    const auto run = run_tool(line, {{}, "/dev/full", {}});
    EXPECT_EQ(run.exit_code, 4);
    EXPECT_TRUE(has(run.err, "cannot write to standard output: No space left on device")) << run.err;
  }
}

TEST(standard_error, is_no_reason_to_end_otherwise_where_it_takes_nothing) {
  for (const char* to : {"2>&-", "2>/dev/full"}) {
    const auto run = run_program({"sh", "-c", "exec \"$0\" nosuch " + std::string{to}, samples::tool()});
    EXPECT_EQ(run.exit_code, 2) << to;
  }
}

TEST(standard_error, is_no_file_or_memory_of_the_program_where_it_is_closed) {
  const scratch_folder folder;
  write_text(folder / "t.json", "[]");
  // written to /dev/null, which takes its place; /proc shows nothing else there
  const auto run = run_program({"sh", "-c", "exec \"$0\" trace view t.json -o /dev/fd/2 2>&-", samples::tool()},
                               {{}, {}, folder.path()});
  EXPECT_EQ(run.exit_code, 0) << run.out;
}

TEST(route, tells_the_way_its_cost_and_why_the_others_lost) {
  const auto run = run_tool({"route", "0", "gpu1", "64M", "--json", "--sim", "pair_nvlink"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  expect_document(run, "weft.route/1", true);
  const json route = run.document().at("route");
  EXPECT_EQ(route.at("path"), "direct");
  EXPECT_TRUE(route.at("via").is_null());
  EXPECT_GT(route.at("predicted_seconds").get<double>(), 64e6 / 600e9);
  ASSERT_FALSE(route.at("rejected").empty());
  for (const json& other : route.at("rejected")) EXPECT_FALSE(other.at("why").get<std::string>().empty());
  EXPECT_TRUE(has(run_tool({"route", "0", "1", "64M", "--sim", "pair_nvlink"}).out, "simulated"));
}

TEST(route, without_peer_access_a_copy_is_staged) {
  const json route = run_tool({"route", "0", "2", "1G", "--json", "--sim", "ring_3_no_p2p"}).document().at("route");
  EXPECT_EQ(route.at("path"), "staged");
  EXPECT_GT(route.at("chunk_bytes").get<std::uint64_t>(), 0U);
  EXPECT_GE(route.at("depth").get<int>(), 2);
}

TEST(route, a_cost_that_is_not_known_is_null_with_a_reason) {
  const auto run = run_tool({"route", "0", "1", "64M", "--json"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json route = run.document().at("route");
  EXPECT_TRUE(route.at("predicted_seconds").is_null());
  EXPECT_TRUE(route.at("why").is_string());
}

TEST(route, the_host_is_not_a_place_and_says_so) {
  const auto run = run_tool({"route", "host", "0", "1M"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_TRUE(has(run.err, "host")) << run.err;
}

TEST(route, an_end_of_the_copy_is_no_device_in_the_middle) {
  const auto run = run_tool({"route", "0", "1", "1M", "--path", "relayed", "--via", "1", "--sim", "dgx_h100"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_TRUE(has(run.err, "--via gpu1: it is an end of the copy")) << run.err;
}

TEST(route, nothing_has_no_rate) {
  const auto run = run_tool({"route", "0", "1", "0", "--sim", "pair_nvlink"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_FALSE(has(run.out, "kB/s")) << run.out;
}

TEST(route, a_device_that_is_not_there_ends_with_3) {
  const auto run = run_tool({"route", "0", "9", "1M", "--sim", "pair_nvlink"});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_TRUE(has(run.err, "gpu9")) << run.err;
}

TEST(bench_copy, measures_and_verifies_every_ordered_pair) {
  const auto run = run_tool(with(small_bench, {"--json", "-q", "--budget", "60s"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  expect_document(run, "weft.bench.copy/1", false);
  const json document = run.document();
  EXPECT_TRUE(has(document.at("note"), "not a GPU figure"));
  EXPECT_EQ(document.at("results").size(), 3U * (4 + 12 * 2));
  std::set<std::string> names;
  for (const json& row : document.at("results")) {
    names.insert(row.at("name"));
    EXPECT_EQ(row.at("verified"), true) << row;
    EXPECT_GT(row.at("seconds").at("median").get<double>(), 0) << row;
    EXPECT_LE(row.at("seconds").at("p5"), row.at("seconds").at("median")) << row;
    EXPECT_LE(row.at("seconds").at("median"), row.at("seconds").at("p95")) << row;
    EXPECT_EQ(row.at("seconds").at("samples"), 3) << row;
    EXPECT_EQ(row.at("why").is_null(), row.at("share_of_limit").is_number()) << row;
  }
  EXPECT_EQ(names.size(), document.at("results").size());
  EXPECT_TRUE(names.contains("copy/direct/4KiB/gpu0-gpu1"));
  EXPECT_TRUE(names.contains("copy/staged/1000003B/gpu3-gpu0"));
  EXPECT_TRUE(names.contains("copy/same_device/1B/gpu2-gpu2"));
}

TEST(bench_copy, without_peer_access_the_direct_column_is_null_with_the_reason) {
  const auto run =
      run_tool({"bench", "copy", "-s", "4K", "--samples", "3", "--json", "--budget", "60s", "--sim", "ring_3_no_p2p"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  for (const json& row : run.field("results")) {
    if (row.at("path") == "direct") {
      EXPECT_TRUE(row.at("seconds").is_null());
      EXPECT_TRUE(row.at("verified").is_null());
      EXPECT_TRUE(row.at("why").is_string()) << row;
    } else {
      EXPECT_EQ(row.at("verified"), true) << row;
    }
  }
}

TEST(bench_copy, without_p2p_only_staged_copies_are_made) {
  const auto run = run_tool(
      {"bench", "copy", "-s", "4K", "--samples", "3", "--json", "--budget", "60s", "--no-p2p", "--pairs", "0-1,2-3"});
  ASSERT_EQ(run.document().at("results").size(), 2U) << run.err;
  for (const json& row : run.field("results")) EXPECT_EQ(row.at("path"), "staged");
}

TEST(bench_copy, no_copy_is_faster_than_its_limit) {
  const auto run = run_tool(
      {"bench", "copy", "--samples", "3", "--min-time", "1ms", "--json", "--pairs", "0-1", "--sizes", "4M,64M"});
  for (const json& row : run.field("results")) {
    EXPECT_TRUE(row.at("share_of_limit").is_null() ? row.at("why").is_string() : row.at("share_of_limit") <= 1.0)
        << row;
  }
}

TEST(bench_queue, a_time_that_is_lost_in_the_noise_is_no_figure) {
  for (const json& row : run_tool({"bench", "queue", "--ends", "kernel", "--quick", "--json"}).field("results")) {
    if (row.at("seconds").is_null()) {
      EXPECT_TRUE(row.at("why").is_string()) << row;
    } else {
      EXPECT_GT(row.at("seconds").at("p5").get<double>(), 0) << row;
    }
  }
}

TEST(bench_copy, a_virtual_clock_is_close_to_the_limit_and_says_simulated) {
  const words command{"bench", "copy",  "-s",          "16M",     "--samples", "3",        "--pairs",
                      "0-1",   "--sim", "pair_nvlink", "--clock", "virtual",   "--budget", "60s"};
  const auto run = run_tool(with(command, {"--json"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json document = run.document();
  EXPECT_EQ(document.at("simulated"), true);
  EXPECT_EQ(document.at("clock"), "virtual");
  for (const json& row : document.at("results")) {
    EXPECT_EQ(row.at("limit_from"), "link") << row;
    EXPECT_GT(row.at("share_of_limit").get<double>(), 0.8) << row;
    EXPECT_LE(row.at("share_of_limit").get<double>(), 1.001) << row;
    EXPECT_NEAR(row.at("seconds").at("median").get<double>(), row.at("predicted_seconds").get<double>(),
                0.05 * row.at("predicted_seconds").get<double>())
        << row;
  }
  const auto text = run_tool(command);
  EXPECT_TRUE(has(text.out, "(simulated)")) << text.out;
}

TEST(bench_copy, a_virtual_clock_gives_the_same_figures_every_time) {
  const words command{"bench",   "copy",    "-s",      "1M",     "--samples", "3",  "--sim",
                      "mixed_3", "--clock", "virtual", "--json", "--budget",  "60s"};
  EXPECT_EQ(run_tool(command).document().at("results"), run_tool(command).document().at("results"));
}

TEST(bench_copy, data_that_does_not_arrive_ends_with_1_and_the_first_bad_offset) {
  const scratch_folder folder;
  json machine = json::parse(read_text(samples::source_folder() + "/topologies/pair_nvlink.json"));
  machine["faults"] = json::array({{{"kind", "drops_data"}, {"from", "gpu0"}, {"to", "gpu1"}}});
  write_text(folder / "liar.json", machine.dump());
  const auto run = run_tool({"bench", "copy", "-s", "4K", "--samples", "3", "--json", "--budget", "60s", "--sim",
                             (folder / "liar.json").string()});
  EXPECT_EQ(run.exit_code, 1) << run.err;
  bool found = false;
  for (const json& row : run.field("results")) {
    if (row.at("verified") != false) continue;
    found = true;
    EXPECT_EQ(row.at("path"), "direct") << row;
    EXPECT_TRUE(has(row.at("why"), "offset 0")) << row;
    EXPECT_TRUE(row.at("seconds").is_null()) << row;
  }
  EXPECT_TRUE(found);
}

TEST(bench_copy, a_copy_that_fails_ends_with_4_and_the_others_go_on) {
  const scratch_folder folder;
  json machine = json::parse(read_text(samples::source_folder() + "/topologies/pair_nvlink.json"));
  machine["faults"] = json::array({{{"kind", "copy_fails"}, {"from", "gpu0"}, {"to", "gpu1"}, {"nth", 3}}});
  write_text(folder / "failing.json", machine.dump());
  const auto run = run_tool({"bench", "copy", "-s", "4K,8K", "--samples", "3", "--json", "--budget", "60s", "--sim",
                             (folder / "failing.json").string()});
  EXPECT_EQ(run.exit_code, 4) << run.err;
  std::size_t failed = 0;
  for (const json& row : run.field("results")) {
    if (row.at("seconds").is_null()) {
      ++failed;
      EXPECT_TRUE(row.at("why").is_string()) << row;
    } else {
      EXPECT_EQ(row.at("verified"), true) << row;
    }
  }
  EXPECT_EQ(failed, 1U) << run.out;
}

const words small_queues{"bench", "queue", "-s", "8,64", "--quick", "--batch", "1,7"};

TEST(bench_queue, measures_and_verifies_every_ordered_pair_both_ways) {
  const auto run = run_tool(with(small_queues, {"--json", "-q", "--budget", "60s", "--sim", "pair_nvlink"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  expect_document(run, "weft.bench.queue/1", true);
  const json document = run.document();
  EXPECT_TRUE(has(document.at("note"), "not a GPU figure"));
  EXPECT_EQ(document.at("complete"), true);
  ASSERT_EQ(document.at("results").size(), 2U * 2 * 2 * 3) << "sizes, pairs, modes; a round trip and two batches";
  std::set<std::string> names;
  for (const json& row : document.at("results")) {
    names.insert(row.at("name"));
    EXPECT_EQ(row.at("verified"), true) << row;
    EXPECT_NE(row.at("src"), row.at("dst")) << row;
    const double median = row.at("seconds").at("median");
    EXPECT_GT(median, 0) << row;
    EXPECT_LE(row.at("seconds").at("p5"), median) << row;
    EXPECT_LE(median, row.at("seconds").at("p95")) << row;
    EXPECT_EQ(row.at("seconds").at("samples"), 3) << row;
    const double messages = row.at("kind") == "round_trip" ? 2 : 1;
    EXPECT_NEAR(row.at("messages_per_second").get<double>() * median, messages, 1e-6) << row;
    EXPECT_TRUE(row.at("why").is_null()) << row;
  }
  EXPECT_EQ(names.size(), document.at("results").size());
  EXPECT_TRUE(names.contains("queue/direct/round_trip/8B/gpu0-gpu1"));
  EXPECT_TRUE(names.contains("queue/host_staged/batch_7/64B/gpu1-gpu0"));
}

TEST(bench_queue, has_every_size_that_it_names) {
  std::string all;
  for (const std::uint64_t size : tool::queue_sizes) all += (all.empty() ? "" : ",") + std::to_string(size);
  const auto run = run_tool({"bench", "queue", "--quick", "--batch", "64", "--from", "0", "--to", "1", "--json", "-s",
                             all, "--budget", "60s"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const json rows = run.field("results");
  ASSERT_EQ(rows.size(), tool::queue_sizes.size() * 2 * 2);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].at("bytes"), tool::queue_sizes[i / 4]);
    EXPECT_EQ(rows[i].at("verified"), true) << rows[i];
  }
}

TEST(bench_queue, without_peer_access_the_direct_columns_are_empty_and_the_reason_is_told) {
  const words command{"bench", "queue", "-s",       "64",  "--quick", "--from",       "0",
                      "--to",  "2",     "--budget", "60s", "--sim",   "ring_3_no_p2p"};
  const auto text = run_tool(command);
  EXPECT_EQ(text.exit_code, 0) << text.err;
  std::string line;
  for (const std::string& one : lines_of(text.out)) {
    if (one.starts_with("gpu0-gpu2")) line = one;
  }
  std::istringstream cells{line};
  std::string pair, size, there_and_back, spread, single, batch, staged;
  cells >> pair >> size >> there_and_back >> spread >> single >> batch >> staged;
  for (const std::string& cell : {there_and_back, spread, single, batch}) EXPECT_EQ(cell, "-") << line;
  EXPECT_NE(staged, "-") << line;
  EXPECT_TRUE(line.ends_with("ok")) << line;
  EXPECT_TRUE(has(text.out, "queue/direct/batch_64/64B/gpu0-gpu2: gpu0 has no peer access to gpu2")) << text.out;
  EXPECT_TRUE(has(text.out, "times are those of this host's memory and cores, not a GPU figure")) << text.out;

  const auto run = run_tool(with(command, {"--json"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  ASSERT_EQ(run.field("results").size(), 6U);
  for (const json& row : run.field("results")) {
    if (row.at("mode") == "direct") {
      EXPECT_TRUE(row.at("seconds").is_null()) << row;
      EXPECT_TRUE(row.at("messages_per_second").is_null()) << row;
      EXPECT_TRUE(row.at("verified").is_null()) << row;
      EXPECT_TRUE(has(row.at("why"), "gpu0 has no peer access to gpu2")) << row;
    } else {
      EXPECT_EQ(row.at("verified"), true) << row;
      EXPECT_TRUE(row.at("why").is_null()) << row;
    }
  }
}

TEST(bench_queue, one_way_that_lies_is_found_and_not_offered_as_direct) {
  const scratch_folder folder;
  json machine = json::parse(read_text(samples::source_folder() + "/topologies/pair_nvlink.json"));
  machine["faults"] = json::array({{{"kind", "drops_data"}, {"from", "gpu0"}, {"to", "gpu1"}}});
  write_text(folder / "liar.json", machine.dump());
  const auto run = run_tool({"bench", "queue", "-s", "8", "--quick", "--mode", "direct", "--from", "0", "--to", "1",
                             "--json", "--budget", "60s", "--sim", (folder / "liar.json").string()});
  EXPECT_EQ(run.exit_code, 6) << run.err;
  ASSERT_EQ(run.field("results").size(), 3U) << run.err;
  for (const json& row : run.field("results")) {
    EXPECT_TRUE(row.at("seconds").is_null()) << row;
    EXPECT_TRUE(has(row.at("why"), "does not arrive")) << row;
  }
}

TEST(bench_queue, one_mode_and_one_direction_are_what_was_asked_for) {
  const auto run = run_tool({"bench", "queue", "-s", "8", "--quick", "--mode", "host_staged", "--batch", "1", "--from",
                             "gpu1", "--json", "--budget", "60s", "--sim", "ring_3_no_p2p"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  ASSERT_EQ(run.field("results").size(), 2U * 2);
  for (const json& row : run.field("results")) {
    EXPECT_EQ(row.at("mode"), "host_staged");
    EXPECT_EQ(row.at("src"), 1);
    EXPECT_NE(row.at("dst"), 1);
  }
}

TEST(bench_queue, a_device_sends_to_itself_when_it_is_asked_to_or_alone) {
  const words little{"bench",  "queue",  "-s",     "8",        "--quick", "--batch", "1",
                     "--mode", "direct", "--json", "--budget", "60s",     "--sim"};
  const auto alone = run_tool(with(little, {"one"}));
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_EQ(alone.field("results").size(), 2U);
  const auto asked = run_tool(with(little, {"pair_nvlink", "--from", "1", "--to", "1"}));
  ASSERT_EQ(asked.field("results").size(), 2U) << asked.err;
  EXPECT_EQ(asked.field("results")[0].at("name"), "queue/direct/round_trip/8B/gpu1-gpu1");
}

TEST(bench_queue, a_virtual_clock_checks_messages_and_times_nothing) {
  const words command{"bench",    "queue", "-s",    "8",           "--from",  "0",
                      "--budget", "60s",   "--sim", "pair_nvlink", "--clock", "virtual"};
  const auto run = run_tool(with(command, {"--json"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.field("simulated"), true);
  ASSERT_FALSE(run.field("results").empty());
  for (const json& row : run.field("results")) {
    EXPECT_EQ(row.at("verified"), true) << row;
    EXPECT_TRUE(row.at("seconds").is_null()) << row;
    EXPECT_TRUE(row.at("messages_per_second").is_null()) << row;
    EXPECT_TRUE(has(row.at("why"), "virtual clock")) << row;
  }
  EXPECT_TRUE(has(run_tool(command).out, "simulated"));
}

TEST(bench_queue, a_ring_that_needs_a_quarter_of_the_free_memory_is_not_made) {
  const scratch_folder folder;
  json machine = json::parse(read_text(samples::source_folder() + "/topologies/pair_nvlink.json"));
  for (json& device : machine["devices"]) device["memory"] = "8MiB";
  write_text(folder / "small.json", machine.dump());
  const auto run = run_tool({"bench", "queue", "-s", "8,64K", "--quick", "--json", "--budget", "60s", "--from", "0",
                             "--sim", (folder / "small.json").string()});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.document().at("complete"), false);
  for (const json& row : run.field("results")) {
    EXPECT_EQ(row.at("seconds").is_null(), row.at("bytes") == 65536) << row;
    if (row.at("bytes") == 65536) {
      EXPECT_TRUE(has(row.at("why"), "quarter")) << row;
    }
  }
}

TEST(bench_queue, a_process_with_one_core_binds_nothing_and_says_so) {
  const auto run = run_program({"taskset", "-c", "0", samples::tool(), "bench", "queue", "-s", "8", "--quick", "--mode",
                                "direct", "--from", "0", "--to", "1", "--budget", "60s"});
  if (has(run.err, "taskset") || run.exit_code == 127) GTEST_SKIP() << "taskset cannot be used here: " << run.err;
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(has(run.out, "not bound to cores")) << run.out;
  EXPECT_TRUE(has(run.out, "ok")) << run.out;
}

TEST(numbered_message, sees_every_wrong_word_and_every_other_number) {
  using message = tool::numbered_message<256>;
  message one;
  one.fill(41);
  EXPECT_EQ(one.first_bad(41, true), message::words);
  EXPECT_EQ(one.first_bad(41, false), message::words);
  for (const std::uint64_t other : {0U, 40U, 42U, 41U + 1024U}) {
    EXPECT_EQ(one.first_bad(other, true), 0U) << other;
    EXPECT_EQ(one.first_bad(other, false), 0U) << other;
  }
  for (std::size_t i = 0; i < message::words; ++i) {
    message bad = one;
    bad.word[i] ^= std::uint64_t{1} << (i * 7 % 64);
    EXPECT_EQ(bad.first_bad(41, true), i);
    const bool an_end = i == 0 || i + 1 == message::words;
    EXPECT_EQ(bad.first_bad(41, false), an_end ? i : message::words);
  }
  message torn = one;
  torn.mark(42);
  EXPECT_EQ(torn.first_bad(42, false), message::words);
  EXPECT_EQ(torn.first_bad(42, true), 1U);
}

TEST(demo, sends_messages_and_checks_each) {
  const scratch_folder folder;
  const auto run = run_tool({"demo", "-o", (folder / "out").string(), "--sim", "ring_3_no_p2p"});
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_TRUE(has(run.out, "messages of 64 bytes, host_staged, ")) << run.out;
  EXPECT_TRUE(has(run.out, "gpu0 has no peer access to gpu1")) << run.out;
  const json queue = json::parse(read_text(folder / "out/weft-demo.json")).at("queue");
  EXPECT_EQ(queue.at("src"), 0);
  EXPECT_EQ(queue.at("dst"), 1);
  EXPECT_EQ(queue.at("mode"), "host_staged");
  EXPECT_GT(queue.at("messages"), 1024);
  EXPECT_GT(queue.at("messages_per_second"), 0);
  EXPECT_EQ(queue.at("verified"), true);
}

TEST(demo, makes_images_and_ends_with_what_it_wrote) {
  const scratch_folder folder;
  const auto run = run_tool({"demo", "-o", (folder / "out").string()});
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  for (const char* name : {"topology.svg", "copies.svg", "weft-demo.json", "blurred"}) {
    EXPECT_TRUE(has(run.out, (folder / "out" / name).string())) << name;
    EXPECT_TRUE(std::filesystem::exists(folder / "out" / name)) << name;
  }
  const json document = json::parse(read_text(folder / "out/weft-demo.json"));
  EXPECT_EQ(document.at("schema"), "weft.demo/1");
  const json& last = document.at("pipeline").back();
  EXPECT_EQ(last.at("devices"), 4);
  EXPECT_EQ(last.at("pixels_wrong"), 0);
  EXPECT_EQ(last.at("pixels_checked"), last.at("pixels"));
  for (const json& file : document.at("files")) EXPECT_TRUE(std::filesystem::exists(file.get<std::string>())) << file;
}

TEST(demo, a_folder_without_images_is_an_error_that_names_it) {
  const scratch_folder folder;
  const auto none = run_tool({"demo", "--images", (folder / "no").string(), "-o", (folder / "out").string()});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_TRUE(has(none.err, "no")) << none.err;
  std::filesystem::create_directory(folder / "empty");
  const auto empty = run_tool({"demo", "--images", (folder / "empty").string(), "-o", (folder / "out").string()});
  EXPECT_EQ(empty.exit_code, 4);
  EXPECT_TRUE(has(empty.err, "empty")) << empty.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(conform, prints_sentences_and_counts_them) {
  const auto run = run_tool({"conform", "--sim", "pair_nvlink", "--json"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  expect_document(run, "weft.conform/1", true);
  const json document = run.document();
  EXPECT_GT(document.at("cases").size(), 10U);
  EXPECT_EQ(document.at("falls_short"), 0);
  for (const json& one : document.at("cases")) {
    EXPECT_EQ(one.at("why").is_null(), one.at("verdict") == "holds") << one;
    EXPECT_NE(one.at("verdict"), "falls_short") << one;
  }
}

TEST(documents, are_valid_by_their_schemas) {
  const scratch_folder folder;
  expect_valid(
      {{"--json"},
       {"devices", "--json"},
       {"devices", "--json", "--sim", "mi300x_8"},
       {"topo", "--json"},
       {"topo", "--json", "--measure", "--verify", "--sim", "mixed_3"},
       {"route", "0", "1", "1M", "--json"},
       {"route", "0", "7", "1G", "--json", "--sim", "two_socket_8"},
       {"route", "1", "1", "0", "--json"},
       {"bench", "copy", "--json", "-s", "1,4K", "--samples", "2"},
       {"bench", "copy", "--json", "-s", "4K", "--samples", "2", "--sim", "faulty_4"},
       {"bench", "copy", "--json", "-s", "4K", "--samples", "2", "--sim", "ring_3_no_p2p", "--clock", "virtual"},
       {"bench", "copy", "--json", "-s", "1T", "--pairs", "0-0"},
       {"bench", "queue", "--json", "-s", "8,4K", "--quick", "--pairs", "0-1"},
       {"bench", "queue", "--json", "-s", "64", "--quick", "--from", "0", "--sim", "faulty_4"},
       {"bench", "queue", "--json", "-s", "64", "--quick", "--sim", "ring_3_no_p2p"},
       {"bench", "queue", "--json", "-s", "8", "--sim", "pair_nvlink", "--clock", "virtual"},
       {"bench", "queue", "--json", "--budget", "0s"},
       {"bench", "launch", "--json", "--quick", "--strategy", "guided,weighted"},
       {"bench", "launch", "--json", "--quick", "--clock", "virtual", "--sim", "one"},
       {"bench", "launch", "--json", "--budget", "0s"},
       {"explain", "launch", "1M", "--json", "--sim", "mixed_3"},
       {"explain", "launch", "0", "--json", "--streamed"},
       {"demo", "--json", "-o", (folder / "demo").string()},
       {"conform", "--json", "--sim", "one"}});
}

}  // namespace commands_test
}  // namespace weft::test
