// SPDX-License-Identifier: Apache-2.0
#include "backends/opencl/grid_order.hpp"

namespace weft::opencl {

grid_order::shape& grid_order::shape_of(const sizes& group) {
  const auto found = std::ranges::find(shapes_, group, &shape::group);
  if (found != shapes_.end()) return *found;
  shapes_.emplace_back().group = group;
  return shapes_.back();
}

bool grid_order::runs(const event_handle& launch) const {
  cl_int status = CL_COMPLETE;
  return cl_->clGetEventInfo(launch.get(), CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr) ==
             CL_SUCCESS &&
         status > CL_COMPLETE;
}

void grid_order::forget_ended(shape& one) const {
  std::erase_if(one.running, [&](const event_handle& launch) { return !runs(launch); });
  one.look_at = std::max<std::size_t>(32, 2 * one.running.size());
}

// What has failed already is no cause for others to fail: only what runs is waited for.
std::span<const cl_event> grid_order::must_end_before(shape& one, std::size_t width) {
  before_.clear();
  while (!one.running.empty() && !runs(one.running.front())) one.running.pop_front();
  if (one.running.empty()) {
    one.widest = 0;
    one.widened = {};
  }
  if (width > one.widest || one.running.size() >= one.look_at) forget_ended(one);
  if (width > one.widest) {
    for (const event_handle& launch : one.running) before_.push_back(launch.get());
  } else if (one.widened) {
    if (runs(one.widened)) {
      before_.push_back(one.widened.get());
    } else {
      one.widened = {};
    }
  }
  return before_;
}

event_handle grid_order::again(const event_handle& launch) const {
  static_cast<void>(cl_->clRetainEvent(launch.get()));
  return {cl_, launch.get()};
}

}  // namespace weft::opencl
