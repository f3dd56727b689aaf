// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/address_reservation.hpp"

#include "core/errors/called_from.hpp"
#include "memory/block_body.hpp"
#include "weft/core/log.hpp"

namespace weft {

void detail::held_range_traits::release(type& held) noexcept {
  if (!held.state->closed()) {
    const auto done = held.driver->free_reservation(held.base, held.size);
    if (!done) log(log_level::warning, to_string(done.error()));
  }
  held = {};
}

address_reservation::address_reservation(const machine& m, bytes size, bytes alignment, void* hint,
                                         std::source_location where)
    : address_reservation(detail::state_of(m), size, alignment, hint, where) {}

address_reservation::address_reservation(const device& any_of_machine, bytes size, bytes alignment, void* hint,
                                         std::source_location where)
    : address_reservation(detail::state_of(any_of_machine), size, alignment, hint, where) {}

address_reservation::address_reservation(const std::shared_ptr<detail::machine_state>& state, bytes size,
                                         bytes alignment, void* hint, std::source_location where) {
  const called_from here{where};
  state->require_open();
  if (size.value() == 0) raise(errc::invalid_argument, "a reservation of 0 bytes");
  backend& driver = detail::block_driver(*state);
  const bytes whole = detail::in_granules(*state, size);
  body_ = std::make_shared<detail::reservation_body>();
  body_->handle = unique_handle<detail::held_range_traits>{
      detail::held_range{state, &driver, value_or_raise(driver.reserve(whole, alignment, hint)), whole}};
}

void* address_reservation::base() const { return body_ ? body_->handle.get().base : nullptr; }
bytes address_reservation::size() const { return body_ ? body_->handle.get().size : bytes{}; }

}  // namespace weft
