// SPDX-License-Identifier: Apache-2.0
#include "weft/backend/registry.hpp"

#if defined(WEFT_HAS_CUDA) || defined(WEFT_HAS_HIP)
#include "backends/gpu/factory.hpp"
#endif
#include "backends/host/factory.hpp"
#include "backends/null/factory.hpp"
#if defined(WEFT_HAS_OPENCL)
#include "backends/opencl/factory.hpp"
#endif

#include <algorithm>
#include <array>

namespace weft {

namespace {

// Backends that were not built are listed too, so that a machine can say why it has none.
[[maybe_unused]] error not_built(const char* why) {
  error cause;
  cause.code = errc::unsupported;
  cause.what = why;
  cause.where = {};
  return cause;
}

#if defined(WEFT_HAS_CUDA)
constexpr backend_entry cuda{backend_kind::cuda, "cuda", &gpu::open, true, &gpu::compile};
#else
result<std::unique_ptr<backend>> no_cuda(const backend_options&) noexcept {
  return not_built("this build has no CUDA backend: it was told WEFT_CUDA=OFF");
}
constexpr backend_entry cuda{backend_kind::cuda, "cuda", &no_cuda, false};
#endif

#if defined(WEFT_HAS_HIP)
constexpr backend_entry hip{backend_kind::hip, "hip", &gpu::open_hip, true, &gpu::compile_for_hip};
#else
result<std::unique_ptr<backend>> no_hip(const backend_options&) noexcept {
  return not_built("this build has no HIP backend: it was told WEFT_HIP=OFF");
}
constexpr backend_entry hip{backend_kind::hip, "hip", &no_hip, false};
#endif

#if defined(WEFT_HAS_OPENCL)
constexpr backend_entry open_cl{backend_kind::opencl, "opencl", &opencl::open, true, &opencl::compile};
#else
result<std::unique_ptr<backend>> no_opencl(const backend_options&) noexcept {
  return not_built(
      "this build has no OpenCL backend: it found no CL/cl.h (opencl-c-headers), or was told WEFT_OPENCL=OFF");
}
constexpr backend_entry open_cl{backend_kind::opencl, "opencl", &no_opencl, false};
#endif

}  // namespace

std::span<const backend_entry> built_backends() {
  static constexpr std::array entries{
      cuda,
      hip,
      backend_entry{backend_kind::host, "host", &host::open},
      // after the host: OpenCL may have nothing but the processor, which the host backend is closer to
      open_cl,
      backend_entry{backend_kind::null, "null", &null_device::open},
  };
  return entries;
}

const backend_entry* find_backend(std::string_view name) {
  const auto all = built_backends();
  const auto it = std::find_if(all.begin(), all.end(), [&](const backend_entry& e) { return e.name == name; });
  return it == all.end() ? nullptr : &*it;
}

}  // namespace weft
