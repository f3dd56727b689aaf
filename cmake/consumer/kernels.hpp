// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/kernel/define.hpp>

WEFT_KERNEL(doubles, (WEFT_INOUT(float) numbers), { numbers[i] = numbers[i] * 2.0f; });
