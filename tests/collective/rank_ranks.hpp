// SPDX-License-Identifier: Apache-2.0
// Ranks for the tests of rank_communicator: as threads, of one machine or one each, and as processes.
#pragma once

#include "support/processes.hpp"
#include "support/samples.hpp"
#include "weft/collective/rank_communicator.hpp"
#include "weft/runtime/rendezvous.hpp"

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ranks {

enum class kind : std::uint8_t { threads_of_one_machine, threads, processes };

/// What a rank does; the text says what was wrong, and is empty when nothing was.
using part = std::function<std::string(weft::rank_communicator&, std::shared_ptr<weft::process_group>)>;

inline weft::machine a_machine(int devices) {
  weft::machine_options options;
  options.devices = devices;
  return weft::machine{options};
}

inline std::string joined(weft::rendezvous place, const weft::device& on, const part& what,
                          const weft::rank_communicator_options& options) {
  try {
    auto group = std::make_shared<weft::process_group>(weft::value_or_raise(std::move(place).join()));
    auto communicator = weft::rank_communicator::join(group, on, options);
    return what(communicator, group);
  } catch (const std::exception& e) {
    return e.what();
  }
}

/// Runs `what` as each of n ranks; fails with what any of them found wrong.
inline testing::AssertionResult run(kind how, int n, const part& what, weft::rank_communicator_options options = {}) {
  options.limit = samples::only_a_hang;
  auto places = weft::rendezvous::connected(n);
  std::string wrong;
  if (how == kind::processes) {
    std::vector<processes::child> children;
    children.reserve(places.size());
    for (int r = 0; r < n; ++r) {
      children.emplace_back([&] {
        weft::rendezvous mine = std::move(places[static_cast<std::size_t>(r)]);
        places.clear();
        const weft::machine m = a_machine(1);
        const std::string found = joined(std::move(mine), m[0], what, options);
        if (!found.empty()) std::fprintf(stderr, "rank %d: %s\n", r, found.c_str());
        return found.empty() ? 0 : 1;
      });
    }
    places.clear();
    for (int r = 0; r < n; ++r) {
      const int value = children[static_cast<std::size_t>(r)].wait();
      if (value != 0) wrong += "rank " + std::to_string(r) + " ended with " + std::to_string(value) + "\n";
    }
  } else {
    const bool one = how == kind::threads_of_one_machine;
    const weft::machine all = a_machine(one ? n : 1);
    std::vector<std::string> found(static_cast<std::size_t>(n));
    {
      std::vector<std::jthread> threads;
      threads.reserve(places.size());
      for (int r = 0; r < n; ++r) {
        threads.emplace_back([&, r] {
          const auto i = static_cast<std::size_t>(r);
          const weft::machine own = one ? all : a_machine(1);
          found[i] = joined(std::move(places[i]), own[one ? r : 0], what, options);
        });
      }
    }
    for (int r = 0; r < n; ++r) {
      if (!found[static_cast<std::size_t>(r)].empty())
        wrong += "rank " + std::to_string(r) + ": " + found[static_cast<std::size_t>(r)] + "\n";
    }
  }
  if (wrong.empty()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << wrong;
}

template <class T>
std::string same(const std::vector<T>& got, const std::vector<T>& expected, const std::string& what) {
  const auto text = [](const T& value) {
    if constexpr (sizeof(T) == 2 && !std::is_integral_v<T>) {
      return std::to_string(static_cast<float>(value));
    } else {
      return std::to_string(value);
    }
  };
  if (got.size() != expected.size()) return what + ": " + std::to_string(got.size()) + " elements";
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &expected[i], sizeof(T)) != 0)
      return what + ": first bad offset " + std::to_string(i) + ": expected " + text(expected[i]) + ", got " +
             text(got[i]);
  }
  return {};
}

}  // namespace ranks
