// SPDX-License-Identifier: Apache-2.0
// Topologies as text: what is read, what is refused and how.
#ifdef WEFT_HAS_JSON
#include "core/documents/document.hpp"
#include "core/documents/json_reader.hpp"
#include "support/faults.hpp"
#include "support/paths.hpp"
#include "support/rounds.hpp"
#include "topology_tools.hpp"
#include "weft/core/topology.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace topology_json_test {

using namespace std::chrono_literals;
using namespace topology_tests;
using weft::errc;

std::string shipped_file(std::string_view name) {
  return samples::source_folder() + "/topologies/" + std::string(name) + ".json";
}

std::string text_of(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

topology parse(std::string_view json) {
  auto machine = weft::parse_topology(json, "machine.json");
  EXPECT_TRUE(machine) << (machine ? "" : machine.error().what);
  return machine ? *machine : topology{};
}

// A machine of `devices` and whatever `rest` adds ("," first).
std::string machine_of(std::string_view devices, std::string_view rest = "") {
  return R"({"schema": "weft.topology/1", "name": "m", "devices": [)" + std::string(devices) + "]" + std::string(rest) +
         "}";
}

std::string four(std::string_view rest = "") { return machine_of(R"({"count": 4, "memory": "1GiB"})", rest); }

std::string what_is_wrong(std::string_view json) {
  const auto machine = weft::parse_topology(json, "machine.json");
  if (machine) return "nothing";
  EXPECT_EQ(machine.error().code, errc::invalid_topology);
  return machine.error().what;
}

TEST(topology, what_is_compiled_in_equals_the_file_of_the_same_name) {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(samples::source_folder() + "/topologies")) {
    if (entry.path().extension() == ".json") files.insert(entry.path().stem().string());
  }
  const auto names = weft::shipped_topologies();
  EXPECT_EQ(files, std::set<std::string>(names.begin(), names.end()));
  for (const std::string_view name : names) {
    const auto from_file = weft::load_topology(shipped_file(name));
    ASSERT_TRUE(from_file) << from_file.error().what;
    EXPECT_EQ(load(name), *from_file) << name;
  }
}

TEST(topology, the_examples_in_the_documentation_are_machines) {
  const std::string page = text_of(samples::source_folder() + "/docs/reference/topologies.md");
  int examples = 0;
  for (std::size_t at = page.find("```json\n"); at != std::string::npos; at = page.find("```json\n", at + 1)) {
    const std::size_t start = at + 8;
    EXPECT_GT(parse(std::string_view(page).substr(start, page.find("```", start) - start)).device_count(), 0);
    ++examples;
  }
  EXPECT_GT(examples, 0);
}

TEST(topology, the_least_file_gives_devices_on_one_socket_without_peers) {
  const topology m = parse(four());
  ASSERT_EQ(m.device_count(), 4);
  EXPECT_EQ(m.nodes[2].name, "gpu2");
  EXPECT_EQ(way(m, m.to_host[2]), "gpu2 socket0");
  EXPECT_EQ(m.to_host[2].bytes_per_second, 0) << "unknown";
  EXPECT_EQ(m.devices[2].numa_node, std::nullopt);
  EXPECT_EQ(std::ranges::count(m.access, true), 0);
  EXPECT_EQ(classes_from(m, 0), "X PHB PHB PHB");
  EXPECT_EQ(weft::names_of(m.devices[0].capabilities),
            (std::vector<std::string_view>{"unified_memory", "pinned_memory", "timing", "priorities", "kernels"}));
}

TEST(topology, classes_tell_switches_host_bridges_and_sockets_apart) {
  const topology m = parse(machine_of(
      R"({"memory": "1GiB", "parent": "a"}, {"memory": "1GiB", "parent": "a"}, {"memory": "1GiB", "parent": "b"},
         {"memory": "1GiB", "parent": "left"}, {"memory": "1GiB", "parent": "right"}, {"memory": "1GiB", "parent": "far"})",
      R"(, "sockets": [{"name": "left", "numa_node": 0}, {"name": "right", "numa_node": 0}, {"name": "far", "numa_node": 1}],
         "switches": [{"name": "a", "parent": "top"}, {"name": "b", "parent": "top"}, {"name": "top", "parent": "left"}],
         "links": [{"between": ["left", "right"], "kind": "socket"}, {"between": ["right", "far"], "kind": "socket"}],
         "peer_access": {"rule": "same_switch"})"));
  EXPECT_EQ(classes_from(m, 0), "X PIX PXB PHB NODE SYS");
  EXPECT_EQ(classes_from(m, 5), "SYS SYS SYS SYS SYS X");
  EXPECT_TRUE(m.can_access(device_id{0}, device_id{2})) << "below one switch, two levels down";
  EXPECT_FALSE(m.can_access(device_id{0}, device_id{3}));
  EXPECT_FALSE(m.can_access(device_id{4}, device_id{5}));
  EXPECT_EQ(way(m, peer(m, 0, 5)), "gpu0 a top left right far gpu5");
}

