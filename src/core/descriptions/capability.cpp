// SPDX-License-Identifier: Apache-2.0
#include "weft/core/capability.hpp"

#include <array>
#include <utility>

namespace weft {

std::vector<std::string_view> names_of(capability set) {
  static constexpr std::array<std::pair<capability, std::string_view>, 7> table{{
      {capability::peer_to_peer, "peer_to_peer"},
      {capability::unified_memory, "unified_memory"},
      {capability::native_atomics, "native_atomics"},
      {capability::pinned_memory, "pinned_memory"},
      {capability::timing, "timing"},
      {capability::priorities, "priorities"},
      {capability::kernels, "kernels"},
  }};
  std::vector<std::string_view> names;
  for (const auto& [bit, name] : table) {
    if (has_all(set, bit)) names.push_back(name);
  }
  return names;
}

}  // namespace weft
