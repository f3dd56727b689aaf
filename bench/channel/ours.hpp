// SPDX-License-Identifier: Apache-2.0
// Queues of weft behind the face of peers.hpp.
#pragma once

#include "weft/channel/message_queue.hpp"
#include "weft/channel/ring_shape.hpp"
#include "weft/channel/shared_queue.hpp"
#include "weft/kernel/ring.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>

namespace weft::bench {

/// A queue between the first two devices of a machine, with both of its ends.
template <class T>
class ours {
 public:
  ours(const machine& m, const queue_options& options)
      : queue_(m, m[0].id(), m[1].id(), options), sender_(queue_.open_sender()), receiver_(queue_.open_receiver()) {}

  bool try_send(const T& message) { return sender_.try_send(message) == queue_status::ok; }
  bool try_receive(T& message) { return receiver_.try_receive(message) == queue_status::ok; }
  std::size_t try_send_some(const T* messages, std::size_t n) {
    return sender_.try_send_batch(std::span{messages, n}).count;
  }
  std::size_t try_receive_some(T* messages, std::size_t n) {
    return receiver_.try_receive_batch(std::span{messages, n}).count;
  }
  [[nodiscard]] const message_queue<T>& queue() const { return queue_; }

 protected:
  message_queue<T> queue_;
  sender<T> sender_;
  receiver<T> receiver_;
};

/// The same through the calls that wait.
template <class T>
class ours_waiting : public ours<T> {
 public:
  using ours<T>::ours;
  bool try_send(const T& message) { return this->sender_.send(message) == queue_status::ok; }
  bool try_receive(T& message) { return this->receiver_.receive(message) == queue_status::ok; }
  std::size_t try_send_some(const T* messages, std::size_t n) {
    return this->sender_.send_batch(std::span{messages, n}).count;
  }
  std::size_t try_receive_some(T* messages, std::size_t n) {
    return this->receiver_.receive_batch(std::span{messages, n}).count;
  }
};

/// One end of a queue between two processes.
template <class T>
class ours_across {
 public:
  ours_across(process_group& group, rank other, std::uint64_t channel, bool sends, const queue_options& options) {
    if (sends) {
      sender_ = connect_sender<T>(group, other, channel, options);
    } else {
      receiver_ = connect_receiver<T>(group, other, channel, options);
    }
  }
  bool try_send(const T& message) { return sender_.try_send(message) == queue_status::ok; }
  bool try_receive(T& message) { return receiver_.try_receive(message) == queue_status::ok; }
  std::size_t try_send_some(const T* messages, std::size_t n) {
    return sender_.try_send_batch(std::span{messages, n}).count;
  }
  std::size_t try_receive_some(T* messages, std::size_t n) {
    return receiver_.try_receive_batch(std::span{messages, n}).count;
  }

 private:
  sender<T> sender_;
  receiver<T> receiver_;
};

/// The ring that kernels use, in memory that the caller gives, without a queue around it: the difference to `ours` is
/// what the queue's own part costs. Two processes can share it: each makes its own bare_ring over the same memory.
template <class T>
class bare_ring {
 public:
  static std::size_t size_for(std::size_t capacity) { return sizeof(words) + shape(capacity).slots_size(); }

  /// Zeroed memory, aligned to two lines, is an empty ring that is open.
  bare_ring(void* memory, std::size_t capacity) {
    auto* control = static_cast<words*>(memory);
    const detail::ring_shape form = shape(capacity);
    weft_ring ring{};
    ring.slots = reinterpret_cast<std::uint64_t>(control + 1);
    ring.credit = reinterpret_cast<std::uint64_t>(&control->credit);
    ring.fin = reinterpret_cast<std::uint64_t>(&control->fin);
    ring.stop = reinterpret_cast<std::uint64_t>(&control->stop);
    ring.mask = form.places - 1;
    ring.capacity = form.capacity;
    ring.shift = static_cast<std::uint32_t>(std::countr_zero(form.places));
    ring.bytes = sizeof(T);
    ring.stride = form.stride;
    ring.per_line = form.per_line;
    sender_.ring = ring;
    receiver_.ring = ring;
  }

  bool try_send(const T& message) {
    weft_ring* at = &sender_.ring;
    if (weft_ring_space(at) != WEFT_RING_OK) return false;
    if constexpr (per_line != 0) {
      weft_ring_put_packed(at, &message, sizeof(T), per_line);
    } else {
      weft_ring_put_slot(at, &message, sizeof(T), stride);
    }
    return true;
  }
  bool try_receive(T& message) {
    weft_ring* at = &receiver_.ring;
    if constexpr (per_line != 0) {
      const void* from = weft_ring_peek_packed(at, sizeof(T));
      if (from == nullptr) return nothing();
      WEFT_RING_COPY(&message, from, sizeof(T));
      weft_ring_pop_packed(at, per_line);
    } else {
      const void* from = weft_ring_peek_slot(at, stride);
      if (from == nullptr) return nothing();
      WEFT_RING_COPY(&message, from, sizeof(T));
      weft_ring_pop_slot(at);
    }
    return true;
  }
  std::size_t try_send_some(const T* messages, std::size_t n) {
    int why = WEFT_RING_OK;
    if constexpr (per_line != 0) {
      return weft_ring_put_lines(&sender_.ring, messages, n, sizeof(T), per_line, &why);
    } else {
      return weft_ring_put_slots(&sender_.ring, messages, n, sizeof(T), stride, &why);
    }
  }
  std::size_t try_receive_some(T* messages, std::size_t n) {
    std::size_t some = 0;
    if constexpr (per_line != 0) {
      some = weft_ring_get_lines(&receiver_.ring, messages, n, sizeof(T), per_line);
    } else {
      some = weft_ring_get_slots(&receiver_.ring, messages, n, sizeof(T), stride);
    }
    if (some == 0) nothing();
    return some;
  }

 private:
  static constexpr std::uint32_t per_line = detail::per_line_of(sizeof(T), alignof(T));
  static constexpr std::uint32_t stride = detail::stride_of(sizeof(T), alignof(T));
  struct alignas(detail::isolation) own_lines {
    weft_ring ring{};
  };
  struct words {
    alignas(detail::isolation) std::uint64_t credit;
    alignas(detail::isolation) std::uint64_t fin;
    alignas(detail::isolation) std::uint32_t stop;
  };
  static detail::ring_shape shape(std::size_t capacity) {
    return detail::shape_of(sizeof(T), alignof(T), capacity, true);
  }
  [[gnu::noinline]] bool nothing() {
    static_cast<void>(weft_ring_nothing(&receiver_.ring));
    return false;
  }

  own_lines sender_, receiver_;
};

}  // namespace weft::bench
