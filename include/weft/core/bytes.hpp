// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace weft {

/// A number of bytes; does not convert into a count of elements.
class bytes {
 public:
  constexpr bytes() = default;
  constexpr explicit bytes(std::uint64_t value) : value_(value) {}

  [[nodiscard]] constexpr std::uint64_t value() const { return value_; }
  [[nodiscard]] constexpr std::size_t size() const { return static_cast<std::size_t>(value_); }
  friend constexpr bool operator==(bytes, bytes) = default;  // said for nvcc
  friend constexpr auto operator<=>(bytes, bytes) = default;
  friend constexpr bytes operator+(bytes a, bytes b) { return bytes{a.value_ + b.value_}; }
  friend constexpr bytes operator-(bytes a, bytes b) { return bytes{a.value_ - b.value_}; }
  constexpr bytes& operator+=(bytes other) { return *this = *this + other; }

 private:
  std::uint64_t value_ = 0;
};

namespace literals {
constexpr bytes operator""_B(unsigned long long v) { return bytes{v}; }
constexpr bytes operator""_KiB(unsigned long long v) { return bytes{v << 10}; }
constexpr bytes operator""_MiB(unsigned long long v) { return bytes{v << 20}; }
constexpr bytes operator""_GiB(unsigned long long v) { return bytes{v << 30}; }
}  // namespace literals

/// "64 MiB", "1.5 KiB", "7 B": exact where the unit divides, one decimal otherwise.
[[nodiscard]] std::string to_string(bytes amount);

}  // namespace weft
