// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/processes.hpp"
#include "weft/processes/rendezvous.hpp"

#include <utility>
#include <vector>

namespace processes {

/// Two processes of a group: the child runs `body(group)` and ends with what it gives.
template <class F>
struct couple {
  std::vector<weft::rendezvous> places = weft::rendezvous::connected(2);
  child other;
  weft::process_group group;

  explicit couple(F body)
      : other([&] {
          weft::rendezvous mine = std::move(places[1]);
          places.clear();
          weft::process_group joined = weft::value_or_raise(std::move(mine).join());
          return body(joined);
        }),
        group([&] {
          weft::rendezvous mine = std::move(places[0]);
          places.clear();
          return weft::value_or_raise(std::move(mine).join());
        }()) {}
};

}  // namespace processes
