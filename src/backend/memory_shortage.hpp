// SPDX-License-Identifier: Apache-2.0
// The error of an allocation that does not fit: how much memory is free, and which allocations hold most of the rest.
#pragma once

#include "weft/backend/backend.hpp"

#include <array>
#include <cstddef>

namespace weft::detail {

class memory_shortage {
 public:
  memory_shortage(device_id device, const memory_use& now, std::size_t asked)
      : device_(device), now_(now), asked_(asked) {}
  /// Of every allocation that counts on the device; the three largest are named.
  void look(const void* base, std::size_t size) noexcept;
  [[nodiscard]] error cause() const;

 private:
  struct holder {
    const void* base = nullptr;
    std::size_t size = 0;
  };
  device_id device_;
  memory_use now_;
  std::size_t asked_;
  std::array<holder, 3> largest_{};
};

}  // namespace weft::detail
