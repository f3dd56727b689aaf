// SPDX-License-Identifier: Apache-2.0
// Messages from one device to another, without a lock, a system call or an allocation per message.
#pragma once

#include "weft/channel/queue_end.hpp"
#include "weft/channel/queue_statistics.hpp"
#include "weft/core/internals.hpp"

#include <concepts>
#include <cstring>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft {

/// What travels: its bytes, padding included, are copied as they are.
template <class T>
concept message = std::is_trivially_copyable_v<T> && !std::is_const_v<T> && !std::is_volatile_v<T> &&
                  sizeof(T) <= detail::largest_message && alignof(T) <= 64;

template <message T>
class sender;
template <message T>
class receiver;

/// A bounded queue of messages from one device to another. The ring lies in the destination's memory; the sender writes
/// into it through its peer access (`direct`), or into a ring in host memory from where a forwarder moves the messages
/// on (`host_staged`). Where the host reaches the memory of either device by commands only, the ring in host memory is
/// the only one, and why() says so; kernels then work on images of it (kernel_end::visibility()).
///
/// The ends are opened once each (a sender per producer). They keep the queue alive; the queue may go before them.
/// After the machine is closed every operation says failed, with machine_closed. A queue that has ended before keeps
/// its first end: its status, and its cause. Thread: any; an end belongs to one thread at a time.
template <message T>
class message_queue {
 public:
  /// Errors: invalid_argument (no capacity, an option that cannot be), invalid_device, unsupported (rdma, network,
  /// for_kernels with what kernels do not know), out_of_memory, resource_exhausted (threads), device_lost,
  /// machine_closed.
  message_queue(const machine& m, device_id source, device_id destination, const queue_options& options = {},
                std::source_location where = std::source_location::current())
      : queue_(detail::make_queue(m, source, destination, sizeof(T), alignof(T), options, where)) {}

  /// Errors: resource_exhausted when every sending end has been opened.
  [[nodiscard]] sender<T> open_sender(std::source_location where = std::source_location::current()) const {
    return detail::make<sender<T>>(queue_, detail::open_sender(*queue_, where));
  }
  /// Errors: resource_exhausted when it has been opened.
  [[nodiscard]] receiver<T> open_receiver(std::source_location where = std::source_location::current()) const {
    return detail::make<receiver<T>>(queue_, detail::open_receiver(*queue_, where));
  }

  [[nodiscard]] device_id source() const noexcept { return detail::facts_of(*queue_).source; }
  [[nodiscard]] device_id destination() const noexcept { return detail::facts_of(*queue_).destination; }
  /// direct or host_staged: what the queue really does.
  [[nodiscard]] transfer_mode mode() const noexcept { return detail::facts_of(*queue_).mode; }
  [[nodiscard]] bool is_direct() const noexcept { return mode() == transfer_mode::direct; }
  /// Why the mode is not the one that was asked for; empty when it is.
  [[nodiscard]] const std::string& why() const noexcept { return detail::facts_of(*queue_).why; }
  /// Messages that each producer has room for.
  [[nodiscard]] std::size_t capacity() const noexcept { return detail::facts_of(*queue_).capacity; }
  /// Messages sent and not yet received: exact at rest, a snapshot while messages flow.
  [[nodiscard]] std::size_t size() const noexcept { return detail::size_of(*queue_); }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  /// True when size() has come to what the rings of all producers hold. What waits in a spill counts, so that the ring
  /// of another producer may have room; drop_newest, overwrite_oldest and spill take more all the same.
  [[nodiscard]] bool full() const noexcept { return size() >= capacity() * detail::facts_of(*queue_).producers; }
  [[nodiscard]] queue_statistics statistics() const noexcept { return detail::statistics_of(*queue_); }

  /// Ends the queue for both ends: every operation that begins from now on, or waits, says closed, and what was not
  /// received is discarded. To let the receiver have the rest first, close the sender instead. One that runs on another
  /// thread meanwhile may still end well. A queue that has ended before keeps its first end: its status, and its cause.
  void close() noexcept { detail::close_queue(*queue_); }

 private:
  friend struct detail::internals;
  [[nodiscard]] const std::shared_ptr<detail::queue_state>& state() const noexcept { return queue_; }

  std::shared_ptr<detail::queue_state> queue_;
};