TEST(topology, access_may_be_given_in_one_direction_only) {
  const topology m = parse(four(R"(, "peer_access": {"rule": "none", "add": [["gpu0", "gpu1"]]})"));
  EXPECT_TRUE(m.can_access(device_id{0}, device_id{1}));
  EXPECT_FALSE(m.can_access(device_id{1}, device_id{0}));
  EXPECT_TRUE(weft::has_all(m.devices[0].capabilities, weft::capability::peer_to_peer));
  EXPECT_FALSE(weft::has_all(m.devices[1].capabilities, weft::capability::peer_to_peer));

  const topology all = parse(four(R"(, "peer_access": {"rule": "all", "remove": [["gpu3", "gpu0"]]})"));
  EXPECT_EQ(std::ranges::count(all.access, true), 11);
  EXPECT_TRUE(all.can_access(device_id{0}, device_id{3}));
  EXPECT_FALSE(all.can_access(device_id{3}, device_id{0}));
}

TEST(topology, the_rule_linked_joins_fabrics_and_nothing_else) {
  const topology m = parse(four(
      R"(, "switches": [{"name": "nvswitch", "kind": "fabric"}],
         "links": [{"between": ["gpu0", "nvswitch"], "kind": "nvlink", "generation": 4, "lanes": 2},
                   {"between": ["gpu1", "nvswitch"], "kind": "nvlink", "generation": 4, "lanes": 6},
                   {"from": "gpu2", "to": "gpu3", "kind": "xe_link", "bandwidth": "20GB/s"}],
         "peer_access": {"rule": "linked"})"));
  EXPECT_TRUE(m.can_access(device_id{0}, device_id{1}));
  EXPECT_TRUE(m.can_access(device_id{2}, device_id{3}));
  EXPECT_FALSE(m.can_access(device_id{3}, device_id{2})) << "the link has one direction";
  EXPECT_EQ(std::ranges::count(m.access, true), 3);
  EXPECT_EQ(classes_from(m, 0), "X NV2 PHB PHB");
  EXPECT_EQ(classes_from(m, 3), "PHB PHB PHB X");
}

TEST(topology, a_path_is_the_widest_then_the_quickest_then_the_shortest_and_passes_no_device) {
  // From a to b straight or over a wider way round: both are wider than the uplinks, so latency decides.
  const auto machine = [](const std::string& straight) {
    return parse(machine_of(
        R"({"memory": "1GiB", "parent": "a", "uplink": {"bandwidth": "10GB/s", "latency": "1us"}},
           {"memory": "1GiB", "parent": "b", "uplink": {"bandwidth": "10GB/s", "latency": "1us"}},
           {"memory": "1GiB"})",
        R"(, "switches": [{"name": "a", "uplink": {"bandwidth": "5GB/s"}}, {"name": "b", "uplink": {"bandwidth": "5GB/s"}},
                          {"name": "round", "kind": "fabric"}],
           "links": [{"between": ["a", "round"], "kind": "pcie", "bandwidth": "100GB/s", "latency": "5us"},
                     {"between": ["round", "b"], "kind": "pcie", "bandwidth": "100GB/s", "latency": "5us"},
                     {"between": ["a", "b"], "kind": "pcie", "bandwidth": "20GB/s", "latency": ")" +
            straight + R"("},
                     {"between": ["gpu0", "gpu2"], "kind": "nvlink", "bandwidth": "900GB/s"},
                     {"between": ["gpu2", "gpu1"], "kind": "nvlink", "bandwidth": "900GB/s"}])"));
  };
  const topology quick = machine("9us");
  EXPECT_EQ(way(quick, peer(quick, 0, 1)), "gpu0 a b gpu1");
  EXPECT_DOUBLE_EQ(peer(quick, 0, 1).bytes_per_second, 10e9);
  EXPECT_EQ(peer(quick, 0, 1).latency, 11us);
  EXPECT_EQ(way(quick, peer(quick, 0, 2)), "gpu0 gpu2");
  const topology slow = machine("11us");
  EXPECT_EQ(way(slow, peer(slow, 0, 1)), "gpu0 a round b gpu1");
  EXPECT_EQ(peer(slow, 0, 1).latency, 12us);
  const topology even = machine("10us");
  EXPECT_EQ(way(even, peer(even, 0, 1)), "gpu0 a b gpu1");
}

