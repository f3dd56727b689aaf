// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace weft {

/// Position of a device in its machine, 0 … N−1, in the machine's stable order.
class device_id {
 public:
  constexpr device_id() = default;
  constexpr explicit device_id(int value) : value_(value) {}

  [[nodiscard]] constexpr int value() const { return value_; }
  [[nodiscard]] constexpr std::size_t index() const { return static_cast<std::size_t>(value_); }
  // nvcc (13) compiles no comparison that another one implies
  friend constexpr bool operator==(device_id, device_id) = default;
  friend constexpr auto operator<=>(device_id, device_id) = default;

 private:
  int value_ = -1;
};

/// Name of a device in messages: "gpu2".
[[nodiscard]] inline std::string to_string(device_id id) { return "gpu" + std::to_string(id.value()); }

}  // namespace weft

template <>
struct std::hash<weft::device_id> {
  std::size_t operator()(weft::device_id id) const noexcept { return std::hash<int>{}(id.value()); }
};
