// SPDX-License-Identifier: Apache-2.0
#include "virtual_driver/driver/multicast.hpp"

#include "virtual_driver/driver/device_side.h"
#include "virtual_driver/driver/guard.hpp"

#include <algorithm>
#include <sys/mman.h>

namespace weft::virtual_cuda {
namespace {

thread_local int device_here = -1;

CUresult look_up(unsigned long long address, unsigned size, unsigned char** where, unsigned& count) {
  if (address % size != 0) return CUDA_ERROR_MISALIGNED_ADDRESS;
  machine& m = the();
  const std::lock_guard lock{m.mutex};
  const auto range = m.find(address);
  if (range == nullptr || range->group == nullptr || m.right(device_here, *range) != access_read_write)
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  const multicast_object& group = *range->group;
  const std::uint64_t offset = address - range->base;
  if (group.bound.size() != group.devices || offset + size > range->size) return CUDA_ERROR_ILLEGAL_ADDRESS;
  for (const auto& [device, one] : group.bound) {
    if (offset + size > one->size) return CUDA_ERROR_ILLEGAL_ADDRESS;
    where[count++] = reinterpret_cast<unsigned char*>(one->view + offset);
  }
  return CUDA_SUCCESS;
}

}  // namespace

multicast_object::replica::~replica() {
  if (view != nullptr) ::munmap(view, size);
}

bool multicast_object::has(int device) const { return std::find(joined.begin(), joined.end(), device) != joined.end(); }

void run_on(int device) { device_here = device; }

unsigned replicas(unsigned long long address, unsigned size, unsigned char** where) {
  unsigned count = 0;
  CUresult code = CUDA_SUCCESS;
  {
    const undisturbed looking;
    code = look_up(address, size, where, count);
  }
  if (code != CUDA_SUCCESS) end_guarded(code);
  return count;
}

static_assert(most_devices == WEFT_VIRTUAL_MOST_REPLICAS);

}  // namespace weft::virtual_cuda
