// SPDX-License-Identifier: Apache-2.0
// The one limit that tests give what must end: no result may hang on how fast the machine is.
#pragma once

#include <chrono>

namespace samples {

inline constexpr std::chrono::seconds only_a_hang{60};  // nothing but a hang comes to it, on however slow a machine

}  // namespace samples
