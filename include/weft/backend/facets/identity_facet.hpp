// SPDX-License-Identifier: Apache-2.0
// What a backend is, as data: the root of the facets that a port overrides.
#pragma once

#include "weft/core/device_description.hpp"
#include "weft/core/ids.hpp"
#include "weft/core/result.hpp"
#include "weft/core/topology.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

/// Set when the backend is made, and never changed.
struct backend_identity {
  backend_kind kind = backend_kind::null;
  device_id first;                          // of its devices; the others follow
  std::vector<device_description> devices;  // in the order of their ids
  topology layout;                          // of these devices, by index
};

/// Thread: any.
class identity_facet {
 public:
  identity_facet(const identity_facet&) = delete;
  identity_facet& operator=(const identity_facet&) = delete;

  [[nodiscard]] backend_kind kind() const noexcept { return identity_.kind; }
  [[nodiscard]] device_id first_device() const noexcept { return identity_.first; }
  [[nodiscard]] std::span<const device_description> devices() const noexcept { return identity_.devices; }
  [[nodiscard]] const topology& layout() const noexcept { return identity_.layout; }
  [[nodiscard]] bool has(device_id id) const noexcept {
    return id >= identity_.first && id.value() - identity_.first.value() < static_cast<int>(identity_.devices.size());
  }

 protected:
  explicit identity_facet(backend_identity what) : identity_(std::move(what)) {}
  ~identity_facet() = default;

  /// Index of a device of this backend among devices().
  [[nodiscard]] std::size_t local(device_id id) const {
    return static_cast<std::size_t>(id.value() - identity_.first.value());
  }
  [[nodiscard]] device_id global(std::size_t index) const {
    return device_id{identity_.first.value() + static_cast<int>(index)};
  }
  [[nodiscard]] const device_description& description_of(device_id id) const { return identity_.devices[local(id)]; }
  /// The layout's path between two devices, and whether it lets the one map the memory of the other.
  [[nodiscard]] const link_path& path_between(device_id from, device_id to) const {
    return identity_.layout.peer_paths[identity_.layout.pair(index(from), index(to))];
  }
  [[nodiscard]] bool has_access(device_id from, device_id to) const {
    return identity_.layout.can_access(index(from), index(to));
  }
  /// unsupported: "the null backend does not offer blocks".
  [[nodiscard]] error not_offered(std::string_view what) const;

 private:
  [[nodiscard]] device_id index(device_id id) const { return device_id{id.value() - identity_.first.value()}; }

  backend_identity identity_;
};

}  // namespace weft
