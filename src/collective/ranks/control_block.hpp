// SPDX-License-Identifier: Apache-2.0
// The memory in which the ranks of a communicator meet: a header that never changes, a few words of all, and an area
// for each rank that only this rank writes. What is read here was written by another process: every word is read once,
// and believed only as far as it cannot lead out of this memory.
#pragma once

#include "weft/core/descriptor.hpp"
#include "weft/core/result.hpp"
#include "weft/core/unique_handle.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace weft::detail {

/// Bytes of one rank's part of a call that one meeting is enough for: all read what all have brought. Beyond, it costs
/// less to meet twice and share the work, where nothing has to be brought because the memory is symmetric; where it has
/// to be, from small_bytes on. Measured with 2 and 4 ranks on 2 cores.
inline constexpr std::size_t tiny_bytes = 512;
inline constexpr std::size_t small_bytes = 8192;
/// In what a rank enters a call that is not tiny with: where its memory lies comes first.
inline constexpr std::size_t places_bytes = 64;
inline constexpr int most_ranks = 64;  // ranks are bits of a word

/// How a control block is laid out: a pure function of four numbers, computed by every rank for itself.
struct control_shape {
  int ranks = 1;           // each has an area
  int near = 1;            // of them on this node, each with staging memory, and wires to the others
  std::uint64_t half = 0;  // bytes of one half of a rank's staging memory, a multiple of 4096
  std::uint64_t wire = 0;  // bytes on the way between two ranks, in one direction

  /// Wires share 4 MiB, with at least 4 KiB and at most 64 KiB each.
  [[nodiscard]] static control_shape of(int ranks, int near, std::uint64_t staging);
  [[nodiscard]] std::uint64_t areas_at() const;
  [[nodiscard]] std::uint64_t staging_at() const;
  [[nodiscard]] std::uint64_t wires_at() const;
  [[nodiscard]] std::uint64_t size() const;
  friend bool operator==(const control_shape&, const control_shape&) = default;
};

/// Fixed width, fixed order: other builds of this library read it.
struct control_header {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t ranks = 0;
  std::uint32_t near = 0;
  std::uint32_t reserved = 0;
  std::uint64_t half = 0;
  std::uint64_t wire = 0;
  std::uint64_t id = 0;
  std::uint64_t check = 0;  // of everything before

  static constexpr std::uint64_t the_magic = 0x314c4c4f43544657;  // "WFTCOLL1"
  static constexpr std::uint32_t the_version = 3;
  [[nodiscard]] std::uint64_t computed_check() const noexcept;
};
static_assert(sizeof(control_header) == 56);

/// The header's numbers, if they can be those of so many ranks, `near` of them on this node. Pure; reads nothing past
/// `size` bytes. Errors: corrupt (no header, damaged, impossible numbers); incompatible naming both sides.
[[nodiscard]] result<control_header> read_control_header(const std::byte* data, std::size_t size, int ranks, int near);

/// Text that others may read at any time: in words, so that no read of it is a race.
template <std::size_t Bytes>
class shared_text {
 public:
  void set(std::string_view text) noexcept {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      std::uint64_t word = 0;
      for (std::size_t b = 0; b < 8 && i * 8 + b < text.size(); ++b)
        word |= std::uint64_t{static_cast<unsigned char>(text[i * 8 + b])} << (8 * b);
      words_[i].store(word, std::memory_order_relaxed);
    }
  }
  /// What can be printed of it.
  [[nodiscard]] std::string get() const {
    std::string made;
    if (words_.front().load(std::memory_order_relaxed) == 0) return made;
    made.reserve(Bytes);
    for (const auto& shared : words_) {
      const std::uint64_t word = shared.load(std::memory_order_relaxed);
      for (std::size_t b = 0; b < 8; ++b) {
        const auto c = static_cast<unsigned char>(word >> (8 * b));
        if (c == 0) return made;
        made += c >= 0x20 && c < 0x7f ? static_cast<char>(c) : '?';
      }
    }
    return made;
  }

 private:
  std::array<std::atomic<std::uint64_t>, Bytes / 8> words_;
};

/// Words of all ranks.
struct group_words {
  alignas(128) std::atomic<std::uint64_t> ended;     // why nothing works any more; 0 while it does
  alignas(128) std::atomic<std::uint32_t> sleepers;  // ranks that wait in the kernel
  std::atomic<std::uint32_t> bell;                   // on which they sleep
  // survivors.hpp: sets of ranks
  static constexpr std::uint32_t most_links = 192;
  alignas(128) std::array<std::atomic<std::uint64_t>, most_links> chain;
  std::array<std::atomic<std::uint64_t>, most_links> ready;
};

/// How a rank enters a call: its number, what it is in one word, and what others need of it, in one cache line where it
/// is little. There are two, used in turn: who writes one for call s has seen everybody enter s − 1, and who has
/// entered s − 1 has read all it wanted of s − 2.
struct entrance {
  alignas(128) std::atomic<std::uint64_t> number;
  std::atomic<std::uint64_t> fingerprint;
  std::array<std::byte, places_bytes + small_bytes> data;
};

/// A call in words of fixed width, for messages about it.
struct call_record {
  alignas(128) std::atomic<std::uint64_t> number;
  std::atomic<std::uint64_t> kind;  // rank_call.cpp knows the bits
  std::atomic<std::uint64_t> count;
  shared_text<64> op;
  shared_text<168> refused;  // why this rank does not take part
};

struct rank_area {
  std::array<entrance, 2> entrances;
  alignas(128) std::atomic<std::uint64_t> step;  // meetings inside of calls
  alignas(128) std::atomic<std::uint64_t> finished;
  std::atomic<std::uint32_t> joined;
  std::atomic<std::uint32_t> departed;
  std::array<call_record, 2> calls;
  alignas(128) shared_text<512> why;
  alignas(128) std::atomic<std::uint32_t> arrived;  // shrinking: the link of the chain that it waits for, and 1
};

struct control_place {
  std::byte* base = nullptr;
  std::uint64_t size = 0;
  bool operator==(const control_place& other) const { return base == other.base; }
};
struct control_place_traits {
  using type = control_place;
  static type none() { return {}; }
  static void release(type& place) noexcept;
};

/// A mapped control block.
class control_block {
 public:
  control_block() = default;
  /// A sealed memory file with everything at zero. Errors: resource_exhausted, out_of_memory.
  [[nodiscard]] static result<descriptor> make(const control_shape& shape, std::uint64_t id);
  /// Maps what another rank made, or this one. Errors: corrupt (not sealed, too small, damaged), incompatible;
  /// resource_exhausted.
  [[nodiscard]] static result<control_block> open(int file, int ranks, int near);

  [[nodiscard]] const control_shape& shape() const { return shape_; }
  [[nodiscard]] std::uint64_t id() const { return id_; }
  [[nodiscard]] group_words& words() const;
  [[nodiscard]] rank_area& area(int rank) const;
  /// Ranks are counted on their node, as for wires.
  [[nodiscard]] std::byte* staging(int rank, int half) const;
  /// Words and bytes of the wire between two ranks.
  [[nodiscard]] std::byte* wire(int from, int to) const;

 private:
  unique_handle<control_place_traits> place_;
  control_shape shape_;
  std::uint64_t id_ = 0;
};

}  // namespace weft::detail
