// SPDX-License-Identifier: Apache-2.0
// Packets between processes of a group, never waiting; and the one wait of this layer, bounded by a deadline and a stop
// token.
#pragma once

#include "os/event_bell.hpp"
#include "os/process.hpp"
#include "os/socket.hpp"
#include "os/system_error.hpp"
#include "processes/packet.hpp"
#include "weft/core/result.hpp"
#include "weft/core/waiting.hpp"

#include <chrono>
#include <functional>
#include <optional>
#include <poll.h>
#include <span>
#include <stop_token>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

namespace weft::detail {

[[nodiscard]] std::chrono::nanoseconds steady_now() noexcept;

/// Lets a stop token end a poll. Without a descriptor to spare, the poll looks at the token a hundred times a second.
class stop_signal {
 public:
  explicit stop_signal(const std::stop_token& stop);
  stop_signal(const stop_signal&) = delete;
  stop_signal& operator=(const stop_signal&) = delete;

  [[nodiscard]] bool requested() const noexcept { return stop_.stop_requested(); }
  /// Waits for any of `these`, the deadline or the token; the answers are in `these`.
  void poll(std::vector<pollfd>& these, wait_deadline until);

 private:
  struct ring {
    int bell;
    void operator()() const noexcept { event_bell::ring(bell); }
  };
  std::stop_token stop_;
  event_bell bell_;
  std::optional<std::stop_callback<ring>> callback_;
};

/// Reads one packet into `room`, which has max_packet_bytes + 1. Never waits.
/// Errors: corrupt for a packet that is longer than any of ours, or empty.
[[nodiscard]] result<packet_io> read_packet(int socket, std::span<std::byte> room, raw_packet& into);

/// Errors: resource_exhausted; invalid_argument for a descriptor that is none.
[[nodiscard]] result<packet_io> write_packet(int socket, const packet& p, std::span<const int> descriptors = {},
                                             bool with_credentials = false);

/// Parses, and compares what came with what was announced.
[[nodiscard]] result<packet> checked_packet(const raw_packet& raw);

}  // namespace weft::detail
