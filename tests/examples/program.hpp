// SPDX-License-Identifier: Apache-2.0
// Runs a program of this build as a reader would.
#pragma once

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/wait.h>

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
  std::string path = WEFT_BIN_DIR "/";  // appended to: g++ 12 sees a wrong bound in a chain of +
  path.append(name);
  return path;
}

}  // namespace programs
