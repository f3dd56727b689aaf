// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/devices/partitions.hpp"

#include "backends/gpu/driver/error.hpp"

#include <utility>

namespace weft::gpu {

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
    if (status == CUDA_SUCCESS && count == parts) return made;
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

CUresult partitions::make(row& part) const {
  CUdevResourceDesc description = nullptr;
  const CUresult status = cu_.cuDevResourceGenerateDesc(&description, &part.share, 1);
  if (status != CUDA_SUCCESS) return status;
  return cu_.cuGreenCtxCreate(&part.context, description, part.gpu, green_context_default_stream);
}

/// And whether the events of the GPU's context may be recorded there, as the vendor's documents say.
CUresult partitions::try_stream(const row& part, CUstream* stream, int priority) const {
  CUresult status = cu_.cuGreenCtxStreamCreate(stream, part.context, stream_non_blocking, priority);
  if (status != CUDA_SUCCESS) return status;
  CUevent probe = nullptr;
  status = cu_.cuEventCreate(&probe, 0);
  if (status == CUDA_SUCCESS) {
    status = cu_.cuEventRecord(probe, *stream);
    static_cast<void>(cu_.cuEventDestroy(probe));
  }
  if (status != CUDA_SUCCESS) static_cast<void>(cu_.cuStreamDestroy(*stream));
  return status;
}

result<CUstream> partitions::create_stream(std::size_t device, int priority) {
  row& part = *rows_[device];
  const std::lock_guard lock{part.mutex};
  CUstream stream = nullptr;
  CUresult status = part.context == nullptr ? make(part) : CUDA_SUCCESS;
  if (status == CUDA_SUCCESS) status = try_stream(part, &stream, priority);
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
