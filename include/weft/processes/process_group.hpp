// SPDX-License-Identifier: Apache-2.0
// Processes of one machine and one user that have found each other: small messages with descriptors, a barrier, an
// exchange, and news of a death. What is big or fast goes through memory that is shared by a descriptor sent here.
#pragma once

#include "weft/core/descriptor.hpp"
#include "weft/core/internals.hpp"
#include "weft/core/result.hpp"

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <span>
#include <stop_token>
#include <string>
#include <sys/types.h>
#include <vector>

namespace weft {

/// Position of a process in its group, 0 … size−1.
class rank {
 public:
  constexpr rank() = default;
  constexpr explicit rank(int value) : value_(value) {}

  [[nodiscard]] constexpr int value() const { return value_; }
  [[nodiscard]] constexpr std::size_t index() const { return static_cast<std::size_t>(value_); }
  friend constexpr bool operator==(rank, rank) = default;  // said for nvcc
  friend constexpr auto operator<=>(rank, rank) = default;

 private:
  int value_ = -1;
};

/// Name of a process in messages: "rank 2".
[[nodiscard]] inline std::string to_string(rank r) { return "rank " + std::to_string(r.value()); }

/// One member of a group, as the kernel vouches for it, and what it said of itself.
struct peer_process {
  weft::rank rank;
  pid_t pid = 0;
  uid_t uid = 0;
  std::uint64_t start_time = 0;  // clock ticks since boot: with the pid, names a process for good; 0 where unknown
  std::vector<std::byte> announcement;
};

/// A message between two members. Descriptors that the receiver does not take close with it.
struct peer_message {
  rank from;
  std::uint64_t tag = 0;
  std::vector<std::byte> payload;
  std::vector<descriptor> descriptors;
};

/// The processes that met at a rendezvous: every two have a connection of their own, and each watches all others.
///
/// What waits gives a result: timed_out, cancelled, peer_dead (killed, crashed, or gone without a farewell), closed
/// (the peer ended its group object), corrupt or incompatible (what the peer sent), resource_exhausted; the message
/// names the ranks and their processes. What is called wrongly throws: invalid_argument, and closed in the child of a
/// fork, which does not inherit membership. A death is known as soon as the kernel ends the process; a stopped process
/// is not dead. No thread of its own. Thread: any; destroy it when no call is under way.
class process_group {
 public:
  static constexpr int max_size = 64;
  static constexpr std::size_t max_payload = 64 * 1024;
  static constexpr std::size_t max_descriptors = 16;  // of one message
  static constexpr std::size_t max_announcement = 16 * 1024;

  ~process_group();
  process_group(process_group&&) noexcept;
  process_group& operator=(process_group&&) noexcept;

  [[nodiscard]] weft::rank self() const;
  [[nodiscard]] int size() const;
  /// Errors: invalid_argument for a rank outside the group.
  [[nodiscard]] const peer_process& peer(rank which,
                                         std::source_location where = std::source_location::current()) const;

  /// Order: messages to one rank with one tag arrive in order; tags do not wait for each other.
  /// Errors: timed_out while the peer does not read and its connection is full; then nothing was sent. The descriptors
  /// stay the caller's. Throws invalid_argument past max_payload or max_descriptors, and for self.
  result<void> send(rank to, std::uint64_t tag, std::span<const std::byte> payload, std::span<const int> descriptors,
                    std::chrono::nanoseconds timeout, const std::stop_token& stop = {},
                    std::source_location where = std::source_location::current());

  /// The next message of that rank with that tag. What the peer sent before it died or left is delivered first.
  /// Errors: resource_exhausted when this process had no room for the message's descriptors (the message is lost), or
  /// when time is up and max_unread messages of other tags, which nobody receives, hide what follows them.
  result<peer_message> receive(rank from, std::uint64_t tag, std::chrono::nanoseconds timeout,
                               const std::stop_token& stop = {},
                               std::source_location where = std::source_location::current());
  static constexpr std::size_t max_unread = 256;  // of one peer; the peer's sends wait from there on

  /// Waits until every member has called it as often. Timed out or cancelled, the arrival stands: calling again waits
  /// for the same meeting. Errors: resource_exhausted when time is up and max_unread messages of a peer, which nobody
  /// receives, hide what follows them. Throws invalid_argument while another meeting of this process is unfinished.
  /// Cost: size − 1 messages sent and received, one step.
  result<void> barrier(std::chrono::nanoseconds timeout, const std::stop_token& stop = {},
                       std::source_location where = std::source_location::current());

  /// Everybody's bytes by rank, at most max_payload each; as a barrier otherwise.
  result<std::vector<std::vector<std::byte>>> all_gather(std::span<const std::byte> mine,
                                                         std::chrono::nanoseconds timeout,
                                                         const std::stop_token& stop = {},
                                                         std::source_location where = std::source_location::current());

  /// False once the member has died or left; asks the kernel, never waits.
  [[nodiscard]] bool alive(rank which, std::source_location where = std::source_location::current()) const;
  /// The next death that this function has not told yet. A member that left has not died.
  result<rank> wait_death(std::chrono::nanoseconds timeout, const std::stop_token& stop = {},
                          std::source_location where = std::source_location::current());
  /// For an event loop of one's own: readable when somebody may have died since; wait_death(0ns) then tells, and makes
  /// it unreadable. Stays the group's: never close it or read from it.
  [[nodiscard]] int death_descriptor() const;

  /// Connections that rank 0 turned away while the group gathered: other users, garbage, wrong versions or sizes.
  [[nodiscard]] std::uint64_t refused() const;

  struct body;

 private:
  friend struct detail::internals;
  explicit process_group(std::unique_ptr<body> made);
  std::unique_ptr<body> body_;
};

}  // namespace weft
