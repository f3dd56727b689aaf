// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/buffer.hpp"

#include "core/errors/called_from.hpp"
#include "core/text/hex.hpp"
#include "memory/pool_body.hpp"
#include "runtime/machine_state.hpp"
#include "weft/core/log.hpp"
#include "weft/memory/pool.hpp"
#include "weft/runtime/stream.hpp"

namespace weft {
namespace detail {

void raise_copy_sizes(std::size_t to, std::size_t from, std::source_location where) {
  raise(errc::incompatible,
        "copy of " + std::to_string(from) + " elements into " + std::to_string(to) + ": take subspans of equal size",
        where);
}

void raise_subspan(std::size_t offset, std::size_t count, std::size_t size, std::source_location where) {
  raise(errc::out_of_range,
        "elements " + std::to_string(offset) + " + " + std::to_string(count) + " of a span of " + std::to_string(size),
        where);
}

void raise_as(const void* address, bytes size, std::size_t element, std::size_t alignment, std::source_location where) {
  raise(errc::invalid_argument,
        to_string(size) + " at " + hex(address) + " as elements of " + std::to_string(element) + " bytes aligned to " +
            std::to_string(alignment) + " is no whole number of aligned elements: choose another subspan",
        where);
}

void memory_traits::release(type& memory) noexcept {
  if (memory.pool) {
    memory.pool->give(memory.address);
  } else if (!memory.state->closed()) {
    // not_found is no surprise here: a reset of the device took the memory before
    const auto done = memory.state->backend_of(memory.address).release(memory.address);
    if (!done && done.error().code != errc::not_found) log(log_level::warning, to_string(done.error()));
  }
  memory = {};
}

namespace {

std::size_t checked_size(std::size_t count, std::size_t element, device_id on) {
  if (count > std::numeric_limits<std::size_t>::max() / element) {
    raise(errc::invalid_argument, std::to_string(count) + " elements of " + std::to_string(element) + " bytes on " +
                                      to_string(on) + ": the size in bytes overflows");
  }
  return count * element;
}

template <class F>
owned_memory allocated(const device& on, std::size_t count, std::size_t element, std::source_location where, F&& from) {
  const called_from here{where};
  detail::state_of(on)->require_open();
  const std::size_t size = checked_size(count, element, on.id());
  if (size == 0) return {detail::state_of(on), nullptr, nullptr};
  return {detail::state_of(on), nullptr, value_or_raise(from(detail::state_of(on)->backend_of(on.id()), bytes{size}))};
}

}  // namespace

owned_memory allocate(const device& on, std::size_t count, std::size_t element, memory_kind kind,
                      std::source_location where) {
  return allocated(on, count, element, where,
                   [&](backend& from, bytes size) { return from.allocate(on.id(), size, kind); });
}

owned_memory allocate_coherent(const device& on, std::size_t count, std::size_t element, std::source_location where) {
  return allocated(on, count, element, where,
                   [&](backend& from, bytes size) { return from.allocate_coherent(on.id(), size); });
}

owned_memory allocate_shareable(const device& on, std::size_t count, std::size_t element, std::source_location where) {
  return allocated(on, count, element, where, [&](backend& from, bytes size) {
    return from.allocate_shareable(on.id(), size, handle_family::allocation);
  });
}

owned_memory allocate(const memory_pool& pool, std::size_t count, std::size_t element, std::source_location where) {
  const called_from here{where};
  const auto& body = detail::internals::body(pool);
  body->state()->require_open();
  const std::size_t size = checked_size(count, element, body->on());
  if (size == 0) return {body->state(), body, nullptr};
  return {body->state(), body, body->take(size)};
}

device_id device_of(const memory_pool& pool) { return detail::internals::body(pool)->on(); }

owned_memory adopt(const device& on, void* base, std::size_t size, std::source_location where) {
  const called_from here{where};
  detail::state_of(on)->require_open();
  value_or_raise(detail::state_of(on)->backend_of(on.id()).adopt(on.id(), base, bytes{size}));
  return {detail::state_of(on), nullptr, base};
}

}  // namespace detail

memory_description address_range(const device& any_of_machine, const void* address, std::source_location where) {
  const called_from here{where};
  detail::state_of(any_of_machine)->require_open();
  return value_or_raise(detail::state_of(any_of_machine)->backend_of(address).find(address));
}

void prefetch(const device& to, device_span<const std::byte> range, std::source_location where) {
  const called_from here{where};
  if (!to.has(capability::unified_memory))
    raise(errc::unsupported, to_string(to.id()) + " has no unified memory to prefetch");
  const stream order = to.default_stream();
  if (range.empty()) return;
  const auto done = detail::make<event>(detail::state_of(to),
                                        value_or_raise(detail::state_of(to)->backend_of(to.id()).prefetch(
                                            order.native(), const_cast<std::byte*>(range.data()), range.size_bytes())));
  done.wait();
}

void advise(const device& on, device_span<const std::byte> range, memory_advice advice, std::source_location where) {
  const called_from here{where};
  if (!on.has(capability::unified_memory))
    raise(errc::unsupported, to_string(on.id()) + " has no unified memory to advise on");
  detail::state_of(on)->require_open();
  if (range.empty()) return;
  value_or_raise(detail::state_of(on)->backend_of(on.id()).advise(const_cast<std::byte*>(range.data()),
                                                                  range.size_bytes(), advice, on.id()));
}

}  // namespace weft
