// SPDX-License-Identifier: Apache-2.0
#include "weft/core/topology_analysis.hpp"

#include "weft/core/raise.hpp"

#include <gtest/gtest.h>

namespace topology_analysis_test {

weft::topology_analysis of(const char* name) { return weft::analyse(weft::value_or_raise(weft::load_topology(name))); }

weft::device_id gpu(int i) { return weft::device_id{i}; }

TEST(topology_analysis, finds_one_cluster_where_every_device_reaches_every_other) {
  const auto found = of("dgx_h100");
  ASSERT_EQ(found.clusters.size(), 1U);
  EXPECT_EQ(found.clusters[0].size(), 8U);
  EXPECT_TRUE(found.fully_connected);
  EXPECT_TRUE(found.bottlenecks.empty());
  EXPECT_TRUE(found.one_way.empty());
}

TEST(topology_analysis, finds_a_cluster_per_socket_where_access_ends_at_the_socket) {
  const auto found = of("two_socket_8");
  ASSERT_EQ(found.clusters.size(), 2U);
  EXPECT_EQ(found.clusters[0], (std::vector{gpu(0), gpu(1), gpu(2), gpu(3)}));
  EXPECT_EQ(found.clusters[1], (std::vector{gpu(4), gpu(5), gpu(6), gpu(7)}));
  EXPECT_FALSE(found.fully_connected);
}

TEST(topology_analysis, puts_devices_without_peers_alone) { EXPECT_EQ(of("ring_3_no_p2p").clusters.size(), 3U); }

TEST(topology_analysis, reports_one_way_access_uneven_and_slow_pairs) {
  auto machine = weft::value_or_raise(weft::load_topology("pcie_4"));
  machine.access[machine.pair(gpu(1), gpu(0))] = false;
  machine.peer_paths[machine.pair(gpu(2), gpu(3))].bytes_per_second /= 4;
  const auto found = weft::analyse(machine);
  EXPECT_EQ(found.one_way, (std::vector{std::pair{gpu(0), gpu(1)}}));
  EXPECT_EQ(found.uneven, (std::vector{std::pair{gpu(2), gpu(3)}}));
  EXPECT_EQ(found.bottlenecks, (std::vector{std::pair{gpu(2), gpu(3)}}));
}

TEST(topology_analysis, takes_no_unknown_rate_for_a_slow_one) {
  auto machine = weft::value_or_raise(weft::load_topology("pcie_4"));
  for (const int to : {0, 1, 3}) machine.peer_paths[machine.pair(gpu(2), gpu(to))].bytes_per_second = 0;
  const auto found = weft::analyse(machine);
  EXPECT_TRUE(found.uneven.empty());
  EXPECT_TRUE(found.bottlenecks.empty());
  machine.peer_paths[machine.pair(gpu(0), gpu(1))].bytes_per_second *= 0.4;
  EXPECT_EQ(weft::analyse(machine).bottlenecks, (std::vector{std::pair{gpu(0), gpu(1)}}))
      << "unknown rates do not lower the mean";
}

}  // namespace topology_analysis_test
