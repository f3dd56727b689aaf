// SPDX-License-Identifier: Apache-2.0
#include "weft/runtime/stream.hpp"

#include "core/errors/called_from.hpp"
#include "runtime/peer_checks.hpp"

#include <algorithm>

namespace weft {

namespace {

backend& backend_of(const detail::stream_identity& identity) {
  if (!identity.state) raise(errc::invalid_argument, "an empty stream: it was moved from");
  identity.state->require_open();
  return identity.state->backend_of(identity.device);
}

/// A word in the memory of another device must arrive there.
event write_word(const detail::stream_identity& identity, const word_request& request) {
  backend& own = backend_of(identity);
  if (identity.state->device_count() > 1) {
    const auto memory = own.find(request.address);
    if (memory && memory->device != identity.device && own.peer_enabled(identity.device, memory->device)) {
      detail::peers_of(*identity.state)
          .require(identity.device, memory->device, peer_way::allocations,
                   "writing a value into memory of " + to_string(memory->device));
    }
  }
  return detail::make<event>(identity.state, value_or_raise(own.write_value(identity.handle, request)));
}

wait_outcome synchronize_until(const detail::stream_identity& identity, backend& own, wait_deadline deadline) {
  const wait_outcome outcome = value_or_raise(own.synchronize(identity.handle, deadline, {}));
  // a wait for this stream among others may have found it, and reported another one
  if (auto failure = identity.state->take_unreported([&](const auto& one) { return one.stream == identity.handle; }))
    raise(*failure);
  return outcome;
}

}  // namespace

namespace detail {

void stream_traits::release(type& identity) noexcept {
  if (identity.owned && !identity.state->closed()) {
    machine_state& state = *identity.state;
    state.off_workers([gone = identity] { gone.state->backend_of(gone.device).destroy_stream(gone.handle); });
  }
  identity = {};
}

}  // namespace detail

stream::stream(const device& on, stream_options options, std::source_location where) {
  const called_from here{where};
  detail::state_of(on)->require_open();
  const stream_handle made =
      value_or_raise(detail::state_of(on)->backend_of(on.id()).create_stream(on.id(), options.priority));
  identity_ = unique_handle<detail::stream_traits>{detail::stream_identity{detail::state_of(on), made, on.id(), true}};
}

stream stream::adopt(const device& on, stream_handle native, std::source_location where) {
  const called_from here{where};
  detail::state_of(on)->require_open();
  const auto known = detail::state_of(on)->backend_of(on.id()).streams_of(on.id());
  if (std::find(known.begin(), known.end(), native) == known.end()) {
    raise(errc::wrong_device, "the native stream " + std::to_string(static_cast<std::uint64_t>(native)) +
                                  " is not one of " + to_string(on.id()));
  }
  return stream{detail::stream_identity{detail::state_of(on), native, on.id(), false}};
}

stream stream::over(const device& on, void* driver_queue, std::source_location where) {
  const called_from here{where};
  detail::state_of(on)->require_open();
  const stream_handle made =
      value_or_raise(detail::state_of(on)->backend_of(on.id()).adopt_stream(on.id(), driver_queue));
  return stream{detail::stream_identity{detail::state_of(on), made, on.id(), true}};
}

void* stream::driver_queue(std::source_location where) const {
  const called_from here{where};
  return value_or_raise(backend_of(identity_.get()).driver_queue(native()));
}

device stream::on() const {
  return detail::make<device>(detail::not_moved_from(identity_.get().state, "stream"), identity_.get().device);
}

event stream::record(std::source_location where) const {
  const called_from here{where};
  return detail::make<event>(identity_.get().state, value_or_raise(backend_of(identity_.get()).record(native())));
}

void stream::wait(const event& e, std::source_location where) const {
  const called_from here{where};
  backend& own = backend_of(identity_.get());
  if (!e.is_recorded() || !e.record()) return;
  if (detail::state_of(e) != state()) raise(errc::wrong_device, "the event belongs to another machine than the stream");
  value_or_raise(own.wait_event(native(), e.record()));
}

event stream::write_value(std::uint32_t* word, std::uint32_t value, std::source_location where) const {
  const called_from here{where};
  return write_word(identity_.get(), {word, sizeof value, value, {}});
}

event stream::write_value(std::uint64_t* word, std::uint64_t value, std::source_location where) const {
  const called_from here{where};
  return write_word(identity_.get(), {word, sizeof value, value, {}});
}

event stream::wait_value(const std::uint32_t* word, std::uint32_t value, word_comparison comparison,
                         std::source_location where) const {
  const called_from here{where};
  return detail::make<event>(
      identity_.get().state,
      value_or_raise(backend_of(identity_.get())
                         .wait_value(native(), {const_cast<std::uint32_t*>(word), sizeof value, value, comparison})));
}

event stream::wait_value(const std::uint64_t* word, std::uint64_t value, word_comparison comparison,
                         std::source_location where) const {
  const called_from here{where};
  return detail::make<event>(
      identity_.get().state,
      value_or_raise(backend_of(identity_.get())
                         .wait_value(native(), {const_cast<std::uint64_t*>(word), sizeof value, value, comparison})));
}

event stream::call(std::function<void()> function, std::source_location where) const {
  const called_from here{where};
  if (!function) raise(errc::invalid_argument, "a stream was asked to call an empty function");
  return detail::make<event>(identity_.get().state,
                             value_or_raise(backend_of(identity_.get()).call(native(), [f = std::move(function)] {
                               f();
                               return result<void>{};
                             })));
}

bool stream::idle(std::source_location where) const {
  const called_from here{where};
  return backend_of(identity_.get()).idle(native());
}

void stream::synchronize(std::source_location where) const {
  const called_from here{where};
  static_cast<void>(synchronize_until(identity_.get(), backend_of(identity_.get()), no_deadline));
}

wait_outcome stream::synchronize_for(std::chrono::nanoseconds timeout, std::source_location where) const {
  const called_from here{where};
  backend& own = backend_of(identity_.get());
  return synchronize_until(identity_.get(), own, deadline_after(own.now(), timeout));
}

}  // namespace weft
