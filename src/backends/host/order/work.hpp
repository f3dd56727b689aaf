// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/error.hpp"

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace weft::host {

/// What one operation does: a callable that gives null or the cause of its failure. It keeps its state in
/// place, so that submitting allocates nothing beyond the operation itself.
class work {
 public:
  using outcome = std::shared_ptr<const error>;

  work() = default;
  /// Takes a callable; once.
  template <class F>
  void set(F f) {
    static_assert(sizeof(F) <= capacity && alignof(F) <= alignof(std::max_align_t), "move large state to the heap");
    static_assert(std::is_nothrow_move_constructible_v<F>);
    ::new (static_cast<void*>(storage_)) F(std::move(f));
    run_ = [](void* p) -> outcome { return (*static_cast<F*>(p))(); };
    destroy_ = [](void* p) noexcept { static_cast<F*>(p)->~F(); };
  }
  work(const work&) = delete;
  work& operator=(const work&) = delete;
  ~work() { clear(); }

  [[nodiscard]] outcome operator()() { return run_ == nullptr ? nullptr : run_(storage_); }

  /// Drops what it holds, before the operation itself goes.
  void clear() noexcept {
    if (destroy_ != nullptr) std::exchange(destroy_, nullptr)(storage_);
    run_ = nullptr;
  }

 private:
  static constexpr std::size_t capacity = 192;
  alignas(std::max_align_t) std::byte storage_[capacity];
  outcome (*run_)(void*) = nullptr;
  void (*destroy_)(void*) noexcept = nullptr;
};

}  // namespace weft::host