TEST(topology, the_directions_of_a_half_duplex_link_share_a_wire) {
  const topology m = parse(four(R"(, "links": [{"between": ["gpu0", "gpu1"], "kind": "pcie", "duplex": "half"},
                                               {"between": ["gpu2", "gpu3"], "kind": "pcie"}])"));
  const auto wire = [&](int from, int to) {
    return std::ranges::find_if(m.links, [&](const auto& l) { return l.from == from && l.to == to; })->wire;
  };
  EXPECT_EQ(wire(0, 1), wire(1, 0));
  EXPECT_NE(wire(2, 3), wire(3, 2));
  EXPECT_NE(wire(0, 1), wire(2, 3));
}

TEST(topology, rates_follow_from_generation_and_lanes) {
  const auto rate = [](const std::string& uplink) {
    return parse(machine_of(R"({"memory": "1GiB", "uplink": {)" + uplink + "}}")).to_host[0].bytes_per_second;
  };
  EXPECT_NEAR(rate(R"("generation": 3, "lanes": 16)"), 15.75e9, 0.01e9);
  EXPECT_NEAR(rate(R"("generation": 4, "lanes": 8)"), 15.75e9, 0.01e9);
  EXPECT_NEAR(rate(R"("generation": 5, "lanes": 16)"), 63.02e9, 0.01e9);
  EXPECT_NEAR(rate(R"("generation": 6, "lanes": 16)"), 121.0e9, 0.01e9);
  EXPECT_DOUBLE_EQ(rate(R"("kind": "nvlink", "generation": 5, "lanes": 18)"), 900e9);
  EXPECT_DOUBLE_EQ(rate(R"("kind": "nvlink", "generation": 1, "lanes": 4)"), 80e9);
  EXPECT_DOUBLE_EQ(rate(R"("generation": 3, "lanes": 16, "bandwidth": "12GB/s")"), 12e9);
}

TEST(topology, a_fault_can_name_a_link_by_its_ends) {
  const topology m = parse(four(R"(, "faults": [{"kind": "copy_fails", "link": ["socket0", "gpu2"], "nth": 0},
      {"kind": "device_lost", "device": "gpu1", "nth": 7}, {"kind": "call_fails", "call": "allocate"},
      {"kind": "corrupts", "from": "gpu0", "to": "gpu3"}])"));
  ASSERT_EQ(m.faults.size(), 4U);
  const auto& link = m.links[static_cast<std::size_t>(*m.faults[0].link)];
  EXPECT_EQ(m.nodes[static_cast<std::size_t>(link.from)].name, "socket0");
  EXPECT_EQ(link.to, 2);
  EXPECT_EQ(m.faults[0].nth, 0U);
  EXPECT_EQ(m.faults[1].nth, 7U);
  EXPECT_EQ(m.faults[2].call, "allocate");
  EXPECT_EQ(to_string(m.faults[3].what), "corrupts");
}

