// SPDX-License-Identifier: Apache-2.0
// Page-locked memory for what is on its way to plain memory of the host. The driver moves it there in the stream, and
// whoever sees the end takes it on: no thread of the host has to wait for the stream and then for a copy.
#pragma once

#include "backends/gpu/memory/memory_map.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace weft::gpu {

/// A part of a device's landing memory, until the last reference to `memory` goes.
struct landing_place {
  std::shared_ptr<allocation> memory;
  std::byte* at = nullptr;
};

/// Thread: any.
class landing_memory {
 public:
  /// More than this goes by a thread: the copy that follows would hold up who looks for longer than starting one.
  static constexpr std::size_t largest = std::size_t{1} << 20;

  landing_memory(memory_map& memory, std::size_t devices) : memory_(memory), of_(devices) {}

  /// Makes a device's memory, where it has none: with its first stream, since a driver may keep who registers memory
  /// waiting for kernels that run. Where it cannot be had, all goes by threads.
  void prepare(device_id device);
  /// At least `size`, which is at most `largest`. No memory: all is on its way already, or there is none.
  [[nodiscard]] landing_place take(device_id device, std::size_t size);
  /// Gives back a device's, before its context goes: a registration ends with that. Whether it had any.
  bool end(device_id device) noexcept;
  void clear() noexcept;

 private:
  static constexpr std::size_t block = std::size_t{64} << 10;
  static constexpr std::size_t blocks = 64;  // of a device, each a bit
  struct place {
    std::shared_ptr<allocation> memory;
    std::uint64_t taken = 0;
  };
  bool end(place& one) noexcept;

  memory_map& memory_;
  std::mutex mutex_;
  std::vector<place> of_;
};

}  // namespace weft::gpu
