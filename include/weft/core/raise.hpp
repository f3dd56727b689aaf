// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/error.hpp"
#include "weft/core/result.hpp"

#include <source_location>
#include <stdexcept>
#include <string>

namespace weft {

/// The one exception of the C++ façade; carries the whole error.
class error_exception : public std::runtime_error {
 public:
  explicit error_exception(error cause);
  [[nodiscard]] const error& cause() const noexcept { return cause_; }
  [[nodiscard]] errc code() const noexcept { return cause_.code; }

 private:
  error cause_;
};

/// Throws error_exception: the library's only throw.
[[noreturn]] void raise(error cause);
[[noreturn]] void raise(errc code, std::string what, std::source_location where = {});

/// The value of a result, or its error thrown: the step from the backend border into the façade.
template <class T>
T value_or_raise(result<T> r, std::source_location where = std::source_location::current()) {
  if (!r) {
    if (r.error().where.line() == 0) r.error().where = where;
    raise(std::move(r).error());
  }
  if constexpr (!std::is_void_v<T>) return std::move(r).value();
}

namespace detail {

/// The part that a public object owns, or an error that names the object.
template <class Pointer>
[[nodiscard]] const Pointer& not_moved_from(const Pointer& owned, const char* object, std::source_location where = {}) {
  if (!owned) raise(errc::invalid_argument, std::string{"an empty "} + object + ": it was moved from", where);
  return owned;  // NOLINT(bugprone-return-const-ref-from-parameter): of a member, whose check this is
}

}  // namespace detail

}  // namespace weft
