// SPDX-License-Identifier: Apache-2.0
#include "weft/core/raise.hpp"

#include "core/called_from.hpp"

#include <string_view>

namespace weft {
namespace {

/// The folder of the library's sources; empty where they were compiled under relative names, which a program's may
/// share.
std::string_view own_folder() {
  constexpr std::string_view name = "core/raise.cpp";
  const std::string_view path = std::source_location::current().file_name();
  return path.starts_with('/') && path.ends_with(name) ? path.substr(0, path.size() - name.size()) : "";
}

/// Where the library calls its own public functions, their default arguments name its sources: no place in the program.
bool is_of_program(const std::source_location& where) {
  const std::string_view own = own_folder();
  return where.line() != 0 && (own.empty() || !std::string_view{where.file_name()}.starts_with(own));
}

/// What failed in the background names the call that began it: that comes first.
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
