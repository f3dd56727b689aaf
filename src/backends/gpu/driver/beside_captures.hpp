// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/gpu/driver/driver.hpp"

namespace weft::gpu {

/// While it lives this thread may ask for the state of work, though another captures a graph: without it the driver
/// refuses, and ends that capture.
class beside_captures {
 public:
  explicit beside_captures(const driver& cu) : cu_(cu) { exchange(); }
  beside_captures(const beside_captures&) = delete;
  beside_captures& operator=(const beside_captures&) = delete;
  ~beside_captures() { exchange(); }

 private:
  void exchange() {
    if (cu_.cuThreadExchangeStreamCaptureMode != nullptr)
      static_cast<void>(cu_.cuThreadExchangeStreamCaptureMode(&mode_));
  }
  const driver& cu_;
  int mode_ = capture_relaxed;
};

inline bool is_about_capture(CUresult status) { return status >= first_capture_error && status <= last_capture_error; }

}  // namespace weft::gpu
