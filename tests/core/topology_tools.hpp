// SPDX-License-Identifier: Apache-2.0
// What the tests of topologies share.
#pragma once

#include "weft/core/topology.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace topology_tests {

using weft::device_id;
using weft::topology;

inline topology load(std::string_view name) {
  auto machine = weft::load_topology(name);
  EXPECT_TRUE(machine) << name << ": " << (machine ? "" : machine.error().what);
  return machine ? *machine : topology{};
}

inline testing::AssertionResult begins(const std::string& text, const std::string& start) {
  if (text.starts_with(start)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "expected " << start << "\n     got " << text;
}

inline std::string classes_from(const topology& machine, int from) {
  std::string row;
  for (int to = 0; to < machine.device_count(); ++to) {
    row += (to == 0 ? "" : " ") + weft::link_class(machine, device_id{from}, device_id{to});
  }
  return row;
}

// "gpu0 switch0 gpu1"
inline std::string way(const topology& machine, const weft::link_path& path) {
  if (path.links.empty()) return "";
  const auto node = [&](int index) { return machine.nodes[static_cast<std::size_t>(index)].name; };
  const auto link = [&](int index) { return machine.links[static_cast<std::size_t>(index)]; };
  std::string text = node(link(path.links.front()).from);
  int here = link(path.links.front()).from;
  for (const int index : path.links) {
    EXPECT_EQ(link(index).from, here);
    here = link(index).to;
    text += " " + node(here);
  }
  return text;
}

inline const weft::link_path& peer(const topology& machine, int from, int to) {
  return machine.peer_paths[machine.pair(device_id{from}, device_id{to})];
}

}  // namespace topology_tests
