// SPDX-License-Identifier: Apache-2.0
// One way to let a device use memory, whatever kind of memory it is.
#pragma once

#include "weft/core/access_right.hpp"
#include "weft/core/internals.hpp"
#include "weft/memory/mapping.hpp"
#include "weft/memory/pool.hpp"
#include "weft/memory/share.hpp"
#include "weft/memory/span.hpp"
#include "weft/runtime/device.hpp"

#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>

namespace weft {

/// What a grant has done.
enum class grant_way : std::uint8_t {
  not_needed,   // the device could use the memory already, whatever anybody does
  peer_access,  // a lease of peer access to the device whose memory it is
  mapping,      // the right to whole mappings
  pool,         // the right to all memory of a pool
};
[[nodiscard]] std::string_view to_string(grant_way way);

namespace detail {
class grant_body;
using held_grant = std::shared_ptr<grant_body>;  // of one access_grant
}  // namespace detail

/// Lets a device use memory until it ends. Grants of one thing to one device count: the right goes back to what it was
/// before when the last has ended, and stays when somebody has set it to something else meanwhile. The end waits, 10 s
/// at most, for work of the device, as that of a mapping does; where that is not enough the right stays, with a remark.
///
/// It keeps no memory alive: after the memory it is worth nothing, and does no harm.
/// Thread: any for const functions; the object itself one at a time.
class access_grant {
 public:
  access_grant() = default;
  access_grant(access_grant&&) noexcept = default;
  access_grant& operator=(access_grant&&) noexcept = default;
  access_grant(const access_grant&) = delete;
  access_grant& operator=(const access_grant&) = delete;

  [[nodiscard]] grant_way way(std::source_location where = std::source_location::current()) const;
  /// The right that the device had once this was granted: at least the one asked for.
  [[nodiscard]] access_right right(std::source_location where = std::source_location::current()) const;
  /// What else the device can use by this, which was not asked for; empty when there is nothing.
  [[nodiscard]] const std::string& exposes(std::source_location where = std::source_location::current()) const;
  explicit operator bool() const { return static_cast<bool>(held_); }
  /// Ends it now.
  void end() { held_.reset(); }

 private:
  friend struct detail::internals;
  explicit access_grant(detail::held_grant held) : held_(std::move(held)) {}
  [[nodiscard]] const detail::grant_body& body() const;

  detail::held_grant held_;
};

namespace detail {
[[nodiscard]] access_grant grant_memory(const memory_ref& memory, const device& to, access_right right,
                                        std::source_location where);
[[nodiscard]] access_grant grant_opened(const opened_view& memory, const device& to, access_right right,
                                        std::source_location where);
}  // namespace detail

/// Grants a right to all blocks that are mapped now; those of a later grow() have the mapping's own rights only.
/// Errors: as mapping::grant.
[[nodiscard]] access_grant grant(const mapping& memory, const device& to, access_right right,
                                 std::source_location where = std::source_location::current());
/// Grants a right to all memory of a pool; of one that follows peer access, as for its buffers.
/// Errors: as memory_pool::set_access; as peer_access.
[[nodiscard]] access_grant grant(const memory_pool& memory, const device& to, access_right right,
                                 std::source_location where = std::source_location::current());
/// Errors: as for what the way of opening gives; invalid_argument for an allocation, which is opened for one device.
template <class T>
[[nodiscard]] access_grant grant(const opened<T>& memory, const device& to, access_right right,
                                 std::source_location where = std::source_location::current()) {
  return detail::grant_opened(detail::internals::view(memory), to, right, where);
}
/// Grants what lets `to` use this memory: peer access for buffers, which covers all buffers of their device and is
/// never for reading only; a right for memory of a shareable pool, which covers the pool; a right for mappings, which
/// covers each mapping that the span touches, and no other. exposes() tells.
/// Errors: invalid_argument for the right `none`, for 0 bytes, for host memory that no device has, and for what one
///   device has open (peer mappings, opened_memory); wrong_device for a device of another machine; not_found for freed
///   memory; peer_unsupported, too_many_peers.
template <class B>
[[nodiscard]] access_grant grant(const B& memory, const device& to, access_right right,
                                 std::source_location where = std::source_location::current()) {
  return detail::grant_memory(detail::untyped(detail::borrow(memory)), to, right, where);
}

}  // namespace weft
