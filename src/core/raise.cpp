// SPDX-License-Identifier: Apache-2.0
#include "weft/core/raise.hpp"

namespace weft {

error_exception::error_exception(error cause) : std::runtime_error(to_string(cause)), cause_(std::move(cause)) {}

void raise(error cause) { throw error_exception(std::move(cause)); }

void raise(errc code, std::string what, std::source_location where) {
  error cause;
  cause.code = code;
  cause.what = std::move(what);
  cause.where = where;
  raise(std::move(cause));
}

}  // namespace weft
