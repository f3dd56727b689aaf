// SPDX-License-Identifier: Apache-2.0
// How the layers below `raise` make an error: it says what happened, and not at which line of the library.
#pragma once

#include "weft/core/error.hpp"

#include <memory>
#include <string>
#include <utility>

namespace weft {

[[nodiscard]] inline error make_error(errc code, std::string what, error_scope scope = error_scope::call,
                                      int native = 0) {
  error cause;
  cause.code = code;
  cause.scope = scope;
  cause.native_code = native;
  cause.what = std::move(what);
  cause.where = {};
  return cause;
}

/// For an event, which its waiters share.
[[nodiscard]] inline std::shared_ptr<const error> shared_error(error cause) {
  return std::make_shared<const error>(std::move(cause));
}

}  // namespace weft
