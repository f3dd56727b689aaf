// SPDX-License-Identifier: Apache-2.0
// Page-locked memory for what is on its way to plain memory of the host. The driver moves it there in the stream, and
// whoever sees the end takes it on: no thread of the host has to wait for the stream and then for a copy.
#pragma once

#include "backends/gpu/memory/memory_map.hpp"

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace weft::gpu {

/// Thread: any.
class landing_memory {
 public:
  /// More than this goes by a thread: the copy that follows would hold up who looks for longer than starting one.
  static constexpr std::size_t largest = std::size_t{1} << 20;

  landing_memory(memory_map& memory, std::size_t devices) : memory_(memory), of_(devices) {}

  /// At least `size`, which is at most `largest`, until the last reference goes. Null where none is to be had: much is
  /// on its way already, or the driver refuses.
  [[nodiscard]] std::shared_ptr<allocation> take(device_id device, std::size_t size);
  /// Gives back what nobody uses.
  void clear() noexcept;

 private:
  static constexpr std::size_t smallest = 4096;
  static constexpr std::size_t most = std::size_t{16} << 20;  // of a device
  struct place {
    std::array<std::vector<std::shared_ptr<allocation>>, 9> free;  // by powers of two from `smallest` on
    std::size_t made = 0;
  };
  void give(std::size_t at, std::size_t kind, std::shared_ptr<allocation> block) noexcept;

  memory_map& memory_;
  std::mutex mutex_;
  std::vector<place> of_;
};

}  // namespace weft::gpu
