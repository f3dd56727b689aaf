// SPDX-License-Identifier: Apache-2.0
#include "backend/traffic_account.hpp"

namespace weft::detail {

const link_path* traffic_account::between(device_id from, device_id to) const {
  const device_id host;
  if (from == to) return nullptr;
  if (from == host) return &machine_.from_host[local(to)];
  if (to == host) return &machine_.to_host[local(from)];
  return &machine_.peer_paths[local(from) * machine_.devices.size() + local(to)];
}

void traffic_account::add(const link_path& path, std::uint64_t count) noexcept {
  for (const int link : path.links) links_[static_cast<std::size_t>(link)].fetch_add(count, std::memory_order_relaxed);
}

link_traffic traffic_account::now() {
  link_traffic sums;
  sums.bytes_on_link.reserve(links_.size());
  const std::lock_guard lock{mutex_};  // first: unwatch() moves what its word says from the one sum to the other
  for (const auto& link : links_) sums.bytes_on_link.push_back(link.load(std::memory_order_relaxed));
  for (const auto& [id, source] : sources_) {
    const link_path* const path = between(source.from, source.to);
    if (path == nullptr) continue;
    const std::uint64_t count = __atomic_load_n(source.count, __ATOMIC_RELAXED);
    for (const int link : path->links) sums.bytes_on_link[static_cast<std::size_t>(link)] += count * source.bytes_each;
  }
  return sums;
}

std::uint64_t traffic_account::watch(const traffic_source& source) {
  const std::lock_guard lock{mutex_};
  sources_.emplace(++last_, source);
  return last_;
}

void traffic_account::unwatch(std::uint64_t id) {
  const std::lock_guard lock{mutex_};
  const auto found = sources_.find(id);
  if (found == sources_.end()) return;
  const traffic_source source = found->second;
  sources_.erase(found);
  if (const link_path* const path = between(source.from, source.to))
    add(*path, __atomic_load_n(source.count, __ATOMIC_RELAXED) * source.bytes_each);
}

}  // namespace weft::detail
