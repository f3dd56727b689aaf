// SPDX-License-Identifier: Apache-2.0
// Bytes from one rank to another, in order, through memory that both see.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::detail {

inline constexpr std::uint64_t wire_words_bytes = 256;

/// One end of a wire: who schedules moves knows these functions, and not what a wire is made of.
/// Thread: one sender, one receiver.
class rank_wire {
 public:
  rank_wire() = default;
  /// `capacity` is a power of two; the words before the bytes start at zero.
  rank_wire(std::byte* memory, std::uint64_t capacity);

  /// Sends what there is room for, and says how much that was. The other end sees it at once.
  [[nodiscard]] std::size_t try_send(std::span<const std::byte> what) noexcept;
  /// Receives what is there.
  [[nodiscard]] std::size_t try_receive(std::span<std::byte> into) noexcept;
  /// True once the other end has written what cannot be; from then on nothing is sent or received.
  [[nodiscard]] bool is_broken() const noexcept { return broken_; }

 private:
  struct ends {
    alignas(128) std::atomic<std::uint64_t> sent;      // sender → receiver
    alignas(128) std::atomic<std::uint64_t> received;  // receiver → sender
  };
  static_assert(sizeof(ends) == wire_words_bytes);

  ends* words_ = nullptr;
  std::byte* bytes_ = nullptr;
  std::uint64_t capacity_ = 0;
  std::uint64_t mine_ = 0;    // of the word that this end writes
  std::uint64_t theirs_ = 0;  // last seen of the other one
  bool broken_ = false;
};

}  // namespace weft::detail
