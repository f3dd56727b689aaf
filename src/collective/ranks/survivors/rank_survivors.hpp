// SPDX-License-Identifier: Apache-2.0
// The memory of a new communicator, and time, as survivors need them whichever way they agree.
#pragma once

#include "collective/ranks/rank_communicator_body.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

namespace weft::detail {

/// The memory in which those of a new communicator meet that are on this node: made by one, offered to the others.
class survivor_memory {
 public:
  explicit survivor_memory(rank_communicator_body& of) : of_(of), m_(of.meeting) {}

  /// For so many ranks, of which so many are on this node.
  void make(int ranks, int near);
  /// False while that rank has no room for the message.
  [[nodiscard]] bool offer(std::uint32_t position, int to);
  /// False until it has come.
  [[nodiscard]] bool take(std::uint32_t position, int from, bool is_late);
  /// Offers that were not waited for to the end: each holds a descriptor.
  void drop_offers();
  [[nodiscard]] control_block open(int ranks, int near) const;

 private:
  [[nodiscard]] rank member(int r) const { return m_.members()[static_cast<std::size_t>(r)]; }
  [[nodiscard]] std::uint64_t tag(std::uint32_t position) const {
    return collective_tag(m_.block().id(), static_cast<std::uint16_t>(0x100 + position));
  }

  rank_communicator_body& of_;
  rank_meeting& m_;
  descriptor file_;
  std::vector<std::pair<int, std::uint32_t>> awaited_;  // from whom, at which position
};

class survivor_time {
 public:
  using clock = std::chrono::steady_clock;
  explicit survivor_time(std::chrono::nanoseconds timeout) : timeout_(timeout) { begin(); }
  void begin() {
    const auto now = clock::now();
    until_ = timeout_ < clock::time_point::max() - now ? now + timeout_ : clock::time_point::max();
  }
  [[nodiscard]] bool is_late() const { return clock::now() > until_; }

 private:
  std::chrono::nanoseconds timeout_;
  clock::time_point until_{};
};

}  // namespace weft::detail
