// SPDX-License-Identifier: Apache-2.0
// Combining memory element by element, by the same kernels in a stream of any device and on the calling thread: one
// definition, so that the bits do not depend on who computes.
#pragma once

#include "weft/collective/data_type.hpp"
#include "weft/collective/reduction_op.hpp"
#include "weft/exec/launch.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace weft::detail {

/// Inputs, and outputs, that one fold kernel takes.
inline constexpr std::size_t fold_width = 8;
/// Elements of one item of a fold kernel.
inline constexpr std::int64_t fold_block = 512;

/// "sum", "average"; "user" of a kernel that has a name of its own.
[[nodiscard]] std::string_view to_string(reduction_op::kind op);

/// The kernel of one type of element. Its parameters: eight inputs and eight outputs, of which `inputs` and `outputs`
/// are used, then `count` (elements of each), `inputs`, `outputs`, `op` (a reduction_op::kind), `divide_by`.
[[nodiscard]] const std::shared_ptr<const kernel_code>& fold_kernel(data_type type);

/// What a kernel sees elements as: half and bfloat16, which no kernel takes, are their bits.
[[nodiscard]] element_type stored_as(data_type type);

/// Combines inputs[0], inputs[1], … in this order into each of the outputs. More than fold_width inputs or outputs are
/// taken in several passes: the first eight, then that and the next seven; so half and bfloat16, which are combined in
/// float, are rounded once for each pass. With `divide_by` > 1 the result is divided by it.
/// Shape: `count` elements each; an output may be an input, but may not overlap one otherwise. `divide_by` < 2^31.
///   More than fold_width inputs, and a user's op of more than one, need a place to work in: an output that is none of
///   the inputs still to be read (from the ninth on, from the second on). All inputs in place are fine, as the first is
///   then that output.
/// One input that is not divided is copied bit for bit.
struct fold_request {
  data_type type = data_type::float32;
  reduction_op::kind op = reduction_op::kind::sum;
  std::shared_ptr<const kernel_code> user;  // for kind::user
  std::int64_t count = 0;
  std::int64_t divide_by = 1;
  bool checks_access = false;  // of the user's kernel, on the calling thread
  std::span<void* const> inputs, outputs;
};

/// On the calling thread, over memory that it may follow. Cost: one pass over the memory for up to eight ranks; no
/// allocation.
/// Errors: unsupported without a place to work in, and for a user's op of a type that no kernel takes; incompatible for
///   one of another type. Nothing has been written then. illegal_access and kernel_failed of a user's op, as of a
///   launch.
void fold_here(const fold_request& request);

/// In a stream, by its device, over memory that the device has a right to. The event of the last pass.
/// Errors: those of fold_here, and of a launch.
[[nodiscard]] event fold_in(const stream& order, const fold_request& request, const launch_options& options,
                            std::source_location where);

/// Arrays that one launch of a fold reads and writes.
struct fold_launch {
  std::size_t inputs = 0, outputs = 0;
};

/// Adds the launches that a fold takes in a stream. Of addresses it matters which are the same, and nothing more.
/// Errors: those of fold_here.
void launches_of(const fold_request& request, std::vector<fold_launch>& into);

}  // namespace weft::detail
