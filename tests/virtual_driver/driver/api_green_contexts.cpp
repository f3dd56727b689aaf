// SPDX-License-Identifier: Apache-2.0
// Parts of a device: green contexts are the primary one, with streams that run on multiprocessors of their own. What
// these are is a list of numbers here; no time is shared out.
#include "virtual_driver/driver/call.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace weft::virtual_cuda {

struct weft_virtual_green {
  context_ref primary;
  CUcontext handle = nullptr;  // as which it is current
  stream::multiprocessor_list multiprocessors;
};

namespace {

// Of the guideline for each architecture, at the head of cuda.h's green contexts.
struct part_rule {
  unsigned smallest, step;
};
part_rule rule_of_parts(bool ignores_coscheduling = false) {
  if (given().capability_major >= 9 && !ignores_coscheduling) return {8, 8};
  return {given().capability_major == 8 && !ignores_coscheduling ? 4U : 2U, 2};
}

struct resource_list {
  std::vector<CUdevResource> parts;
};
handle_table<CUdevResourceDesc, resource_list>& descriptions() {
  static auto* const table = new handle_table<CUdevResourceDesc, resource_list>;
  return *table;
}
handle_table<CUgreenCtx, weft_virtual_green>& greens() {
  static auto* const table = new handle_table<CUgreenCtx, weft_virtual_green>;
  return *table;
}

// Multiprocessors in a row; which, is kept where users see padding.
CUdevResource resource_of(unsigned first, unsigned count) {
  CUdevResource made{};
  made.type = resource_sm;
  std::memcpy(made.internal_padding, &first, sizeof first);
  made.sm.sm_count = count;
  made.sm.min_sm_partition_size = rule_of_parts().smallest;
  made.sm.sm_coscheduled_alignment = rule_of_parts().step;
  return made;
}
unsigned first_of(const CUdevResource& resource) {
  unsigned first = 0;
  std::memcpy(&first, resource.internal_padding, sizeof first);
  return first;
}

template <class F>
CUresult green_call(const char* name, bool arguments, F&& f) noexcept {
  return plain_call(name, arguments,
                    [&]() -> CUresult { return given().green_contexts ? f() : CUDA_ERROR_NOT_SUPPORTED; });
}

}  // namespace

WEFT_VIRTUAL_API CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, int type) {
  return green_call("cuDeviceGetDevResource", resource != nullptr, [&]() -> CUresult {
    if (!the().valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (type != resource_sm) return CUDA_ERROR_INVALID_VALUE;
    *resource = resource_of(0, static_cast<unsigned>(given().multiprocessors));
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuDevSmResourceSplitByCount(CUdevResource* parts, unsigned* count, const CUdevResource* whole,
                                                      CUdevResource* remaining, unsigned flags, unsigned minimum) {
  const bool arguments =
      count != nullptr && whole != nullptr && flags < 4 && whole->type == resource_sm && minimum <= whole->sm.sm_count;
  return green_call("cuDevSmResourceSplitByCount", arguments, [&]() -> CUresult {
    const part_rule rule = rule_of_parts((flags & 1U) != 0);  // CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING
    const auto each = static_cast<unsigned>(up(std::max(minimum, rule.smallest), rule.step));
    const unsigned most = whole->sm.sm_count / each;
    if (most == 0) return 915;  // CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION
    const unsigned made = parts == nullptr ? most : std::min(*count, most);
    const unsigned first = first_of(*whole);
    for (unsigned n = 0; parts != nullptr && n < made; ++n) parts[n] = resource_of(first + n * each, each);
    if (remaining != nullptr) *remaining = resource_of(first + made * each, whole->sm.sm_count - made * each);
    *count = made;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* description, CUdevResource* parts,
                                                    unsigned count) {
  return green_call("cuDevResourceGenerateDesc", description != nullptr && parts != nullptr && count != 0,
                    [&]() -> CUresult {
                      auto list = std::make_shared<resource_list>();
                      list->parts.assign(parts, parts + count);
                      *description = descriptions().add(std::move(list));
                      return CUDA_SUCCESS;
                    });
}

WEFT_VIRTUAL_API CUresult cuGreenCtxCreate(CUgreenCtx* handle, CUdevResourceDesc description, CUdevice device,
                                           unsigned flags) {
  const bool arguments = handle != nullptr && flags == green_context_default_stream;
  return green_call("cuGreenCtxCreate", arguments, [&]() -> CUresult {
    machine& m = the();
    if (!m.valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    const auto list = descriptions().find(description);
    if (list == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto numbers = std::make_shared<std::vector<unsigned>>();
    for (const CUdevResource& part : list->parts) {
      const std::size_t before = numbers->size();
      numbers->resize(before + part.sm.sm_count);
      std::iota(numbers->begin() + static_cast<std::ptrdiff_t>(before), numbers->end(), first_of(part));
    }
    auto made = std::make_shared<weft_virtual_green>();
    made->multiprocessors = std::move(numbers);
    made->primary = m.retain_primary(device);
    made->handle = m.contexts.add(made->primary);
    *handle = greens().add(std::move(made));
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuGreenCtxDestroy(CUgreenCtx handle) {
  return plain_call("cuGreenCtxDestroy", true, [&]() -> CUresult {
    const auto gone = greens().take(handle);
    if (gone == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    the().contexts.take(gone->handle);
    {
      const std::lock_guard lock{gone->primary->submit_mutex};
      for (const auto& weak : gone->primary->streams) {
        if (const stream_ref s = weak.lock(); s != nullptr && s->multiprocessors() == gone->multiprocessors)
          s->orphaned() = true;
      }
    }
    static_cast<void>(the().release_primary(gone->primary->device));
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx handle) {
  return plain_call("cuCtxFromGreenCtx", context != nullptr, [&]() -> CUresult {
    const auto found = greens().find(handle);
    if (found == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *context = found->handle;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuGreenCtxStreamCreate(CUstream* stream_handle, CUgreenCtx handle, unsigned flags,
                                                 int priority) {
  const bool arguments = stream_handle != nullptr && flags == stream_non_blocking;
  return plain_call("cuGreenCtxStreamCreate", arguments, [&]() -> CUresult {
    const auto found = greens().find(handle);
    if (found == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    const context_ref& c = found->primary;
    if (const int lost = c->lost.load(); lost != 0) return lost;
    auto made = std::make_shared<stream>(c, false, std::clamp(priority, -5, 0), found->multiprocessors);
    made->converted = found->handle;
    *stream_handle = the().add(std::move(made));
    return CUDA_SUCCESS;
  });
}

}  // namespace weft::virtual_cuda
