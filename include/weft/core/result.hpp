// SPDX-License-Identifier: Apache-2.0
// A value or an error, for the backend border. std::expected is C++23 and nvcc stops at C++20, so these lines are ours.
#pragma once

#include "weft/core/error.hpp"

#include <concepts>
#include <memory>
#include <utility>

namespace weft {

namespace detail {

// The rare half of every result, compiled once.
void place_error(weft::error* place, weft::error&& from) noexcept;
void place_error(weft::error* place, const weft::error& from);
void end_error(weft::error* place) noexcept;

struct nothing {};

}  // namespace detail

/// A T or the error that prevented it. Test with operator bool before value().
template <class T>
class [[nodiscard]] result {
 public:
  result(T value) : value_(std::move(value)), has_value_(true) {}  // NOLINT(google-explicit-constructor)
  result(weft::error cause) : has_value_(false) {                  // NOLINT(google-explicit-constructor)
    detail::place_error(&error_, std::move(cause));
  }
  result(const result& from)
    requires std::copy_constructible<T>
      : has_value_(from.has_value_) {
    if (has_value_)
      std::construct_at(&value_, from.value_);
    else
      detail::place_error(&error_, from.error_);
  }
  result(result&& from) noexcept : has_value_(from.has_value_) { take(from); }
  result& operator=(result from) noexcept {
    end();
    has_value_ = from.has_value_;
    take(from);
    return *this;
  }
  ~result() { end(); }

  [[nodiscard]] bool has_value() const noexcept { return has_value_; }
  explicit operator bool() const noexcept { return has_value_; }

  [[nodiscard]] T& value() & { return value_; }
  [[nodiscard]] const T& value() const& { return value_; }
  [[nodiscard]] T&& value() && { return std::move(value_); }
  [[nodiscard]] T& operator*() & { return value_; }
  [[nodiscard]] const T& operator*() const& { return value_; }
  [[nodiscard]] T* operator->() { return &value_; }
  [[nodiscard]] const T* operator->() const { return &value_; }

  [[nodiscard]] weft::error& error() & { return error_; }
  [[nodiscard]] const weft::error& error() const& { return error_; }
  [[nodiscard]] weft::error&& error() && { return std::move(error_); }

 private:
  void take(result& from) noexcept {
    if (has_value_)
      std::construct_at(&value_, std::move(from.value_));
    else
      detail::place_error(&error_, std::move(from.error_));
  }
  void end() noexcept {
    if (has_value_)
      std::destroy_at(&value_);
    else
      detail::end_error(&error_);
  }

  // NOLINTBEGIN(readability-identifier-naming): members of an anonymous union are this class's own
  union {
    T value_;
    weft::error error_;
  };
  // NOLINTEND(readability-identifier-naming)
  bool has_value_;
};

/// Success without a value, or the error.
template <>
class [[nodiscard]] result<void> : result<detail::nothing> {
 public:
  result() : result<detail::nothing>(detail::nothing{}) {}
  result(weft::error cause) : result<detail::nothing>(std::move(cause)) {}  // NOLINT(google-explicit-constructor)

  using result<detail::nothing>::error;
  using result<detail::nothing>::has_value;
  using result<detail::nothing>::operator bool;
};

}  // namespace weft
