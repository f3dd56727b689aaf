// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

/// Stores of the host into memory of a device that commands alone reach otherwise: across the bus, and never read back.
/// The memory stays while this lives, released or not, as long as the backend exists.
/// Order: kernels that run see a store after those of earlier calls. With commands it has no order: let them end first.
/// Thread: one at a time.
class bus_window {
 public:
  bus_window() = default;
  bus_window(const bus_window&) = delete;
  bus_window& operator=(const bus_window&) = delete;
  virtual ~bus_window() = default;

  /// `offset` and `size` lie inside. Does nothing once the memory went with a reset of its device.
  virtual void store(std::uint64_t offset, const void* from, std::size_t size) noexcept = 0;
};

}  // namespace weft
