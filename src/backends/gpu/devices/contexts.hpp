// SPDX-License-Identifier: Apache-2.0
// The primary context of each GPU, made when somebody first needs it, and which of them the calling thread has.
#pragma once

#include "backends/gpu/devices/discovery.hpp"
#include "backends/gpu/driver/error.hpp"
#include "os/fork_watch.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace weft::gpu {

/// Makes a context the calling thread's, and gives back what it had before: the program may have one of its own.
/// Cost: a look at what is current; nothing where one of ours is current already.
class current_context {
 public:
  current_context() = default;
  current_context(const driver& cu, CUcontext wanted) noexcept;
  current_context(current_context&& other) noexcept
      : cu_(std::exchange(other.cu_, nullptr)), outer_(other.outer_), pushed_(other.pushed_), status_(other.status_) {}
  current_context& operator=(current_context&&) = delete;
  ~current_context();

  [[nodiscard]] CUresult status() const noexcept { return status_; }

 private:
  const driver* cu_ = nullptr;
  CUcontext outer_ = nullptr;  // what an outer one of these made current
  bool pushed_ = false;
  CUresult status_ = CUDA_SUCCESS;
};

/// On threads of the driver, where it must not be called: memory that would go back there goes later.
class driver_thread {
 public:
  driver_thread() noexcept : outer_(std::exchange(inside, true)) {}
  driver_thread(const driver_thread&) = delete;
  driver_thread& operator=(const driver_thread&) = delete;
  ~driver_thread() { inside = outer_; }
  [[nodiscard]] static bool is_this() noexcept { return inside; }

 private:
  static inline thread_local bool inside = false;
  bool outer_;
};

/// Thread: any. Devices are counted from 0 here.
class contexts {
 public:
  contexts(std::shared_ptr<const driver> cu, const discovery& found);
  ~contexts();
  contexts(const contexts&) = delete;
  contexts& operator=(const contexts&) = delete;

  /// The context of a device's GPU. Errors: what the driver says, scope device when it is lost.
  [[nodiscard]] result<CUcontext> of(std::size_t device);
  /// Null where nobody has needed it yet.
  [[nodiscard]] CUcontext made(std::size_t device) const noexcept {
    return rows_[gpu_of_[device]]->context.load(std::memory_order_acquire);
  }
  /// The context of a device, current until this goes.
  [[nodiscard]] result<current_context> enter(std::size_t device);

  /// Changes with every reset: what was made in the context before is gone.
  [[nodiscard]] std::uint64_t generation(std::size_t device) const noexcept {
    return rows_[gpu_of_[device]]->generation.load(std::memory_order_acquire);
  }
  /// Destroys all that is in the context of a device's GPU. The next who needs it makes a new one.
  [[nodiscard]] result<void> reset(std::size_t device);
  /// Gives the contexts back.
  void release() noexcept;

  [[nodiscard]] std::size_t gpu_of(std::size_t device) const { return gpu_of_[device]; }
  [[nodiscard]] const driver& cu() const noexcept { return *cu_; }
  /// In the child of a fork, where CUDA must not be called.
  [[nodiscard]] bool forked() const noexcept { return here_.forked(); }

 private:
  struct row {
    CUdevice id = 0;
    std::mutex mutex;
    std::atomic<CUcontext> context{nullptr};
    std::atomic<std::uint64_t> generation{0};
    std::string name;  // for errors
  };
  detail::fork_watch here_;
  std::shared_ptr<const driver> cu_;
  std::vector<std::size_t> gpu_of_;
  std::vector<std::unique_ptr<row>> rows_;  // by GPU
};

}  // namespace weft::gpu
