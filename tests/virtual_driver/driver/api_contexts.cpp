// SPDX-License-Identifier: Apache-2.0
// Contexts: one primary context for each device and those that the program creates, a stack of them for each thread,
// and access between them.
#include "virtual_driver/driver/call.hpp"

namespace weft::virtual_cuda {
namespace {

device& device_at(CUdevice ordinal) { return the().devices[static_cast<std::size_t>(ordinal)]; }

template <class F>
CUresult primary_call(const char* name, bool arguments, CUdevice ordinal, F&& f) noexcept {
  return plain_call(name, arguments, [&]() -> CUresult {
    return the().valid(ordinal) ? f(device_at(ordinal)) : CUDA_ERROR_INVALID_DEVICE;
  });
}

// What a fault of that kind leaves a process is its end: every later call answers it, and no reset takes it away.
CUresult lasting(CUresult fault) {
  switch (fault) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
      return CUDA_SUCCESS;
    default:
      return fault;
  }
}

CUresult fault_of_process(const device& d) {
  const std::lock_guard lock{the().mutex};
  for (const context_ref& c : d.contexts()) {
    if (const CUresult fault = lasting(c->lost.load()); fault != CUDA_SUCCESS) return fault;
  }
  return d.fault;
}

context_ref forget_primary(CUdevice ordinal) {
  const std::lock_guard lock{the().mutex};
  context_ref gone = std::exchange(device_at(ordinal).primary, nullptr);
  if (gone != nullptr) the().forget_context(gone);
  return gone;
}

context_ref forget_created(CUcontext handle) {
  const std::lock_guard lock{the().mutex};
  for (device& d : the().devices) {
    for (auto it = d.created.begin(); it != d.created.end(); ++it) {
      if ((*it)->handle != handle) continue;
      context_ref gone = std::move(*it);
      d.created.erase(it);
      the().forget_context(gone);
      if (const CUresult fault = lasting(gone->lost.load()); fault != CUDA_SUCCESS) d.fault = fault;
      return gone;
    }
  }
  return nullptr;
}

int peers_of(const device& d) {
  int n = 0;
  for (const bool on : d.peers) n += on ? 1 : 0;
  return n;
}

CUresult create_context(CUcontext* handle, unsigned flags, CUdevice ordinal, const CUctxCreateParams& wanted) {
  constexpr unsigned schedules = 7, known_flags = 0xff;
  const unsigned schedule = flags & schedules;
  const bool arguments = handle != nullptr && (flags & ~known_flags) == 0 && schedule <= context_schedule_blocking &&
                         (schedule & (schedule - 1)) == 0;
  return primary_call("cuCtxCreate", arguments, ordinal, [&](device& d) -> CUresult {
    if (wanted.graphics != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    if (wanted.affinity_count != 0) return 224;  // CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY: there is no MPS
    if (const CUresult fault = fault_of_process(d); fault != CUDA_SUCCESS) return fault;
    const std::lock_guard lock{the().mutex};
    d.created.push_back(the().make_context(ordinal, flags));
    *handle = d.created.back()->handle;
    context_stack().push_back(*handle);
    return CUDA_SUCCESS;
  });
}

CUresult destroy(CUcontext handle) {
  return plain_call("cuCtxDestroy", handle != nullptr, [&]() -> CUresult {
    const context_ref gone = forget_created(handle);
    if (gone == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    auto& stack = context_stack();
    if (!stack.empty() && stack.back() == handle) stack.pop_back();
    the().destroy_context(gone);
    return CUDA_SUCCESS;
  });
}

}  // namespace

context_ref machine::retain_primary(CUdevice ordinal) {
  const std::lock_guard lock{mutex};
  device& d = device_at(ordinal);
  if (d.primary == nullptr) {
    d.primary = make_context(ordinal, d.flags);
  }
  ++d.references;
  return d.primary;
}

bool machine::release_primary(CUdevice ordinal) {
  {
    const std::lock_guard lock{mutex};
    device& d = device_at(ordinal);
    if (d.references == 0) return false;
    if (--d.references != 0) return true;
  }
  if (fault_of_process(device_at(ordinal)) != CUDA_SUCCESS) return true;
  if (const context_ref gone = forget_primary(ordinal)) destroy_context(gone);
  return true;
}

WEFT_VIRTUAL_API CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice ordinal) {
  return primary_call("cuDevicePrimaryCtxRetain", handle != nullptr, ordinal, [&](device& d) -> CUresult {
    if (const CUresult fault = fault_of_process(d); fault != CUDA_SUCCESS) return fault;
    the().retain_primary(ordinal);
    const std::lock_guard lock{the().mutex};
    *handle = d.primary->handle;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
  return primary_call("cuDevicePrimaryCtxRelease", true, ordinal, [&](device&) -> CUresult {
    return the().release_primary(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  });
}

WEFT_VIRTUAL_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
  return primary_call("cuDevicePrimaryCtxReset", true, ordinal, [&](device& d) -> CUresult {
    if (const CUresult fault = fault_of_process(d); fault != CUDA_SUCCESS) return fault;
    // Whoever retained the context may still release it; the next one who retains it finds a new one.
    if (const context_ref gone = forget_primary(ordinal)) the().destroy_context(gone);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API void weft_virtual_heal() {
  if (!is_open()) return;
  for (int ordinal = 0; ordinal < the().count(); ++ordinal) {
    if (fault_of_process(device_at(ordinal)) == CUDA_SUCCESS) continue;
    {
      const std::lock_guard lock{the().mutex};
      device_at(ordinal).references = 0;
    }
    if (const context_ref gone = forget_primary(ordinal)) the().destroy_context(gone);
    for (const context_ref& c : device_at(ordinal).contexts()) {
      if (const context_ref gone = forget_created(c->handle)) the().destroy_context(gone);
    }
    device_at(ordinal).fault = CUDA_SUCCESS;
  }
}

WEFT_VIRTUAL_API CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned* flags, int* active) {
  return primary_call("cuDevicePrimaryCtxGetState", flags != nullptr && active != nullptr, ordinal, [&](device& d) {
    const std::lock_guard lock{the().mutex};
    *flags = d.flags;
    *active = d.primary != nullptr ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags) {
  return primary_call("cuDevicePrimaryCtxSetFlags", (flags & 7U) <= context_schedule_blocking, ordinal, [&](device& d) {
    const std::lock_guard lock{the().mutex};
    d.flags = flags;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuCtxCreate_v4(CUcontext* handle, const CUctxCreateParams* wanted, unsigned flags,
                                         CUdevice ordinal) {
  return create_context(handle, flags, ordinal, wanted == nullptr ? CUctxCreateParams{} : *wanted);
}
WEFT_VIRTUAL_API CUresult cuCtxCreate_v3(CUcontext* handle, const void* affinity, int affinity_count, unsigned flags,
                                         CUdevice ordinal) {
  return create_context(handle, flags, ordinal, {affinity, affinity_count, nullptr});
}
WEFT_VIRTUAL_API CUresult cuCtxCreate_v2(CUcontext* handle, unsigned flags, CUdevice ordinal) {
  return create_context(handle, flags, ordinal, {});
}
WEFT_VIRTUAL_API CUresult cuCtxCreate(CUcontext* handle, unsigned flags, CUdevice ordinal) {
  return create_context(handle, flags, ordinal, {});
}

WEFT_VIRTUAL_API CUresult cuCtxDestroy_v2(CUcontext handle) { return destroy(handle); }

WEFT_VIRTUAL_API CUresult cuCtxGetFlags(unsigned* flags) {
  return context_call("cuCtxGetFlags", flags != nullptr, [&](const context_ref& c) {
    *flags = c->flags;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuCtxSetCurrent(CUcontext handle) {
  return plain_call("cuCtxSetCurrent", true, [&]() -> CUresult {
    auto& stack = context_stack();
    if (handle == nullptr) {
      if (!stack.empty()) stack.pop_back();
      return CUDA_SUCCESS;
    }
    if (the().contexts.find(handle) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (stack.empty()) {
      stack.push_back(handle);
    } else {
      stack.back() = handle;
    }
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuCtxGetCurrent(CUcontext* handle) {
  return plain_call("cuCtxGetCurrent", handle != nullptr, [&] {
    *handle = context_stack().empty() ? nullptr : context_stack().back();
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  return plain_call("cuCtxPushCurrent", true, [&]() -> CUresult {
    if (the().contexts.find(handle) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    context_stack().push_back(handle);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuCtxPopCurrent_v2(CUcontext* handle) {
  return plain_call("cuCtxPopCurrent", true, [&]() -> CUresult {
    auto& stack = context_stack();
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (handle != nullptr) *handle = stack.back();
    stack.pop_back();
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuCtxGetDevice(CUdevice* ordinal) {
  return context_call("cuCtxGetDevice", ordinal != nullptr, [&](const context_ref& c) {
    *ordinal = c->device;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuCtxSynchronize() {
  return context_call("cuCtxSynchronize", true, [&](const context_ref& c) -> CUresult {
    machine::drain(c);
    return c->lost.load();
  });
}

WEFT_VIRTUAL_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  return context_call("cuCtxEnablePeerAccess", flags == 0, [&](const context_ref& c) -> CUresult {
    machine& m = the();
    const context_ref other = m.contexts.find(peer);
    if (other == nullptr || other == c) return CUDA_ERROR_INVALID_CONTEXT;
    if (!m.can_access(c->device, other->device)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    const std::lock_guard lock{m.mutex};
    device& d = device_at(c->device);
    if (c->peers.contains(other->generation)) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    const int limit = m.about.max_peers != 0
                          ? m.about.max_peers
                          : m.about.machine.devices[static_cast<std::size_t>(d.physical_index)].max_peers;
    const bool is_one = d.peers[static_cast<std::size_t>(other->device)];
    if (!is_one && limit != 0 && peers_of(d) >= limit) return CUDA_ERROR_TOO_MANY_PEERS;
    c->peers.insert(other->generation);
    m.settle_peers(c->device, other->device);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  return context_call("cuCtxDisablePeerAccess", true, [&](const context_ref& c) -> CUresult {
    machine& m = the();
    const context_ref other = m.contexts.find(peer);
    if (other == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    const std::lock_guard lock{m.mutex};
    if (c->peers.erase(other->generation) == 0) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    m.settle_peers(c->device, other->device);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return context_call("cuCtxGetStreamPriorityRange", true, [&](const context_ref&) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return CUDA_SUCCESS;
  });
}

}  // namespace weft::virtual_cuda
