// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/hip/hip_partitions.hpp"

#include "backends/gpu/hip/hip_attributes.hpp"
#include "backends/gpu/hip/hip_table.hpp"

#include <array>
#include <cstdint>
#include <cstring>

namespace weft::gpu::amd {
namespace {

/// Compute units that follow each other. As a handle it is a number, so that nothing has to be given back.
struct share {
  std::uint64_t device, first, count;

  [[nodiscard]] std::uintptr_t packed() const { return device << 40U | first << 20U | count; }
  static share of(const void* handle) {
    const auto number = reinterpret_cast<std::uintptr_t>(handle);
    constexpr std::uintptr_t field = (1U << 20U) - 1;
    return {number >> 40U, number >> 20U & field, number & field};
  }
};

/// Which units a resource is of stands in the bytes that are the driver's own.
share share_of(const CUdevResource& resource) {
  share made{};
  std::memcpy(&made, resource.internal_padding, sizeof made);
  return made;
}
void set(CUdevResource& resource, const share& units) {
  resource.type = resource_sm;
  resource.sm = {static_cast<unsigned>(units.count), 1, 1};
  std::memcpy(resource.internal_padding, &units, sizeof units);
}

CUresult units_of(CUdevice device, CUdevResource* resource, int type) {
  int count = 0;
  int major = 0;
  if (type != resource_sm) return CUDA_ERROR_INVALID_VALUE;
  CUresult status = hip_table().hipDeviceGetAttribute(&count, hip_multiprocessor_count, device);
  if (status == CUDA_SUCCESS) status = hip_table().hipDeviceGetAttribute(&major, hip_compute_capability_major, device);
  if (status != CUDA_SUCCESS) return status;
  // from gfx10 on a multiprocessor may be two compute units, which a mask must not part
  constexpr int last_of_single_units = 9;
  if (major > last_of_single_units) return CUDA_ERROR_NOT_SUPPORTED;
  set(*resource, {static_cast<std::uint64_t>(device), 0, static_cast<std::uint64_t>(count)});
  return CUDA_SUCCESS;
}

CUresult split(CUdevResource* parts, unsigned* count, const CUdevResource* whole, CUdevResource*, unsigned,
               unsigned minimum) {
  const share all = share_of(*whole);
  if (minimum == 0 || *count == 0 || std::uint64_t{minimum} * *count > all.count) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < *count; ++i) set(parts[i], {all.device, all.first + std::uint64_t{i} * minimum, minimum});
  return CUDA_SUCCESS;
}

CUresult describe(CUdevResourceDesc* description, CUdevResource* parts, unsigned count) {
  if (count != 1) return CUDA_ERROR_INVALID_VALUE;
  *description = reinterpret_cast<CUdevResourceDesc>(share_of(*parts).packed());  // NOLINT(performance-no-int-to-ptr)
  return CUDA_SUCCESS;
}

CUresult make(CUgreenCtx* context, CUdevResourceDesc description, CUdevice, unsigned) {
  *context = reinterpret_cast<CUgreenCtx>(description);
  return CUDA_SUCCESS;
}
CUresult end(CUgreenCtx) { return CUDA_SUCCESS; }

/// A masked stream has no priority, and work of the default stream waits for it and it for that: HIP takes neither a
/// priority nor flags beside a mask (hipExtStreamCreateWithCUMask of clr).
CUresult make_stream(CUstream* stream, CUgreenCtx context, unsigned, int) {
  const share units = share::of(context);
  constexpr std::size_t bits = 32;
  std::array<std::uint32_t, 32> mask{};  // 1,024 compute units
  if (units.first + units.count > bits * mask.size()) return CUDA_ERROR_INVALID_VALUE;
  for (std::uint64_t n = units.first; n < units.first + units.count; ++n) mask[n / bits] |= 1U << n % bits;
  const auto words = static_cast<std::uint32_t>((units.first + units.count + bits - 1) / bits);
  return hip_table().hipExtStreamCreateWithCUMask(stream, words, mask.data());
}

}  // namespace

void fill_partitions(driver_functions& cu) {
  cu.cuDeviceGetDevResource = &units_of;
  cu.cuDevSmResourceSplitByCount = &split;
  cu.cuDevResourceGenerateDesc = &describe;
  cu.cuGreenCtxCreate = &make;
  cu.cuGreenCtxDestroy = &end;
  cu.cuGreenCtxStreamCreate = &make_stream;
}

}  // namespace weft::gpu::amd
