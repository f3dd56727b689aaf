// SPDX-License-Identifier: Apache-2.0
#include "collective/ranks/transfer/rank_wire.hpp"

#include <algorithm>
#include <cstring>

namespace weft::detail {

rank_wire::rank_wire(std::byte* memory, std::uint64_t capacity)
    : words_(reinterpret_cast<ends*>(memory)), bytes_(memory + wire_words_bytes), capacity_(capacity) {}

std::size_t rank_wire::try_send(std::span<const std::byte> what) noexcept {
  if (broken_ || what.empty()) return 0;
  if (capacity_ - (mine_ - theirs_) < what.size()) {
    theirs_ = words_->received.load(std::memory_order_acquire);  // pairs with release in try_receive
    if (mine_ - theirs_ > capacity_) {
      broken_ = true;
      return 0;
    }
  }
  const std::size_t count = std::min<std::size_t>(what.size(), capacity_ - (mine_ - theirs_));
  const std::size_t at = mine_ & (capacity_ - 1);
  const std::size_t first = std::min<std::size_t>(count, capacity_ - at);
  std::memcpy(bytes_ + at, what.data(), first);
  if (count > first) std::memcpy(bytes_, what.data() + first, count - first);
  mine_ += count;
  // pairs with acquire in try_receive; seq_cst because who has sent then looks whether somebody sleeps
  if (count != 0) words_->sent.store(mine_, std::memory_order_seq_cst);
  return count;
}

std::size_t rank_wire::try_receive(std::span<std::byte> into) noexcept {
  if (broken_ || into.empty()) return 0;
  if (theirs_ - mine_ < into.size()) {
    theirs_ = words_->sent.load(std::memory_order_acquire);  // pairs with release in try_send
    if (theirs_ - mine_ > capacity_) {
      broken_ = true;
      return 0;
    }
  }
  const std::size_t count = std::min<std::size_t>(into.size(), theirs_ - mine_);
  const std::size_t at = mine_ & (capacity_ - 1);
  const std::size_t first = std::min<std::size_t>(count, capacity_ - at);
  std::memcpy(into.data(), bytes_ + at, first);
  if (count > first) std::memcpy(into.data() + first, bytes_, count - first);
  mine_ += count;
  if (count != 0) words_->received.store(mine_, std::memory_order_seq_cst);  // pairs with acquire in try_send
  return count;
}

}  // namespace weft::detail
