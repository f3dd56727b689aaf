// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

namespace weft {

/// debug: each decision. info: a decision that is new – the route of a pair, the algorithm of a collective, how a
/// kernel is divided, the mode of a queue, the devices of a machine. warning: something works less well than it could.
/// error: a failure that no call could report.
enum class log_level : unsigned char { debug, info, warning, error };
[[nodiscard]] std::string_view to_string(log_level level);

/// Where the library's remarks go. Silent until set, but for the variable WEFT_LOG: debug, info, warning or error
/// writes what is as grave, or graver, to stderr as lines "weft TIME [rank R] LEVEL: text", whatever the hook does.
/// The hook may log, call set_log_hook(), and ask weft about its objects. Remarks made during its call, by it or by
/// weft, go to stderr alone. It must not wait for another thread, call verify_peers(), or begin or end grants or peer
/// access: a remark may come from the middle of such a call.
/// Thread: the hook may be called from any thread, one call at a time.
using log_hook = std::function<void(log_level, std::string_view)>;

/// Replaces the hook of the process and returns a copy of the one before, which is not running any more, unless it is
/// its own call that replaces it. It is told of what is at least as grave as `least`. An empty hook is silence.
log_hook set_log_hook(log_hook hook, log_level least = log_level::warning);

/// Whether anybody hears a remark of this level: asked before its text is put together. Cost: one atomic load.
[[nodiscard]] bool is_logged(log_level level) noexcept;

/// Hands one remark to those who hear it.
void log(log_level level, std::string_view text) noexcept;

}  // namespace weft