namespace detail {

/// Publishes the first `count` of the places that were reserved.
template <class T>
void publish(weft_ring& ring, std::size_t count) noexcept {
  constexpr std::uint32_t per_line = per_line_of(sizeof(T), alignof(T));
  auto* base = reinterpret_cast<std::byte*>(ring.slots);
  if constexpr (per_line != 0) {
    std::uint64_t line = ring.line;
    std::uint32_t index = ring.index;
    for (std::size_t left = count; left != 0;) {
      const auto here = static_cast<std::uint32_t>(std::min<std::size_t>(left, per_line - index));
      index += here;
      left -= here;
      auto* word = base + (line & ring.mask) * WEFT_RING_LINE + WEFT_RING_LINE_PAYLOAD;
      WEFT_RING_STORE_64(reinterpret_cast<std::uint64_t*>(word), ((line + 1) << 8) | index);
      if (index == per_line) {
        index = 0;
        ++line;
      }
    }
    ring.line = line;
    ring.index = index;
  } else {
    constexpr std::uint32_t stride = stride_of(sizeof(T), alignof(T));
    for (std::uint64_t at = ring.position; at != ring.position + count; ++at) {
      auto* stamp = base + (at & ring.mask) * stride + stride - 4;
      WEFT_RING_STORE_32(reinterpret_cast<std::uint32_t*>(stamp), static_cast<std::uint32_t>(at >> ring.shift) + 1);
    }
  }
  WEFT_RING_KEEP_64(&ring.position, ring.position + count);
}

/// Where message `i` behind the last one sent will lie.
template <class T>
T* place_of(const weft_ring& ring, std::size_t i) noexcept {
  constexpr std::uint32_t per_line = per_line_of(sizeof(T), alignof(T));
  auto* base = reinterpret_cast<std::byte*>(ring.slots);
  if constexpr (per_line != 0) {
    const std::uint64_t at = ring.index + i;
    const std::uint64_t line = ring.line + at / per_line;
    return reinterpret_cast<T*>(base + (line & ring.mask) * WEFT_RING_LINE + at % per_line * sizeof(T));
  } else {
    return reinterpret_cast<T*>(base + ((ring.position + i) & ring.mask) * stride_of(sizeof(T), alignof(T)));
  }
}

}  // namespace detail

/// Places in the ring, to be written where they lie. commit() publishes; what was not committed is abandoned.
template <message T>
class reservation {
 public:
  reservation() = default;

  /// ok, or why there are no places: full, closed, failed (unsupported with checksums, overwriting, spill, samples
  /// or flagged packets: docs/reference/queues.md).
  [[nodiscard]] queue_status status() const noexcept { return status_; }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  explicit operator bool() const noexcept { return count_ != 0; }
  [[nodiscard]] T& operator[](std::size_t i) const noexcept { return *detail::place_of<T>(end_->ring, i); }

  /// Sends the first `count`, at most size(), and ends the reservation.
  void commit(std::size_t count) noexcept {
    const std::size_t sent = std::min(count, count_);
    count_ = 0;
    if (sent == 0) return;
    detail::publish<T>(end_->ring, sent);
    end_->count_batch();
    if (end_->is_awaited()) [[unlikely]]
      detail::wake_other(*queue_, *end_);
  }
  void commit() noexcept { commit(count_); }

 private:
  template <message U>
  friend class sender;
  reservation(detail::queue_state* queue, detail::queue_end* end, std::size_t count, queue_status status)
      : queue_(queue), end_(end), count_(count), status_(status) {}

  detail::queue_state* queue_ = nullptr;
  detail::queue_end* end_ = nullptr;
  std::size_t count_ = 0;
  queue_status status_ = queue_status::failed;
};

namespace detail {

template <class T>
struct [[nodiscard]] awaited_send {
  T outgoing;
  awaited_operation operation;
  [[nodiscard]] bool await_ready() noexcept {
    operation.outgoing = &outgoing;
    return ends_at_once(operation);
  }
  void await_suspend(std::coroutine_handle<> waiter) {
    operation.waiter = waiter;
    suspend(operation);
  }
  [[nodiscard]] queue_status await_resume() const noexcept { return operation.outcome; }
};

template <class T>
struct [[nodiscard]] awaited_receive {
  T* incoming;
  awaited_operation operation;
  [[nodiscard]] bool await_ready() noexcept {
    operation.incoming = incoming;
    return ends_at_once(operation);
  }
  void await_suspend(std::coroutine_handle<> waiter) {
    operation.waiter = waiter;
    suspend(operation);
  }
  [[nodiscard]] queue_status await_resume() const noexcept { return operation.outcome; }
};

}  // namespace detail

