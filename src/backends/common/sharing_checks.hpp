// SPDX-License-Identifier: Apache-2.0
// Memory between processes, as every backend checks it: what may be exported, which handle may be opened, whether what
// is open is still there, and which rights can be set. How pages or a driver's handles get across is the backend's.
#pragma once

#include "backend/address.hpp"
#include "core/errors/make_error.hpp"
#include "core/text/hex.hpp"
#include "processes/share_server.hpp"
#include "weft/backend/backend.hpp"
#include "weft/core/bytes.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace weft::common {

/// What an exporter says of its memory, in the page after it.
enum class share_state : std::uint64_t { live = 0, freed = 1, closed = 2 };
using share_word = std::atomic<std::uint64_t>;
static_assert(share_word::is_always_lock_free);

/// Why memory that is open at `address` must not be used any more; empty while it may. The pages are there until it is
/// closed. Errors: closed; peer_dead.
[[nodiscard]] std::optional<error> broken_share(const share_word& state, detail::process_watch& exporter,
                                                const void* address);

[[nodiscard]] inline detail::share_kind kind_of(handle_family family) {
  return family == handle_family::pool ? detail::share_kind::pool_memory : detail::share_kind::memory;
}

/// A handle with all but its key and offset. Errors: resource_exhausted.
[[nodiscard]] result<detail::share_ticket> new_ticket(detail::share_server& server, handle_family family,
                                                      detail::share_family backend, std::uint64_t size);
/// Reads a handle from outside, which a machine with this server opens. Errors: corrupt; incompatible;
/// invalid_argument for a handle of something else, and, native 201, for one of this very machine.
[[nodiscard]] result<detail::share_ticket> ticket_of(const shared_bytes& handle, handle_family family,
                                                     detail::share_family backend, const detail::share_server& server);

/// Why a range cannot be exported, if it cannot; its offset is noted in the ticket.
template <class A>
[[nodiscard]] std::optional<error> not_exportable(const A& memory, const void* address, handle_family family,
                                                  detail::share_ticket& h) {
  const std::string at = hex(address);
  const auto refused = [](std::string why) { return make_error(errc::invalid_argument, std::move(why)); };
  if (memory.imported) {
    return refused("the memory at " + at + " belongs to process " + std::to_string(memory.imported->exporter->pid()) +
                   ": pass on the handle it was opened with");
  }
  if (memory.kind == memory_kind::mapped)
    return refused("the address " + at + " is a peer mapping: export what it maps");
  if (memory.kind == memory_kind::block)
    return refused("the address " + at + " is a mapping of a block: export the block");
  if (memory.kind != memory_kind::device) {
    return refused("the memory at " + at + " is " + std::string{to_string(memory.kind)} +
                   ": only memory of a device is exported; allocate it as weft::shareable_buffer");
  }
  const bool of_pool = family == handle_family::pool;
  if (memory.only && !of_pool) return refused("the memory at " + at + " belongs to a pool: export it by its pool");
  if (!memory.only && of_pool) return refused("the memory at " + at + " belongs to no pool");
  if (!memory.own_pages) {
    return refused("the memory at " + at +
                   " may have neighbours in its pages, which would be exported with it: allocate it as "
                   "weft::shareable_buffer");
  }
  h.offset = number(address) - number(memory.user);
  return beyond_end("an export", h.size, address, memory.user, memory.size);
}

/// Memory that is open already, opened once more: the address of what a handle names; null if it is not open. Under the
/// lock of what is open. Errors: what is wrong with it; corrupt for a range outside of it.
template <class A>
[[nodiscard]] result<opened_memory_description> open_again(const std::shared_ptr<A>& known,
                                                           const detail::share_ticket& h) {
  if (!known || known->revoked.load()) return opened_memory_description{};
  if (auto cause = known->broken()) return *cause;
  if (h.offset > known->size || h.size > known->size - h.offset)
    return make_error(errc::corrupt, "a handle names no range of what its process exported");
  ++known->imported->opens;
  return opened_memory_description{known->user + h.offset, bytes{h.size}, known->owner};
}
/// Closes it once: true when that was the last time. Under the same lock. Errors: not_found; invalid_argument.
template <class A>
[[nodiscard]] result<bool> close_once(const std::shared_ptr<A>& memory, const void* address) {
  if (memory && !memory->imported) {
    return make_error(errc::invalid_argument,
                      "the memory at " + hex(address) + " is this process's own: it is freed, not closed");
  }
  if (!memory || memory->imported->opens == 0)
    return make_error(errc::not_found, "nothing is open at " + hex(address) + "; was it closed before?");
  return --memory->imported->opens == 0;
}

/// Why rights to memory of a pool cannot be set, if they cannot. `refused(device)` is the error where a device cannot
/// reach it.
template <class A, class F>
[[nodiscard]] std::optional<error> not_settable(const A& memory, const void* address,
                                                std::span<const device_right> rights, F&& refused) {
  if (!memory.only || memory.kind == memory_kind::block) {
    return make_error(errc::invalid_argument, "the memory at " + hex(address) + " is " +
                                                  std::string{to_string(memory.kind)} +
                                                  " memory of no pool: peer access decides who may use it");
  }
  for (const device_right& one : rights) {
    if (one.device == memory.owner && one.right != access_right::read_write) {
      return make_error(errc::invalid_device, "the right of " + to_string(one.device) +
                                                  " to its own memory cannot be " + std::string{to_string(one.right)});
    }
    if (one.device == memory.owner || one.right == access_right::none) continue;
    if (std::optional<error> why = refused(one.device)) return why;
  }
  return std::nullopt;
}

}  // namespace weft::common
