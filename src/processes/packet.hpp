// SPDX-License-Identifier: Apache-2.0
// What processes say to each other: a header of fixed size and a payload, in one packet of a sequenced-packet socket.
// Everything that was read is somebody else's until parse_packet() has said yes.
#pragma once

#include "weft/core/result.hpp"
#include "weft/processes/process_group.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace weft::detail {

inline constexpr std::array<char, 4> packet_magic{'w', 'e', 'f', 't'};
inline constexpr std::uint16_t packet_version = 1;
inline constexpr std::size_t packet_header_bytes = 48;
inline constexpr std::size_t max_packet_bytes = packet_header_bytes + process_group::max_payload;
inline constexpr std::size_t max_refusal_text = 512;

enum class packet_kind : std::uint8_t {
  // while gathering
  hello = 1,  // a rank names itself and the group that it expects; the sender's credentials come with it
  welcome,    // rank 0 has given the rank its seat, and names itself likewise
  progress,   // rank 0: who is seated, as a set of bits in `tag`
  peer,       // rank 0: another member, with the connection to it and its pidfd
  complete,   // rank 0: that was everybody
  ready,      // a rank holds all of it
  go,         // rank 0: all ranks do
  refusal,    // either side gives up; `tag` is a refusal_code, the payload says why
  // afterwards
  message,
  barrier,   // `tag` counts the meetings
  gather,    // likewise
  farewell,  // the group object of the sender ended
};

enum class refusal_code : std::uint8_t { timed_out = 1, peer_dead, incompatible, closed };

/// One packet. Fields that its kind does not use are zero.
struct packet {
  packet_kind kind = packet_kind::message;
  std::uint8_t descriptors = 0;  // that travel with it
  std::uint32_t rank = 0;        // of the sender; of `peer`, who is described
  std::uint32_t size = 0;        // of the group
  std::uint64_t tag = 0;
  std::uint64_t start_time = 0;  // of `rank`: hello, welcome, peer
  std::uint32_t pid = 0;         // peer
  std::uint32_t uid = 0;         // peer
  std::span<const std::byte> payload;
};

[[nodiscard]] std::array<std::byte, packet_header_bytes> packet_header(const packet& p) noexcept;

/// Errors: incompatible for another version; corrupt for anything else that no weft would send. The text names what was
/// expected. The payload of the result lies in `bytes`.
[[nodiscard]] result<packet> parse_packet(std::span<const std::byte> bytes);

/// A payload of text as something that may be shown: what is not printable becomes '?'.
[[nodiscard]] std::string printable(std::span<const std::byte> text);

}  // namespace weft::detail
