// SPDX-License-Identifier: Apache-2.0
#include "backends/common/peer_table.hpp"

#include "core/errors/make_error.hpp"

#include <string>

namespace weft::common {

std::size_t peer_table::peers_of(device_id from) const noexcept {
  std::size_t count = 0;
  for (std::size_t i = 0; i < devices_; ++i) count += std::size_t{enabled(from, global(i))};
  return count;
}

result<void> peer_table::enable(device_id from, device_id to) {
  if (enabled_[pair(from, to)].exchange(true, std::memory_order_acq_rel))
    return make_error(errc::already_enabled, to_string(from) + " has access to " + to_string(to) + " already");
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  return {};
}

result<void> peer_table::disable(device_id from, device_id to) {
  if (!enabled_[pair(from, to)].exchange(false, std::memory_order_acq_rel))
    return make_error(errc::not_enabled, to_string(from) + " has no access to " + to_string(to));
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  return {};
}

void peer_table::forget(device_id device) noexcept {
  for (std::size_t i = 0; i < devices_; ++i) {
    enabled_[pair(device, global(i))].store(false, std::memory_order_release);
    enabled_[pair(global(i), device)].store(false, std::memory_order_release);
  }
  epoch_.fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace weft::common
