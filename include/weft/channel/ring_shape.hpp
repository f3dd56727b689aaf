// SPDX-License-Identifier: Apache-2.0
// How messages of one size lie in a ring. Known at compile time for a queue's fast path, and at run time for the rest.
#pragma once

#include "weft/kernel/ring.h"

#include <bit>
#include <cstddef>
#include <cstdint>

namespace weft::detail {

/// Own constant, not hardware_destructive_interference_size: that one changes with compiler flags, and this is part of
/// what two processes agree on. Two lines: the second-level prefetcher pulls pairs.
inline constexpr std::size_t isolation = 128;
inline constexpr std::size_t largest_message = std::size_t{64} << 10;
inline constexpr std::size_t largest_packed = 24;
inline constexpr std::size_t largest_in_pieces = std::size_t{WEFT_RING_MOST_PIECES} * WEFT_RING_PIECE_PAYLOAD;

constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

/// Messages in one line of the packed layout; 0 when the size has the slots layout.
constexpr std::uint32_t per_line_of(std::size_t size, std::size_t alignment) {
  if (size > largest_packed || alignment > 8) return 0;
  return static_cast<std::uint32_t>(WEFT_RING_LINE_PAYLOAD / size);
}

/// Bytes from slot to slot. Up to 64 bytes a slot fills a line or half of one; up to 512 slots are dense; larger ones
/// start at a line, and never a multiple of 4096 apart, where they would share one set of the first-level cache.
constexpr std::uint32_t stride_of(std::size_t size, std::size_t alignment) {
  const std::size_t least = round_up(size + 4, alignment > 8 ? alignment : 8);
  std::size_t stride = least;
  if (least <= 32) {
    stride = 32;
  } else if (least <= 64) {
    stride = 64;
  } else if (size > 512) {
    stride = round_up(least, 64);
    if (stride % 4096 == 0) stride += 64;
  }
  return static_cast<std::uint32_t>(stride);
}

struct ring_shape {
  std::uint32_t bytes = 0;
  std::uint32_t stride = 0;    // 0: packed
  std::uint32_t per_line = 0;  // packed only
  std::uint32_t pieces = 0;    // of a slot; 0 in the other layouts
  std::uint64_t capacity = 0;  // messages
  std::uint64_t places = 0;    // slots or lines, a power of two

  [[nodiscard]] constexpr std::uint64_t slots_size() const {
    return places * (stride == 0 ? std::uint64_t{WEFT_RING_LINE} : stride);
  }
  friend bool operator==(const ring_shape&, const ring_shape&) = default;
};

/// Capacities are powers of two of at least 16.
constexpr std::uint64_t rounded_capacity(std::size_t asked) {
  return std::bit_ceil(asked < 16 ? std::size_t{16} : asked);
}

/// Bytes that travel for a message: whole words with its checksum, whole words where it is copied as words.
constexpr std::size_t carried_size(std::size_t size, bool validates, bool overwrites) {
  if (validates) return round_up(size, 4) + 4;
  return overwrites ? round_up(size, 4) : size;
}

constexpr ring_shape shape_of(std::size_t size, std::size_t alignment, std::size_t asked_capacity, bool may_pack) {
  ring_shape shape;
  shape.bytes = static_cast<std::uint32_t>(size);
  shape.capacity = rounded_capacity(asked_capacity);
  shape.per_line = may_pack ? per_line_of(size, alignment) : 0;
  if (shape.per_line != 0) {
    // a line may be opened again only when all of it was read
    shape.places = std::bit_ceil((shape.capacity + shape.per_line - 1) / shape.per_line + 1);
  } else {
    shape.stride = stride_of(size, alignment);
    shape.places = shape.capacity;
  }
  return shape;
}

/// For messages of up to largest_in_pieces. No slot lies in two lines.
constexpr ring_shape shape_in_pieces(std::size_t size, std::size_t asked_capacity) {
  ring_shape shape;
  shape.bytes = static_cast<std::uint32_t>(size);
  shape.capacity = shape.places = rounded_capacity(asked_capacity);
  shape.pieces = static_cast<std::uint32_t>((size + WEFT_RING_PIECE_PAYLOAD - 1) / WEFT_RING_PIECE_PAYLOAD);
  shape.stride = std::bit_ceil(shape.pieces) * WEFT_RING_PIECE;
  return shape;
}

}  // namespace weft::detail
