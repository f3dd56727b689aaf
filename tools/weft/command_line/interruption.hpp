// SPDX-License-Identifier: Apache-2.0
// How a user stops a command.
#pragma once

#include <chrono>
#include <stop_token>
#include <string>

namespace weft::tool {

/// WEFT_INTERRUPT_GRACE, in milliseconds, from 1 to an hour, else 800. Errors: usage for any other text.
[[nodiscard]] std::chrono::milliseconds interrupt_grace();

/// From now on SIGINT and SIGTERM ask the command to stop, and a second one ends the process at once. A command that
/// has not ended after `grace`, because it is in the middle of what cannot be stopped, ends with 130 and with what it
/// has written. Files that grow beyond the limit of the process are an error of the write.
void watch_interrupts(std::chrono::milliseconds grace = interrupt_grace());
/// A file that is half written, to be removed when the process is ended so; empty: none.
void remove_when_ended(const std::string& unfinished);
[[nodiscard]] bool interrupted();
/// The same for calls that take a token.
[[nodiscard]] std::stop_token interruption();

}  // namespace weft::tool
