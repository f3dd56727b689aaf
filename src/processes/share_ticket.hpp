// SPDX-License-Identifier: Apache-2.0
// What a handle of shared memory, of an event or of a pool says: 64 bytes that any byte channel carries. It names an
// exporter and a number that only the exporter knows; it opens nothing by itself.
#pragma once

#include "weft/core/error.hpp"
#include "weft/core/result.hpp"
#include "weft/core/shared_bytes.hpp"

#include <cstdint>
#include <span>
#include <string_view>

namespace weft::detail {

enum class share_kind : std::uint8_t { memory = 1, event = 2, pool = 3, pool_memory = 4, block = 5 };
[[nodiscard]] std::string_view to_string(share_kind kind);

/// Whose memory it is: no backend can map that of another.
enum class share_family : std::uint16_t { host = 0, cuda = 1, hip = 2 };
[[nodiscard]] std::string_view to_string(share_family family);

struct share_ticket {
  share_kind kind = share_kind::memory;
  share_family family = share_family::host;  // of memory; the rest belongs to no backend
  std::uint32_t process = 0;                 // pid of the exporter, for messages; never trusted
  std::uint64_t boot = 0;                    // of the machine, and of this run of its kernel
  std::uint64_t door = 0;                    // random: names the socket of the exporter
  std::uint64_t key = 0;                     // random: names what is shared
  std::uint64_t offset = 0;                  // bytes from its start
  std::uint64_t size = 0;                    // bytes from there on

  friend bool operator==(const share_ticket&, const share_ticket&) = default;
};

[[nodiscard]] shared_bytes encode(const share_ticket& h);
/// Pure: any bytes give a handle that means all that is in them, or the reason why not.
/// Errors: corrupt (no handle, truncated, damaged); incompatible (of another version).
[[nodiscard]] result<share_ticket> decode(std::span<const std::byte> bytes);
/// Why a backend of `here` cannot open what a handle names, if it cannot. Errors: incompatible.
[[nodiscard]] result<void> check_family(const share_ticket& h, share_family here);

/// The same for all processes of one machine until it boots again.
[[nodiscard]] std::uint64_t this_boot();
/// A device's uuid as a number.
[[nodiscard]] std::uint64_t identity_of(std::string_view uuid);
/// From the kernel's generator; never 0.
[[nodiscard]] std::uint64_t random_number();

// ---- what is said over the socket -----------------------------------------------------------------------------------

inline constexpr std::size_t request_size = 8 + shared_bytes_size;
using request_bytes = std::array<std::byte, request_size>;
[[nodiscard]] request_bytes encode_request(const share_ticket& h);
/// Pure. Errors: corrupt, incompatible.
[[nodiscard]] result<share_ticket> decode_request(std::span<const std::byte> bytes);

enum class share_answer : std::uint16_t { granted = 0, gone = 1, refused = 2 };
struct share_reply {
  share_answer answer = share_answer::refused;
  std::uint64_t size = 0;    // of the whole of what is shared
  std::uint64_t device = 0;  // which device holds it, as a hash of its identity
  friend bool operator==(const share_reply&, const share_reply&) = default;
};
inline constexpr std::size_t reply_size = 24;
using reply_bytes = std::array<std::byte, reply_size>;
[[nodiscard]] reply_bytes encode_reply(const share_reply& r);
/// Pure. Errors: corrupt, incompatible.
[[nodiscard]] result<share_reply> decode_reply(std::span<const std::byte> bytes);

}  // namespace weft::detail
