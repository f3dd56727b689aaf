// SPDX-License-Identifier: Apache-2.0
// What people use to pass messages from one thread to another, behind one face:
//   bool try_send(const T&), bool try_receive(T&), std::size_t try_send_some(const T*, n), … try_receive_some(T*, n).
// A peer that is not installed is absent; the benchmark says which and why.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <unistd.h>

#if __has_include(<readerwriterqueue/readerwriterqueue.h>)
#include <readerwriterqueue/readerwriterqueue.h>
#define WEFT_BENCH_HAS_READER_WRITER_QUEUE 1
#else
#define WEFT_BENCH_HAS_READER_WRITER_QUEUE 0
#endif
#if __has_include(<concurrentqueue/concurrentqueue.h>)
#include <concurrentqueue/concurrentqueue.h>
#define WEFT_BENCH_HAS_CONCURRENT_QUEUE 1
#else
#define WEFT_BENCH_HAS_CONCURRENT_QUEUE 0
#endif
#if __has_include(<boost/lockfree/spsc_queue.hpp>)
#include <boost/lockfree/spsc_queue.hpp>
#define WEFT_BENCH_HAS_BOOST 1
#else
#define WEFT_BENCH_HAS_BOOST 0
#endif

namespace weft::bench {

/// For a peer without batches: one after the other, until it is full.
template <class Queue, class T>
std::size_t send_one_by_one(Queue& queue, const T* messages, std::size_t count) {
  std::size_t done = 0;
  while (done != count && queue.try_send(messages[done])) ++done;
  return done;
}
template <class Queue, class T>
std::size_t receive_one_by_one(Queue& queue, T* messages, std::size_t count) {
  std::size_t done = 0;
  while (done != count && queue.try_receive(messages[done])) ++done;
  return done;
}

/// The ring of indices that each side caches of the other, every index in lines of its own: the idea that
/// rigtorp::SPSCQueue made known. Lies in memory that the caller gives, so that two processes can share it.
template <class T>
class index_ring {
 public:
  /// Bytes that a ring takes.
  static constexpr std::size_t size_for(std::size_t capacity) { return sizeof(index_ring) + capacity * sizeof(T); }

  /// `capacity` is a power of two; the slots follow the ring itself.
  explicit index_ring(std::size_t capacity) : mask_(capacity - 1) {
    std::uninitialized_value_construct_n(slots(), capacity);
  }

  bool try_send(const T& message) {
    const std::uint64_t at = written_.index.load(std::memory_order_relaxed);
    if (at - written_.other > mask_) {
      written_.other = read_.index.load(std::memory_order_acquire);  // pairs with release in try_receive
      if (at - written_.other > mask_) return false;
    }
    slots()[at & mask_] = message;
    written_.index.store(at + 1, std::memory_order_release);  // pairs with acquire in try_receive
    return true;
  }
  bool try_receive(T& message) {
    const std::uint64_t at = read_.index.load(std::memory_order_relaxed);
    if (at == read_.other) {
      read_.other = written_.index.load(std::memory_order_acquire);
      if (at == read_.other) return false;
    }
    message = slots()[at & mask_];
    read_.index.store(at + 1, std::memory_order_release);
    return true;
  }
  /// One look at the other side, one copy or two, one publication.
  std::size_t try_send_some(const T* messages, std::size_t count) {
    const std::uint64_t at = written_.index.load(std::memory_order_relaxed);
    if (mask_ + 1 - (at - written_.other) < count) written_.other = read_.index.load(std::memory_order_acquire);
    const std::size_t some = std::min<std::size_t>(count, mask_ + 1 - (at - written_.other));
    const std::size_t until_end = std::min<std::size_t>(some, mask_ + 1 - (at & mask_));
    std::copy_n(messages, until_end, slots() + (at & mask_));
    std::copy_n(messages + until_end, some - until_end, slots());
    if (some != 0) written_.index.store(at + some, std::memory_order_release);
    return some;
  }
  std::size_t try_receive_some(T* messages, std::size_t count) {
    const std::uint64_t at = read_.index.load(std::memory_order_relaxed);
    if (read_.other - at < count) read_.other = written_.index.load(std::memory_order_acquire);
    const std::size_t some = std::min<std::size_t>(count, read_.other - at);
    const std::size_t until_end = std::min<std::size_t>(some, mask_ + 1 - (at & mask_));
    std::copy_n(slots() + (at & mask_), until_end, messages);
    std::copy_n(slots(), some - until_end, messages + until_end);
    if (some != 0) read_.index.store(at + some, std::memory_order_release);
    return some;
  }

 private:
  struct alignas(128) end {
    std::atomic<std::uint64_t> index{0};
    std::uint64_t other = 0;  // the other side's index when this side looked last
  };
  T* slots() { return reinterpret_cast<T*>(this + 1); }

  end written_, read_;
  alignas(128) std::uint64_t mask_;
};

/// The ring in memory of this process, message by message.
template <class T>
class rigtorp_style {
 public:
  explicit rigtorp_style(std::size_t capacity)
      : memory_(::operator new(index_ring<T>::size_for(capacity), std::align_val_t{128})),
        ring_(new(memory_.get()) index_ring<T>(capacity)) {}
  bool try_send(const T& message) { return ring_->try_send(message); }
  bool try_receive(T& message) { return ring_->try_receive(message); }
  std::size_t try_send_some(const T* messages, std::size_t n) { return send_one_by_one(*this, messages, n); }
  std::size_t try_receive_some(T* messages, std::size_t n) { return receive_one_by_one(*this, messages, n); }

