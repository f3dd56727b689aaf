// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/bytes.hpp"
#include "weft/core/internals.hpp"
#include "weft/runtime/device.hpp"
#include "weft/runtime/machine.hpp"

#include <memory>
#include <source_location>

namespace weft {

namespace detail {
struct reservation_body;
}

/// Addresses without memory, for blocks to be mapped at: as many as may ever be needed, since they cost nothing. Copies
/// share it; the addresses go back when the last of them and the last mapping in it have gone.
///
/// Thread: any for const functions.
class address_reservation {
 public:
  address_reservation() = default;
  /// At least `size`: rounded up to the granularity. `alignment` is 0 or a power of two; `hint` is a wish.
  /// Errors: invalid_argument; out_of_memory or resource_exhausted where there are no addresses left; unsupported.
  address_reservation(const machine& m, bytes size, bytes alignment = {}, void* hint = nullptr,
                      std::source_location where = std::source_location::current());
  address_reservation(const device& any_of_machine, bytes size, bytes alignment = {}, void* hint = nullptr,
                      std::source_location where = std::source_location::current());

  /// Its first address; it belongs to devices, and the host must not follow it.
  [[nodiscard]] void* base() const;
  [[nodiscard]] bytes size() const;
  explicit operator bool() const { return body_ != nullptr; }

 private:
  friend struct detail::internals;
  [[nodiscard]] const std::shared_ptr<detail::reservation_body>& body() const { return body_; }

  address_reservation(const std::shared_ptr<detail::machine_state>& state, bytes size, bytes alignment, void* hint,
                      std::source_location where);

  std::shared_ptr<detail::reservation_body> body_;
};

}  // namespace weft
