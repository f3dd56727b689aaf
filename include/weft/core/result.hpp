// SPDX-License-Identifier: Apache-2.0
// A value or an error, for the backend border. std::expected is C++23 and nvcc stops at C++20, so these lines are ours.
#pragma once

#include "weft/core/error.hpp"

#include <optional>
#include <utility>
#include <variant>

namespace weft {

/// A T or the error that prevented it. Test with operator bool before value().
template <class T>
class [[nodiscard]] result {
 public:
  result(T value) : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  result(weft::error cause)
      : state_(std::in_place_index<1>, std::move(cause)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  [[nodiscard]] T& value() & { return *std::get_if<0>(&state_); }
  [[nodiscard]] const T& value() const& { return *std::get_if<0>(&state_); }
  [[nodiscard]] T&& value() && { return std::move(*std::get_if<0>(&state_)); }
  [[nodiscard]] T& operator*() & { return value(); }
  [[nodiscard]] const T& operator*() const& { return value(); }
  [[nodiscard]] T* operator->() { return &value(); }
  [[nodiscard]] const T* operator->() const { return &value(); }

  [[nodiscard]] weft::error& error() & { return *std::get_if<1>(&state_); }
  [[nodiscard]] const weft::error& error() const& { return *std::get_if<1>(&state_); }
  [[nodiscard]] weft::error&& error() && { return std::move(*std::get_if<1>(&state_)); }

 private:
  std::variant<T, weft::error> state_;
};

/// Success without a value, or the error.
template <>
class [[nodiscard]] result<void> {
 public:
  result() = default;
  result(weft::error cause) : cause_(std::move(cause)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool has_value() const noexcept { return !cause_; }
  explicit operator bool() const noexcept { return has_value(); }
  [[nodiscard]] weft::error& error() & { return *cause_; }
  [[nodiscard]] const weft::error& error() const& { return *cause_; }
  [[nodiscard]] weft::error&& error() && { return std::move(*cause_); }

 private:
  std::optional<weft::error> cause_;
};

}  // namespace weft
