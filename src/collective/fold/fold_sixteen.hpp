// SPDX-License-Identifier: Apache-2.0
// The fold kernels of half and bfloat16 once more, for processors of x86-64-v3: by their conversion instructions, and
// without the arrays between the passes that a text for every device needs. The bits are the same, but for those of
// what is not a number.
#pragma once

#include "weft/collective/data_type.hpp"
#include "weft/kernel/define.hpp"

namespace weft::detail {

/// The host loop of such a fold kernel for this processor; `otherwise` where it, or the compiler, has no such
/// instructions.
[[nodiscard]] host_entry fold_of_sixteen_bits(data_type type, host_entry otherwise);

}  // namespace weft::detail
