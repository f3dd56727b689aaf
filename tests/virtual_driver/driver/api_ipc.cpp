// SPDX-License-Identifier: Apache-2.0
// Memory and events of other processes, by handle.
#include "virtual_driver/driver/call.hpp"
#include "virtual_driver/driver/foreign_memory.hpp"
#include "virtual_driver/driver/shared_event.hpp"

#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace weft::virtual_cuda {
namespace {

// Opening again in the same context gives the same address, once more counted; each device has one context.
CUresult open_memory(const context_ref& c, const foreign_record& record, CUdeviceptr* address) {
  machine& m = the();
  const std::string origin = origin_of(record, record.id);
  const std::lock_guard lock{m.mutex};
  for (const auto& [base, range] : m.ranges) {
    if (range->kind != range_kind::imported || range->origin != origin || range->generation != c->generation) continue;
    ++range->opened;
    *address = base;
    return CUDA_SUCCESS;
  }
  const int owner = m.ordinal_of(record.physical_device);
  if (owner >= 0 && owner != c->device && !m.can_access(c->device, owner)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  const int file = open_file_of(record);
  if (file < 0) return CUDA_ERROR_MAP_FAILED;
  auto memory = std::make_shared<physical>();
  memory->file = file;
  memory->own_file = true;
  memory->offset = record.offset;
  memory->size = up(record.size, page);
  const auto at = m.space.take(record.size, page);
  if (!at) return CUDA_ERROR_MAP_FAILED;
  auto range = std::make_shared<memory_range>();
  range->kind = range_kind::imported;
  range->base = *at;
  range->size = record.size;
  range->id = m.next_id++;
  range->device = owner >= 0 ? owner : c->device;
  range->generation = c->generation;
  range->memory = std::move(memory);
  range->origin = origin;
  range->opened = 1;
  range->rights[static_cast<std::size_t>(c->device)] = access_read_write;
  // the flag that must be given says so: access to the exporter's device is enabled on the way
  if (owner >= 0 && owner != c->device) {
    if (const context_ref& primary = m.devices[static_cast<std::size_t>(owner)].primary) {
      c->peers.insert(primary->generation);
      m.settle_peers(c->device, owner);
    }
  }
  m.show(*range);
  m.ranges.emplace(range->base, range);
  *address = range->base;
  return CUDA_SUCCESS;
}

}  // namespace

WEFT_VIRTUAL_API CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  return context_call("cuIpcGetMemHandle", handle != nullptr, [&](const context_ref&) -> CUresult {
    machine& m = the();
    const std::lock_guard lock{m.mutex};
    const auto range = m.find(address);
    if (range == nullptr || range->kind != range_kind::device) return CUDA_ERROR_INVALID_VALUE;
    foreign_record record = record_here(foreign_record::kind::memory);
    record.id = range->id;
    record.offset = range->memory->offset;
    record.size = range->size;
    record.file = range->memory->file;
    record.physical_device = m.devices[static_cast<std::size_t>(range->device)].physical_index;
    seal(record);
    std::memcpy(handle->reserved, &record, sizeof record);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  const bool arguments = address != nullptr && flags == ipc_lazy_enable_peer_access;
  return context_call("cuIpcOpenMemHandle", arguments, [&](const context_ref& c) -> CUresult {
    foreign_record record;
    std::memcpy(&record, handle.reserved, sizeof record);
    if (!is_whole(record, foreign_record::kind::memory)) return CUDA_ERROR_INVALID_VALUE;
    if (is_own(record)) return CUDA_ERROR_INVALID_CONTEXT;
    return open_memory(c, record, address);
  });
}

WEFT_VIRTUAL_API CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  return context_call("cuIpcCloseMemHandle", true, [&](const context_ref& c) -> CUresult {
    machine& m = the();
    {
      const std::lock_guard lock{m.mutex};
      const auto range = m.find(address);
      if (range == nullptr || range->kind != range_kind::imported || range->base != address) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      if (--range->opened != 0) return CUDA_SUCCESS;
    }
    machine::drain(c);
    const std::lock_guard lock{m.mutex};
    const auto range = m.find(address);
    if (range != nullptr && range->opened == 0) {
      m.end(range);
    }
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent wanted) {
  return context_call("cuIpcGetEventHandle", handle != nullptr, [&](const context_ref&) -> CUresult {
    const auto e = the().events.find(wanted);
    if (e == nullptr || e->shared == nullptr || e->imported) return CUDA_ERROR_INVALID_HANDLE;
    foreign_record record = record_here(foreign_record::kind::event);
    record.id = reinterpret_cast<std::uint64_t>(wanted);
    record.file = e->shared->file;
    seal(record);
    std::memcpy(handle->reserved, &record, sizeof record);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuIpcOpenEventHandle(CUevent* opened, CUipcEventHandle handle) {
  return context_call("cuIpcOpenEventHandle", opened != nullptr, [&](const context_ref& c) -> CUresult {
    foreign_record record;
    std::memcpy(&record, handle.reserved, sizeof record);
    if (!is_whole(record, foreign_record::kind::event)) return CUDA_ERROR_INVALID_VALUE;
    if (is_own(record)) return CUDA_ERROR_INVALID_CONTEXT;
    const int file = open_file_of(record);
    if (file < 0) return CUDA_ERROR_MAP_FAILED;
    void* const memory = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    if (memory == MAP_FAILED) return CUDA_ERROR_MAP_FAILED;
    auto made = std::make_shared<event>();
    made->home = c;
    made->flags = event_disable_timing | event_interprocess;
    made->shared = static_cast<shared_event*>(memory);
    made->imported = true;
    *opened = the().events.add(made);
    return CUDA_SUCCESS;
  });
}

}  // namespace weft::virtual_cuda
