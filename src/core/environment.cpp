// SPDX-License-Identifier: Apache-2.0
#include "core/environment.hpp"

#include "weft/core/raise.hpp"

#include <charconv>
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

std::optional<int> environment_number(const char* name, int least, int most) {
  const auto text = environment(name);
  if (!text) return std::nullopt;
  int value = 0;
  const auto [end, failed] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (failed != std::errc{} || end != text->data() + text->size() || value < least || value > most) {
    raise(errc::invalid_argument, std::string{name} + " is \"" + *text + "\"; expected a number from " +
                                      std::to_string(least) + " to " + std::to_string(most));
  }
  return value;
}

}  // namespace weft::detail
