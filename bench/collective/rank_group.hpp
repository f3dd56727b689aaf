// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collective/turn.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace weft::bench {

/// What one turn of a group came to.
struct turn_result {
  double seconds = 0;      // for one call, of the slowest rank
  double cpu_seconds = 0;  // of all ranks, for the whole turn
  std::string failure;     // empty: it worked, and the sums were right
  std::string algorithm;
  std::uint64_t wrong = 0;
};

/// How the ranks of one library are started.
struct group_plan {
  std::string library;  // "weft", "Open MPI", "Gloo"
  std::string name;     // "vader, big buffers kept"
  bool pinned = false;
  /// In the child of a fork: either this ...
  std::function<void(turn_block&, int rank)> play{};
  /// ... in one process for each rank, or this program, which starts all ranks itself. $BLOCK is the path of the block,
  /// $FOLDER an empty folder.
  std::vector<std::string> program{};
  std::vector<std::pair<std::string, std::string>> environment{};
  std::string missing{};  // why it cannot be started here; empty: it can
};

/// The ranks of one library, asleep between turns. Ends its processes with it.
class rank_group {
 public:
  /// `folder` is the group's own, and is left to the caller. Fork before any thread is made.
  rank_group(group_plan plan, int ranks, const std::string& folder);
  rank_group(rank_group&& other) noexcept;
  rank_group& operator=(rank_group&&) = delete;
  ~rank_group();

  [[nodiscard]] const group_plan& plan() const { return plan_; }
  /// Why it plays no more; empty: it plays.
  [[nodiscard]] const std::string& failure() const { return failure_; }
  /// All ranks, `iterations` calls. Returns when they sleep again.
  turn_result play(std::uint64_t bytes, std::uint64_t iterations);

 private:
  void start(const std::string& folder);
  [[nodiscard]] bool wait_for(double seconds, int posts);
  [[nodiscard]] std::string account_of(bool came) const;
  void end();

  group_plan plan_;
  int ranks_;
  turn_block* block_ = nullptr;
  std::string log_;
  std::vector<pid_t> processes_;
  std::string failure_;
};

}  // namespace weft::bench