/// The end of a queue that sends. Closing it (or letting it go) tells the receiver that nothing follows.
/// Default-made or moved from: only is_open(), close(), assignment and destruction.
/// Thread: one at a time. Order: messages of one sender arrive in the order they were sent.
template <message T>
class sender {
 public:
  sender() = default;
  sender(sender&& other) noexcept : queue_(std::move(other.queue_)), end_(std::exchange(other.end_, nullptr)) {}
  sender& operator=(sender&& other) noexcept {
    sender given{std::move(other)};  // closes the end that was here, when it goes
    std::swap(queue_, given.queue_);
    std::swap(end_, given.end_);
    return *this;
  }
  ~sender() { close(); }

  /// Never waits. ok, full, closed or failed; with `drop_newest`, `overwrite_oldest` and `spill` as the policy says.
  /// Cost: no lock, no fence, no system call, no allocation while the receiver is awake.
  queue_status try_send(const T& message) noexcept {
    detail::queue_end& end = *end_;
    if (!end.is_plain() || weft_ring_space(&end.ring) != WEFT_RING_OK) [[unlikely]]
      return detail::send_slowly(*queue_, end, &message, {});
    put(end, message);
    return queue_status::ok;
  }

  /// Waits for space as the policy says, up to queue_options::timeout.
  queue_status send(const T& message, std::stop_token stop = {}) noexcept {
    detail::queue_end& end = *end_;
    if (!end.is_plain() || weft_ring_space(&end.ring) != WEFT_RING_OK) [[unlikely]]
      return detail::send_slowly(*queue_, end, &message, {true, {}, std::move(stop)});
    put(end, message);
    return queue_status::ok;
  }
  queue_status send_for(const T& message, std::chrono::nanoseconds timeout, std::stop_token stop = {}) noexcept {
    detail::queue_end& end = *end_;
    if (!end.is_plain() || weft_ring_space(&end.ring) != WEFT_RING_OK) [[unlikely]]
      return detail::send_slowly(*queue_, end, &message, {true, timeout, std::move(stop)});
    put(end, message);
    return queue_status::ok;
  }

  /// Sends a prefix without waiting: one look for space, one copy each, one publication each (each line, where several
  /// messages fit one).
  batch_result try_send_batch(std::span<const T> messages) noexcept {
    detail::queue_end& end = *end_;
    if (!end.is_plain()) [[unlikely]]
      return detail::send_batch_slowly(*queue_, end, messages.data(), messages.size(), {});
    const std::size_t sent = put_some(end, messages);
    if (sent == messages.size()) [[likely]]
      return {queue_status::ok, sent};
    return finish(end, messages, sent, {});
  }
  /// Waits until all are sent; partial with their number when the time, the stop or the other end came first.
  batch_result send_batch(std::span<const T> messages, std::stop_token stop = {}) noexcept {
    return send_batch_as(messages, {true, {}, std::move(stop)});
  }
  batch_result send_batch_for(std::span<const T> messages, std::chrono::nanoseconds timeout,
                              std::stop_token stop = {}) noexcept {
    return send_batch_as(messages, {true, timeout, std::move(stop)});
  }

  /// Up to `count` places to write messages into where they will be read. Never waits; one reservation at a time, and
  /// neither a send nor close() before it is committed or let go.
  [[nodiscard]] reservation<T> reserve(std::size_t count) noexcept {
    detail::queue_end& end = *end_;
    if (!end.is_plain()) return {queue_.get(), &end, 0, detail::why_not_plain(*queue_, end)};
    int why = WEFT_RING_OK;
    const std::size_t places = weft_ring_space_for(&end.ring, count, &why);
    const queue_status status = places != 0 || count == 0 ? queue_status::ok : detail::no_space(*queue_, end, why);
    return {queue_.get(), &end, places, status};
  }

  /// co_await: as send(), on the machine's callback thread. The end may not be used otherwise until it resumes.
  [[nodiscard]] auto sending(const T& message, std::stop_token stop = {}) {
    detail::awaited_send<T> made{message, {}};
    made.operation.queue = queue_;
    made.operation.sender = end_;
    made.operation.rules = {true, {}, std::move(stop)};
    return made;
  }

