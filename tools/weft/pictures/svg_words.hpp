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

/// A text, cut where it is longer.
inline std::string fitted(const std::string& text, std::size_t letters) {
  if (text.size() <= letters) return text;
  std::size_t end = letters - 2;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // not inside a UTF-8 letter
  return text.substr(0, end) + "..";
}

/// A device's name without the words in front that do not fit: models differ at the end.
inline std::string fitted_name(std::string name, std::size_t letters) {
  for (std::size_t space = name.find(' '); name.size() > letters && space != std::string::npos; space = name.find(' '))
    name.erase(0, space + 1);
  return fitted(name, letters);
}

}  // namespace weft::tool
