// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace weft {

/// Owner of one native handle. Traits gives `type`, `none()` and `release(type&) noexcept`; no class writes its own
/// move.
template <class Traits>
class unique_handle {
 public:
  using type = typename Traits::type;

  unique_handle() noexcept = default;
  explicit unique_handle(type handle) noexcept : handle_(std::move(handle)) {}
  unique_handle(unique_handle&& other) noexcept : handle_(other.release()) {}
  unique_handle& operator=(unique_handle&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = other.release();
    }
    return *this;
  }
  unique_handle(const unique_handle&) = delete;
  unique_handle& operator=(const unique_handle&) = delete;
  ~unique_handle() { reset(); }

  [[nodiscard]] const type& get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return !(handle_ == Traits::none()); }

  /// Gives the handle away; the owner is empty afterwards.
  [[nodiscard]] type release() noexcept { return std::exchange(handle_, Traits::none()); }

  void reset() noexcept {
    if (*this) {
      type handle = release();
      Traits::release(handle);
    }
  }

 private:
  type handle_ = Traits::none();
};

}  // namespace weft
