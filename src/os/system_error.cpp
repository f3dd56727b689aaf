// SPDX-License-Identifier: Apache-2.0
#include "os/system_error.hpp"

#include "core/errors/make_error.hpp"

#include <cerrno>
#include <system_error>
#include <utility>

namespace weft::detail {

error system_error(std::string doing, int number) {
  std::string what = std::move(doing) + ": " + std::generic_category().message(number);
  switch (number) {
    case EMFILE:
      return make_error(errc::resource_exhausted,
                        std::move(what) + "; raise the process's limit of open files (ulimit -n)", error_scope::call,
                        number);
    case ETOOMANYREFS:
      return make_error(errc::resource_exhausted,
                        std::move(what) + "; too many descriptors are under way that nobody has received",
                        error_scope::call, number);
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
      return make_error(errc::resource_exhausted, std::move(what), error_scope::call, number);
    default:
      return make_error(errc::io_failed, std::move(what), error_scope::call, number);
  }
}

}  // namespace weft::detail
