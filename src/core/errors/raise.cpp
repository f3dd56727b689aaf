// SPDX-License-Identifier: Apache-2.0
#include "weft/core/raise.hpp"

#include "core/errors/called_from.hpp"

#include <string_view>

namespace weft {
namespace {

/// Where the library calls its own public functions, their default arguments name its sources: no place in the program.
/// CMakeLists.txt compiles these under names that begin so, in whatever folder they lie; headers are installed
/// anywhere.
bool is_of_program(const std::source_location& where) {
  const std::string_view file = where.file_name();
  return where.line() != 0 && !file.starts_with("weft/src/") && file.find("include/weft/") == file.npos;
}

/// A failure in the background names the call that began it: that comes first.
std::source_location place_of(const error& cause) {
  for (const std::source_location& where : {cause.where, called_from::place()}) {
    if (is_of_program(where)) return where;
  }
  return {};
}

}  // namespace

error_exception::error_exception(error cause) : std::runtime_error(to_string(cause)), cause_(std::move(cause)) {}

void raise(error cause) {
  cause.where = place_of(cause);
  throw error_exception(std::move(cause));
}

void raise(errc code, std::string what, std::source_location where) {
  error cause;
  cause.code = code;
  cause.what = std::move(what);
  cause.where = where;
  raise(std::move(cause));
}

}  // namespace weft
