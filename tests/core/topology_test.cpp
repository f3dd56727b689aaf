// SPDX-License-Identifier: Apache-2.0
#include "weft/core/topology.hpp"

#include "core/text/nearest.hpp"
#include "core/text/quantity.hpp"
#include "topology_tools.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace topology_test {

using namespace std::chrono_literals;
using namespace topology_tests;
using weft::errc;

TEST(topology, every_machine_that_ships_is_complete) {
  const auto names = weft::shipped_topologies();
  EXPECT_TRUE(std::ranges::is_sorted(names));
  for (const std::string_view expected :
       {"one", "pair_nvlink", "pcie_4", "pcie_2x2_switches", "two_socket_8", "dgx_h100", "dgx_h100_x2", "two_nodes_4",
        "mi300x_8", "mixed_3", "ring_3_no_p2p", "faulty_4"}) {
    EXPECT_NE(std::ranges::find(names, expected), names.end()) << expected;
  }
  for (const std::string_view name : names) {
    SCOPED_TRACE(std::string(name));
    const topology m = load(name);
    const std::size_t n = m.devices.size();
    EXPECT_EQ(m.name, name);
    EXPECT_TRUE(m.simulated);
    EXPECT_FALSE(m.description.empty());
    EXPECT_FALSE(m.sources.empty());
    ASSERT_EQ(m.access.size(), n * n);
    ASSERT_EQ(m.peer_paths.size(), n * n);
    ASSERT_EQ(m.between_sockets.size(), n * n);
    ASSERT_EQ(m.to_host.size(), n);
    ASSERT_EQ(m.from_host.size(), n);
    for (const auto& link : m.links) {
      EXPECT_GT(link.bytes_per_second, 0);
      EXPECT_GT(link.latency, 0ns);
    }
    for (int from = 0; from < m.device_count(); ++from) {
      const std::size_t i = static_cast<std::size_t>(from);
      EXPECT_EQ(way(m, m.to_host[i]).find(m.nodes[i].name + " "), 0U);
      EXPECT_TRUE(way(m, m.from_host[i]).ends_with(" " + m.nodes[i].name));
      EXPECT_GT(m.devices[i].bytes_per_second, 0);
      bool peers = false;
      for (int to = 0; to < m.device_count(); ++to) {
        const bool can = m.can_access(device_id{from}, device_id{to});
        peers = peers || can;
        EXPECT_FALSE(can && from == to);
        EXPECT_TRUE(!can || peer(m, from, to).bytes_per_second > 0);
        const bool one_socket = m.socket_of(device_id{from}) == m.socket_of(device_id{to});
        EXPECT_EQ(m.between_sockets[m.pair(device_id{from}, device_id{to})].links.empty(), one_socket);
      }
      EXPECT_EQ(weft::has_all(m.devices[i].capabilities, weft::capability::peer_to_peer), peers);
    }
  }
}

TEST(topology, the_figures_of_a_dgx_h100_are_the_published_ones) {
  const topology m = load("dgx_h100");
  ASSERT_EQ(m.device_count(), 8);
  EXPECT_EQ(m.devices[3].compute_units, 132);
  EXPECT_EQ(m.devices[3].memory, weft::bytes{std::uint64_t{80} << 30});
  EXPECT_EQ(m.devices[5].numa_node, 1);
  EXPECT_EQ(m.devices[0].pci_address, "0000:1b:00.0");
  EXPECT_EQ(classes_from(m, 0), "X NV18 NV18 NV18 NV18 NV18 NV18 NV18");
  EXPECT_EQ(way(m, peer(m, 0, 7)), "gpu0 nvswitch gpu7");
  EXPECT_DOUBLE_EQ(peer(m, 0, 7).bytes_per_second, 450e9);
  EXPECT_EQ(peer(m, 0, 7).latency, 600ns);
  EXPECT_TRUE(peer(m, 0, 7).native_atomics);
  EXPECT_TRUE(weft::has_all(m.devices[0].capabilities, weft::capability::native_atomics));
  EXPECT_EQ(way(m, m.to_host[6]), "gpu6 socket1");
  EXPECT_NEAR(m.to_host[6].bytes_per_second, 63.0e9, 0.1e9);
  EXPECT_EQ(way(m, m.between_sockets[m.pair(device_id{1}, device_id{6})]), "socket0 socket1");
}

