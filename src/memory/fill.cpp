// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/fill.hpp"

#include "runtime/peer_checks.hpp"

namespace weft::detail {

event fill_in(const stream& order, memory_ref dst, const fill_request& request, std::source_location where) {
  const auto& state = state_of(order);
  if (!state) raise(errc::invalid_argument, "an empty stream: it was moved from", where);
  state->require_open(where);
  if (request.count == 0) return order.record();
  if (dst.state != state.get())
    raise(errc::wrong_device, "the stream belongs to another machine than the memory", where);
  if (dst.kind == memory_kind::device && dst.device != order.on_id() &&
      state->backend_of(order.on_id()).peer_enabled(order.on_id(), dst.device)) {
    peers_of(*state).require(order.on_id(), dst.device, peer_way::allocations,
                             "a fill of memory of " + to_string(dst.device) + " by " + to_string(order.on_id()), where);
  }
  fill_request made = request;
  made.dst = dst.address;
  made.where = where;
  return detail::make<event>(state,
                             value_or_raise(state->backend_of(order.on().id()).fill(order.native(), made), where));
}

void fill_now(memory_ref dst, fill_request request, std::source_location where) {
  if (dst.state == nullptr) raise(errc::invalid_argument, "a fill without a machine: an empty buffer or span", where);
  dst.state->require_open(where);
  if (request.count == 0) return;
  backend& owner = dst.state->backend_of(dst.address);
  request.dst = dst.address;
  request.where = where;
  const event_ref done =
      value_or_raise(owner.fill(value_or_raise(dst.state->default_stream(dst.device), where), request), where);
  if (done && owner.wait(*done, no_deadline, {}) == wait_outcome::failed) {
    error cause = *done->cause();
    cause.where = where;
    raise(std::move(cause));
  }
}

}  // namespace weft::detail
