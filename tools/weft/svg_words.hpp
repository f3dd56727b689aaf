// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace weft::tool {

/// Words of a file inside XML: neither markup nor letters that XML does not have.
inline std::string svg_words(std::string_view text) {
  std::string safe;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    // U+FFFE and U+FFFF are valid in JSON, and in no XML
    if (text.substr(i).starts_with("\xef\xbf\xbe") || text.substr(i).starts_with("\xef\xbf\xbf")) {
      safe += ' ';
      i += 2;
      continue;
    }
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return safe;
}

}  // namespace weft::tool
