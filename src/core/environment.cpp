// SPDX-License-Identifier: Apache-2.0
#include "core/environment.hpp"

#include "weft/core/raise.hpp"

#include <cstdlib>

namespace weft::detail {

std::optional<std::string> environment(const char* name) {
  const char* const value = ::secure_getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string{value};
}

std::optional<bool> environment_switch(const char* name) {
  const auto value = environment(name);
  if (!value) return std::nullopt;
  if (*value != "0" && *value != "1")
    raise(errc::invalid_argument, std::string{name} + " is '" + *value + "': expected 0 or 1");
  return *value == "1";
}

}  // namespace weft::detail
