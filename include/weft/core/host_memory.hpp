// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/bytes.hpp"

namespace weft {

/// Memory of this host as this process may have it: that of the computer, or less where its control groups limit it
/// (memory.max of cgroup v2, memory.limit_in_bytes of v1, of its own group and those above).
struct host_memory {
  bytes total;
  bytes free;  // caches that the system gives back count as free
};
/// Reads some files of the system: for a start, not for a loop.
[[nodiscard]] host_memory memory_of_host();

}  // namespace weft
