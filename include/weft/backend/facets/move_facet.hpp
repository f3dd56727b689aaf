// SPDX-License-Identifier: Apache-2.0
// Copies and fills, in streams.
#pragma once

#include "weft/backend/facets/order_facet.hpp"
#include "weft/core/copy_shape.hpp"
#include "weft/core/fill_request.hpp"

#include <source_location>
#include <span>
#include <stop_token>
#include <utility>

namespace weft {

/// One copy that the backend does in one step.
struct copy_request {
  void* dst = nullptr;
  const void* src = nullptr;
  bool dst_is_host = false;  // may lie in no allocation; without it an unknown address is an error
  bool src_is_host = false;
  copy_shape shape;
  std::stop_token stop;
  bool wait = false;             // the caller waits: the backend may do it on this thread and return a null event
  std::source_location where{};  // the caller's; for check modes
};

/// The two steps of a copy through a slot, in which the piece lies without gaps.
[[nodiscard]] std::pair<copy_request, copy_request> two_steps(const copy_request& piece, void* slot);

class move_facet : public order_facet {
 protected:
  using order_facet::order_facet;
  ~move_facet() = default;

  /// Of one byte or more, between addresses that are not null.
  [[nodiscard]] virtual result<event_ref> do_copy(stream_handle, const copy_request&) { return not_offered("copies"); }
  /// Many copies as one operation, not ordered among themselves. A copy of no bytes may be among them.
  [[nodiscard]] virtual result<event_ref> do_copy_batch(stream_handle stream, std::span<const copy_request> requests) {
    event_ref last;
    for (const copy_request& request : requests) {
      if (request.shape.total() == 0) continue;
      auto done = do_copy(stream, request);
      if (!done) return done;
      last = std::move(*done);
    }
    return last;
  }
  /// True where do_copy_through() is worth asking for between the memories of two devices.
  [[nodiscard]] virtual bool do_copies_through(device_id, device_id) noexcept { return false; }
  /// A copy by way of `slot`, both steps as one operation, so that a piece crosses no cache but that of one core. Where
  /// it is not offered the caller makes the steps itself, in two streams.
  [[nodiscard]] virtual result<event_ref> do_copy_through(stream_handle, void* /*slot*/, const copy_request&) {
    return not_offered("copies through a slot");
  }
  /// Of one byte or more.
  [[nodiscard]] virtual result<event_ref> do_fill(stream_handle, const fill_request&) { return not_offered("fills"); }
};

}  // namespace weft
