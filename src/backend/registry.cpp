// SPDX-License-Identifier: Apache-2.0
#include "weft/backend/registry.hpp"

#include "backends/host/factory.hpp"
#include "backends/null/factory.hpp"

#include <algorithm>
#include <array>

namespace weft {

std::span<const backend_entry> built_backends() {
  static constexpr std::array entries{
      backend_entry{backend_kind::host, "host", &host::open},
      backend_entry{backend_kind::null, "null", &null_device::open},
  };
  return entries;
}

const backend_entry* find_backend(std::string_view name) {
  const auto all = built_backends();
  const auto it = std::find_if(all.begin(), all.end(), [&](const backend_entry& e) { return e.name == name; });
  return it == all.end() ? nullptr : &*it;
}

}  // namespace weft
