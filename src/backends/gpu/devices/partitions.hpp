// SPDX-License-Identifier: Apache-2.0
// Multiprocessors of their own for the parts of a GPU: green contexts. These are its primary context with streams that
// run on some of its multiprocessors only; memory, events, kernels and faults stay those of the one context.
#pragma once

#include "backends/gpu/devices/contexts.hpp"

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace weft::gpu {

/// The multiprocessors of a GPU as `parts` sets of one size, no two of which share one: the largest that the driver
/// makes. What is left over is in none. Makes the GPU's context and one stream on the first set, and ends both again:
/// so that a driver which refuses them is known at the start. Errors: unsupported, with what this driver or GPU lacks.
/// Source: CUDA driver API, "Green Contexts"; one split for all parts, since two may hand out the same.
[[nodiscard]] result<std::vector<CUdevResource>> split_multiprocessors(const driver& cu, CUdevice gpu, unsigned parts);

/// Whether an event of the current context may be recorded in a stream. cuEventRecord() demands the same context, while
/// cuGreenCtxRecordEvent() takes an event of the same primary context: what holds for streams of green contexts, the
/// driver is asked.
[[nodiscard]] CUresult try_event(const driver& cu, CUstream stream);

/// Thread: any. Devices are counted from 0 here.
class partitions {
 public:
  partitions(std::shared_ptr<contexts> places, const discovery& found);

  [[nodiscard]] std::size_t size() const { return rows_.size(); }
  /// Whether a device has multiprocessors of its own.
  [[nodiscard]] bool has(std::size_t device) const { return rows_[device] != nullptr; }
  /// A stream on the multiprocessors of a device that has such; its GPU's context is current.
  /// Errors: what the driver says, and how to do without.
  [[nodiscard]] result<CUstream> create_stream(std::size_t device, int priority);
  /// The streams of a device are destroyed, and its context may go.
  void end(std::size_t device) noexcept;

 private:
  struct row {
    std::mutex mutex;  // a green context is for one thread at a time
    CUdevice gpu = 0;
    CUdevResource share;
    CUgreenCtx context = nullptr;
  };

  std::shared_ptr<contexts> places_;
  const driver& cu_;
  std::vector<std::unique_ptr<row>> rows_;  // by device; null: all of its GPU's
};

}  // namespace weft::gpu
