// SPDX-License-Identifier: Apache-2.0
// A lent end of a queue on a device whose memory the host reaches by commands only. The ring stays in host memory; a
// launch gets an image of it, and what the kernel did there is done to the ring when the launch has ended.
#pragma once

#include "channel/queue_state.hpp"
#include "runtime/launch_escort.hpp"

#include <memory>

namespace weft::detail {

/// Shape: a weft_ring, its words, and the slots, in memory of the device and as a copy in host memory; where a
/// weft_ring
///   has addresses this one has distances from its own begin (WEFT_RING_BY_COMMANDS). Positions begin at 0 in every
///   image, so that nothing has to be kept on the device, and what an image came to is one number.
/// Order: launches with one image run one after another, in whichever streams.
/// Errors: a launch that fails comes to nothing: it has received nothing and sent nothing.
/// Cost: two copies and two host functions for a launch; whole images of up to queue_options::staging_size, of which a
///   receiving end goes one way whole and a sending end the other.
class ring_image final : public launch_escort {
 public:
  ring_image(queue_state& queue, queue_end& end, const device& on);
  ~ring_image() override { end(); }

  [[nodiscard]] result<void> before(backend& driver, stream_handle order) override;
  [[nodiscard]] result<event_ref> behind(backend& driver, stream_handle order) override;
  /// From now on what is still under way comes to nothing.
  void end() noexcept;

  [[nodiscard]] device_span<std::uint64_t> words() const;
  [[nodiscard]] std::size_t capacity() const noexcept;

 private:
  struct body;
  void remember(stream_handle order, event_ref last) {
    last_ = std::move(last);
    last_order_ = order;
  }

  std::shared_ptr<body> body_;  // shared with host functions that have not run yet
  buffer<std::uint64_t> there_;
  pinned_buffer<std::byte> here_;
  event_ref last_;
  stream_handle last_order_ = stream_handle::none;
};

}  // namespace weft::detail