TEST(topology, every_pair_of_an_mi300x_platform_has_its_own_link) {
  const topology m = load("mi300x_8");
  EXPECT_EQ(classes_from(m, 2), "XG1 XG1 X XG1 XG1 XG1 XG1 XG1");
  std::set<int> used;
  for (int from = 0; from < 8; ++from) {
    for (int to = 0; to < 8; ++to) {
      if (from == to) continue;
      ASSERT_EQ(peer(m, from, to).links.size(), 1U);
      used.insert(m.links[static_cast<std::size_t>(peer(m, from, to).links[0])].wire);
      EXPECT_DOUBLE_EQ(peer(m, from, to).bytes_per_second, 64e9);
    }
  }
  EXPECT_EQ(used.size(), 56U);
}

TEST(topology, a_pair_with_nvlink_uses_it_and_not_pcie) {
  const topology m = load("pair_nvlink");
  EXPECT_EQ(classes_from(m, 1), "NV12 X");
  EXPECT_EQ(way(m, peer(m, 0, 1)), "gpu0 gpu1");
  EXPECT_DOUBLE_EQ(peer(m, 0, 1).bytes_per_second, 300e9);
  EXPECT_NEAR(m.to_host[0].bytes_per_second, 31.5e9, 0.1e9);
}

TEST(topology, peers_behind_switches_go_by_the_lowest_place_above_both) {
  const topology pcie = load("pcie_4");
  EXPECT_EQ(classes_from(pcie, 0), "X PIX PIX PIX");
  EXPECT_EQ(way(pcie, peer(pcie, 3, 1)), "gpu3 switch0 gpu1");
  EXPECT_FALSE(weft::has_all(pcie.devices[0].capabilities, weft::capability::native_atomics));

  const topology two = load("pcie_2x2_switches");
  EXPECT_EQ(classes_from(two, 0), "X PIX PHB PHB");
  EXPECT_TRUE(two.can_access(device_id{0}, device_id{1}));
  EXPECT_TRUE(two.can_access(device_id{0}, device_id{3}));
  EXPECT_EQ(way(two, peer(two, 0, 3)), "gpu0 switch0 socket0 switch1 gpu3");
  EXPECT_EQ(peer(two, 0, 3).latency, 2us);
}

TEST(topology, peers_of_two_sockets_are_peers_inside_a_socket_only) {
  const topology m = load("two_socket_8");
  EXPECT_EQ(classes_from(m, 0), "X PIX PHB PHB SYS SYS SYS SYS");
  EXPECT_EQ(classes_from(m, 7), "SYS SYS SYS SYS PHB PHB PIX X");
  for (int from = 0; from < 8; ++from) {
    for (int to = 0; to < 8; ++to) {
      EXPECT_EQ(m.can_access(device_id{from}, device_id{to}), from != to && from / 4 == to / 4);
    }
  }
  EXPECT_EQ(way(m, peer(m, 1, 6)), "gpu1 switch0 socket0 socket1 switch3 gpu6");
  EXPECT_EQ(way(m, m.from_host[6]), "socket1 switch3 gpu6");
}

TEST(topology, a_pair_on_two_nodes_goes_over_the_network_and_maps_nothing) {
  const topology m = load("two_nodes_4");
  EXPECT_EQ(m.computers, (std::vector<std::string>{"node0", "node1"}));
  EXPECT_EQ(classes_from(m, 0), "X PIX NET NET");
  for (int from = 0; from < 4; ++from) {
    EXPECT_EQ(m.computer_of(device_id{from}), from / 2);
    for (int to = 0; to < 4; ++to)
      EXPECT_EQ(m.can_access(device_id{from}, device_id{to}), from != to && from / 2 == to / 2);
  }
  const weft::link_path& between = m.between_sockets[m.pair(device_id{1}, device_id{2})];
  EXPECT_EQ(way(m, between), "node0.socket node1.socket");
  EXPECT_DOUBLE_EQ(between.bytes_per_second, 12.5e9);
  const topology big = load("dgx_h100_x2");
  EXPECT_EQ(big.device_count(), 16);
  EXPECT_EQ(weft::link_class(big, device_id{0}, device_id{7}), "NV18");
  EXPECT_EQ(weft::link_class(big, device_id{7}, device_id{8}), "NET");
}

TEST(topology, the_uneven_machine_has_speeds_and_memories_of_its_own) {
  const topology m = load("mixed_3");
  ASSERT_EQ(m.device_count(), 3);
  EXPECT_EQ((std::array{m.devices[0].speed, m.devices[1].speed, m.devices[2].speed}), (std::array{45.0, 30.0, 25.0}));
  EXPECT_EQ(m.devices[1].memory, weft::bytes{std::uint64_t{10} << 30});
}

