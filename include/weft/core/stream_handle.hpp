// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace weft {

/// Names a stream inside its backend. 0 is no stream.
enum class stream_handle : std::uint64_t { none = 0 };

}  // namespace weft
