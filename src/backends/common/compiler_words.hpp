// SPDX-License-Identifier: Apache-2.0
// The words of a run-time compiler about a kernel's text, as an error.
#pragma once

#include "core/errors/make_error.hpp"
#include "weft/backend/kernel_code.hpp"

#include <string>

namespace weft::common {

/// "image.cpp:12: the kernel 'scale'"
inline std::string title_of(const kernel_code& code) {
  return (code.file.empty() ? "" : code.file + ":" + std::to_string(code.line) + ": ") + "the kernel '" + code.name +
         "'";
}

/// The first line of a compiler's words that speaks of an error: with WEFT_KERNEL it begins with the user's file.
inline std::string first_complaint(const std::string& words) {
  std::size_t at = words.find("error:");
  if (at == std::string::npos) at = words.find("error");
  if (at == std::string::npos) return words.substr(0, words.find('\n'));
  const std::size_t begin = words.rfind('\n', at);
  const std::size_t first = begin == std::string::npos ? 0 : begin + 1;
  return words.substr(first, words.find('\n', at) - first);
}

inline error does_not_compile(const kernel_code& code, const std::string& target, const std::string& words,
                              errc why = errc::incompatible) {
  constexpr std::size_t most = 2000;
  return make_error(why, title_of(code) + " does not compile for " + target + ": " + first_complaint(words) + "\n" +
                             words.substr(0, most));
}

}  // namespace weft::common
