// SPDX-License-Identifier: Apache-2.0
// Other processes of this computer, watched by descriptors of theirs.
#pragma once

#include "weft/core/descriptor.hpp"
#include "weft/core/result.hpp"

#include <cstdint>
#include <sys/types.h>

namespace weft::detail {

/// Clock ticks from boot to the start of a process; 0 when unknown.
[[nodiscard]] std::uint64_t start_time_of(pid_t pid);
/// A pidfd of the process that has this pid and start time (0: any): readable once it has ended.
/// Errors: peer_dead when there is none any more; resource_exhausted.
[[nodiscard]] result<descriptor> watch_process(pid_t pid, std::uint64_t start_time);
[[nodiscard]] bool is_process_descriptor(int fd) noexcept;

}  // namespace weft::detail
