// SPDX-License-Identifier: Apache-2.0
// Sockets between processes of one computer that pass descriptors and credentials. Nothing here waits.
#pragma once

#include "weft/core/descriptor.hpp"
#include "weft/core/result.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <sys/types.h>
#include <sys/uio.h>
#include <utility>
#include <vector>

namespace weft::detail {

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
  bool is_cut = false;                // it was longer than the room
};

/// As many as a packet may carry.
inline constexpr std::size_t most_descriptors = 16;

/// The size of the packet that the next read gets, which leaves it there: 0 at the end. None: nothing is there.
[[nodiscard]] std::optional<std::size_t> next_packet_bytes(int socket) noexcept;
/// Reads one packet; what is done and has no bytes was empty, or the end. `from` names the other side in errors.
/// Errors: as system_error().
[[nodiscard]] result<packet_io> receive_packet(int socket, std::span<std::byte> room, raw_packet& into,
                                               const char* from);
/// Sends parts as one packet. Errors: invalid_argument for a descriptor that is none; as system_error().
[[nodiscard]] result<packet_io> send_packet(int socket, std::span<const iovec> parts, std::span<const int> descriptors,
                                            bool with_credentials, const char* to);

/// From now on what is read carries the sender's credentials, if the sender attached them.
void accept_credentials(int socket, bool on) noexcept;
/// The process that made the other end: the listener where this end connected, the one that connected where this end
/// was accepted.
[[nodiscard]] std::optional<credentials> maker_of(int socket) noexcept;
/// Two ends, each with room for four packets of `packet_bytes`.
[[nodiscard]] result<std::pair<descriptor, descriptor>> connected_sockets(std::size_t packet_bytes);
/// Room for four packets of that size, whatever the system's default is.
void make_room(int socket, std::size_t packet_bytes) noexcept;
[[nodiscard]] bool is_packet_socket(int fd) noexcept;
[[nodiscard]] bool is_readable(int fd) noexcept;

}  // namespace weft::detail
