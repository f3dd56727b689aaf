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
  // What lies in memory that both ends see needs no bytes on the wire: the sender offers it, the receiver takes it.
  // Offers are counted, by both ends alike.
  void offer(std::uint64_t count) noexcept { words_->offered.store(count, std::memory_order_seq_cst); }
  /// Pairs with offer(): what the sender wrote before is there.
  [[nodiscard]] bool is_offered(std::uint64_t count) const noexcept {
    return words_->offered.load(std::memory_order_acquire) >= count;
  }
  void take(std::uint64_t count) noexcept { words_->taken.store(count, std::memory_order_seq_cst); }
  /// Pairs with take(): the receiver no longer reads it.
  [[nodiscard]] bool is_taken(std::uint64_t count) const noexcept {
    return words_->taken.load(std::memory_order_acquire) >= count;
  }
  std::uint64_t offers = 0;  // of this end, so far: the sender's or the receiver's count

  /// True once the other end has written what cannot be; from then on nothing is sent or received.
  [[nodiscard]] bool is_broken() const noexcept { return broken_; }

 private:
  struct ends {
    alignas(128) std::atomic<std::uint64_t> sent;  // sender → receiver
    std::atomic<std::uint64_t> offered;
    alignas(128) std::atomic<std::uint64_t> received;  // receiver → sender
    std::atomic<std::uint64_t> taken;
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
