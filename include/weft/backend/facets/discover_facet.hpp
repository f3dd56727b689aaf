// SPDX-License-Identifier: Apache-2.0
// What a driver says of its devices. Looking at them starts nothing on them.
#pragma once

#include "weft/backend/facets/identity_facet.hpp"
#include "weft/core/peer_description.hpp"

#include <span>
#include <string>

namespace weft {

class discover_facet : public identity_facet {
 protected:
  using identity_facet::identity_facet;
  ~discover_facet() = default;

  /// What was left out or is not as it was asked for when this was opened, and why. They stay as long as the backend.
  [[nodiscard]] virtual std::span<const std::string> do_notes() const noexcept { return {}; }
  [[nodiscard]] virtual result<memory_use> do_memory(device_id) { return not_offered("memory figures"); }
  /// Two different devices.
  [[nodiscard]] virtual result<peer_description> do_peer(device_id, device_id) {
    peer_description none;
    none.why = not_offered("peer access").what;
    return none;
  }
  /// Errors: unsupported where nothing tells.
  [[nodiscard]] virtual result<device_health> do_health(device_id) { return not_offered("sensors"); }
};

}  // namespace weft
