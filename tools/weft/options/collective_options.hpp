// SPDX-License-Identifier: Apache-2.0
// The options of a collective: those of `explain all_reduce` and `bench collective`.
#pragma once

#include "bench/collective/collective_words.hpp"
#include "command_line/command_entry.hpp"
#include "weft/collective/communicator.hpp"

namespace weft::tool {

struct collective_words {
  std::string devices;
  std::optional<int> ranks;
  std::string type;
  std::string order;
  std::string algorithm;

  /// `algorithms` says how many of them --algorithm takes.
  void add_to(CLI::App& to, std::string_view algorithms) {
    to.add_option("--ranks", ranks, "How many; default one for each device")->type_name("N");
    to.add_option("--devices", devices, "The devices of the ranks, in order: 0,2,1,3")->type_name("LIST");
    to.add_option("--type", type, "float32, bfloat16, int8, …: float32")->type_name("TYPE");
    to.add_option("--order", order, "any: the fastest; rank: the same bits, whatever is chosen")->type_name("any|rank");
    to.add_option(
          "--algorithm", algorithm,
          fmt::format("{}: automatic, naive, tree, ring, halving_doubling, direct, hierarchical, engine", algorithms))
        ->type_name("NAME");
  }

  template <class Options>
  [[nodiscard]] complaint take(Options& to) const {
    if (!devices.empty() && ranks) return "--devices names every rank: give it, or --ranks";
    to.ranks = ranks;
    return first_of({read(devices, parse_devices, to.devices), in_range("--ranks", ranks, communicator::max_size),
                     read(type, parse_type, to.type), read(order, parse_order, to.order)});
  }
};

}  // namespace weft::tool
