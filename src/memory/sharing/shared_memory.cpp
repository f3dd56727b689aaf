// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/shared_memory.hpp"

#include "core/errors/called_from.hpp"
#include "runtime/peer_checks.hpp"
#include "weft/core/log.hpp"
#include "weft/memory/peer_access.hpp"

namespace weft::detail {

shared_bytes export_memory(const memory_ref& memory, handle_family family, std::source_location where) {
  const called_from here{where};
  if (memory.state == nullptr) raise(errc::invalid_argument, "exporting an empty span, or host memory");
  memory.state->require_open();
  return value_or_raise(
      memory.state->backend_of(memory.device).export_memory(memory.address, bytes{memory.size}, family));
}

opened_place open_memory(const std::shared_ptr<machine_state>& state, device_id by, const shared_bytes& handle,
                         handle_family family, std::chrono::nanoseconds timeout, std::size_t element,
                         std::size_t alignment, std::source_location where) {
  const called_from here{where};
  state->require_open();
  backend& own = state->backend_of(by);
  const auto got = value_or_raise(own.open_memory(by, handle, family, timeout));
  opened_place place{state, got.address, got.size.value(), by, got.owner};
  if (family == handle_family::allocation && place.owner != by) {
    try {
      const auto lease = make<peer_access>(state, by, place.owner);  // as long as it takes to find out
      peers_of(*state).require(by, place.owner, peer_way::allocations,
                               "opening memory of " + to_string(place.owner) + " on " + to_string(by));
    } catch (const error_exception& refused) {
      if (!peers_of(*state).failure(by, place.owner).empty()) {
        opened_traits::release(place);
        raise(refused.cause());
      }
      // no room in the device's table of peers: the driver opened it all the same
    }
  }
  if (place.size % element != 0 || reinterpret_cast<std::uintptr_t>(place.address) % alignment != 0) {
    opened_traits::release(place);
    raise(errc::incompatible, to_string(got.size) + " of shared memory are no number of elements of " +
                                  std::to_string(element) + " bytes aligned to " + std::to_string(alignment));
  }
  return place;
}

void opened_traits::release(type& place) noexcept {
  std::unique_lock<std::mutex> closing;
  if (place.mark) {
    closing = std::unique_lock{place.mark->mutex};
    place.mark->is_open = false;
  }
  if (!place.state->closed()) {
    const auto done = place.state->backend_of(place.by).close_memory(place.address);
    // not_found is no surprise: a reset of the device closed it; nor is closed, in the child of a fork
    if (!done && done.error().code != errc::not_found && done.error().code != errc::closed)
      log(log_level::warning, to_string(done.error()));
  }
  if (closing) closing.unlock();
  place = {};
}

}  // namespace weft::detail
