// SPDX-License-Identifier: Apache-2.0
// What a driver says of a directed pair of devices.
#pragma once

#include "weft/core/topology.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weft {

/// What is known of one directed pair: may `from` read and write the memory of `to`?
struct peer_description {
  bool can_access = false;
  /// The driver copies from one to the other by one command, access or not, and no worse than by way of the host. Only
  /// OpenCL says so: CUDA and HIP copy between any two devices, but without peer access by way of the host, so it is
  /// false there, and on the host backend.
  bool can_copy = false;
  link_kind kind = link_kind::unknown;
  std::optional<int> performance_rank;  // 0 is best
  std::optional<int> native_rank;       // the vendor's own number, unchanged
  int hops = 0;                         // links passed; 0 when there is no path
  bool atomics = false;
  bool native_atomics = false;             // all that kernels may use
  bool partial_native_atomics = false;     // some of them: peer_atomics() tells which
  bool array_access = false;               // images and textures of the peer can be used as well
  std::optional<double> bytes_per_second;  // of the link, as published; never invented
  std::optional<std::chrono::nanoseconds> latency;
  std::string why;  // why access or a figure is absent
};

/// A way in which data goes from one device into the memory of another. A driver may get one of them wrong and the
/// others right.
enum class peer_way : std::uint8_t {
  commands,     // a copy command between two allocations
  allocations,  // stores and loads of a kernel in an allocation
  pools,        // a copy, stores and loads in memory of a pool, by the right to it
  blocks,       // a copy, stores and loads in a mapped block, by the right to it
};
[[nodiscard]] std::string_view to_string(peer_way way);
inline constexpr std::size_t peer_way_count = 4;

/// Whether what was written over a pair was there when it was read back. A driver that cannot try gives an error
/// instead.
struct peer_delivery {
  bool arrived = true;
  std::string why;  // the first bad byte; or what could not be tried, and why
};

/// The result of a check of a pair.
enum class peer_outcome : std::uint8_t {
  not_tried,   // not offered; or no memory, a lost device or other work was in the way
  arrived,     // as far as it was tried
  wrong_data,  // something else was read back than was written
  failed,      // a command of the check failed, or did not end
};
[[nodiscard]] std::string_view to_string(peer_outcome outcome);

/// An atomic operation of a kernel on the memory of a peer.
enum class atomic_operation : std::uint8_t {
  integer_add,
  integer_min,
  integer_max,
  integer_increment,
  integer_decrement,
  bit_and,
  bit_or,
  bit_xor,
  exchange,
  compare_exchange,
  float_add,
  float_min,
  float_max,
};
[[nodiscard]] std::string_view to_string(atomic_operation operation);
inline constexpr std::size_t atomic_operation_count = 13;

/// In which forms a link carries an atomic operation by itself; a set of these is a bit mask.
enum class atomic_support : std::uint32_t {
  none = 0,
  signed_integers = 1U << 0,
  unsigned_integers = 1U << 1,
  reduction = 1U << 2,  // without giving the old value back
  scalar_32 = 1U << 3,
  scalar_64 = 1U << 4,
  scalar_128 = 1U << 5,
  vector_4x32 = 1U << 6,
};
[[nodiscard]] constexpr atomic_support operator|(atomic_support a, atomic_support b) {
  return static_cast<atomic_support>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}
[[nodiscard]] constexpr bool has_all(atomic_support have, atomic_support wanted) {
  return (static_cast<std::uint32_t>(have) & static_cast<std::uint32_t>(wanted)) == static_cast<std::uint32_t>(wanted);
}

}  // namespace weft
