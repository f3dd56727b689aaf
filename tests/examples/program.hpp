// SPDX-License-Identifier: Apache-2.0
// Runs a program of this build as a reader would.
#pragma once

#include "support/paths.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <system_error>

namespace programs {

struct outcome {
  int code = -1;
  std::string text;  // what it wrote, errors included
};

inline outcome run(const std::string& command) {
  outcome ended;
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return ended;
  std::array<char, 4096> part{};
  while (const std::size_t count = std::fread(part.data(), 1, part.size(), pipe)) ended.text.append(part.data(), count);
  const int status = ::pclose(pipe);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ended;
}

inline std::string program(const std::string& name) {
  std::string path = samples::program_folder() + "/";  // appended to: g++ 12 sees a wrong bound in a chain of +
  path.append(name);
  return path;
}

/// A new folder for what programs write; goes with this object.
class scratch_folder {
 public:
  scratch_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "weft-program-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error{"no folder for temporary files"};
    path_ = name;
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  ~scratch_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace programs
