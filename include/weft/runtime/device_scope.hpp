// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/runtime/device.hpp"

#include <memory>
#include <source_location>

namespace weft {

class thread_place;

/// A thread that works with one GPU for a while. While this lives, the GPU's context is current for the thread, and
/// launches, copies and events for that GPU call the driver for nothing else: without it each of them asks which
/// context is current, and where that is another one, sets its own and puts the other one back. On devices without
/// contexts it does nothing.
///
///   weft::device_scope here{m[0]};
///   for (int step = 0; step < steps; ++step) weft::launch<advance>(order, weft::range(n), field);
///
/// Thread: the one that made it, which ends several of them in the reverse order. Meanwhile the program neither changes
/// the thread's context (cuCtxSetCurrent, cudaSetDevice) nor resets the device.
/// Errors: device_lost; machine_closed.
class device_scope {
 public:
  explicit device_scope(const device& on, std::source_location where = std::source_location::current());
  ~device_scope();
  device_scope(const device_scope&) = delete;
  device_scope& operator=(const device_scope&) = delete;

 private:
  std::shared_ptr<detail::machine_state> state_;
  std::unique_ptr<thread_place> place_;
};

}  // namespace weft
