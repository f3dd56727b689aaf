// SPDX-License-Identifier: Apache-2.0
// The functions of HIPRTC that this backend calls, declared by ourselves: its header need not be there.
// tests/backend/hip_declarations_test.cpp holds the signatures against hiprtc.h where one is.
#pragma once

#include <cstddef>

// NOLINTBEGIN(readability-identifier-naming): the names of the library
namespace weft::gpu::amd {

using hiprtcResult = int;
using hiprtcProgram = struct hip_program_object*;

inline constexpr hiprtcResult HIPRTC_SUCCESS = 0;
inline constexpr hiprtcResult HIPRTC_ERROR_OUT_OF_MEMORY = 1;
inline constexpr hiprtcResult HIPRTC_ERROR_COMPILATION = 6;

}  // namespace weft::gpu::amd

// clang-format off
#define WEFT_GPU_HIPRTC_FUNCTIONS(FUNCTION)                                                                      \
  FUNCTION(hiprtcCreateProgram, (hiprtcProgram* program, const char* source, const char* name, int header_count, \
                                 const char** headers, const char** include_names))                              \
  FUNCTION(hiprtcDestroyProgram, (hiprtcProgram* program))                                                       \
  FUNCTION(hiprtcCompileProgram, (hiprtcProgram program, int option_count, const char** options))                \
  FUNCTION(hiprtcGetCodeSize, (hiprtcProgram program, std::size_t* size))                                        \
  FUNCTION(hiprtcGetCode, (hiprtcProgram program, char* bytes))                                                  \
  FUNCTION(hiprtcGetProgramLogSize, (hiprtcProgram program, std::size_t* size))                                  \
  FUNCTION(hiprtcGetProgramLog, (hiprtcProgram program, char* text))
// clang-format on

namespace weft::gpu::amd {

/// HIPRTC as a table; none of them is null.
struct hiprtc_functions {
#define WEFT_GPU_MEMBER(name, parameters) hiprtcResult(*name) parameters = nullptr;
  WEFT_GPU_HIPRTC_FUNCTIONS(WEFT_GPU_MEMBER)
#undef WEFT_GPU_MEMBER
};

}  // namespace weft::gpu::amd
// NOLINTEND(readability-identifier-naming)
