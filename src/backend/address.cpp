// SPDX-License-Identifier: Apache-2.0
#include "backend/address.hpp"

#include "core/text/readable.hpp"
#include "weft/core/bytes.hpp"

namespace weft {

std::optional<error> beyond_end(std::string_view what, std::uint64_t size, const void* address, const void* base,
                                std::uint64_t allocated, std::optional<device_id> on) {
  const std::uint64_t offset = number(address) - number(base);
  if (size <= allocated - offset) return std::nullopt;
  // a rounded size would hide by how little it passes
  return make_error(errc::out_of_range, std::string{what} + " of " + detail::exact_size(size) + " at offset " +
                                            std::to_string(offset) + " passes the end of an allocation of " +
                                            detail::exact_size(allocated) + (on ? " on " + to_string(*on) : ""));
}

}  // namespace weft
