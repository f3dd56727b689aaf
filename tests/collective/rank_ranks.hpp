// SPDX-License-Identifier: Apache-2.0
// Ranks for the tests of rank_communicator: as threads, of one machine or one each, and as processes.
#pragma once

#include "support/processes.hpp"
#include "support/rank_data.hpp"
#include "support/samples.hpp"
#include "weft/collective/rank_communicator.hpp"
#include "weft/processes/rendezvous.hpp"

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

/// Where the ranks' machines come from.
struct world {
  std::function<weft::machine(int ranks)> machine = a_machine;
  /// A driver that was loaded before a fork does not work in the child: the test itself loads none.
  bool is_of_driver = false;

  /// The device of a rank on a machine that may be its own: with a driver, each rank another one.
  [[nodiscard]] weft::device device_of(const weft::machine& m, int r, bool is_own) const {
    return m[is_own && !is_of_driver ? 0 : r % m.device_count()];
  }
};

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

/// n processes, each a rank, that a test may stop and kill.
class team {
 public:
  team(int n, const part& what, const weft::rank_communicator_options& options = {}, const world& in = {}) {
    auto places = weft::rendezvous::connected(n);
    members_.reserve(places.size());
    for (int r = 0; r < n; ++r) {
      members_.emplace_back([&] {
        weft::rendezvous mine = std::move(places[static_cast<std::size_t>(r)]);
        places.clear();
        const weft::machine m = in.machine(1);
        const std::string found = joined(std::move(mine), in.device_of(m, r, true), what, options);
        if (!found.empty()) std::fprintf(stderr, "rank %d: %s\n", r, found.c_str());
        return found.empty() ? 0 : 1;
      });
    }
  }
  processes::child& operator[](int r) { return members_[static_cast<std::size_t>(r)]; }

 private:
  std::vector<processes::child> members_;
};

/// What the ranks found wrong, as threads of this process.
inline std::string found_by_threads(kind how, int n, const part& what, const weft::rank_communicator_options& options,
                                    const world& in) {
  const bool one = how == kind::threads_of_one_machine;
  auto places = weft::rendezvous::connected(n);
  const weft::machine all = in.machine(one ? n : 1);
  std::vector<std::string> found(static_cast<std::size_t>(n));
  {
    std::vector<std::jthread> threads;
    threads.reserve(places.size());
    for (int r = 0; r < n; ++r) {
      threads.emplace_back([&, r] {
        const auto i = static_cast<std::size_t>(r);
        const weft::machine own = one ? all : in.machine(1);
        found[i] = joined(std::move(places[i]), in.device_of(own, r, !one), what, options);
      });
    }
  }
  std::string wrong;
  for (int r = 0; r < n; ++r) {
    const std::string& one_found = found[static_cast<std::size_t>(r)];
    if (!one_found.empty()) wrong += "rank " + std::to_string(r) + ": " + one_found + "\n";
  }
  return wrong;
}

/// Runs `what` as each of n ranks; fails with what any of them found wrong.
inline testing::AssertionResult run(kind how, int n, const part& what, weft::rank_communicator_options options = {},
                                    const world& in = {}) {
  options.timeout = samples::only_a_hang;
  std::string wrong;
  if (how == kind::processes) {
    team all{n, what, options, in};
    for (int r = 0; r < n; ++r) {
      const int value = all[r].wait();
      if (value != 0) wrong += "rank " + std::to_string(r) + " ended with " + std::to_string(value) + "\n";
    }
  } else if (in.is_of_driver) {
    processes::child all{[&] {
      const std::string found = found_by_threads(how, n, what, options, in);
      if (!found.empty()) std::fprintf(stderr, "%s", found.c_str());
      return found.empty() ? 0 : 1;
    }};
    if (const int value = all.wait(); value != 0) wrong = "the ranks' process ended with " + std::to_string(value);
  } else {
    wrong = found_by_threads(how, n, what, options, in);
  }
  if (wrong.empty()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << wrong;
}

}  // namespace ranks