TEST(topology, the_machines_without_peers_have_none) {
  for (const std::string_view name : {"one", "mixed_3", "ring_3_no_p2p"}) {
    const topology m = load(name);
    EXPECT_EQ(std::ranges::count(m.access, true), 0) << name;
    EXPECT_FALSE(weft::has_all(m.devices[0].capabilities, weft::capability::peer_to_peer)) << name;
  }
}

TEST(topology, the_faulty_machine_has_a_fault_of_each_common_kind) {
  using kind = weft::topology_fault::kind;
  const topology m = load("faulty_4");
  ASSERT_EQ(m.faults.size(), 3U);
  EXPECT_EQ(m.faults[0].what, kind::drops_data);
  EXPECT_EQ(m.faults[0].nth, 0U);
  EXPECT_TRUE(m.can_access(*m.faults[0].from, *m.faults[0].to));
  EXPECT_EQ(m.faults[1].what, kind::copy_fails);
  EXPECT_EQ(m.faults[1].nth, 3U);
  EXPECT_EQ(m.faults[2].what, kind::device_stalls);
  EXPECT_EQ(m.faults[2].duration, 50ms);
  EXPECT_EQ(m.devices[2].max_peers, 1);
}

TEST(topology, the_class_of_a_link_is_the_same_in_both_directions) {
  for (const std::string_view name : weft::shipped_topologies()) {
    const topology m = load(name);
    for (int from = 0; from < m.device_count(); ++from) {
      for (int to = 0; to < m.device_count(); ++to) {
        EXPECT_EQ(weft::link_class(m, device_id{from}, device_id{to}),
                  weft::link_class(m, device_id{to}, device_id{from}));
      }
    }
  }
}

TEST(topology, the_plain_host_has_devices_that_are_all_peers_and_claims_no_figures) {
  for (const int n : {0, 1, 2, 4, 16}) {
    const topology m = weft::host_topology(n, weft::bytes{1 << 20});
    EXPECT_FALSE(m.simulated);
    ASSERT_EQ(m.device_count(), n);
    EXPECT_EQ(m.links.size(), static_cast<std::size_t>(n * (n + 1)));
    EXPECT_EQ(std::ranges::count(m.access, true), n * (n - 1));
    for (const auto& link : m.links) {
      EXPECT_EQ(link.kind, weft::link_kind::host_memory);
      EXPECT_EQ(link.bytes_per_second, 0);
    }
    for (int d = 0; d < n; ++d) {
      EXPECT_EQ(way(m, m.to_host[static_cast<std::size_t>(d)]), "gpu" + std::to_string(d) + " socket0");
      EXPECT_EQ(weft::has_all(m.devices[static_cast<std::size_t>(d)].capabilities, weft::capability::peer_to_peer),
                n > 1);
    }
    if (n > 0) {
      const auto completed = weft::complete_topology(m);
      ASSERT_TRUE(completed) << completed.error().what;
      EXPECT_EQ(*completed, m) << "what host_topology() fills in is what complete_topology() finds";
    }
  }
}

TEST(topology, a_hand_built_machine_is_checked_as_a_file_is) {
  const auto refused = [](topology m) {
    const auto completed = weft::complete_topology(std::move(m));
    return completed ? std::string("nothing") : completed.error().what;
  };
  const topology whole = weft::host_topology(3, weft::bytes{1 << 20});
  EXPECT_EQ(refused(whole), "nothing");
  topology m = whole;
  m.access.pop_back();
  EXPECT_TRUE(begins(refused(m), "topology host: peer_access: expected one entry for each pair of devices, got 8"));
  m = whole;
  m.links[2].bytes_per_second = -1;
  EXPECT_TRUE(begins(refused(m), "topology host: links: link 2: expected a rate"));
  m = whole;
  m.links[2].to = 99;
  EXPECT_TRUE(begins(refused(m), "topology host: links: link 2: expected two different nodes"));
  for (const int wire : {-1, 4 * weft::max_devices * weft::max_devices, std::numeric_limits<int>::max()}) {
    m = whole;
    m.links[2].wire = wire;
    EXPECT_TRUE(begins(refused(m), "topology host: links: link 2: expected a wire from 0 to 4194303")) << wire;
  }
  m = whole;
  m.nodes[1].parent = 1;
  EXPECT_TRUE(begins(refused(m), "topology host: parent: gpu1 may not hang on gpu1"));
  m = whole;
  m.nodes[3].kind = weft::node_kind::pcie_switch;
  m.nodes.push_back({.kind = weft::node_kind::pcie_switch, .name = "b", .parent = 3});
  m.nodes[3].parent = 4;
  EXPECT_TRUE(begins(refused(m), "topology host: switches: gpu0 hangs below itself"));
  m = whole;
  m.nodes[0].parent.reset();
  EXPECT_TRUE(begins(refused(m), "topology host: devices[0]: hangs on no socket"));
  m = whole;
  m.devices[1].memory = weft::bytes{0};
  EXPECT_TRUE(begins(refused(m), "topology host: devices[1]: expected memory"));
  m = whole;
  m.faults.push_back({.what = weft::topology_fault::kind::device_lost, .device = device_id{3}});
  EXPECT_TRUE(begins(refused(m), "topology host: faults[0]: names a device that is not there"));
  EXPECT_TRUE(begins(refused(weft::host_topology(0, weft::bytes{1})), "topology host: devices: expected at least one"));
}

