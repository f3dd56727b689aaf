// SPDX-License-Identifier: Apache-2.0
// What a queue is behind its ends: where its rings lie, how they are joined, and what has happened to it.
#pragma once

#include "os/parking.hpp"
#include "runtime/machine_state.hpp"
#include "weft/backend/kernel_code.hpp"
#include "weft/channel/message_queue.hpp"
#include "weft/channel/queue_end.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/peer_access.hpp"

#include <array>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <sys/types.h>
#include <vector>

namespace weft::detail {

class queue_job;
class device_ring;

/// A count with one writer and any readers.
class tally {
 public:
  void add(std::uint64_t n = 1) noexcept {
    count_.store(count_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  void at_least(std::uint64_t n) noexcept {
    if (n > count_.load(std::memory_order_relaxed)) count_.store(n, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t get() const noexcept { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> count_{0};
};

/// Messages brought to a kernel by one way, and the batches.
struct brought_tally {
  tally operations, messages;
  void add(std::uint64_t count) noexcept {
    operations.add();
    messages.add(count);
  }
};

/// The words of one ring as one of its two ends sees them.
struct ring_view {
  std::byte* slots = nullptr;
  std::uint64_t* credit = nullptr;
  std::uint64_t* fin = nullptr;
  std::uint32_t* stop = nullptr;
};

inline constexpr std::size_t ring_word = sizeof(std::uint64_t);  // bytes

/// Words of a ring beside its slots, each alone in its lines. What the writer of messages reads lies in one block, what
/// the reader reads in the other.
struct control_words {
  alignas(isolation) std::uint64_t credit;
  alignas(isolation) std::uint64_t fin;
  alignas(isolation) std::uint32_t stop;
};

/// Room for one message of any alignment that messages may have.
class message_room {
 public:
  void resize(std::size_t size) { lines_.resize((size + sizeof(line) - 1) / sizeof(line)); }
  [[nodiscard]] std::byte* data() noexcept { return reinterpret_cast<std::byte*>(lines_.data()); }

 private:
  struct alignas(64) line {
    std::array<std::byte, 64> bytes;
  };
  std::vector<line> lines_;
};

/// When sampled messages were sent.
struct sample_board {
  struct entry {
    std::atomic<std::uint64_t> position{0};  // plus one
    std::atomic<std::int64_t> sent_ns{0};
  };
  std::array<entry, 64> entries;
};

struct locked_histogram {
  mutable std::mutex mutex;
  duration_histogram histogram;
  void add(std::chrono::nanoseconds sample) noexcept {
    const std::lock_guard lock{mutex};
    histogram.add(sample);
  }
  [[nodiscard]] duration_histogram read() const noexcept {
    const std::lock_guard lock{mutex};
    return histogram;
  }
};

/// One ring of a queue (a queue has one per producer), or two joined by a forwarder.
struct queue_lane {
  queue_end sender, receiver;
  // staged: the forwarder reads where the sender writes, and writes where the receiver reads
  queue_end forward_in, forward_out;
  alignas(isolation) std::atomic<std::uint32_t> own_sender_waits{0};
  std::atomic<std::uint32_t>* sender_waits = &own_sender_waits;
  alignas(isolation) std::atomic<std::uint32_t> forwarder_waits{0};

  // the sender's
  alignas(isolation) tally dropped;
  tally spilled, spilled_high_water, failed_sends, timeouts, cancellations, parks;
  std::vector<std::byte> sending;  // a message with what goes with it, on its way into the ring
  bool opened = false;
  std::atomic<bool> sender_closed{false};
  std::mutex spill_mutex;
  std::deque<std::vector<std::byte>> spill;  // under spill_mutex
  std::atomic<std::uint64_t> spill_size{0};
  std::atomic<std::uint64_t> spill_cleared{0};
  // whoever feeds a receiving kernel
  alignas(isolation) brought_tally fed_by_stores, fed_by_copies;
  // the receiver's
  alignas(isolation) std::uint64_t lost = 0;  // read by statistics as an atomic
  // the forwarder's
  alignas(isolation) tally forwards;
  std::uint64_t forward_lost = 0;
  std::uint64_t forward_credit = 0;  // nobody waits for it: the receiver gives the credit
  std::uint32_t forward_stop = 0;    // nobody sets it: what was sent before the end is forwarded
  bool forwarded_fin = false;

  sample_board samples;
  std::vector<std::byte> forwarding;

  // Behind everything that points into it.
  std::shared_ptr<device_ring> with_devices;  // null: the host reaches the ring
  std::vector<std::shared_ptr<void>> memory;
  std::vector<std::uint64_t> watched;            // traffic
  std::vector<std::shared_ptr<queue_job>> jobs;  // looked at by the progress thread
};

/// Errors: invalid_argument; unsupported for a queue that kernels cannot have.
void check(const queue_options& o, std::source_location where);

/// Whether kernels know what a queue does with a message: neither checksums, samples, overwriting nor spill.
[[nodiscard]] inline bool kernels_know(const queue_options& o) noexcept {
  return !o.validate && o.sample_every == 0 && o.when_full != backpressure::overwrite_oldest &&
         o.when_full != backpressure::spill;
}

/// Brings on what an end has moved, where nobody looks at the ring: on the thread of that end.
class queue_feed {
 public:
  queue_feed() = default;
  queue_feed(const queue_feed&) = delete;
  queue_feed& operator=(const queue_feed&) = delete;
  virtual ~queue_feed() = default;

  /// True when it brought anything.
  virtual bool bring() noexcept = 0;
};

/// Which ends live in this process.
enum class queue_side : std::uint8_t { both, sending, receiving };

class queue_state {
 public:
  queue_state() = default;
  ~queue_state();
  queue_state(const queue_state&) = delete;
  queue_state& operator=(const queue_state&) = delete;

  queue_facts facts;
  queue_options options;
  ring_shape shape;
  std::size_t size = 0;  // of a message, as the user knows it
  bool overwrites = false;
  bool lies_in_host_memory = false;  // one ring, both of whose ends the host's own loads and stores serve
  bool lies_with_devices = false;    // one ring, which kernels alone reach
  bool fences = false;               // the kernel offers no heavy fence: who moves something looks with an exchange
  parking::word_scope scope = parking::word_scope::process;
  queue_side side = queue_side::both;
  std::atomic<int> lent{0};  // ends lent to kernels, which wake nobody
  // across processes: the memory that both map, and words in it
  std::span<std::byte> region;
  pid_t region_of = 0;                        // the process that mapped it: a fork's child has a hole there
  std::uint32_t* broken = nullptr;            // tells the other one that this one has stopped the queue
  std::uint32_t* own_loan = nullptr;          // tells the other one that kernels have this end, which wake nobody
  const std::uint32_t* other_loan = nullptr;  // and this one that they have the other

  std::optional<std::string> source_out_of_reach, destination_out_of_reach;

  std::shared_ptr<machine_state> machine;  // null across processes
  std::vector<peer_access> leases;
  std::vector<std::unique_ptr<queue_lane>> lanes;
  std::function<std::shared_ptr<const error>()> trouble;  // asked by who waits: why the other end will never answer

  alignas(isolation) std::atomic<std::uint32_t> own_receiver_waits{0};
  std::atomic<std::uint32_t>* receiver_waits = &own_receiver_waits;

  // the receiver's
  alignas(isolation) tally received_batches, cleared, corrupted, receive_timeouts, receive_cancellations,
      receiver_parks;
  std::size_t next_lane = 0;
  std::size_t peeked_lane = 0;
  std::atomic<bool> holds{false};  // `held` is the next message, taken out of its ring by a peek; read by statistics
  std::vector<std::byte> receiving;
  message_room held;
  bool receiver_opened = false;
  std::atomic<bool> receiver_closed{false};

  locked_histogram send_call, queueing, receive_call;
  std::atomic<double> peak{0};
  std::uint64_t last_sample_count = 0;
  std::chrono::steady_clock::time_point last_sample_at;

  std::mutex open_mutex;

  [[nodiscard]] backend& backend_of(device_id id) const { return machine->backend_of(id); }
  /// Why the host's loads and stores do not reach the memory of an end's device; none if they do.
  [[nodiscard]] const std::optional<std::string>& out_of_reach(device_id device) const {
    return device == facts.source ? source_out_of_reach : destination_out_of_reach;
  }
  /// Whether who sleeps may have to hear from a kernel, which wakes nobody.
  [[nodiscard]] bool hears_kernels() const noexcept {
    return lent.load(std::memory_order_relaxed) != 0 || (other_loan != nullptr && WEFT_RING_LOAD_32(other_loan) != 0);
  }
  /// Whether this is a fork's child, which has no ring to tell the other end in.
  [[nodiscard]] bool is_of_parent() const noexcept;
  /// Whether kernels of the device read and write this memory themselves.
  [[nodiscard]] bool is_open_to_kernels(device_id device, const void* memory) const {
    const auto right = backend_of(device).memory_access(device, memory);
    return right && *right == access_right::read_write;
  }

  /// Ends the queue for everybody: `cause` is what `failed` stands for, null for a plain close. By that, and by the end
  /// of the machine, it is over: what is in it is discarded. Else the receiver still gets what was sent before.
  void stop(std::shared_ptr<const error> cause) noexcept;
  /// Tells the receiver of a lane of a stopped queue that nothing follows what is in its ring.
  void end_receiver(queue_lane& l) noexcept;
  [[nodiscard]] bool stopped() const noexcept { return stopped_.load(std::memory_order_acquire); }
  [[nodiscard]] bool is_over() const noexcept { return over_.load(std::memory_order_seq_cst); }
  [[nodiscard]] queue_status ending() const noexcept;
  [[nodiscard]] std::shared_ptr<const error> cause() const noexcept;
  /// Keeps why a call has failed, without ending the queue: until another one does, or a cause stops the queue.
  void note(std::shared_ptr<const error> damage) noexcept;

  /// Wakes whoever sleeps on a word, or has the progress thread look at it; brings what was sent where kernels are fed.
  void wake(std::atomic<std::uint32_t>& word) noexcept;
  /// From now on the end that finds `word` in its way has the feed bring on what it moved; null: no more.
  void feed_from(std::shared_ptr<queue_feed> feed, std::atomic<std::uint32_t>& word) noexcept;

 private:
  mutable std::mutex feed_mutex_;
  std::shared_ptr<queue_feed> feed_;
  mutable std::mutex cause_mutex_;
  std::shared_ptr<const error> cause_;
  queue_status stopped_by_ = queue_status::closed;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> over_{false};
};

/// Values of a waiting flag: the sleeper that it names is woken. A feed does not sleep; it hears of every message.
inline constexpr std::uint32_t nobody = 0, a_thread = 1, the_progress_thread = 2, a_feed = 3;

[[nodiscard]] std::shared_ptr<const error> queue_error(errc code, std::string what,
                                                       error_scope scope = error_scope::endpoint);

/// A weft_ring as it lies where kernels find it.
using end_words = std::array<std::uint64_t, static_cast<std::size_t>(ring_words)>;

/// Sets an end up over the words it sees.
void set_end(queue_end& end, const ring_view& view, const ring_shape& shape) noexcept;

// A ring of either layout, message by message; not one in pieces.

/// The next message where it lies, or null.
[[nodiscard]] inline const void* peek_message(weft_ring& ring) noexcept {
  return ring.stride == 0 ? weft_ring_peek_packed(&ring, ring.bytes) : weft_ring_peek_slot(&ring, ring.stride);
}
/// Writes one for which there is space.
inline void put_message(weft_ring& ring, const void* message) noexcept {
  if (ring.stride == 0) {
    weft_ring_put_packed(&ring, message, ring.bytes, ring.per_line);
  } else {
    weft_ring_put_slot(&ring, message, ring.bytes, ring.stride);
  }
}
/// Goes past one without a word to the other side.
inline void pass_message(weft_ring& ring) noexcept {
  if (ring.stride == 0 && ++ring.index == ring.per_line) {
    ring.index = 0;
    ++ring.line;
  }
  WEFT_RING_KEEP_64(&ring.position, ring.position + 1);
}

/// Looks whether the other end can still answer, and stops the queue if not; seldom, because it takes locks.
[[nodiscard]] bool is_hopeless(queue_state& queue) noexcept;

/// When a call that starts now has waited long enough.
[[nodiscard]] std::chrono::steady_clock::time_point deadline_of(const queue_state& queue,
                                                                const wait_rules& rules) noexcept;

/// One attempt to send, or to receive from the lanes in turn, whatever the options. Never waits; its caller counts what
/// it came to.
[[nodiscard]] queue_status put_one(queue_state& queue, queue_lane& l, const void* message) noexcept;
[[nodiscard]] queue_status get_one(queue_state& queue, void* message) noexcept;
/// Counts what a call came to in the end.
void count_send(queue_lane& l, queue_status outcome) noexcept;
void count_receive(queue_state& queue, queue_status outcome) noexcept;

/// Moves spilled messages into the ring, and tells the end after the last; true when something moved.
[[nodiscard]] bool drain_spill(queue_state& queue, queue_lane& l) noexcept;

/// Tells the other end that no message follows, or that none is read any more.
void close_writer(queue_lane& l) noexcept;
void close_reader(queue_lane& l) noexcept;
/// Does what closing a lent end left for when it has come back.
void close_if_meant(queue_state& queue, queue_end& end) noexcept;

/// What a lane holds for the receiver.
[[nodiscard]] std::uint64_t unread(const queue_state& queue, const queue_lane& l) noexcept;

}  // namespace weft::detail
