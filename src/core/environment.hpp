// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace weft::detail {

/// A variable that says what weft does or which libraries it loads. Absent where it is empty, and in a program that has
/// rights which its user has not (setuid, setgid, capabilities): that user must not choose what the program loads.
[[nodiscard]] std::optional<std::string> environment(const char* name);

/// The same of a variable that is "0" or "1". Errors: invalid_argument for anything else.
[[nodiscard]] std::optional<bool> environment_switch(const char* name);
/// The same of one that is a number. Errors: invalid_argument naming it and what it can be.
[[nodiscard]] std::optional<int> environment_number(const char* name, int least, int most);

}  // namespace weft::detail
