// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/devices/partitions.hpp"

#include "backends/gpu/driver/error.hpp"

#include <utility>

namespace weft::gpu {

namespace {

CUresult make_green(const driver& cu, CUdevice gpu, CUdevResource share, CUgreenCtx* made) {
  CUdevResourceDesc description = nullptr;
  const CUresult status = cu.cuDevResourceGenerateDesc(&description, &share, 1);
  if (status != CUDA_SUCCESS) return status;
  return cu.cuGreenCtxCreate(made, description, gpu, green_context_default_stream);
}

CUresult try_stream(const driver& cu, CUgreenCtx green) {
  CUstream stream = nullptr;
  CUresult status = cu.cuGreenCtxStreamCreate(&stream, green, stream_non_blocking, 0);
  if (status != CUDA_SUCCESS) return status;
  status = try_event(cu, stream);
  static_cast<void>(cu.cuStreamDestroy(stream));
  return status;
}

CUresult try_share(const driver& cu, CUdevice gpu, const CUdevResource& share) {
  CUcontext primary = nullptr;
  CUresult status = cu.cuDevicePrimaryCtxRetain(&primary, gpu);
  if (status != CUDA_SUCCESS) return status;
  {
    const current_context here{cu, primary};
    CUgreenCtx green = nullptr;
    status = here.status() == CUDA_SUCCESS ? make_green(cu, gpu, share, &green) : here.status();
    if (status == CUDA_SUCCESS) {
      status = try_stream(cu, green);
      static_cast<void>(cu.cuGreenCtxDestroy(green));
    }
  }
  static_cast<void>(cu.cuDevicePrimaryCtxRelease(gpu));
  return status;
}

}  // namespace

CUresult try_event(const driver& cu, CUstream stream) {
  CUevent probe = nullptr;
  CUresult status = cu.cuEventCreate(&probe, event_disable_timing);
  if (status != CUDA_SUCCESS) return status;
  status = cu.cuEventRecord(probe, stream);
  static_cast<void>(cu.cuEventDestroy(probe));
  return status;
}

result<std::vector<CUdevResource>> split_multiprocessors(const driver& cu, CUdevice gpu, unsigned parts) {
  // streams are made without the green context being current, which is for one thread at a time
  if (cu.cuDeviceGetDevResource == nullptr || cu.cuDevSmResourceSplitByCount == nullptr ||
      cu.cuDevResourceGenerateDesc == nullptr || cu.cuGreenCtxCreate == nullptr || cu.cuGreenCtxDestroy == nullptr ||
      cu.cuGreenCtxStreamCreate == nullptr)
    return make_error(errc::unsupported,
                      std::string{"this driver of "} + cu.by->name + " cannot split them; a newer one may");
  CUdevResource whole;
  CUresult status = cu.cuDeviceGetDevResource(gpu, &whole, resource_sm);
  if (status != CUDA_SUCCESS) return cu_error(cu, status, "its multiprocessors cannot be asked for", errc::unsupported);
  // sets have a least size and grow by steps, which the driver alone knows of every chip
  for (unsigned each = whole.sm.sm_count / parts; each > 0; --each) {
    unsigned count = parts;
    std::vector<CUdevResource> made(parts);
    status = cu.cuDevSmResourceSplitByCount(made.data(), &count, &whole, nullptr, 0, each);
    if (status != CUDA_SUCCESS || count != parts) continue;
    status = try_share(cu, gpu, made.front());
    if (status == CUDA_SUCCESS) return made;
    return cu_error(cu, status, "it refuses streams on multiprocessors of their own", errc::unsupported);
  }
  if (status != CUDA_SUCCESS) return cu_error(cu, status, "its multiprocessors cannot be split", errc::unsupported);
  return make_error(errc::unsupported, "its " + std::to_string(whole.sm.sm_count) +
                                           " multiprocessors are too few for sets as large as the driver makes them");
}

partitions::partitions(std::shared_ptr<contexts> places, const discovery& found)
    : places_(std::move(places)), cu_(places_->cu()) {
  rows_.resize(found.devices.size());
  for (std::size_t device = 0; device < found.devices.size(); ++device) {
    const device_place& place = found.devices[device];
    const gpu_place& gpu = found.gpus[place.gpu];
    if (gpu.shares.empty()) continue;
    rows_[device] = std::make_unique<row>();
    rows_[device]->gpu = gpu.id;
    rows_[device]->share = gpu.shares[static_cast<std::size_t>(place.part)];
  }
}

result<CUstream> partitions::create_stream(std::size_t device, int priority) {
  row& part = *rows_[device];
  const std::lock_guard lock{part.mutex};
  CUstream stream = nullptr;
  CUresult status = part.context == nullptr ? make_green(cu_, part.gpu, part.share, &part.context) : CUDA_SUCCESS;
  if (status == CUDA_SUCCESS) status = cu_.cuGreenCtxStreamCreate(&stream, part.context, stream_non_blocking, priority);
  if (status == CUDA_SUCCESS) return stream;
  return cu_error(cu_, status,
                  std::string{"a stream on multiprocessors of its own (with "} + cu_.by->partitions_variable +
                      "=0 the parts of a GPU share all of them)");
}

void partitions::end(std::size_t device) noexcept {
  if (!has(device)) return;
  row& part = *rows_[device];
  const std::lock_guard lock{part.mutex};
  if (CUgreenCtx gone = std::exchange(part.context, nullptr); gone != nullptr)
    static_cast<void>(cu_.cuGreenCtxDestroy(gone));
}

}  // namespace weft::gpu
