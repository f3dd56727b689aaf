// SPDX-License-Identifier: Apache-2.0
// A ring in the memory of devices that the host reaches by commands only: both its ends are kernels'.
#pragma once

#include "channel/queue_state.hpp"
#include "weft/runtime/device.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace weft::detail {

/// Shape: slots, credit, fin and stop as in any queue: what the receiver polls lies on its device, what the sender
/// polls on its own, or beside the slots where the receiver may not write there. The devices have peer access. The
/// words that stop are the host's, who stores to them whatever the devices do: kernels look at them now and then.
/// Order: an end that is closed is told by a stream aside, and nobody waits for that.
/// Thread: any, for those.
class device_ring {
 public:
  /// An empty ring. Errors: out_of_memory, and what commands throw.
  device_ring(const machine& m, const queue_facts& facts, const ring_shape& shape, bool both_ways);
  ~device_ring() = default;
  device_ring(const device_ring&) = delete;
  device_ring& operator=(const device_ring&) = delete;

  /// Has a kernel of the source send, a kernel of the destination receive, and the space come back; then both at once,
  /// to see that messages arrive whole. Why that did not work; nothing when it did, and the ring is empty again. Cost:
  /// six launches; the first on a device compiles two kernels and loads them, which waits for its work.
  [[nodiscard]] std::optional<std::string> trouble();

  [[nodiscard]] ring_view sending() const noexcept;
  [[nodiscard]] ring_view receiving() const noexcept;

  void close_writer(std::uint64_t position) noexcept;
  void close_reader(std::uint64_t position) noexcept;

 private:
  /// A word that a stream aside writes, of the device whose memory it is.
  struct far_word {
    std::uint64_t* there = nullptr;
    device_id owner;
  };

  void make_empty();
  result<event_ref> write(const far_word& word, std::uint64_t value) noexcept;
  struct stopped_at_end;
  void stop_test(bool now) noexcept;
  [[nodiscard]] std::string test_name() const;
  [[nodiscard]] std::optional<std::string> pass(queue_end& tx, queue_end& rx, std::uint64_t first, std::uint64_t count);
  [[nodiscard]] std::optional<std::string> pass_at_once(queue_end& tx, queue_end& rx, std::uint64_t first,
                                                        std::uint64_t count);

  device source_, destination_;
  ring_shape shape_;
  buffer<std::uint64_t> far_;   // slots and words, the receiver's
  buffer<std::uint64_t> near_;  // words, the sender's
  pinned_buffer<std::uint64_t> stops_;
  std::shared_ptr<std::byte> stops_window_;  // keeps them while somebody may stop the queue
  far_word credit_, fin_;
};

}  // namespace weft::detail
