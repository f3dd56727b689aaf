// SPDX-License-Identifier: Apache-2.0
// Addresses as numbers, and the errors of addresses: nobody allocated it, or a range passes the end.
#pragma once

#include "core/errors/make_error.hpp"
#include "core/text/hex.hpp"
#include "os/pages.hpp"
#include "weft/core/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weft {

[[nodiscard]] inline std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

/// not_found. `what` is the address as the caller knows it: "the destination 0x7f… of a fill".
[[nodiscard]] inline error not_allocated(const std::string& what) {
  return make_error(errc::not_found, what + " lies in no allocation of this machine; was it freed?");
}
[[nodiscard]] inline error not_allocated(const void* address) { return not_allocated(hex(address)); }

[[nodiscard]] inline error closed_machine() { return make_error(errc::machine_closed, "the machine is closed"); }

/// out_of_range where `size` bytes at `address` pass the end of the allocation of `allocated` bytes at `base`, in which
/// the address lies. `what` as the caller knows it: "the source range".
[[nodiscard]] std::optional<error> beyond_end(std::string_view what, std::uint64_t size, const void* address,
                                              const void* base, std::uint64_t allocated,
                                              std::optional<device_id> on = {});

}  // namespace weft
