// SPDX-License-Identifier: Apache-2.0
#include "backend/kernels/kernel_outcome.hpp"

#include "core/errors/make_error.hpp"

#include <exception>
#include <string>

namespace weft {

std::optional<error> kernel_outcome(const kernel_code& kernel, const kernel_range& range,
                                    std::span<const kernel_argument> arguments, bool checks_access,
                                    std::optional<device_id> by) {
  const auto place = [&] { return by ? " on " + to_string(*by) : std::string{}; };
  const auto threw = [&](const std::string& words) {
    return make_error(errc::kernel_failed, "kernel '" + kernel.name + "'" + place() + " threw" + words,
                      by ? error_scope::endpoint : error_scope::call);
  };
  try {
    if (!checks_access || kernel.host_checked == nullptr) {
      kernel.host(range, arguments);
    } else if (const auto bad = kernel.host_checked(range, arguments)) {
      return make_error(errc::illegal_access, describe(kernel, *bad) + place(),
                        by ? error_scope::device : error_scope::call);
    }
    return std::nullopt;
  } catch (const std::exception& thrown) {
    return threw(std::string{": "} + thrown.what());
  } catch (...) {
    return threw("");
  }
}

}  // namespace weft
