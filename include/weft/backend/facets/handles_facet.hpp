// SPDX-License-Identifier: Apache-2.0
// Handles of memory between processes, 64 bytes over any channel. What is exported must stay until all who opened it
// have closed it; a backend that can tell says so where it is used.
#pragma once

#include "weft/backend/facets/multicast_facet.hpp"
#include "weft/core/handle_family.hpp"
#include "weft/core/shared_bytes.hpp"

#include <chrono>
#include <optional>
#include <span>

namespace weft {

/// What do_open_memory() made.
struct opened_memory_description {
  void* address = nullptr;
  bytes size;       // of what the handle names, from the address on
  device_id owner;  // whose memory it is
};

class handles_facet : public multicast_facet {
 protected:
  using multicast_facet::multicast_facet;
  ~handles_facet() = default;

  /// Memory that has no neighbours in its pages, which an export would hand over with it. Ended by release(). That of a
  /// pool is its device's alone at first, whatever peer access there is: see do_set_memory_access().
  [[nodiscard]] virtual result<void*> do_allocate_shareable(device_id, bytes, handle_family) {
    return not_offered("handles of memory");
  }
  /// Names a range, which may lie inside an allocation; the same handle each time, another one once the memory was
  /// freed. Errors: not_found; out_of_range; invalid_argument for what cannot be exported (memory with neighbours,
  /// mappings, blocks, host memory, memory of the other family); resource_exhausted.
  [[nodiscard]] virtual result<shared_bytes> do_export_memory(const void*, bytes, handle_family) {
    return not_offered("handles of memory");
  }
  /// The memory behind a handle as a device may use it; without a device, that which owns it. Opened twice on one
  /// device it has one address, and is closed twice. Other devices get no right by it. Errors: corrupt, incompatible;
  /// invalid_argument, native 201, for a handle of this process; closed, peer_dead, timed_out for an exporter that has
  /// freed it, is gone, or does not answer within the timeout; peer_unsupported; resource_exhausted.
  [[nodiscard]] virtual result<opened_memory_description> do_open_memory(std::optional<device_id>, const shared_bytes&,
                                                                         handle_family,
                                                                         std::chrono::nanoseconds /*timeout*/) {
    return not_offered("handles of memory");
  }
  /// Any address of it. The memory goes once work submitted with it has ended. Errors: not_found; invalid_argument for
  /// memory of this process.
  [[nodiscard]] virtual result<void> do_close_memory(void*) { return not_offered("handles of memory"); }
  /// Which devices may use memory of a pool, or opened memory, in place of peer access; those that are not listed keep
  /// what they have. Errors: not_found; invalid_argument for other memory; invalid_device for the owner, whose right
  /// cannot be taken; peer_unsupported.
  [[nodiscard]] virtual result<void> do_set_memory_access(void*, std::span<const device_right>) {
    return not_offered("access rights of an allocation");
  }
  /// What a device may do with memory, by whichever rule it follows. Errors: not_found.
  [[nodiscard]] virtual result<access_right> do_memory_access(device_id, const void*) {
    return not_offered("access rights of an allocation");
  }
};

}  // namespace weft
