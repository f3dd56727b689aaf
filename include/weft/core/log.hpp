// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

namespace weft {

enum class log_level : unsigned char { warning, error };

/// Where the library's few remarks go (a failure in a destructor, a machine that fell back). Silent until set.
/// Thread: the hook may be called from any thread, one call at a time.
using log_hook = std::function<void(log_level, std::string_view)>;

/// Replaces the hook of the process and returns the one before. An empty hook is silence.
log_hook set_log_hook(log_hook hook);

/// Hands one remark to the hook.
void log(log_level level, std::string_view text) noexcept;

}  // namespace weft
