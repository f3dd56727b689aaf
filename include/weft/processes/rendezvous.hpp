// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/result.hpp"
#include "weft/processes/process_group.hpp"

#include <chrono>
#include <cstddef>
#include <source_location>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

struct join_options {
  std::span<const std::byte> announcement{};  // what the others see as peer(r).announcement
  std::chrono::nanoseconds timeout = std::chrono::seconds{30};
  std::stop_token stop{};
};

/// One process's place at a meeting of `size` processes of one user on one machine. Nothing is created in a file
/// system; what exists while they gather goes with the process that made it.
///
/// Thread: one at a time.
class rendezvous {
 public:
  /// Found by name: rank 0 listens, the others connect, in any order of starting. The name is an abstract socket
  /// address made of it and the user's id, held from when rank 0 joins until the group is complete; both sides check
  /// the other's user before they read a byte.
  /// Errors: invalid_argument for an empty name, one of more than 64 bytes or with characters outside [A-Za-z0-9._-];
  /// for a rank outside 0 … size−1 or a size outside 1 … process_group::max_size.
  static rendezvous at(std::string_view name, rank self, int size,
                       std::source_location where = std::source_location::current());

  /// One place per rank, connected already, without a name: for a parent that starts the others. After a fork each
  /// process keeps its own place and lets the others go. Errors: invalid_argument; resource_exhausted without
  /// descriptors.
  static std::vector<rendezvous> connected(int size, std::source_location where = std::source_location::current());

  /// The text that a program started by exec makes this place from again; the sockets outlive one exec from now on.
  /// Errors: invalid_argument for a place with a name, which needs none.
  [[nodiscard]] std::string ticket(std::source_location where = std::source_location::current()) const;
  /// Errors: invalid_argument for a text that is not a ticket or sockets that did not come along.
  static rendezvous inherited(std::string_view ticket, std::source_location where = std::source_location::current());

  /// Waits until everybody is there; ends for all when it ends for one.
  /// Errors: timed_out naming the missing ranks; cancelled; peer_dead; name_taken (another user, or another rank 0);
  /// incompatible (version, size or rank) with both sides named; closed when another rank gave up; resource_exhausted;
  /// corrupt when the other side sends what is not of a rendezvous; io_failed with the system's reason.
  /// Cost: size² / 2 connections made by rank 0, two descriptors per peer kept.
  [[nodiscard]] result<process_group> join(const join_options& options = {},
                                           std::source_location where = std::source_location::current()) &&;

 private:
  rendezvous() = default;

  std::string name_;  // empty: connected
  rank self_;
  int size_ = 0;
  std::vector<descriptor> links_;  // connected: rank 0 has one for each other rank in order, the others one to rank 0
};

}  // namespace weft
