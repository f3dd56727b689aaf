// SPDX-License-Identifier: Apache-2.0
// What the templates of message_queue.hpp stand on: the two ends of a ring, and the slow side of every operation, which
// knows sizes and no types.
#pragma once

#include "weft/channel/queue_options.hpp"
#include "weft/channel/queue_statistics.hpp"
#include "weft/channel/queue_status.hpp"
#include "weft/channel/ring_shape.hpp"
#include "weft/core/error.hpp"
#include "weft/core/ids.hpp"
#include "weft/core/waiting.hpp"
#include "weft/runtime/machine.hpp"

#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <stop_token>
#include <string>

namespace weft::detail {

class queue_state;

/// What one end touches on its fast path, in lines that nobody else writes.
struct alignas(isolation) queue_end {
  weft_ring ring{};
  std::atomic<std::uint32_t>* other_waits = nullptr;  // not 0: somebody sleeps until this end has moved something
  std::atomic<bool> plain{true};  // no checksum, no overwriting, no spill, no samples, not lent, not closed
  bool lent = false;              // to kernels
  bool closed = false;            // by its owner
  std::size_t lane = 0;
  std::uint64_t batches = 0;   // one writer; read by statistics
  std::uint64_t asked_at = 0;  // ring.waits when this end last asked whether the other one still lives

  /// Whether the short way of an operation is right. Relaxed: who ends the queue on another thread is in no order with
  /// an operation that runs at the time.
  [[nodiscard]] bool is_plain() const noexcept { return plain.load(std::memory_order_relaxed); }
  /// True, rarely, when the other end sleeps. A plain load: whoever sleeps has paid for the order
  /// (docs/reference/queues.md).
  [[nodiscard]] bool is_awaited() const noexcept { return other_waits->load(std::memory_order_relaxed) != 0; }
  void count_batch() noexcept { WEFT_RING_KEEP_64(&batches, batches + 1); }
};

/// Errors: as message_queue's constructor.
[[nodiscard]] std::shared_ptr<queue_state> make_queue(const machine& m, device_id source, device_id destination,
                                                      std::size_t size, std::size_t alignment,
                                                      const queue_options& options, std::source_location where);
[[nodiscard]] queue_end& open_sender(queue_state& queue, std::source_location where);
[[nodiscard]] queue_end* open_receiver(queue_state& queue, std::source_location where);

/// The properties of a queue, apart from its type.
struct queue_facts {
  device_id source, destination;
  transfer_mode mode = transfer_mode::direct;
  std::string why;           // why it is not what was asked, or what adaptive chose and why
  std::size_t capacity = 0;  // of each producer's ring
  std::size_t producers = 1;
};
[[nodiscard]] const queue_facts& facts_of(const queue_state& queue) noexcept;
[[nodiscard]] std::size_t size_of(const queue_state& queue) noexcept;
[[nodiscard]] queue_statistics statistics_of(const queue_state& queue) noexcept;
void close_queue(queue_state& queue) noexcept;
[[nodiscard]] std::size_t batch_size_of(const queue_state& queue) noexcept;

/// How long a call may wait.
struct wait_rules {
  bool may_wait = false;
  std::optional<std::chrono::nanoseconds> timeout;  // none: the queue's own
  std::stop_token stop;
};

/// `timeout` from now, or the end of time.
[[nodiscard]] inline std::chrono::steady_clock::time_point end_of(std::chrono::nanoseconds timeout) noexcept {
  using clock = std::chrono::steady_clock;
  return clock::time_point{deadline_after(clock::now().time_since_epoch(), timeout)};
}

// The slow side. Thread: that of the end. Cost: a virtual-free call; waits as the rules say.
[[nodiscard]] queue_status send_slowly(queue_state& queue, queue_end& end, const void* message,
                                       const wait_rules& rules) noexcept;
[[nodiscard]] batch_result send_batch_slowly(queue_state& queue, queue_end& end, const void* messages,
                                             std::size_t count, const wait_rules& rules) noexcept;
[[nodiscard]] queue_status receive_slowly(queue_state& queue, void* message, const wait_rules& rules) noexcept;
[[nodiscard]] batch_result receive_batch_slowly(queue_state& queue, void* messages, std::size_t count,
                                                std::size_t at_least, const wait_rules& rules) noexcept;
/// The next message where it lies, if it lies there whole and alone; null otherwise.
[[nodiscard]] const void* peek_slowly(queue_state& queue, queue_status& why) noexcept;
void pop_slowly(queue_state& queue) noexcept;
void wake_other(queue_state& queue, queue_end& end) noexcept;
/// Why an end that is not plain can reserve nothing.
[[nodiscard]] queue_status why_not_plain(queue_state& queue, const queue_end& end) noexcept;
/// Why a reservation got nothing.
[[nodiscard]] queue_status no_space(queue_state& queue, queue_end& end, int why) noexcept;
[[nodiscard]] std::optional<error> failure_of(const queue_state& queue);
[[nodiscard]] std::size_t clear(queue_state& queue) noexcept;
void close_sender(queue_state& queue, queue_end& end) noexcept;
void close_receiver(queue_state& queue) noexcept;

/// One suspended coroutine. Exactly one of done, cancelled and timed out ends it, decided by the progress thread; a
/// message is moved only if it is `done`.
struct awaited_operation {
  std::shared_ptr<queue_state> queue;
  queue_end* sender = nullptr;  // null: a receive
  const void* outgoing = nullptr;
  void* incoming = nullptr;
  wait_rules rules;
  std::chrono::steady_clock::time_point deadline;
  queue_status outcome = queue_status::empty;
  std::coroutine_handle<> waiter;
};
/// One look. True when the operation has its outcome; else it is to be suspended.
[[nodiscard]] bool ends_at_once(awaited_operation& operation) noexcept;
void suspend(awaited_operation& operation);

}  // namespace weft::detail