TEST(topology, capabilities_in_a_file_take_unified_memory_away) {
  const topology m = parse(machine_of(R"({"memory": "1GiB", "capabilities": []},
                                         {"memory": "1GiB", "capabilities": ["unified_memory"]})"));
  EXPECT_FALSE(weft::has_all(m.devices[0].capabilities, weft::capability::unified_memory));
  EXPECT_TRUE(weft::has_all(m.devices[0].capabilities, weft::capability::pinned_memory | weft::capability::kernels));
  EXPECT_TRUE(weft::has_all(m.devices[1].capabilities, weft::capability::unified_memory));
}

TEST(topology, as_many_devices_as_allowed_are_worked_out_and_one_more_is_refused) {
  const topology m = parse(machine_of(R"({"count": 1024, "memory": "1GiB", "parent": "s"})",
                                      R"(, "switches": [{"name": "s"}], "peer_access": {"rule": "all"})"));
  ASSERT_EQ(m.device_count(), weft::max_devices);
  EXPECT_EQ(way(m, peer(m, 0, 1023)), "gpu0 s gpu1023");
  EXPECT_TRUE(begins(what_is_wrong(machine_of("\n{\"memory\": \"1GiB\"},\n{\"count\": 1024, \"memory\": \"1GiB\"}")),
                     "machine.json:3: devices[1].count: expected at most 1024 devices in all, got 1025"));
}

struct mistake {
  const char* devices;
  const char* rest;
  const char* message;
};

class topology_mistakes : public testing::TestWithParam<mistake> {};

TEST_P(topology_mistakes, are_refused_with_line_key_and_what_was_expected) {
  const mistake& m = GetParam();
  EXPECT_TRUE(begins(what_is_wrong(machine_of(m.devices, m.rest)), std::string("machine.json:") + m.message));
}

constexpr const char* good = "\n{\"count\": 2, \"memory\": \"1GiB\"}";  // line 2

INSTANTIATE_TEST_SUITE_P(
    each, topology_mistakes,
    testing::Values(
        // figures
        mistake{"\n{\"memory\": \"1GiB\", \"uplink\":\n{\"bandwidth\":\n -3\n}}", "",
                "4: devices[0].uplink.bandwidth: expected a rate such as \"25GB/s\", got -3"},
        mistake{"{\"memory\": \"1GiB\",\n\"memory_bandwidth\": \"-3GB/s\"}", "",
                "2: devices[0].memory_bandwidth: expected a rate such as \"25GB/s\", got \"-3GB/s\""},
        mistake{"{\"memory\": \"1GiB\",\n\"memory_bandwidth\": \"0GB/s\"}", "",
                "2: devices[0].memory_bandwidth: expected a rate such as \"25GB/s\", got \"0GB/s\""},
        mistake{"{\"memory\": \"1GiB\",\n\"memory_bandwidth\": \"nanGB/s\"}", "",
                "2: devices[0].memory_bandwidth: expected a rate such as \"25GB/s\", got \"nanGB/s\""},
        mistake{"{\"memory\": \"1GiB\",\n\"memory_bandwidth\": \"1e999GB/s\"}", "",
                "2: devices[0].memory_bandwidth: expected a rate such as \"25GB/s\", got \"1e999GB/s\""},
        mistake{"{\"memory\": \"0GiB\"}", "",
                "1: devices[0].memory: expected a size above 0 such as \"80GiB\", got \"0GiB\""},
        mistake{"{\"memory\":\n80}", "",
                "2: devices[0].memory: expected a size up to 1024TiB such as \"80GiB\", got 80"},
        mistake{"{\"memory\":\n\"99999999999TiB\"}", "",
                "2: devices[0].memory: expected a size up to 1024TiB such as \"80GiB\", got \"99999999999TiB\""},
        mistake{"{\"memory\": \"80GB\"}", "",
                "1: devices[0].memory: expected a size up to 1024TiB such as \"80GiB\", got \"80GB\""},
        mistake{"\n{}", "", "2: devices[0].memory: expected a size such as \"80GiB\", got nothing"},
        mistake{"{\"memory\": \"1GiB\", \"compute_units\": 0}", "",
                "1: devices[0].compute_units: expected a whole number from 1 to 1000000, got 0"},
        mistake{"{\"memory\": \"1GiB\", \"compute_units\": 1.5}", "",
                "1: devices[0].compute_units: expected a whole number from 1 to 1000000, got 1.5"},
        mistake{"{\"memory\": \"1GiB\", \"speed\":\n0}", "", "2: devices[0].speed: expected a number above 0, got 0"},
        mistake{"{\"memory\": \"1GiB\", \"speed\": \"fast\"}", "",
                "1: devices[0].speed: expected a number above 0, got \"fast\""},
        mistake{"{\"memory\": \"1GiB\", \"uplink\": {\"latency\": \"-1ns\"}}", "",
                "1: devices[0].uplink.latency: expected a duration up to an hour such as \"500ns\", got \"-1ns\""},
        mistake{"{\"memory\": \"1GiB\", \"uplink\": {\"generation\": 9}}", "",
                "1: devices[0].uplink.generation: expected a whole number from 1 to 6, got 9"},
        mistake{"{\"memory\": \"1GiB\",\n\"uplink\": {\"generation\": 4}}", "",
                "2: devices[0].uplink.lanes: expected beside \"generation\""},
        mistake{"{\"memory\": \"1GiB\", \"uplink\": {\"bandwidth\": \"1GB/s\",\n\"lanes\": 0}}", "",
                "2: devices[0].uplink.lanes: expected a whole number from 1 to 64, got 0"},
        mistake{"{\"memory\": \"1GiB\", \"max_peers\": -1}", "",
                "1: devices[0].max_peers: expected a whole number from 0 to 1024, got -1"},
        mistake{"{\"memory\": \"1GiB\", \"pci_address\": \"17:00.0\"}", "",
                "1: devices[0].pci_address: expected an address such as \"0000:17:00.0\", got \"17:00.0\""},
        mistake{"{\"memory\": \"1GiB\", \"capabilities\": [\"peer_to_peer\"]}", "",
                "1: devices[0].capabilities: \"peer_to_peer\" follows from peer_access"},
        // how many
        mistake{"{\"memory\": \"1GiB\",\n\"count\": 10000}", "",
                "2: devices[0].count: expected at most 1024 devices in all, got 10000"},
        mistake{"{\"memory\": \"1GiB\",\n\"count\": 0}", "", "2: devices[0].count: expected a whole number from 1"},
        mistake{"", "", "1: devices: expected at least one device, got none"},
        // words
        mistake{good, ",\n\"desciption\": \"\"", "3: unknown key \"desciption\", did you mean \"description\"?"},
        mistake{"{\"memory\": \"1GiB\",\n\"bandwith\": \"\"}", "",
                "2: devices[0]: unknown key \"bandwith\", expected \"name\""},
        mistake{"{\"memory\": \"1GiB\",\n\"uplink\": {\"bandwith\": \"1GB/s\"}}", "",
                "2: devices[0].uplink: unknown key \"bandwith\", did you mean \"bandwidth\"?"},
        mistake{"3", "", "1: devices[0]: expected an object, got 3"},
        mistake{good, ",\n\"links\": {}", "3: links: expected an array, got an object"},
        mistake{good, ",\n\"sources\": [1]", "3: sources: expected strings, got 1"},
        mistake{good, ",\n\"peer_access\": {\"rule\": \"same_sokcet\"}",
                "3: peer_access.rule: expected \"none\", \"all\", \"linked\", \"same_switch\" or \"same_socket\", got "
                "\"same_sokcet\": did you mean \"same_socket\"?"},
        mistake{good, ",\n\"links\": [{\"between\": [\"gpu0\", \"gpu1\"]}]",
                "3: links[0].kind: expected \"unknown\", "},
        mistake{good,
                ",\n\"links\": [{\"between\": [\"gpu0\", \"gpu1\"], \"kind\": \"nvlink\", \"native_atomics\": 1}]",
                "3: links[0].native_atomics: expected true or false, got 1"},
        // names
        mistake{good, ",\n\"links\": [{\"between\": [\"gpu0\", \"gpu7\"], \"kind\": \"nvlink\"}]",
                "3: links[0].between: no device, socket or switch is called \"gpu7\", did you mean \"gpu0\"?"},
        mistake{good, ",\n\"links\": [{\"between\": [\"gpu0\", \"gpu0\"], \"kind\": \"nvlink\"}]",
                "3: links[0].between: expected two different names, got \"gpu0\" twice"},
        mistake{good, ",\n\"links\": [{\"between\": [\"gpu0\"], \"kind\": \"nvlink\"}]",
                "3: links[0].between: expected two names such as [\"gpu0\", \"gpu1\"], got an array of 1"},
        mistake{good, ",\n\"links\": [{\"from\": \"gpu0\", \"kind\": \"nvlink\"}]",
                "3: links[0].between: expected two names"},
        mistake{good, ",\n\"links\": [{\"between\": [\"gpu0\", \"gpu1\"], \"kind\": \"socket\"}]",
                "3: links[0].kind: a link of kind socket joins two sockets, not gpu0 and gpu1"},
        mistake{"{\"memory\": \"1GiB\", \"parent\": \"a\"}, {\"memory\": \"1GiB\", \"parent\": \"b\"}",
                ",\n\"sockets\": [{\"name\": \"a\", \"node\": \"n0\"},\n{\"name\": \"b\"}]",
                "3: sockets[1].node: expected the name of a node"},
        mistake{
            "{\"memory\": \"1GiB\", \"parent\": \"a\"}, {\"memory\": \"1GiB\", \"parent\": \"b\"}",
            ", \"sockets\": [{\"name\": \"a\", \"node\": \"n0\"}, {\"name\": \"b\", \"node\": \"n1\"}],\n\"links\": "
            "[{\"between\": [\"a\", \"b\"], \"kind\": \"socket\"}]",
            "2: links: link 4: a and b are of two nodes: expected a link of kind network"},
        mistake{"{\"memory\": \"1GiB\", \"parent\": \"a\"}, {\"memory\": \"1GiB\", \"parent\": \"b\"}",
                ", \"sockets\": [{\"name\": \"a\"}, {\"name\": \"b\"}],\n\"links\": "
                "[{\"between\": [\"a\", \"b\"], \"kind\": \"network\"}]",
                "2: links: link 4: a link of kind network joins sockets of two nodes, not a and b"},
        mistake{
            "{\"memory\": \"1GiB\", \"parent\": \"a\"}, {\"memory\": \"1GiB\", \"parent\": \"b\"}",
            ", \"sockets\": [{\"name\": \"a\", \"node\": \"n0\"}, {\"name\": \"b\", \"node\": \"n1\"}],\n\"links\": "
            "[{\"between\": [\"a\", \"b\"], \"kind\": \"network\"}], \"peer_access\": {\"rule\": \"all\"}",
            "2: peer_access: gpu0 may access gpu1 over a network, over which no memory is mapped"},
        mistake{"{\"memory\": \"1GiB\",\n\"parent\": \"swich0\"}", ", \"switches\": [{\"name\": \"switch0\"}]",
                "2: devices[0].parent: no device, socket or switch is called \"swich0\", did you mean \"switch0\"?"},
        mistake{"{\"memory\": \"1GiB\",\n\"parent\": \"nvs\"}",
                ", \"switches\": [{\"name\": \"nvs\", \"kind\": \"fabric\"}]",
                "2: devices[0].parent: expected a socket or a switch of kind pcie, got \"nvs\""},
        mistake{"{\"memory\": \"1GiB\",\n\"parent\": \"gpu0\"}", "",
                "2: devices[0].parent: expected a socket or a switch"},
        mistake{good, ",\n\"switches\": [{\"name\": \"a\"},\n{\"name\": \"a\"}]",
                "4: switches[1].name: \"a\" is taken by switches[0]"},
        mistake{good, ",\n\"switches\": [{\"name\": \"gpu9\"}]", "3: switches[0].name: \"gpu9\" could be a device"},
        mistake{good, ",\n\"sockets\": [{}]", "3: sockets[0].name: expected a name such as \"socket0\", got nothing"},
        mistake{"{\"memory\": \"1GiB\", \"pci_address\": \"0000:17:00.0\"},\n{\"memory\": \"1GiB\", \"pci_address\": "
                "\"0000:17:00.0\"}",
                "", "2: devices[1].pci_address: \"0000:17:00.0\" is taken by devices[0].pci_address"},
        mistake{good, ",\n\"peer_access\": {\"add\": [\n[\"gpu0\", \"socket0\"]]}",
                "4: peer_access.add[0]: expected two devices, got gpu0 and socket0"},
        // shape
        mistake{good,
                ",\n\"switches\": [{\"name\": \"a\",\n\"parent\": \"b\"}, {\"name\": \"b\", \"parent\": \"c\"},\n"
                "{\"name\": \"c\", \"parent\": \"a\"}]",
                "4: switches[0].parent: a cycle of parents: a -> b -> c -> a"},
        mistake{good, ",\n\"switches\": [{\"name\": \"a\",\n\"parent\": \"a\"}]",
                "4: switches[0].parent: a cycle of parents: a -> a"},
        mistake{good, ",\n\"sockets\": [{\"name\": \"s0\"}, {\"name\": \"s1\"}]",
                "2: devices[0].parent: expected the name of a socket or switch, since there are several sockets"},
        mistake{"{\"memory\": \"1GiB\", \"parent\": \"s0\"}, {\"memory\": \"1GiB\", \"parent\": \"s1\"}",
                ",\n\"sockets\": [{\"name\": \"s0\"}, {\"name\": \"s1\"}]",
                "1: links: expected a way from s0 to s1, got none: add a link between them"},
        mistake{
            "{\"memory\": \"1GiB\", \"parent\": \"s0\"}, {\"memory\": \"1GiB\", \"parent\": \"s1\"}",
            ",\n\"sockets\": [{\"name\": \"s0\"}, {\"name\": \"s1\"}],\n\"links\": [{\"from\": \"s0\", \"to\": \"s1\", "
            "\"kind\": \"socket\"}]",
            "3: links: expected a way from s1 to s0, got none"},
        // faults
        mistake{good, ",\n\"faults\": [{\"kind\": \"stalls\"}]", "3: faults[0].kind: expected \"copy_fails\", "},
        mistake{good, ",\n\"faults\": [{\"kind\": \"device_stalls\", \"device\": \"gpu0\"}]",
                "3: faults[0].duration: expected with \"device_stalls\", got nothing"},
        mistake{good, ",\n\"faults\": [{\"kind\": \"device_lost\", \"device\": \"gpu0\",\n\"duration\": \"1ms\"}]",
                "4: faults[0].duration: \"device_lost\" does not take it"},
        mistake{good, ",\n\"faults\": [{\"kind\": \"copy_fails\"}]",
                "3: faults[0].link: expected either a link or both"},
        mistake{good, ",\n\"faults\": [{\"kind\": \"copy_fails\",\n\"link\": [\"gpu0\", \"gpu1\"]}]",
                "4: faults[0].link: no link leads straight from gpu0 to gpu1"},
        mistake{good, ",\n\"faults\": [{\"kind\": \"device_lost\", \"device\": \"socket0\"}]",
                "3: faults[0].device: expected a device, got \"socket0\""},
        mistake{good, ",\n\"faults\": [\n{\"kind\": \"drops_data\", \"from\": \"gpu0\", \"to\": \"gpu1\"}]",
                "4: faults[0]: gpu0 may not access gpu1: only a pair that advertises access can drop data"},
        // JSON itself
        mistake{good, ",\n\"name\": \"again\"", "3: the key \"name\" stands twice in one object, first in line 1"},
        mistake{good, ",\n\"x\": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "3: values nested deeper than 32 levels"},
        mistake{good, ",\n\"links\": [\n", "4: not JSON: "}, mistake{good, ",\n\"links\": nul", "3: not JSON: "},
        mistake{good, ",\n\"x\": 1e999", "3: not JSON: "}, mistake{good, ",\n\"x\": \"\xff\"", "3: not JSON: "}));

TEST(topology, a_file_that_is_cut_off_anywhere_is_refused_with_the_line_of_the_cut) {
  const std::string text = text_of(shipped_file("faulty_4"));
  for (std::size_t length = 0; length + 2 < text.size(); length += 7) {
    const std::string_view cut = std::string_view(text).substr(0, length);
    const std::string wrong = what_is_wrong(cut);
    const auto line = std::ranges::count(cut, '\n') + (cut.ends_with('\n') ? 0 : 1);
    EXPECT_TRUE(begins(wrong, "machine.json:" + std::to_string(std::max<long>(line, 1)) + ": not JSON: "));
  }
}

TEST(topology, a_text_with_a_character_that_terminals_obey_is_refused) {
  const auto described = [](const std::string& text) { return four(",\n\"description\": \"" + text + "\""); };
  for (const char* obeyed : {"\\u0000", "\\u0007", "\\u001f", "\\u007f", "\\u0080", "\\u009b", "\\u009f"}) {
    EXPECT_TRUE(begins(what_is_wrong(described(obeyed)), "machine.json:2: description: has a control character"))
        << obeyed;
  }
  for (const char* shown : {" ", "~", "\u00a0", "\u00e9", "\u0100"})
    EXPECT_EQ(parse(described(shown)).description, shown);
}

TEST(topology, a_file_of_another_schema_or_kind_is_refused) {
  EXPECT_TRUE(begins(what_is_wrong("[]"), "machine.json:1: expected an object, got an array"));
  EXPECT_TRUE(begins(what_is_wrong("3"), "machine.json:1: expected an object, got 3"));
  EXPECT_TRUE(begins(what_is_wrong(""), "machine.json:1: not JSON: "));
  EXPECT_TRUE(begins(what_is_wrong("{}"), "machine.json:1: schema: expected \"weft.topology/1\", got nothing"));
  EXPECT_TRUE(begins(what_is_wrong("{\n\"schema\": \"weft.topology/2\"}"),
                     "machine.json:2: schema: expected \"weft.topology/1\", got \"weft.topology/2\""));
  EXPECT_TRUE(begins(what_is_wrong("{\n\"schema\": \"weft.topology/1\"}"),
                     "machine.json:1: name: expected a name, got nothing"));
}

class temporary_folder {
 public:
  temporary_folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "weft-topology-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return (path_ / name).string();
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(load_topology, takes_the_name_of_a_machine_that_ships_or_a_file) {
  EXPECT_EQ(load("pcie_4").device_count(), 4);
  const temporary_folder folder;
  EXPECT_EQ(load(folder.file("mine.json", four())).device_count(), 4);
  EXPECT_EQ(load(folder.file("mine", four())).device_count(), 4) << "a '/' makes it a file";
}

TEST(load_topology, names_the_file_that_is_missing_a_folder_unreadable_or_too_large) {
  const temporary_folder folder;
  const auto missing = weft::load_topology("nowhere.json");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, errc::not_found);
  EXPECT_EQ(missing.error().what, "nowhere.json: no such file");

  const auto directory = weft::load_topology(folder.path().string());
  ASSERT_FALSE(directory);
  EXPECT_EQ(directory.error().code, errc::io_failed);
  EXPECT_TRUE(begins(directory.error().what, folder.path().string() + ": is a directory"));

  const auto endless = weft::load_topology("/dev/zero");
  ASSERT_FALSE(endless);
  EXPECT_EQ(endless.error().code, errc::io_failed);
  EXPECT_TRUE(begins(endless.error().what, "/dev/zero: is a pipe or a device, not a file"));

  const auto unreadable = weft::load_topology("/proc/self/mem");
  ASSERT_FALSE(unreadable);
  EXPECT_EQ(unreadable.error().code, errc::io_failed);

  const std::string large(std::size_t{17} << 20, ' ');
  EXPECT_EQ(weft::load_topology(folder.file("large.json", large)).error().code, errc::invalid_topology);
  EXPECT_TRUE(begins(weft::parse_topology(large, "x").error().what, "x: expected a topology of at most 16 MiB"));
}

TEST(load_topology, says_file_and_line_of_a_mistake) {
  const temporary_folder folder;
  const std::string file = folder.file("mine.json", machine_of("\n\n{\"memory\": 3}"));
  const auto machine = weft::load_topology(file);
  ASSERT_FALSE(machine);
  EXPECT_TRUE(begins(machine.error().what, file + ":3: devices[0].memory: expected a size"));
}

TEST(topology, thousands_of_damaged_files_give_a_machine_or_a_reason) {
  constexpr unsigned seed = 20240611;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  std::vector<std::string> texts;
  for (const std::string_view name : weft::shipped_topologies()) texts.push_back(text_of(shipped_file(name)));
  const std::array<std::string, 22> words{"-1",          "0",
                                          "1e308",       "null",
                                          "true",        "{}",
                                          "[]",          "\"\"",
                                          "\"gpu0\"",    "\"gpu1\"",
                                          "\"socket0\"", "\"switch0\"",
                                          "\"all\"",     "\"80GiB\"",
                                          "3.5",         "\n",
                                          ",",           ":",
                                          "\"parent\":", "\"count\": 5",
                                          "\xc3",        "18446744073709551616"};
  int good_ones = 0;
  int lines = 0;
  constexpr int rounds = samples::rounds(6000);
  samples::played_faults(rounds);
  for (int round = 0; round < rounds; ++round) {
    std::string text = texts[below(texts.size())];
    for (std::size_t edits = 1 + below(3); edits > 0; --edits) {
      const std::size_t at = below(text.size());
      switch (below(7)) {
        case 0:
          text[at] = static_cast<char>(below(256));
          break;
        case 1:
          text.erase(at, 1 + below(20));
          break;
        case 2:
          text.insert(at, words[below(words.size())]);
          break;
        case 3:
          text.resize(at + 1);
          break;
        case 4:
          text.insert(at, text.substr(below(text.size()), 1 + below(60)));
          break;
        case 5: {  // one value for another: damage that JSON does not notice
          const std::size_t colon = text.find(": ", at);
          if (colon == std::string::npos) break;
          const std::size_t end = text.find_first_of(",}\n", colon);
          text.replace(colon + 2, end == std::string::npos ? 0 : end - colon - 2, words[below(words.size())]);
          break;
        }
        default: {  // a name or word for another of the same file
          const std::size_t from = text.find('"', at);
          const std::size_t to = from == std::string::npos ? from : text.find('"', from + 1);
          const std::size_t other = text.find('"', below(text.size()));
          const std::size_t other_end = other == std::string::npos ? other : text.find('"', other + 1);
          if (to == std::string::npos || other_end == std::string::npos) break;
          text.replace(from, to - from, text.substr(other, other_end - other));
        }
      }
      if (text.empty()) text = "{";
    }
    const auto machine = weft::parse_topology(text, "damaged.json");
    if (machine) {
      ++good_ones;
      const auto again = weft::complete_topology(*machine);
      ASSERT_TRUE(again) << again.error().what << "\nround " << round;
      ASSERT_EQ(*again, *machine) << "round " << round;
    } else {
      ASSERT_EQ(machine.error().code, errc::invalid_topology) << "round " << round;
      ASSERT_TRUE(machine.error().what.starts_with("damaged.json:")) << machine.error().what;
      lines += machine.error().what.starts_with("damaged.json: ") ? 0 : 1;
    }
  }
  EXPECT_GT(good_ones, rounds / 50);
  EXPECT_EQ(lines, rounds - good_ones) << "every refusal has a line";
}

TEST(document, every_value_knows_its_line) {
  const auto root =
      weft::detail::read_json("{\n\"a\": 1\n,\n\"b\": [true,\n-2.5e3\n, null\n, \"x\"],\n\n\"c\": {}}", "f");
  ASSERT_TRUE(root) << root.error().what;
  EXPECT_EQ(root->line, 1);
  EXPECT_EQ(root->find("a")->line, 2);
  EXPECT_EQ(root->find("b")->line, 4);
  const auto& b = root->find("b")->elements;
  ASSERT_EQ(b.size(), 4U);
  EXPECT_EQ((std::array{b[0].line, b[1].line, b[2].line, b[3].line}), (std::array{4, 5, 6, 7}));
  EXPECT_EQ(b[1].number, -2500);
  EXPECT_EQ(root->find("c")->key_line, 9);
  EXPECT_EQ(root->find("d"), nullptr);
}

TEST(document, a_document_of_a_great_many_values_is_refused) {
  std::string text = "[0";
  for (int i = 0; i < 1'000'000; ++i) text += ",0";
  const auto root = weft::detail::read_json(text + "]", "f");
  ASSERT_FALSE(root);
  EXPECT_EQ(root.error().what, "f:1: more than 1000000 values");
}

}  // namespace topology_json_test
#endif
