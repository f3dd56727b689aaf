// SPDX-License-Identifier: Apache-2.0
// Streams of the program's own in the order of the CUDA backend; the rest of that is queued_backend's.
#include "backends/gpu/gpu_backend.hpp"

#include <new>

namespace weft::gpu {

result<stream_handle> gpu_backend::adopt_stream(device_id device, void* driver_queue) noexcept {
  if (auto cause = check_call({device})) return *cause;
  if (auto cause = scheduler_->lost(device)) return error{*cause};
  try {
    auto made = scheduler_->adopt(device, driver_queue);
    if (!made) return noticed(device, std::move(made).error());
    return (*made)->handle();
  } catch (const std::bad_alloc&) {
    return make_error(errc::out_of_memory, "the host has no memory left for a stream");
  }
}

result<void*> gpu_backend::driver_queue(stream_handle stream) noexcept {
  auto order = stream_of(stream);
  if (!order) return std::move(order).error();
  return scheduler_->share_queue(**order);
}

}  // namespace weft::gpu
