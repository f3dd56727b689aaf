// SPDX-License-Identifier: Apache-2.0
#include "exec/balance/memory_cap.hpp"

#include "core/errors/make_error.hpp"
#include "exec/balance/granules.hpp"

#include <string>

namespace weft {
namespace {

/// What `bytes` hold of a need.
std::int64_t items_in(std::uint64_t bytes, const memory_need& need) {
  if (bytes < need.bytes_once) return 0;
  if (need.bytes_per_item == 0) return no_cap;
  const std::uint64_t n = (bytes - need.bytes_once) / need.bytes_per_item;
  return n >= static_cast<std::uint64_t>(no_cap) ? no_cap : static_cast<std::int64_t>(n);
}

}  // namespace

result<std::int64_t> items_that_fit(device_id device, const memory_room& room, const memory_need& need,
                                    std::int64_t granularity) {
  if (auto fine = detail::check_range(0, granularity); !fine) return std::move(fine).error();
  const std::int64_t by_memory = items_in(room.free - room.free / 10, need);
  if (!room.limit) return by_memory;
  const std::int64_t by_limit = items_in(*room.limit, need);
  if (by_limit < granularity) {
    const std::string what = granularity == 1 ? "one item" : std::to_string(granularity) + " items (one granule)";
    const std::string once =
        need.bytes_once == 0 ? "" : " and " + std::to_string(need.bytes_once) + " bytes of whole arguments";
    return make_error(errc::out_of_memory, to_string(device) + " may use " + std::to_string(*room.limit) +
                                               " bytes, which do not hold " + what + " of " +
                                               std::to_string(need.bytes_per_item) + " bytes" + once +
                                               ": raise its memory cap, or leave it out");
  }
  return std::min(by_memory, by_limit);
}

}  // namespace weft
