// SPDX-License-Identifier: Apache-2.0
#include "core/topology/joined_topology.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace joined_topology_test {

using weft::device_id;
using weft::node_kind;
using weft::topology;

topology shipped(const char* name) {
  auto loaded = weft::load_topology(name);
  EXPECT_TRUE(loaded) << name;
  return loaded ? *loaded : topology{};
}

topology joined(const topology& a, const topology& b) {
  const std::array<const topology*, 2> parts{&a, &b};
  auto made = weft::detail::join_topologies(parts);
  EXPECT_TRUE(made) << (made ? "" : made.error().what);
  return made ? *made : topology{};
}

std::size_t sockets_of(const topology& t) {
  return static_cast<std::size_t>(
      std::count_if(t.nodes.begin(), t.nodes.end(), [](const auto& n) { return n.kind == node_kind::socket; }));
}

TEST(a_joined_topology, keeps_what_each_part_says_of_its_own_devices) {
  const topology a = shipped("two_socket_8");
  const topology b = weft::host_topology(3, weft::bytes{1 << 20});
  for (const auto& [first, second] : {std::pair{a, b}, std::pair{b, a}}) {
    const topology both = joined(first, second);
    ASSERT_EQ(both.device_count(), 11);
    int at = 0;
    std::size_t link = 0;
    for (const topology* part : {&first, &second}) {
      for (int from = 0; from < part->device_count(); ++from) {
        EXPECT_EQ(both.nodes[static_cast<std::size_t>(at + from)].name, to_string(device_id{at + from}));
        EXPECT_EQ(both.devices[static_cast<std::size_t>(at + from)].memory,
                  part->devices[static_cast<std::size_t>(from)].memory);
        EXPECT_EQ(both.devices[static_cast<std::size_t>(at + from)].capabilities,
                  part->devices[static_cast<std::size_t>(from)].capabilities);
        for (int to = 0; to < part->device_count(); ++to) {
          const device_id x{at + from}, y{at + to};
          EXPECT_EQ(both.can_access(x, y), part->can_access(device_id{from}, device_id{to}));
          const auto& path = both.peer_paths[both.pair(x, y)];
          EXPECT_EQ(path.bytes_per_second,
                    part->peer_paths[part->pair(device_id{from}, device_id{to})].bytes_per_second);
          EXPECT_EQ(link_class(both, x, y), link_class(*part, device_id{from}, device_id{to}));
        }
      }
      for (const auto& one : part->links) {
        EXPECT_EQ(both.links[link].bytes_per_second, one.bytes_per_second) << link;
        ++link;
      }
      at += part->device_count();
    }
  }
}

TEST(a_joined_topology, joins_its_parts_at_the_host_and_gives_no_access_across) {
  const topology both = joined(shipped("two_socket_8"), weft::host_topology(2, weft::bytes{1 << 20}));
  EXPECT_EQ(sockets_of(both), 2U);
  for (int from = 0; from < 8; ++from) {
    for (int to = 8; to < 10; ++to) {
      EXPECT_FALSE(both.can_access(device_id{from}, device_id{to}));
      EXPECT_FALSE(both.can_access(device_id{to}, device_id{from}));
      EXPECT_GE(both.peer_paths[both.pair(device_id{from}, device_id{to})].links.size(), 2U);
    }
  }
}

TEST(a_joined_topology, joins_sockets_by_their_numa_node) {
  topology a = weft::host_topology(1, weft::bytes{1 << 20});
  topology b = a;
  a.nodes[1].numa_node = 0;
  b.nodes[1].numa_node = 0;
  EXPECT_EQ(sockets_of(joined(a, b)), 1U);
  b.nodes[1].numa_node = 1;
  const topology apart = joined(a, b);
  EXPECT_EQ(sockets_of(apart), 2U) << "another place";
  EXPECT_EQ(apart.peer_paths[apart.pair(device_id{0}, device_id{1})].links.size(), 3U) << "over a link between them";
  EXPECT_EQ(apart.links.size(), a.links.size() + b.links.size() + 2);
}

TEST(a_joined_topology, keeps_two_sockets_of_a_part_apart) {
  topology a = weft::host_topology(1, weft::bytes{1 << 20});
  a.nodes[1].numa_node = 1;
  topology b = shipped("two_socket_8");
  int nth = 0;
  for (auto& node : b.nodes) {
    if (node.kind != node_kind::socket) continue;
    node.numa_node = nth++ == 0 ? std::nullopt : std::optional{1};
  }
  EXPECT_EQ(sockets_of(joined(a, b)), 2U) << "the second is the one with the number, and so the first is not";
}

TEST(a_joined_topology, takes_faults_and_addresses_along) {
  topology a = weft::host_topology(2, weft::bytes{1 << 20});
  topology b = a;
  a.devices[0].pci_address = b.devices[0].pci_address = "0000:01:00.0";
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::copy_fails;
  fault.link = 1;
  fault.device = device_id{1};
  b.faults.push_back(fault);
  const topology both = joined(a, b);
  ASSERT_EQ(both.faults.size(), 1U);
  EXPECT_EQ(both.faults[0].link, static_cast<int>(a.links.size()) + 1);
  EXPECT_EQ(both.faults[0].device, device_id{3});
  EXPECT_EQ(both.devices[0].pci_address, "0000:01:00.0");
  EXPECT_EQ(both.devices[2].pci_address, "") << "an address is one place of a topology";
}

}  // namespace joined_topology_test
