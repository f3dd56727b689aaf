#pragma once
// SPDX-License-Identifier: Apache-2.0
// A kernel as source text for the run-time compilers: NVRTC, HIPRTC and OpenCL C, 1.2 but for rings.

#include "weft/backend/kernel_code.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

enum class dialect : std::uint8_t { cuda, hip, opencl };

/// The whole translation unit of a kernel; empty for a raw kernel without a source in that dialect.
/// Shape: it defines kernel_entry(code), which takes the parameters in order (buffers as pointers to element 0), then
///   int64 begin and end for x, for y in 2-D, for y and z in 3-D. Work item (0, 0, 0) computes the id begin; items at
///   or past end do nothing, so that the grid may be rounded up. A kernel with rings has weft/kernel/ring.h before it.
///   Of a kernel with a form for GPUs, CUDA and HIP get that: item_lanes work items for each id, and groups that are a
///   multiple of it.
/// Order: a compiler's complaint about the body names the file and line of its WEFT_KERNEL.
[[nodiscard]] std::string kernel_text(const kernel_code& code, dialect language);

/// Whether a kernel has a reduce() parameter, any of whose elements every work item may change: then kernel_text
/// defines two functions, to be launched one behind the other on the grid of reduction_grid_for(). A raw kernel never
/// has. Shape: 1. kernel_entry(code): the arguments as above (those of reduce() parameters are not touched), then a
/// pointer to
///   reduction_grid::scratch bytes, aligned to 16 and not initialised; for each reduce() parameter, in order, the int64
///   number of its elements; int64 reduction_grid::step. In one dimension, exactly `groups` groups of `group` items.
///   2. combine_entry(code): the scratch; int64 groups; int64 group; for each reduce() parameter, in order, a pointer
///   to its memory, int64 elements from there to element 0, int64 number of elements. In one dimension, at least
///   reduction_grid::elements items. It adds to what is there. Scratch lives until it has ended.
/// Order: neither uses atomics or shared memory, and what is joined with what follows from the grid alone: the bits of
/// a
///   launch on a device do not change from run to run.
[[nodiscard]] bool has_reduction(const kernel_code& code);

/// The name of the second function of a kernel that has_reduction().
[[nodiscard]] std::string combine_entry(const kernel_code& code);

/// The name of the function in kernel_text: the kernel's with "_kernel" behind it, which no built-in function has.
[[nodiscard]] std::string kernel_entry(const kernel_code& code);

/// The options that the text of a kernel without rings needs to compute what the host computes: no fused multiply-add,
/// a language version. The architecture is the caller's.
[[nodiscard]] std::vector<std::string> kernel_options(dialect language);

/// The same for any kernel. One with rings needs OpenCL C 2.0 or 3.0: `newest_opencl_c` is the newest version that the
/// device lists, 100 times major + 10 times minor, as 120 or 300.
/// Errors: none here; a device with rings needs atomics of 64 bits, and fine-grained shared memory for its rings.
[[nodiscard]] std::vector<std::string> kernel_options(const kernel_code& code, dialect language, int newest_opencl_c);

/// OpenCL rounds float division and square root correctly only if asked, and only a device with
/// CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT may be asked: elsewhere the build would fail.
inline constexpr std::string_view opencl_correctly_rounded_option = "-cl-fp32-correctly-rounded-divide-sqrt";

/// For a reduction_grid whose groups are of one: the first kernel of a reduction is then without a barrier.
inline constexpr std::string_view opencl_lone_lanes_option = "-DWEFT_LONE_LANES";

}  // namespace weft
