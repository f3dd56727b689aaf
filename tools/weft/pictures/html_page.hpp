// SPDX-License-Identifier: Apache-2.0
// One HTML file that can be mailed: no scripts, no links to other files, pictures as SVG inside.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::tool {

class html_page {
 public:
  explicit html_page(std::string_view title);

  /// Texts are escaped; markup() is not.
  void heading(std::string_view text);
  void paragraph(std::string_view text);
  void table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows);
  void picture(std::string_view svg);
  void markup(std::string_view html) { text_ += html; }

  [[nodiscard]] std::string finish() const { return text_ + "</body></html>\n"; }

 private:
  std::string text_;
};

}  // namespace weft::tool