 private:
  struct release {
    void operator()(void* memory) const { ::operator delete(memory, std::align_val_t{128}); }
  };
  std::unique_ptr<void, release> memory_;
  index_ring<T>* ring_;
};

template <class T>
class mutex_deque {
 public:
  explicit mutex_deque(std::size_t capacity) : capacity_(capacity) {}
  bool try_send(const T& message) { return try_send_some(&message, 1) == 1; }
  bool try_receive(T& message) { return try_receive_some(&message, 1) == 1; }
  std::size_t try_send_some(const T* messages, std::size_t n) {
    const std::lock_guard hold{guard_};
    const std::size_t some = std::min(n, capacity_ - messages_.size());
    messages_.insert(messages_.end(), messages, messages + some);
    return some;
  }
  std::size_t try_receive_some(T* messages, std::size_t n) {
    const std::lock_guard hold{guard_};
    const std::size_t some = std::min(n, messages_.size());
    const auto end = messages_.begin() + static_cast<std::ptrdiff_t>(some);
    std::copy(messages_.begin(), end, messages);
    messages_.erase(messages_.begin(), end);
    return some;
  }

 private:
  std::mutex guard_;
  std::size_t capacity_;
  std::deque<T> messages_;
};

#if WEFT_BENCH_HAS_READER_WRITER_QUEUE
template <class T>
class reader_writer_queue {
 public:
  explicit reader_writer_queue(std::size_t capacity) : queue_(capacity) {}
  bool try_send(const T& message) { return queue_.try_enqueue(message); }
  bool try_receive(T& message) { return queue_.try_dequeue(message); }
  std::size_t try_send_some(const T* messages, std::size_t n) { return send_one_by_one(*this, messages, n); }
  std::size_t try_receive_some(T* messages, std::size_t n) { return receive_one_by_one(*this, messages, n); }

 private:
  moodycamel::ReaderWriterQueue<T> queue_;
};
#endif

#if WEFT_BENCH_HAS_CONCURRENT_QUEUE
template <class T>
class concurrent_queue {
 public:
  explicit concurrent_queue(std::size_t capacity) : queue_(capacity, 1, 0), sender_(queue_), receiver_(queue_) {}
  bool try_send(const T& message) { return queue_.try_enqueue(sender_, message); }
  bool try_receive(T& message) { return queue_.try_dequeue(receiver_, message); }
  std::size_t try_send_some(const T* messages, std::size_t n) {
    return queue_.try_enqueue_bulk(sender_, messages, n) ? n : 0;  // all or nothing
  }
  std::size_t try_receive_some(T* messages, std::size_t n) { return queue_.try_dequeue_bulk(receiver_, messages, n); }

 private:
  moodycamel::ConcurrentQueue<T> queue_;
  moodycamel::ProducerToken sender_;
  moodycamel::ConsumerToken receiver_;
};
#endif

#if WEFT_BENCH_HAS_BOOST
template <class T>
class boost_spsc {
 public:
  explicit boost_spsc(std::size_t capacity) : queue_(capacity) {}
  bool try_send(const T& message) { return queue_.push(message); }
  bool try_receive(T& message) { return queue_.pop(message); }
  std::size_t try_send_some(const T* messages, std::size_t n) { return queue_.push(messages, n); }
  std::size_t try_receive_some(T* messages, std::size_t n) { return queue_.pop(messages, n); }

 private:
  boost::lockfree::spsc_queue<T> queue_;
};

/// With its slots inside, so that it can lie in memory that two processes share.
template <class T, std::size_t Capacity>
class boost_spsc_inside {
 public:
  bool try_send(const T& message) { return queue_.push(message); }
  bool try_receive(T& message) { return queue_.pop(message); }
  std::size_t try_send_some(const T* messages, std::size_t n) { return queue_.push(messages, n); }
  std::size_t try_receive_some(T* messages, std::size_t n) { return queue_.pop(messages, n); }

 private:
  boost::lockfree::spsc_queue<T, boost::lockfree::capacity<Capacity>> queue_;
};
#endif

/// A pipe between two processes: the kernel copies in and out, and both sides sleep in it.
template <class T>
class pipe_queue {
 public:
  pipe_queue(int in, int out) : in_(in), out_(out) {}
  bool try_send(const T& message) { return try_send_some(&message, 1) == 1; }
  bool try_receive(T& message) { return try_receive_some(&message, 1) == 1; }
  std::size_t try_send_some(const T* messages, std::size_t n) {
    const auto* from = reinterpret_cast<const std::byte*>(messages);
    for (std::size_t done = 0; done != n * sizeof(T);) {
      const ssize_t some = ::write(in_, from + done, n * sizeof(T) - done);
      if (some <= 0) return 0;
      done += static_cast<std::size_t>(some);
    }
    return n;
  }
  std::size_t try_receive_some(T* messages, std::size_t n) {
    auto* to = reinterpret_cast<std::byte*>(messages);
    std::size_t done = 0;
    do {  // what ends within a message is read to the message's end
      const std::size_t wanted = done == 0 ? n * sizeof(T) : (done + sizeof(T) - 1) / sizeof(T) * sizeof(T);
      const ssize_t some = ::read(out_, to + done, wanted - done);
      if (some <= 0) return 0;
      done += static_cast<std::size_t>(some);
    } while (done % sizeof(T) != 0);
    return done / sizeof(T);
  }

 private:
  int in_, out_;
};

}  // namespace weft::bench
