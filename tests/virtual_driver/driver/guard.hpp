// SPDX-License-Identifier: Apache-2.0
// Runs what a device does so that a fault in it comes back as a code, and does not end the process.
#pragma once

#include "backends/gpu/driver/driver_types.hpp"

#include <atomic>
#include <csetjmp>
#include <cstdint>
#include <functional>
#include <mutex>

namespace weft::virtual_cuda {

using gpu::CUresult;

struct guard {
  int device = -1;                            // of a kernel: may use what its device may; −1: an engine of copies
  std::function<bool(std::uint64_t)> open{};  // called in the handler for a fault in the program's window: try again?
  sigjmp_buf jump{};
  volatile CUresult code = 0;
};

/// Runs `work` on this thread; answers 0, or the code of the fault that ended it.
[[nodiscard]] CUresult run_guarded(guard& g, const std::function<void()>& work);

/// Ends the work that this thread runs guarded, with a code. For what kernels call.
[[noreturn]] void end_guarded(CUresult code);

/// While one exists, this thread's guarded work is not ended from outside: it holds a lock, or allocates.
class undisturbed {
 public:
  undisturbed();
  undisturbed(const undisturbed&) = delete;
  undisturbed& operator=(const undisturbed&) = delete;
  ~undisturbed();
};

/// A thread whose guarded work can be ended from outside.
class worker_thread {
 public:
  /// Of the calling thread, for as long as it runs.
  void enter();
  void leave();
  /// Ends what it runs guarded with this code, again and again until `ended` says it is enough. Bounded.
  void interrupt(CUresult code);

 private:
  std::mutex mutex_;  // the thread does not end while it is sent a signal
  std::atomic<unsigned long> thread_{0};
  std::atomic<int> pending_{0};
  std::atomic<bool> inside_{false};
  friend CUresult run_guarded(guard& g, const std::function<void()>& work);
  friend class undisturbed;
  friend struct handler_access;
};

}  // namespace weft::virtual_cuda
