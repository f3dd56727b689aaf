// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace weft {

/// What has crossed the links of the backend's topology since it was opened, by link index.
struct link_traffic {
  std::vector<std::uint64_t> bytes_on_link;
};

}  // namespace weft
