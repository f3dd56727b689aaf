// SPDX-License-Identifier: Apache-2.0
#include "weft/backend/registry.hpp"

#if defined(WEFT_HAS_CUDA)
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

#if !defined(WEFT_HAS_CUDA)
namespace gpu {

// Listed where it was not built too, so that a machine can say why.
static result<std::unique_ptr<backend>> open(const backend_options&) noexcept {
  error cause;
  cause.code = errc::unsupported;
  cause.what = "this build has no CUDA backend: it was told WEFT_CUDA=OFF";
  cause.where = {};
  return cause;
}

}  // namespace gpu
#endif

#if !defined(WEFT_HAS_OPENCL)
namespace opencl {

static result<std::unique_ptr<backend>> open(const backend_options&) noexcept {
  error cause;
  cause.code = errc::unsupported;
  cause.what = "this build has no OpenCL backend: it found no CL/cl.h (opencl-c-headers), or was told WEFT_OPENCL=OFF";
  cause.where = {};
  return cause;
}

}  // namespace opencl
#endif

std::span<const backend_entry> built_backends() {
  static constexpr std::array entries{
      backend_entry{backend_kind::cuda, "cuda", &gpu::open},
      backend_entry{backend_kind::host, "host", &host::open},
      // after the host: OpenCL may have nothing but the processor, which the host backend is closer to
      backend_entry{backend_kind::opencl, "opencl", &opencl::open},
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
