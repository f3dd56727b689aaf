// SPDX-License-Identifier: Apache-2.0
// The memory of a queue between two processes: a header that never changes, words of each end, and the slots.
// Everything in it was written by another process and is believed only after it was compared with what this one
// computes itself.
#pragma once

#include "weft/channel/ring_shape.hpp"
#include "weft/channel/shared_queue.hpp"
#include "weft/core/descriptor.hpp"
#include "weft/core/result.hpp"
#include "weft/core/unique_handle.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <sys/types.h>

namespace weft::detail {

/// Fixed width, fixed order: it is read by other builds of this library.
struct region_header {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t flags = 0;
  std::uint64_t size = 0;  // of a message as its users know it
  std::uint64_t alignment = 0;
  std::uint64_t name_hash = 0;
  std::uint32_t bytes = 0;  // of a message in the ring
  std::uint32_t stride = 0;
  std::uint32_t per_line = 0;
  std::uint32_t reserved = 0;
  std::uint64_t capacity = 0;
  std::uint64_t places = 0;
  std::int64_t creator = 0;  // process
  std::uint64_t check = 0;   // of everything before

  static constexpr std::uint64_t the_magic = 0x3145554551544657;  // "WFTQEUE1"
  static constexpr std::uint32_t the_version = 2;
  static constexpr std::uint32_t validates = 1, overwrites = 2;

  [[nodiscard]] std::uint64_t computed_check() const noexcept;
};
static_assert(sizeof(region_header) == 88);

/// Words beside the slots; each has one writer, but for the two that sleepers and wakers share.
struct region_words {
  alignas(isolation) std::uint64_t credit;                       // receiver → sender
  std::uint32_t receiver_broken;                                 // receiver → sender: a ring_end_state
  std::uint32_t receiver_lent;                                   // receiver → sender: 1 while kernels receive
  alignas(isolation) std::uint64_t fin;                          // sender → receiver
  std::uint32_t sender_broken;                                   // sender → receiver: a ring_end_state
  std::uint32_t sender_lent;                                     // sender → receiver: 1 while kernels send
  alignas(isolation) std::atomic<std::uint32_t> receiver_waits;  // set by a sleeper, taken by who wakes it
  alignas(isolation) std::atomic<std::uint32_t> sender_waits;
  // Each end's own. Here, because kernels look at them too.
  alignas(isolation) std::uint32_t receiver_stop;
  alignas(isolation) std::uint32_t sender_stop;
};

/// Whether the other process still uses its end, and what has ended that.
enum ring_end_state : std::uint32_t { end_in_use = 0, end_found_damage = 1, end_lost_kernels = 2 };

inline constexpr std::size_t words_offset = 4096;
inline constexpr std::size_t slots_offset = words_offset + 4096;
static_assert(sizeof(region_words) <= slots_offset - words_offset);

[[nodiscard]] region_header describe(const message_type& type, const ring_shape& shape, std::uint32_t flags);
[[nodiscard]] ring_shape shape_in(const region_header& h);
/// The whole size of a region with such a header.
[[nodiscard]] std::uint64_t region_size(const ring_shape& shape);

/// What a header says, if it can be believed and fits the type: pure, and never reads past `size` bytes.
/// Errors: corrupt (not a queue's header, damaged, impossible numbers); incompatible naming both sides.
[[nodiscard]] result<region_header> read_header(const std::byte* data, std::size_t size, const message_type& wanted);

struct mapped_range {
  std::byte* base = nullptr;
  std::size_t size = 0;
  pid_t mapped_by = 0;  // a fork's child has something else there, or nothing
  bool operator==(const mapped_range& other) const { return base == other.base; }
};
struct mapped_range_traits {
  using type = mapped_range;
  static type none() { return {}; }
  static void release(type& range) noexcept;
};
using mapped_region = unique_handle<mapped_range_traits>;

/// A sealed memfd with header and words set. Errors: resource_exhausted, out_of_memory.
[[nodiscard]] result<descriptor> make_region(const region_header& header);
/// Maps a region of exactly `size` bytes; absent from children of a fork. Errors: corrupt when the file is not sealed
/// against shrinking or smaller; resource_exhausted.
[[nodiscard]] result<mapped_region> map_region(int file, std::uint64_t size);

}  // namespace weft::detail
