// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/devices/contexts.hpp"

namespace weft::gpu {
namespace {

/// What one of ours made current on this thread; while it lives nobody else changes that.
thread_local CUcontext entered = nullptr;

}  // namespace

current_context::current_context(const driver& cu, CUcontext wanted) noexcept : cu_(&cu), outer_(entered) {
  if (entered == wanted) return;
  CUcontext now = nullptr;
  if (entered == nullptr && cu.cuCtxGetCurrent(&now) == CUDA_SUCCESS && now == wanted) {
    entered = wanted;
    return;
  }
  status_ = cu.cuCtxPushCurrent(wanted);
  pushed_ = status_ == CUDA_SUCCESS;
  if (pushed_) entered = wanted;
}

current_context::~current_context() {
  if (cu_ == nullptr) return;
  entered = outer_;
  CUcontext popped = nullptr;
  if (pushed_) static_cast<void>(cu_->cuCtxPopCurrent(&popped));
}

contexts::contexts(std::shared_ptr<const driver> cu, const discovery& found) : cu_(std::move(cu)) {
  for (const gpu_place& gpu : found.gpus) {
    auto made = std::make_unique<row>();
    made->id = gpu.id;
    made->name = gpu.name;
    rows_.push_back(std::move(made));
  }
  gpu_of_.reserve(found.devices.size());
  for (const device_place& device : found.devices) gpu_of_.push_back(device.gpu);
}

contexts::~contexts() { release(); }

result<CUcontext> contexts::of(std::size_t device) {
  row& place = *rows_[gpu_of_[device]];
  if (CUcontext had = place.context.load(std::memory_order_acquire); had != nullptr) return had;
  const std::lock_guard lock{place.mutex};
  if (CUcontext had = place.context.load(std::memory_order_acquire); had != nullptr) return had;
  CUcontext made = nullptr;
  const CUresult status = cu_->cuDevicePrimaryCtxRetain(&made, place.id);
  if (status != CUDA_SUCCESS) return cu_error(*cu_, status, "a context on " + place.name, errc::device_lost);
  place.context.store(made, std::memory_order_release);
  return made;
}

result<current_context> contexts::enter(std::size_t device) {
  auto context = of(device);
  if (!context) return std::move(context).error();
  current_context entering{*cu_, *context};
  if (entering.status() != CUDA_SUCCESS)
    return cu_error(*cu_, entering.status(), "the context of " + rows_[gpu_of_[device]]->name, errc::device_lost);
  return entering;
}

result<void> contexts::reset(std::size_t device) {
  row& place = *rows_[gpu_of_[device]];
  const std::lock_guard lock{place.mutex};
  if (place.context.load(std::memory_order_acquire) == nullptr) return {};
  const CUresult status = cu_->cuDevicePrimaryCtxReset(place.id);
  place.generation.fetch_add(1, std::memory_order_acq_rel);
  place.context.store(nullptr, std::memory_order_release);
  // what was retained is given back, so that the next who needs it makes a new one
  static_cast<void>(cu_->cuDevicePrimaryCtxRelease(place.id));
  if (status != CUDA_SUCCESS) return cu_error(*cu_, status, "resetting " + place.name, errc::device_lost);
  return {};
}

void contexts::release() noexcept {
  if (here_.forked()) return;
  for (const auto& place : rows_) {
    const std::lock_guard lock{place->mutex};
    if (place->context.exchange(nullptr, std::memory_order_acq_rel) == nullptr) continue;
    place->generation.fetch_add(1, std::memory_order_acq_rel);
    static_cast<void>(cu_->cuDevicePrimaryCtxRelease(place->id));
  }
}

}  // namespace weft::gpu
