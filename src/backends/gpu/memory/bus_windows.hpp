// SPDX-License-Identifier: Apache-2.0
// Windows of the host into memory of GPUs, across the bus (BAR1), by GDRCopy. The library and its kernel module need
// not be there.
#pragma once

#include "backends/gpu/driver/gdr_functions.hpp"
#include "backends/gpu/memory/memory_map.hpp"
#include "os/fork_watch.hpp"
#include "weft/backend/bus_window.hpp"

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace weft::gpu {

/// Thread: any.
class bus_windows {
 public:
  /// The library is opened when the first window is asked for. "none": without.
  bus_windows(std::string library, const char* variable) : library_(std::move(library)), variable_(variable) {}
  bus_windows(const bus_windows&) = delete;
  bus_windows& operator=(const bus_windows&) = delete;
  ~bus_windows();

  /// Errors: unsupported, with the reason.
  [[nodiscard]] result<std::shared_ptr<bus_window>> open(memory_map::ref memory, CUdeviceptr address, std::size_t size);
  /// The memory of a device, or of all, is about to go: what lies there is written no more.
  void end(std::optional<device_id> device) noexcept;

 private:
  class window;
  [[nodiscard]] result<void> load();

  const std::string library_;
  const std::string variable_;  // that names another
  detail::fork_watch here_;
  std::mutex mutex_;
  std::optional<error> missing_;  // why there is none, once that was tried
  gdr_functions call_;
  gdr_library opened_ = nullptr;
  std::vector<std::weak_ptr<window>> windows_;
};

}  // namespace weft::gpu
