// SPDX-License-Identifier: Apache-2.0
// How the layers below `raise` make an error: it says what happened, and not at which line of the library.
#pragma once

#include "weft/core/error.hpp"

#include <memory>
#include <new>
#include <string>
#include <system_error>
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

/// Where the host has no memory left: the text is short enough to need none itself.
[[nodiscard]] inline error no_host_memory() noexcept {
  error cause;
  cause.code = errc::resource_exhausted;
  cause.what = "no host memory";
  cause.where = {};
  return cause;
}

/// Where a thread could not be started.
[[nodiscard]] inline error no_thread() {
  return make_error(errc::resource_exhausted,
                    "no thread could be started; raise the limit of threads (ulimit -u, or pids.max of the cgroup)");
}

/// Runs what allocates and starts threads, at a border that no exception may pass. `F` gives a result.
template <class F>
auto guarded(F&& f) noexcept -> decltype(f()) {
  try {
    try {
      return f();
    } catch (const std::system_error&) {
      return no_thread();
    }
  } catch (const std::bad_alloc&) {
    return no_host_memory();
  }
}

}  // namespace weft
