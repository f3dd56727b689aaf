// SPDX-License-Identifier: Apache-2.0
// Messages for kernels of a device whose memory the host reaches by commands only, brought there as they are sent. The
// queue's ring stays in page-locked memory, where senders write it; a kernel that receives looks at a second one in its
// own memory instead of asking across the bus.
#pragma once

#include "channel/queue_progress.hpp"
#include "weft/channel/kernel_end.hpp"
#include "weft/memory/buffer.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace weft::detail {

/// Shape: both rings have the same slots and numbers. The kernel's credit goes to the queue's ring, so a message stays
/// there until it was received: when the feed ends the host goes on in that ring where the kernel stopped.
/// Order: behind the messages of a batch, how many have arrived. By copies in a stream of its own, or, where the driver
/// has a window for stores and no copy is under way, by stores of a batch of up to most_stored bytes.
/// Thread: any. The sender's thread brings what it has sent; the progress thread what nobody's thread tells of.
class ring_feed final : public queue_job, public queue_feed {
 public:
  /// Errors: out_of_memory, resource_exhausted.
  ring_feed(queue_state& queue, queue_lane& lane, const device& on);
  ~ring_feed() override { end(); }

  /// Has the kernel's end look at the ring of the feed.
  void redirect(weft_ring& end) const noexcept;
  /// Brings what has been sent. True when it brought anything.
  bool bring() noexcept override;
  step_outcome step() override { return bring() ? step_outcome::moved : step_outcome::idle; }
  void arm() noexcept override {}
  void disarm() noexcept override {}
  /// Waits until no copy is under way; from then on nothing is brought.
  void end() noexcept;

  [[nodiscard]] ring_delivery delivery() const noexcept {
    return window_ ? ring_delivery::stores : ring_delivery::copies;
  }

 private:
  static constexpr std::size_t most_stored = 4096;
  static constexpr std::size_t most_under_way = 8;

  /// Bytes of slots that lie one behind another: a batch is one of these, or two where the ring begins anew.
  struct piece {
    std::uint64_t offset = 0, size = 0;
  };
  [[nodiscard]] std::uint64_t tail_at() const noexcept { return slots_size_; }
  [[nodiscard]] std::uint64_t fin_at() const noexcept { return slots_size_ + isolation; }
  [[nodiscard]] bool is_whole(bus_window& window) const;
  [[nodiscard]] bool is_sent(std::uint64_t message) const noexcept;
  [[nodiscard]] std::array<piece, 2> pieces_of(std::uint64_t count) const noexcept;
  void store(std::uint64_t count) noexcept;
  [[nodiscard]] result<void> copy(std::uint64_t count);
  [[nodiscard]] result<event_ref> bring_bytes(std::uint64_t offset, const void* from, std::uint64_t size);
  [[nodiscard]] result<void> tell(std::uint64_t offset, std::uint64_t value);
  [[nodiscard]] result<void> look_at_copies();
  [[nodiscard]] result<bool> bring_more();

  queue_state& queue_;
  queue_lane& lane_;
  device on_;
  backend* driver_;
  const std::byte* here_;  // the slots of the queue's ring
  std::uint64_t slots_size_;
  buffer<std::uint64_t> there_;         // slots, and behind them the two words
  pinned_buffer<std::uint64_t> words_;  // what is told by copies, until they have ended
  std::shared_ptr<bus_window> window_;
  stream_handle order_ = stream_handle::none;

  std::mutex mutex_;
  std::uint64_t brought_ = 0;  // messages, counted from the first of the queue
  bool writes_words_ = true;   // the driver's streams write words of 8 bytes
  bool told_end_ = false;
  bool over_ = false;
  std::array<event_ref, most_under_way> under_way_;
  std::size_t next_ = 0;  // of the words, and of what is under way
};

}  // namespace weft::detail
