// SPDX-License-Identifier: Apache-2.0
// Libraries: code without a context, whose kernels run in any. Each context that uses one has a module of it.
#include "virtual_driver/driver/call.hpp"
#include "virtual_driver/driver/module.hpp"

namespace weft::virtual_cuda {
namespace {

handle_table<CUlibrary, library>& libraries() {
  static auto* const table = new handle_table<CUlibrary, library>;
  return *table;
}

template <class F>
CUresult library_call(const char* name, CUlibrary handle, bool arguments, F&& f) noexcept {
  return plain_call(name, arguments, [&]() -> CUresult {
    const auto found = libraries().find(handle);
    return found == nullptr ? CUDA_ERROR_INVALID_HANDLE : f(found);
  });
}

}  // namespace

CUresult library::in(const context_ref& c, CUmodule& found) {
  const std::lock_guard lock{mutex};
  const auto it = modules.find(c->generation);
  if (it != modules.end()) {
    found = it->second;
    return CUDA_SUCCESS;
  }
  const CUresult code = load_module(c, image.data(), found);
  if (code == CUDA_SUCCESS) modules.emplace(c->generation, found);
  return code;
}

CUresult resolve(const context_ref& c, std::shared_ptr<function>& f) {
  if (f->whole == nullptr) return f->home->home == c ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  CUmodule handle = nullptr;
  if (const CUresult code = f->whole->in(c, handle); code != CUDA_SUCCESS) return code;
  const auto m = the().modules.find(handle);
  if (m == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  auto made = find_function(m, f->kernel->name);
  if (made == nullptr) return CUDA_ERROR_NOT_FOUND;
  made->dynamic_shared = f->dynamic_shared;
  f = std::move(made);
  return CUDA_SUCCESS;
}

WEFT_VIRTUAL_API CUresult cuLibraryLoadData(CUlibrary* handle, const void* image, int* options, void** values,
                                            unsigned count, int* library_options, void** library_values,
                                            unsigned library_count) {
  const bool arguments = handle != nullptr && image != nullptr &&
                         (count == 0 || (options != nullptr && values != nullptr)) &&
                         (library_count == 0 || (library_options != nullptr && library_values != nullptr));
  return plain_call("cuLibraryLoadData", arguments, [&]() -> CUresult {
    auto made = std::make_shared<library>();
    made->image = copy_of_image(image);
    made->described = std::make_shared<module>();
    if (const CUresult code = load_image(*made->described, made->image.data()); code != CUDA_SUCCESS) return code;
    *handle = libraries().add(made);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuLibraryUnload(CUlibrary handle) {
  return library_call("cuLibraryUnload", handle, true, [&](const std::shared_ptr<library>& gone) -> CUresult {
    libraries().take(handle);
    for (int n = 0; n < the().count(); ++n) the().drain(n);
    const std::lock_guard lock{gone->mutex};
    for (const auto& [generation, module_handle] : gone->modules) unload_module(module_handle);
    the().functions.remove_if([&](const function& f) { return f.whole == gone; });
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary handle, const char* name) {
  return library_call("cuLibraryGetKernel", handle, kernel != nullptr && name != nullptr,
                      [&](const std::shared_ptr<library>& from) -> CUresult {
                        auto made = find_function(from->described, name);
                        if (made == nullptr) return CUDA_ERROR_NOT_FOUND;
                        made->whole = from;
                        *kernel = the().functions.add(std::move(made));
                        return CUDA_SUCCESS;
                      });
}

WEFT_VIRTUAL_API CUresult cuLibraryGetModule(CUmodule* module_handle, CUlibrary handle) {
  return context_call("cuLibraryGetModule", module_handle != nullptr, [&](const context_ref& c) -> CUresult {
    const auto found = libraries().find(handle);
    return found == nullptr ? CUDA_ERROR_INVALID_HANDLE : found->in(c, *module_handle);
  });
}

WEFT_VIRTUAL_API CUresult cuKernelGetFunction(CUfunction* handle, CUkernel kernel) {
  return context_call("cuKernelGetFunction", handle != nullptr, [&](const context_ref& c) -> CUresult {
    auto f = the().functions.find(kernel);
    if (f == nullptr || f->whole == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult code = resolve(c, f); code != CUDA_SUCCESS) return code;
    *handle = the().functions.add(std::move(f));
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuKernelGetAttribute(int* value, int attribute, CUkernel kernel, CUdevice ordinal) {
  return plain_call("cuKernelGetAttribute", value != nullptr, [&]() -> CUresult {
    if (!the().valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    const auto f = the().functions.find(kernel);
    return f == nullptr || f->whole == nullptr ? CUDA_ERROR_INVALID_HANDLE : attribute_of(*f, attribute, value);
  });
}

}  // namespace weft::virtual_cuda