  /// Nothing follows: the receiver gets what was sent, then `closed`. Needs no space.
  void close() noexcept {
    if (is_open()) detail::close_sender(*queue_, *end_);
  }
  [[nodiscard]] bool is_open() const noexcept { return end_ != nullptr && !end_->closed; }
  /// The cause behind the last `failed` of either end; that of the end, once the queue has ended by one.
  [[nodiscard]] std::optional<error> failure() const {
    return queue_ ? detail::failure_of(*queue_) : std::nullopt;  // none of one that was moved from
  }
  /// How messages travel, as message_queue::mode().
  [[nodiscard]] transfer_mode mode() const noexcept { return detail::facts_of(*queue_).mode; }
  /// Of the whole queue, or of this side of it when the other end is in another process.
  [[nodiscard]] queue_statistics statistics() const noexcept { return detail::statistics_of(*queue_); }

 private:
  friend struct detail::internals;
  sender(std::shared_ptr<detail::queue_state> queue, detail::queue_end& end) : queue_(std::move(queue)), end_(&end) {}
  [[nodiscard]] const std::shared_ptr<detail::queue_state>& state() const noexcept { return queue_; }
  [[nodiscard]] detail::queue_end* native() const noexcept { return end_; }

  static constexpr std::uint32_t per_line = detail::per_line_of(sizeof(T), alignof(T));
  static constexpr std::uint32_t stride = detail::stride_of(sizeof(T), alignof(T));

  void put(detail::queue_end& end, const T& message) noexcept {
    if constexpr (per_line != 0) {
      weft_ring_put_packed(&end.ring, &message, sizeof(T), per_line);
    } else {
      weft_ring_put_slot(&end.ring, &message, sizeof(T), stride);
    }
    if (end.is_awaited()) [[unlikely]]
      detail::wake_other(*queue_, end);
  }
  std::size_t put_some(detail::queue_end& end, std::span<const T> messages) noexcept {
    int why = WEFT_RING_OK;
    std::size_t sent = 0;
    if constexpr (per_line != 0) {
      sent = weft_ring_put_lines(&end.ring, messages.data(), messages.size(), sizeof(T), per_line, &why);
    } else {
      sent = weft_ring_put_slots(&end.ring, messages.data(), messages.size(), sizeof(T), stride, &why);
    }
    end.count_batch();
    if (end.is_awaited()) [[unlikely]]
      detail::wake_other(*queue_, end);
    return sent;
  }
  batch_result send_batch_as(std::span<const T> messages, const detail::wait_rules& rules) noexcept {
    detail::queue_end& end = *end_;
    if (!end.is_plain()) [[unlikely]]
      return detail::send_batch_slowly(*queue_, end, messages.data(), messages.size(), rules);
    const std::size_t sent = put_some(end, messages);
    if (sent == messages.size()) [[likely]]
      return {queue_status::ok, sent};
    return finish(end, messages, sent, rules);
  }
  batch_result finish(detail::queue_end& end, std::span<const T> messages, std::size_t sent,
                      const detail::wait_rules& rules) noexcept {
    batch_result rest = detail::send_batch_slowly(*queue_, end, messages.data() + sent, messages.size() - sent, rules);
    rest.count += sent;
    if (rest.status != queue_status::ok && rest.count != 0) rest.status = queue_status::partial;
    return rest;
  }

  std::shared_ptr<detail::queue_state> queue_;
  detail::queue_end* end_ = nullptr;
};

/// The end of a queue that receives. Default-made or moved from: only is_open(), close(), assignment and destruction.
/// Thread: one at a time.
template <message T>
class receiver {
 public:
  receiver() = default;
  receiver(receiver&& other) noexcept
      : queue_(std::move(other.queue_)),
        only_(std::exchange(other.only_, nullptr)),
        open_(std::exchange(other.open_, false)) {}
  receiver& operator=(receiver&& other) noexcept {
    receiver given{std::move(other)};  // closes the end that was here, when it goes
    std::swap(queue_, given.queue_);
    std::swap(only_, given.only_);
    std::swap(open_, given.open_);
    return *this;
  }
  ~receiver() { close(); }

  /// Never waits. ok, empty, closed (everything that was sent has been received) or failed.
  queue_status try_receive(T& message) noexcept {
    switch (take(message)) {
      case taken::message:
        return queue_status::ok;
      case taken::nothing:
        return queue_status::empty;
      case taken::unclear:
        break;
    }
    return detail::receive_slowly(*queue_, &message, {});
  }
  /// Waits up to queue_options::timeout.
  queue_status receive(T& message, std::stop_token stop = {}) noexcept {
    if (take_soon(message)) [[likely]]
      return queue_status::ok;
    return detail::receive_slowly(*queue_, &message, {true, {}, std::move(stop)});
  }
  queue_status receive_for(T& message, std::chrono::nanoseconds timeout, std::stop_token stop = {}) noexcept {
    if (take_soon(message)) [[likely]]
      return queue_status::ok;
    return detail::receive_slowly(*queue_, &message, {true, timeout, std::move(stop)});
  }

