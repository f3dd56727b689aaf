// SPDX-License-Identifier: Apache-2.0
// A line of things that carry its links themselves: to stand in it takes no memory, so nothing that goes forward can
// fail for want of some.
#pragma once

#include <cstddef>

namespace weft::queued {

/// `Link` is the member of T that names the next one; a thing stands in one chain of that link at a time.
/// Thread: one at a time.
template <class T, T* T::* Link>
class chain {
 public:
  chain() = default;
  chain(const chain&) = delete;
  chain& operator=(const chain&) = delete;

  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] T* front() const noexcept { return first_; }
  [[nodiscard]] T* back() const noexcept { return last_; }
  [[nodiscard]] T* at(std::size_t index) const noexcept {
    T* one = first_;
    while (index-- > 0) one = one->*Link;
    return one;
  }

  void push_back(T* one) noexcept {
    one->*Link = nullptr;
    (last_ != nullptr ? last_->*Link : first_) = one;
    last_ = one;
    ++size_;
  }
  /// The first one; null where there is none.
  T* pop_front() noexcept {
    T* const one = first_;
    if (one == nullptr) return nullptr;
    first_ = one->*Link;
    if (first_ == nullptr) last_ = nullptr;
    --size_;
    return one;
  }

 private:
  T* first_ = nullptr;
  T* last_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace weft::queued
