// SPDX-License-Identifier: Apache-2.0
#include "backends/common/sharing_checks.hpp"

#include <unistd.h>

namespace weft::common {

std::optional<error> broken_share(const share_word& state, detail::process_watch& exporter, const void* address) {
  const auto now =
      static_cast<share_state>(state.load(std::memory_order_acquire));  // pairs with the exporter's release
  const std::string who = "process " + std::to_string(exporter.pid());
  if (now == share_state::freed) {
    return make_error(errc::closed, "stale: " + who + " has freed the memory that is open here at " + hex(address) +
                                        "; close it and ask for a new handle");
  }
  if (now != share_state::live) {
    return make_error(errc::closed,
                      "stale: " + who + " has closed the machine whose memory is open here at " + hex(address));
  }
  if (exporter.alive()) return std::nullopt;
  return make_error(errc::peer_dead, who + ", whose memory is open here at " + hex(address) + ", has died",
                    error_scope::process);
}

result<detail::share_ticket> new_ticket(detail::share_server& server, handle_family family,
                                        detail::share_family backend, std::uint64_t size) {
  auto door = server.door();
  if (!door) return std::move(door).error();
  detail::share_ticket h;
  h.kind = kind_of(family);
  h.family = backend;
  h.process = static_cast<std::uint32_t>(::getpid());
  h.boot = detail::this_boot();
  h.door = *door;
  h.size = size;
  return h;
}

result<detail::share_ticket> ticket_of(const shared_bytes& handle, handle_family family, detail::share_family backend,
                                       const detail::share_server& server) {
  auto h = detail::decode(handle);
  if (!h) return h;
  if (h->kind != kind_of(family)) {
    return make_error(errc::invalid_argument, "this is a handle of " + std::string{detail::to_string(h->kind)} +
                                                  ", not of " + std::string{detail::to_string(kind_of(family))});
  }
  if (auto ok = detail::check_family(*h, backend); !ok) return std::move(ok).error();
  if (h->door == server.known_door()) {
    return make_error(
        errc::invalid_argument,
        "this handle was exported by this very machine; use what it names, a handle is for other processes",
        error_scope::call, 201);
  }
  return h;
}

}  // namespace weft::common