  /// What is there now, up to messages.size(). empty only when nothing is.
  batch_result try_receive_batch(std::span<T> messages) noexcept { return receive_batch_as(messages, 1, {}); }
  /// Waits until `at_least` are there; partial with their number when something came first. With 0 it never waits: ok,
  /// also when nothing is there; closed or failed when nothing follows.
  batch_result receive_batch(std::span<T> messages, std::size_t at_least = 1, std::stop_token stop = {}) noexcept {
    return receive_batch_as(messages, at_least, {true, {}, std::move(stop)});
  }
  batch_result receive_batch_for(std::span<T> messages, std::chrono::nanoseconds timeout, std::size_t at_least = 1,
                                 std::stop_token stop = {}) noexcept {
    return receive_batch_as(messages, at_least, {true, timeout, std::move(stop)});
  }
  /// As receive_batch, up to queue_options::batch_size of them; empty when the time, the stop, the end or a failure
  /// came first: receive_batch(span) says which. Throws std::bad_alloc, std::length_error.
  [[nodiscard]] std::vector<T> receive_batch(std::stop_token stop = {}) {
    std::vector<T> messages(detail::batch_size_of(*queue_));
    messages.resize(receive_batch_as(messages, 1, {true, {}, std::move(stop)}).count);
    return messages;
  }

  /// The next message where it lies, valid until pop(); null when nothing is there. With checksums, overwriting,
  /// samples or flagged packets (docs/reference/queues.md) it is a copy. With checksums a damaged message is skipped
  /// here and null returned: use try_peek(), which says failed.
  [[nodiscard]] const T* front() noexcept {
    if (only_ != nullptr && only_->is_plain()) [[likely]] {
      if (const void* at = peek(*only_)) return static_cast<const T*>(at);
    }
    queue_status why{};
    return static_cast<const T*>(detail::peek_slowly(*queue_, why));
  }
  /// Lets go of what front() gave. Only after front() has given one.
  void pop() noexcept {
    if (only_ != nullptr && only_->is_plain()) [[likely]] {
      advance(*only_);
      return;
    }
    detail::pop_slowly(*queue_);
  }
  /// Copies the next message and leaves it there. ok, empty, closed or failed.
  queue_status try_peek(T& message) noexcept {
    queue_status why = queue_status::ok;
    const void* at = only_ != nullptr && only_->is_plain() ? peek(*only_) : nullptr;
    if (at == nullptr) at = detail::peek_slowly(*queue_, why);
    if (at == nullptr) return why;
    std::memcpy(&message, at, sizeof(T));
    return queue_status::ok;
  }

  /// Drops everything that was sent before the call and not received; how many.
  std::size_t clear() noexcept { return detail::clear(*queue_); }

  /// co_await: as receive(), on the machine's callback thread. The end may not be used otherwise until it resumes.
  [[nodiscard]] auto receiving(T& message, std::stop_token stop = {}) {
    detail::awaited_receive<T> made{&message, {}};
    made.operation.queue = queue_;
    made.operation.rules = {true, {}, std::move(stop)};
    return made;
  }

  /// Senders learn of it when they next look for space; what is in flight counts as discarded.
  void close() noexcept {
    if (!std::exchange(open_, false)) return;
    only_ = nullptr;
    detail::close_receiver(*queue_);
  }
  [[nodiscard]] bool is_open() const noexcept { return open_; }
  /// The cause behind the last `failed` of either end; that of the end, once the queue has ended by one.
  [[nodiscard]] std::optional<error> failure() const { return detail::failure_of(*queue_); }
  /// How messages travel, as message_queue::mode().
  [[nodiscard]] transfer_mode mode() const noexcept { return detail::facts_of(*queue_).mode; }
  /// Of the whole queue, or of this side of it when the other end is in another process.
  [[nodiscard]] queue_statistics statistics() const noexcept { return detail::statistics_of(*queue_); }

 private:
  friend struct detail::internals;
  receiver(std::shared_ptr<detail::queue_state> queue, detail::queue_end* only)
      : queue_(std::move(queue)), only_(only), open_(true) {}
  [[nodiscard]] const std::shared_ptr<detail::queue_state>& state() const noexcept { return queue_; }
  [[nodiscard]] detail::queue_end* native() const noexcept { return only_; }

