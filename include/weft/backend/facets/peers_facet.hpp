// SPDX-License-Identifier: Apache-2.0
// Access of kernels to the memory of other devices: the raw, uncounted state of the driver. Leases are made above.
#pragma once

#include "weft/backend/facets/allocate_facet.hpp"

#include <cstdint>

namespace weft {

/// Pairs are of two different devices, in the order (from, to).
class peers_facet : public allocate_facet {
 protected:
  using allocate_facet::allocate_facet;
  ~peers_facet() = default;

  /// peer_unsupported: "gpu2 cannot map gpu5: no link between them".
  [[nodiscard]] error without_path(device_id from, device_id to);

  /// Whether access can be enabled; do_peer() says why not.
  [[nodiscard]] virtual bool do_can_access(device_id, device_id) noexcept { return false; }
  /// Of a pair that can have access. Errors: already_enabled; too_many_peers.
  [[nodiscard]] virtual result<void> do_enable_peer(device_id, device_id) { return not_offered("peer access"); }
  /// Of a pair that can have access. Errors: not_enabled.
  [[nodiscard]] virtual result<void> do_disable_peer(device_id, device_id) { return not_offered("peer access"); }
  [[nodiscard]] virtual bool do_peer_enabled(device_id, device_id) noexcept { return false; }
  /// Changes whenever do_peer_enabled() may have changed: what was computed from it holds as long as this stays. Called
  /// at any time, also while the backend closes.
  [[nodiscard]] virtual std::uint64_t do_peer_epoch() noexcept { return 0; }
  /// An address of `by` for a range of another device's memory, to which it has access.
  [[nodiscard]] virtual result<void*> do_map_peer(device_id, void*, bytes) { return not_offered("peer mappings"); }
  [[nodiscard]] virtual result<void> do_unmap_peer(device_id, void*) { return not_offered("peer mappings"); }
  /// Writes a pattern from `from` into memory of `to` and reads it back, in a few microseconds: it waits for no other
  /// work, and neither traffic(), a virtual clock nor the count of an injected fault sees it. Errors: unsupported where
  /// only commands can tell, which the caller then gives; out_of_memory.
  [[nodiscard]] virtual result<peer_delivery> do_verify_peer(device_id, device_id, peer_way) {
    return not_offered("a check of a pair without commands");
  }
  /// How the pair carries one operation natively; none where it is made of others, or not at all.
  [[nodiscard]] virtual result<atomic_support> do_peer_atomics(device_id, device_id, atomic_operation) {
    return not_offered("the atomics of a pair");
  }
};

}  // namespace weft