TEST(load_topology, answers_an_unknown_name_with_the_nearest_and_all_others) {
  const auto machine = weft::load_topology("dgx-h100");
  ASSERT_FALSE(machine);
  EXPECT_EQ(machine.error().code, errc::not_found);
  EXPECT_TRUE(
      begins(machine.error().what, "no topology is called \"dgx-h100\", did you mean \"dgx_h100\"? There are: "));
  EXPECT_NE(machine.error().what.find("ring_3_no_p2p"), std::string::npos);
  EXPECT_EQ(weft::load_topology("").error().code, errc::not_found);
  EXPECT_TRUE(begins(weft::load_topology("").error().what, "no topology is called \"\". There are: "));
  EXPECT_EQ(weft::load_topology(std::string_view("a/\0b", 4)).error().code, errc::not_found);
}

TEST(quantity, sizes_are_of_1024_and_rates_of_1000) {
  using namespace weft::detail;
  EXPECT_EQ(parse_size("80GiB"), std::uint64_t{80} << 30);
  EXPECT_EQ(parse_size("80G"), std::uint64_t{80} << 30);
  EXPECT_EQ(parse_size("1.5 KiB"), 1536U);
  EXPECT_EQ(parse_size("7B"), 7U);
  EXPECT_EQ(parse_size("1024TiB"), std::uint64_t{1} << 50);
  for (const char* const bad :
       {"", "G", "-1G", "+1G", "1GB", "1.5B", "0.3K", "1025TiB", "1e30B", "infB", "nan", "1 G ", "1  G", "0x1G", "12"})
    EXPECT_EQ(parse_size(bad), std::nullopt) << bad;
  EXPECT_EQ(parse_rate("25GB/s"), 25e9);
  EXPECT_EQ(parse_rate("3.35TB/s"), 3.35e12);
  EXPECT_EQ(parse_rate("1KiB/s"), 1024);
  for (const char* const bad : {"0GB/s", "25GB", "25", "-25GB/s", "1e999GB/s", "9999TB/s", "25gb/s"})
    EXPECT_EQ(parse_rate(bad), std::nullopt) << bad;
  EXPECT_EQ(parse_duration("1.5us"), 1500ns);
  EXPECT_EQ(parse_duration("0ns"), 0ns);
  EXPECT_EQ(parse_duration("3600s"), 1h);
  for (const char* const bad : {"3601s", "-1s", "1m", "1"}) EXPECT_EQ(parse_duration(bad), std::nullopt) << bad;
}

TEST(nearest_name, finds_the_one_with_the_fewest_edits_or_none) {
  constexpr std::array<std::string_view, 4> known{"bandwidth", "latency", "lanes", "kind"};
  EXPECT_EQ(weft::nearest_name("bandwith", known), "bandwidth");
  EXPECT_EQ(weft::nearest_name("lnaes", known), "lanes") << "a swap is one edit";
  EXPECT_EQ(weft::nearest_name("kinds", known), "kind");
  EXPECT_EQ(weft::nearest_name("colour", known), std::nullopt);
  EXPECT_EQ(weft::nearest_name("", known), std::nullopt);
  EXPECT_EQ(weft::nearest_name(std::string(10'000, 'x'), known), std::nullopt);
}

#ifndef WEFT_HAS_JSON
TEST(load_topology, without_a_json_reader_refuses_a_file_and_says_what_to_install) {
  const auto machine = weft::load_topology("machine.json");
  ASSERT_FALSE(machine);
  EXPECT_EQ(machine.error().code, errc::unsupported);
  EXPECT_NE(machine.error().what.find("nlohmann-json3-dev"), std::string::npos);
}
#endif

}  // namespace topology_test
