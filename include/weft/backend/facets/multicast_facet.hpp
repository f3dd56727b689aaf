// SPDX-License-Identifier: Apache-2.0
// One memory on each of several devices, written and read as one. No order is implied among several stores.
#pragma once

#include "weft/backend/facets/blocks_facet.hpp"
#include "weft/backend/kernel_code.hpp"
#include "weft/core/multicast_reduction.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft {

/// Names a multicast object of a driver. 0 is none.
enum class multicast_id : std::uint64_t { none = 0 };

class multicast_facet : public blocks_facet {
 protected:
  using blocks_facet::blocks_facet;
  ~multicast_facet() = default;

  [[nodiscard]] virtual result<bytes> do_multicast_granularity(std::span<const device_id>) {
    return not_offered("multicast");
  }
  [[nodiscard]] virtual result<multicast_id> do_create_multicast(std::size_t /*devices*/, bytes) {
    return not_offered("multicast");
  }
  virtual void do_release_multicast(multicast_id) {}
  [[nodiscard]] virtual result<void> do_add_multicast_device(multicast_id, device_id) {
    return not_offered("multicast");
  }
  /// The whole of the object's size from the start of a block of a device that was added. Errors: not_ready before
  /// every device has been added: drivers block here without end, so callers wait first.
  [[nodiscard]] virtual result<void> do_bind_multicast(multicast_id, block_id) { return not_offered("multicast"); }
  [[nodiscard]] virtual result<void> do_unbind_multicast(multicast_id, device_id) { return not_offered("multicast"); }
  /// Writes to every replica. Errors: not_ready before each device has bound its block.
  [[nodiscard]] virtual result<event_ref> do_multicast_store(stream_handle, multicast_id, bytes /*offset*/,
                                                             const void* /*src*/, bytes /*size*/) {
    return not_offered("multicast");
  }
  /// Combines `count` elements of all replicas into `dst`.
  [[nodiscard]] virtual result<event_ref> do_multicast_load(stream_handle, void* /*dst*/, multicast_id,
                                                            bytes /*offset*/, std::size_t /*count*/, element_type,
                                                            multicast_reduction) {
    return not_offered("multicast");
  }
};

}  // namespace weft
