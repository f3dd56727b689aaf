// SPDX-License-Identifier: Apache-2.0
// One memory on each of several devices, written and read as one: a store reaches every replica, a load gives their
// sum, smallest or largest. docs/reference/sharing.md says what hardware does and what is emulated.
#pragma once

#include "weft/core/multicast_reduction.hpp"
#include "weft/core/result.hpp"
#include "weft/kernel/parameter.hpp"
#include "weft/memory/physical_block.hpp"
#include "weft/memory/span.hpp"
#include "weft/runtime/event.hpp"
#include "weft/runtime/stream.hpp"

#include <chrono>
#include <cstddef>
#include <memory>
#include <source_location>
#include <span>
#include <stop_token>
#include <type_traits>
#include <vector>

namespace weft {

namespace detail {
struct multicast_body;
event multicast_store(const std::shared_ptr<multicast_body>& body, const stream& order, std::uint64_t offset,
                      const memory_ref& src, std::source_location where);
event multicast_load(const std::shared_ptr<multicast_body>& body, const stream& order, const memory_ref& dst,
                     std::uint64_t offset, std::size_t count, element_type type, multicast_reduction how,
                     std::source_location where);
[[nodiscard]] std::uint64_t multicast_offset(std::size_t index, std::size_t element, std::source_location where);
}  // namespace detail

/// Every device joins with add(), from the thread that serves it, and binds one block of its memory; nobody binds
/// before all have joined, which drivers wait for without end and this waits for with a deadline. Copies share the
/// object.
///
/// Thread: any.
class multicast_object {
 public:
  multicast_object() = default;
  /// For these devices; `size` is rounded up to the granularity.
  /// Errors: unsupported for fewer than two devices, or devices without multicast, with the reason; invalid_argument
  ///   for 0 bytes or a device named twice.
  multicast_object(const machine& m, std::span<const device_id> team, bytes size,
                   std::source_location where = std::source_location::current());

  /// Permanent. Errors: wrong_device for a device outside the team; invalid_argument for one that has joined.
  void add(device_id member, std::source_location where = std::source_location::current());
  /// Waits until the whole team has joined. Errors as values: timed_out naming who is missing; cancelled;
  ///   machine_closed where the machine is closed meanwhile.
  [[nodiscard]] result<void> wait_joined(std::chrono::nanoseconds timeout, const std::stop_token& stop = {},
                                         std::source_location where = std::source_location::current()) const;
  /// Waits so, then makes the block the replica of its device, and keeps it.
  /// Errors as values: as wait_joined. Throws wrong_device for a block of a device that has not joined;
  ///   invalid_argument for a block smaller than size(), or a device that has bound one already.
  [[nodiscard]] result<void> bind(const physical_block& memory, std::chrono::nanoseconds timeout,
                                  const std::stop_token& stop = {},
                                  std::source_location where = std::source_location::current());
  /// Errors: not_found when the device has bound nothing; not_ready while work of a GPU uses the object.
  void unbind(device_id member, std::source_location where = std::source_location::current());

  [[nodiscard]] bytes size(std::source_location where = std::source_location::current()) const;
  [[nodiscard]] const std::vector<device_id>& team(std::source_location where = std::source_location::current()) const;

  /// Writes `src`, of the stream's device or of the host, to every replica from element `index` on.
  /// Errors: not_ready before all have bound; out_of_range; wrong_device for a stream of a device outside the team, and
  ///   for memory of another machine; invalid_argument for memory that the stream's device may not read; not_found for
  ///   freed memory. Cost: one write on each device's link.
  template <class Src>
  event store(const stream& order, std::size_t index, const Src& src,
              std::source_location where = std::source_location::current()) const {
    const auto from = detail::borrow(src);
    using element = std::remove_cv_t<typename decltype(from)::element_type>;
    return detail::multicast_store(body_, order, detail::multicast_offset(index, sizeof(element), where),
                                   detail::untyped(from), where);
  }
  /// Joins the elements of all replicas from `index` on into `dst`. Errors: as store.
  template <class Dst>
  event load(const stream& order, Dst&& dst, std::size_t index, multicast_reduction how = multicast_reduction::sum,
             std::source_location where = std::source_location::current()) const {
    const auto to = detail::borrow(dst);
    using element = typename decltype(to)::element_type;
    static_assert(!std::is_const_v<element>, "the destination of a load is const");
    static_assert(kernel_element<element>, "replicas are joined as fixed-width integers, float or double");
    return detail::multicast_load(body_, order, detail::untyped(to),
                                  detail::multicast_offset(index, sizeof(element), where), to.size(),
                                  element_type_of<element>(), how, where);
  }

 private:
  std::shared_ptr<detail::multicast_body> body_;
};

}  // namespace weft
