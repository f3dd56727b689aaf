// SPDX-License-Identifier: Apache-2.0
// An order for launches of one kernel with grids of different sizes, which PoCL before 6.0 needs.
#pragma once

#include "backends/opencl/driver/api.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace weft::opencl {

/// PoCL before 6.0 loads a kernel once more for a grid that is wider than all before, for all of its devices, and
/// counts the uses of what it loaded. When a launch ends, one use is taken from what was loaded last for the kernel and
/// the size of its groups (pocl_release_dlhandle_cache), whichever the launch used: where a wider grid came between a
/// launch's begin and its end, a count comes to nothing too early, and an assertion ends the process.
/// So a launch that is wider than all before begins when those before it have ended, and those behind it begin when it
/// has ended. All others run beside each other. A launch that fails while one waits for it takes that one with it.
/// Shape: one for a kernel of a program, on all devices of a context.
/// Thread: any.
/// Cost: a handle for each launch, and a wait in the driver where a grid grows.
class grid_order {
 public:
  using sizes = std::array<std::size_t, 3>;

  explicit grid_order(std::shared_ptr<const api> cl) : cl_(std::move(cl)) {}

  /// Calls `enqueue(events to wait for, &event)`; the event of a launch that began is the caller's.
  template <class Enqueue>
  [[nodiscard]] std::pair<cl_int, event_handle> start(const sizes& global, const sizes& group, Enqueue enqueue) {
    const std::lock_guard lock{mutex_};
    shape& one = shape_of(group);
    const std::size_t width = std::max(global[0], global[1]);  // PoCL does not look at the third
    const std::span<const cl_event> before = must_end_before(one, width);
    event_handle& kept = one.running.emplace_back();  // memory first: what began cannot be taken back
    cl_event begun = nullptr;
    const cl_int status = enqueue(before, &begun);
    event_handle launch{cl_, begun};
    if (status == CL_SUCCESS) {
      kept = again(launch);
      if (width > one.widest) one.widened = again(launch);
      one.widest = std::max(one.widest, width);
    } else {
      one.running.pop_back();
    }
    return {status, std::move(launch)};
  }

 private:
  /// Launches with groups of one size.
  struct shape {
    sizes group{};
    std::size_t widest = 0;            // since nothing ran: what nobody uses PoCL may have unloaded
    event_handle widened;              // the launch that was the widest when it came, while it runs
    std::deque<event_handle> running;  // the first of them runs; and some that have ended since
    std::size_t look_at = 32;          // as many as that are looked through
  };

  [[nodiscard]] shape& shape_of(const sizes& group);
  [[nodiscard]] bool runs(const event_handle& launch) const;
  [[nodiscard]] std::span<const cl_event> must_end_before(shape& one, std::size_t width);  // as long as mutex_ is held
  [[nodiscard]] event_handle again(const event_handle& launch) const;
  void forget_ended(shape& one) const;

  std::shared_ptr<const api> cl_;
  std::mutex mutex_;
  std::vector<shape> shapes_;
  std::vector<cl_event> before_;
};

}  // namespace weft::opencl
