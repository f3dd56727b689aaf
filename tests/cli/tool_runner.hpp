// SPDX-License-Identifier: Apache-2.0
// Runs the real tool in a process of its own.
#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace weft::test {

using words = std::vector<std::string>;

[[nodiscard]] inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
[[nodiscard]] inline words with(words first, const words& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

struct tool_result {
  int exit_code = -1;  // 128 + n when a signal n ended it
  std::string out;
  std::string err;

  [[nodiscard]] nlohmann::json document() const;
  /// One field of the document, as a value: a reference into document() would not outlive a range-for.
  [[nodiscard]] nlohmann::json field(const std::string& name) const;
};

/// Whether this system gives out terminals: a root without /dev/pts does not.
[[nodiscard]] bool has_terminals();

struct tool_environment {
  std::vector<std::string> set;           // "NAME=value"; WEFT_… and colour variables of the caller are not passed on
  std::filesystem::path standard_output;  // instead of a pipe
  std::filesystem::path folder;           // to start in
  int terminal_columns = 0;               // stdout is a terminal of this width instead of a pipe
  int signal_once_it_listens = 0;         // sent as soon as the program has a handler for it
};

[[nodiscard]] tool_result run_tool(const std::vector<std::string>& arguments, const tool_environment& environment = {});
/// Any program; found through PATH.
[[nodiscard]] tool_result run_program(const std::vector<std::string>& command,
                                      const tool_environment& environment = {});

/// Holds the documents that runs wrote to stdout to their schemas, in one go: 0, or 1 and `out` says what is wrong.
[[nodiscard]] tool_result check_documents(const std::vector<tool_result>& runs);
constexpr int no_checker = 77;  // its exit code where python3-jsonschema is not here
/// Runs these lines and fails for what is wrong with their documents; skips where there is no checker.
void expect_valid(const std::vector<words>& lines);

/// A folder that goes away with the object.
class scratch_folder {
 public:
  scratch_folder();
  ~scratch_folder();
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;

  [[nodiscard]] std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  std::filesystem::path path_;
};

[[nodiscard]] std::string read_text(const std::filesystem::path& file);
void write_text(const std::filesystem::path& file, const std::string& text);

}  // namespace weft::test
