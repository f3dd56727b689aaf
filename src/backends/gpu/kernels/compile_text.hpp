// SPDX-License-Identifier: Apache-2.0
// What NVRTC and HIPRTC have alike: a program is made of a text, compiled, asked for its log and its code, and ended.
#pragma once

#include "backends/common/compiler_words.hpp"
#include "backends/gpu/kernels/run_time_compiler.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace weft::gpu {

/// The functions of such a library. All return 0 when they have done it.
template <class Create, class Destroy, class Compile, class Size, class Text>
struct program_calls {
  const char* name;       // "NVRTC"
  const char* extension;  // ".cu"
  int out_of_memory;
  Create create;
  Destroy destroy;
  Compile compile;
  Size log_size;
  Text log;
  Size code_size;
  Text code;
};

/// `library` is its file, for errors. Errors: as run_time_compiler::compile().
template <class Program, class... Types>
result<compiled_image> compile_text(const program_calls<Types...>& call, const std::string& library,
                                    const kernel_code& code, const std::string& text, const std::string& target,
                                    const std::vector<std::string>& options) {
  std::vector<const char*> pointers;
  pointers.reserve(options.size());
  for (const std::string& option : options) pointers.push_back(option.c_str());
  const auto kind_of = [&](int status) {
    return status == call.out_of_memory ? errc::resource_exhausted : errc::incompatible;
  };

  Program program = nullptr;
  int status = call.create(&program, text.c_str(), (code.name + call.extension).c_str(), 0, nullptr, nullptr);
  if (status != 0) {
    return make_error(kind_of(status), common::title_of(code) + ": " + library + " takes no program (error " +
                                           std::to_string(status) + ")");
  }
  status = call.compile(program, static_cast<int>(pointers.size()), pointers.data());
  const auto read = [&](auto size_of, auto read_into, std::string& into) {
    std::size_t size = 0;
    int said = size_of(program, &size);
    into.resize(said == 0 ? size : 0);
    if (said == 0 && size != 0) said = read_into(program, into.data());
    return said;
  };
  compiled_image made;
  if (read(call.log_size, call.log, made.log) != 0) made.log.clear();
  made.log.resize(std::min(made.log.find('\0'), made.log.size()));
  if (status == 0) status = read(call.code_size, call.code, made.bytes);
  static_cast<void>(call.destroy(&program));
  if (status == 0) return made;
  error cause = common::does_not_compile(
      code, target, made.log.empty() ? std::string{call.name} + " error " + std::to_string(status) : made.log,
      kind_of(status));
  cause.native_code = status;
  return cause;
}

}  // namespace weft::gpu
