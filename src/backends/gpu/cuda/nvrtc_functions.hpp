// SPDX-License-Identifier: Apache-2.0
// The functions of NVRTC that this backend calls, declared by ourselves: its header need not be there.
// tests/backend/cuda_declarations_test.cpp holds the signatures against nvrtc.h where one is.
#pragma once

#include <cstddef>

// NOLINTBEGIN(readability-identifier-naming): the names of the library
namespace weft::gpu {

using nvrtcResult = int;
using nvrtcProgram = struct program_object*;

inline constexpr nvrtcResult NVRTC_SUCCESS = 0;
inline constexpr nvrtcResult NVRTC_ERROR_OUT_OF_MEMORY = 1;
inline constexpr nvrtcResult NVRTC_ERROR_COMPILATION = 6;

}  // namespace weft::gpu

// clang-format off
#define WEFT_GPU_NVRTC_FUNCTIONS(FUNCTION)                                                                       \
  FUNCTION(nvrtcGetNumSupportedArchs, (int* count))                                                              \
  FUNCTION(nvrtcGetSupportedArchs, (int* architectures))                                                         \
  FUNCTION(nvrtcCreateProgram, (nvrtcProgram* program, const char* source, const char* name, int header_count,   \
                                const char* const* headers, const char* const* include_names))                   \
  FUNCTION(nvrtcDestroyProgram, (nvrtcProgram* program))                                                         \
  FUNCTION(nvrtcCompileProgram, (nvrtcProgram program, int option_count, const char* const* options))            \
  FUNCTION(nvrtcGetPTXSize, (nvrtcProgram program, std::size_t* size))                                           \
  FUNCTION(nvrtcGetPTX, (nvrtcProgram program, char* text))                                                      \
  FUNCTION(nvrtcGetCUBINSize, (nvrtcProgram program, std::size_t* size))                                         \
  FUNCTION(nvrtcGetCUBIN, (nvrtcProgram program, char* bytes))                                                   \
  FUNCTION(nvrtcGetProgramLogSize, (nvrtcProgram program, std::size_t* size))                                    \
  FUNCTION(nvrtcGetProgramLog, (nvrtcProgram program, char* text))
// clang-format on

namespace weft::gpu {

/// NVRTC as a table; none of them is null. Every version from 11.2 on has them.
struct nvrtc_functions {
#define WEFT_GPU_MEMBER(name, parameters) nvrtcResult(*name) parameters = nullptr;
  WEFT_GPU_NVRTC_FUNCTIONS(WEFT_GPU_MEMBER)
#undef WEFT_GPU_MEMBER
};

}  // namespace weft::gpu
// NOLINTEND(readability-identifier-naming)
