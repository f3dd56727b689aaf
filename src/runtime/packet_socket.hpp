// SPDX-License-Identifier: Apache-2.0
// Sequenced-packet sockets between processes: packets with descriptors and credentials, never waiting; and the one wait
// of this layer, bounded by a deadline and a stop token.
#pragma once

#include "runtime/packet.hpp"
#include "weft/backend/event_record.hpp"
#include "weft/core/result.hpp"
#include "weft/runtime/descriptor.hpp"

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

/// An error without a place in the source: what failed is in another process or in the kernel.
[[nodiscard]] error process_error(errc code, std::string what, error_scope scope = error_scope::call,
                                  int native_code = 0);
/// What a system call that failed means: resource_exhausted for want of descriptors or memory, io_failed otherwise.
[[nodiscard]] error system_error(std::string doing, int number);

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
    int fd;
    void operator()() const noexcept;
  };
  std::stop_token stop_;
  descriptor bell_;
  std::optional<std::stop_callback<ring>> callback_;
};

/// How an attempt to read or write a packet went; errors are apart.
enum class packet_io : unsigned char {
  done,
  later,  // nothing there, or no room
  ended,  // the other side is gone
};

struct credentials {
  pid_t pid = 0;
  uid_t uid = 0;
};

/// One packet as it came.
struct raw_packet {
  std::span<const std::byte> bytes;  // in the caller's room
  std::vector<descriptor> descriptors;
  std::optional<credentials> sender;  // where the socket was told to accept them
  bool lost_descriptors = false;      // there was no room for all that were sent
};

/// Reads one packet into `room`, which has max_packet_bytes + 1. Never waits.
/// Errors: corrupt for a packet that is longer than any of ours, or empty.
[[nodiscard]] result<packet_io> read_packet(int socket, std::span<std::byte> room, raw_packet& into);

/// Errors: resource_exhausted; invalid_argument for a descriptor that is none.
[[nodiscard]] result<packet_io> write_packet(int socket, const packet& p, std::span<const int> descriptors = {},
                                             bool with_credentials = false);

/// Parses, and compares what came with what was announced.
[[nodiscard]] result<packet> checked_packet(const raw_packet& raw);

/// From now on what is read carries the sender's credentials, if the sender attached them.
void accept_credentials(int socket, bool on) noexcept;
/// Who made the other end: for a listener's name the listener, for an accepted connection who connected.
[[nodiscard]] std::optional<credentials> maker_of(int socket) noexcept;

[[nodiscard]] result<std::pair<descriptor, descriptor>> connected_sockets();
/// Room for a packet of full size, whatever the machine's default is.
void make_room(int socket) noexcept;
[[nodiscard]] bool is_packet_socket(int fd) noexcept;

/// Clock ticks from boot to the start of a process; 0 when unknown.
[[nodiscard]] std::uint64_t start_time_of(pid_t pid);
/// A pidfd of the process that has this pid and start time (0: any).
/// Errors: peer_dead when there is none any more; resource_exhausted.
[[nodiscard]] result<descriptor> watch_process(pid_t pid, std::uint64_t start_time);
[[nodiscard]] bool is_process_descriptor(int fd) noexcept;
[[nodiscard]] bool is_readable(int fd) noexcept;

}  // namespace weft::detail
