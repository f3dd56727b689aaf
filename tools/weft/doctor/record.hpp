// SPDX-License-Identifier: Apache-2.0
// What the doctor knows of a computer: small files of its system, and answers of its libraries, as one JSON document
// (weft.machine/1). Checks read nothing else, so that a document from elsewhere gives the same findings.
#pragma once

#include "command_line/json_parts.hpp"
#include "command_line/output.hpp"

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tool {

/// Where the system lists what is on its PCI bus.
inline const std::string pci_folder = "/sys/bus/pci/devices/";

/// A document, read as if each of its parts could be absent or of another type: such a part is not there.
/// Thread: any.
class system_record {
 public:
  /// Errors: failure (usage) for what is no weft.machine/1, with what is wrong; `source` names the document.
  system_record(json document, const std::string& source);

  [[nodiscard]] const json& document() const { return document_; }

  /// A file's text without blanks at its ends.
  [[nodiscard]] std::optional<std::string> text(const std::string& file) const;
  /// A file's whole text as a number: decimal, or hexadecimal after 0x.
  [[nodiscard]] std::optional<std::int64_t> number(const std::string& file) const;
  /// What a symbolic link points to; empty without one.
  [[nodiscard]] std::string link(const std::string& path) const;
  /// Names in a folder; none where it does not exist.
  [[nodiscard]] std::vector<std::string> names(const std::string& folder) const;
  [[nodiscard]] bool has_folder(const std::string& folder) const;

  /// The part of the document at a JSON pointer ("/nvml/driver"); null where there is none.
  [[nodiscard]] const json& at(const std::string& pointer) const;

 private:
  json document_;
};

/// A text as a whole number, decimal or hexadecimal after 0x.
[[nodiscard]] std::optional<std::int64_t> whole_number(std::string_view text);
/// A list of the system, "0-3,8", as numbers; what is no such list ends it.
[[nodiscard]] std::set<int> number_list(std::string_view list);
/// A text without blanks and ends of lines around it.
[[nodiscard]] std::string_view trimmed(std::string_view text);

}  // namespace weft::tool