  static constexpr std::uint32_t per_line = detail::per_line_of(sizeof(T), alignof(T));
  static constexpr std::uint32_t stride = detail::stride_of(sizeof(T), alignof(T));

  static const void* peek(detail::queue_end& end) noexcept {
    if constexpr (per_line != 0) {
      return weft_ring_peek_packed(&end.ring, sizeof(T));
    } else {
      return weft_ring_peek_slot(&end.ring, stride);
    }
  }
  void advance(detail::queue_end& end) noexcept {
    if constexpr (per_line != 0) {
      weft_ring_pop_packed(&end.ring, per_line);
    } else {
      weft_ring_pop_slot(&end.ring);
    }
    // only a credit that was just given can be what a sender sleeps for
    if (end.ring.credit_seen == end.ring.position && end.is_awaited()) [[unlikely]]
      detail::wake_other(*queue_, end);
  }
  enum class taken { message, nothing, unclear };
  /// One look. Rules for waiting are made only behind it: they own a stop token, whose end is a locked instruction that
  /// the compiler would put on this way too. What is not plainly a message or nothing is unclear, and so is one look in
  /// 1024: the long way finds out what it is, and whether the other end still lives. Short, because the next message
  /// may come meanwhile.
  [[gnu::always_inline]] taken take(T& message) noexcept {
    if (only_ == nullptr || !only_->is_plain()) [[unlikely]]
      return taken::unclear;
    detail::queue_end& end = *only_;
    const void* at = nullptr;
    bool is_torn = false;
    if constexpr (per_line != 0) {
      weft_uint64 seen = 0;
      at = weft_ring_look_packed(&end.ring, sizeof(T), &seen);
      is_torn = at == nullptr && weft_ring_is_torn_word(&end.ring, seen, per_line) != 0;
    } else {
      std::uint32_t seen = 0;
      at = weft_ring_look_slot(&end.ring, stride, &seen);
      is_torn = at == nullptr && weft_ring_is_torn_stamp(&end.ring, seen) != 0;
    }
    if (at != nullptr) [[likely]] {
      WEFT_RING_COPY(&message, at, sizeof(T));
      advance(end);
      return taken::message;
    }
    if (is_torn || weft_ring_nothing(&end.ring) != WEFT_RING_EMPTY) return taken::unclear;
    if (end.is_awaited()) [[unlikely]]
      detail::wake_other(*queue_, end);  // the credit was given
    return (end.ring.waits & 1023) == 1023 ? taken::unclear : taken::nothing;
  }
  /// Looks for about a microsecond before the call becomes a wait with a clock: an answer from another core takes less.
  bool take_soon(T& message) noexcept {
    for (int looks = 0; looks < 64; ++looks) {
      switch (take(message)) {
        case taken::message:
          return true;
        case taken::nothing:
          break;
        case taken::unclear:
          return false;
      }
      WEFT_RING_PAUSE();
    }
    return false;
  }
  batch_result receive_batch_as(std::span<T> messages, std::size_t at_least, const detail::wait_rules& rules) noexcept {
    std::size_t got = 0;
    if (only_ != nullptr && only_->is_plain()) [[likely]] {
      detail::queue_end& end = *only_;
      const std::uint64_t credit = end.ring.credit_seen;
      if constexpr (per_line != 0) {
        got = weft_ring_get_lines(&end.ring, messages.data(), messages.size(), sizeof(T), per_line);
      } else {
        got = weft_ring_get_slots(&end.ring, messages.data(), messages.size(), sizeof(T), stride);
      }
      if (end.ring.credit_seen != credit && end.is_awaited()) [[unlikely]]
        detail::wake_other(*queue_, end);
      // one at least: whether the end has come while nothing is there is looked up on the slow side
      if (got >= (at_least == 0 ? 1 : at_least) || got == messages.size()) [[likely]] {
        end.count_batch();
        return {queue_status::ok, got};
      }
    }
    batch_result rest = detail::receive_batch_slowly(*queue_, messages.data() + got, messages.size() - got,
                                                     at_least > got ? at_least - got : 0, rules);
    rest.count += got;
    if (rest.status != queue_status::ok && rest.count != 0) rest.status = queue_status::partial;
    return rest;
  }

  std::shared_ptr<detail::queue_state> queue_;
  detail::queue_end* only_ = nullptr;  // null with several producers, or when closed
  bool open_ = false;
};

}  // namespace weft
