// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/channel/message_queue.hpp"
#include "weft/memory/buffer.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>

namespace weft {

/// How messages of the host get to where a receiving kernel looks for them.
enum class ring_delivery : std::uint8_t {
  in_place,  // it looks at the queue's own ring
  stores,    // the host's stores across the bus into a ring in the device's memory; copies where a batch is large
  copies,    // copies into that ring
};
[[nodiscard]] std::string_view to_string(ring_delivery delivery);

namespace detail {

class ring_feed;
class ring_image;
class queue_job;

/// The end, or the reason why there is none to lend: several producers have several. Errors: invalid_argument for an
/// end of no queue.
[[nodiscard]] queue_end& lendable(const std::shared_ptr<queue_state>& queue, queue_end* only,
                                  std::source_location where);

/// The device of an end of a queue within a process. Errors: invalid_argument for an end of no queue, and for a queue
/// between processes.
[[nodiscard]] device device_of(const std::shared_ptr<queue_state>& queue, device_id queue_facts::* end,
                               std::source_location where);

/// Takes an end away from its host thread and lays it where kernels of its device find it.
class loan {
 public:
  loan(std::shared_ptr<queue_state> queue, queue_end& end, const device& on, std::source_location where);
  ~loan() { end(); }
  loan(const loan&) = delete;
  loan& operator=(const loan&) = delete;

  /// Brings back how far the kernels got.
  void end() noexcept;
  [[nodiscard]] device_span<std::uint64_t> words() const;
  [[nodiscard]] std::optional<std::size_t> per_launch() const noexcept;
  [[nodiscard]] ring_delivery delivery() const noexcept;

 private:
  loan(std::shared_ptr<queue_state> queue, const device& on) : queue_(std::move(queue)), on_(on) {}
  void check(const queue_end& end, std::source_location where) const;
  [[nodiscard]] std::string why_not_in_place(const queue_end& end);
  [[nodiscard]] std::string why_not_in_region();
  [[nodiscard]] std::shared_ptr<ring_feed> new_feed(const queue_end& end) const;
  void feed_from_now() noexcept;
  void fetch(queue_end& back) noexcept;

  std::shared_ptr<queue_state> queue_;
  device on_;
  queue_end* end_ = nullptr;
  bool was_plain_ = false;
  std::shared_ptr<queue_job> watch_;                 // between processes: whether the other one lives
  std::optional<adopted_memory<std::byte>> region_;  // between processes: the ring, as the device has it
  std::shared_ptr<ring_feed> feed_;                  // null: the kernel looks at the queue's own ring
  buffer<std::uint64_t> words_;
  std::shared_ptr<ring_image> image_;  // in place of words: the device's memory is reached by commands only
};

}  // namespace detail

}  // namespace weft
