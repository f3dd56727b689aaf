// SPDX-License-Identifier: Apache-2.0
// Two and more threads that send and receive for a while in every way there is: every message comes exactly once,
// whole, and in the order in which its sender sent it. Short as it stands; WEFT_NIGHTLY=1 makes it minutes.
#include "support/rounds.hpp"
#include "support/samples.hpp"
#include "weft/channel/message_queue.hpp"
#include "weft/runtime/task.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sched.h>
#include <stop_token>
#include <thread>

namespace queue_soak_test {

using samples::gpu0;
using samples::gpu1;
using samples::play;
using samples::wired;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using weft::backpressure;
using weft::machine;
using weft::queue_options;
using weft::queue_status;
using weft::transfer_mode;

/// How long one case goes on.
std::chrono::steady_clock::time_point end_of_case() {
  return std::chrono::steady_clock::now() + (samples::by_night() ? milliseconds{60'000} : milliseconds{120});
}

class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ULL + 1) {}
  std::uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ >> 16;
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(next()) % n; }

 private:
  std::uint64_t state_;
};

/// A number, who sent it, what makes up the size, and a hash over all of it.
template <std::size_t Words>
struct frame {
  std::uint64_t sequence = 0;
  std::array<std::uint64_t, Words> body{};
  std::uint32_t producer = 0;
  std::uint32_t hash = 0;

  void seal(std::uint32_t by, std::uint64_t number) {
    sequence = number;
    producer = by;
    std::uint64_t x = number * 0x9e3779b97f4a7c15ULL + by;
    for (std::uint64_t& word : body) {
      x ^= x >> 29;
      x *= 0xbf58476d1ce4e5b9ULL;
      word = x;
    }
    hash = hashed();
  }
  [[nodiscard]] std::uint32_t hashed() const {
    std::uint64_t h = sequence ^ (std::uint64_t{producer} << 32);
    for (const std::uint64_t word : body) h = (h ^ word) * 0x100000001b3ULL + (h >> 29);
    return static_cast<std::uint32_t>(h ^ (h >> 32)) | 1;
  }
};
using packed = frame<0>;   // two messages and more in a line
using dense = frame<6>;    // one line
using large = frame<510>;  // a page

static_assert(sizeof(packed) <= 24 && sizeof(large) == 4096);

/// What a receiver has seen, by producer. Counts and does not stop: a soak shows how much is wrong.
template <class T>
class ledger {
 public:
  explicit ledger(std::size_t producers, bool may_skip = false) : next_(producers), may_skip_(may_skip) {}
  void enter(const T& got) {
    if (got.hash != got.hashed() || got.producer >= next_.size()) {
      ++torn;
      return;
    }
    std::uint64_t& next = next_[got.producer];
    if (got.sequence < next) ++doubled_or_late;
    if (got.sequence > next) (may_skip_ ? skipped : missing) += got.sequence - next;
    next = got.sequence + 1;
    ++count;
  }
  void expect_clean() const {
    EXPECT_EQ(torn, 0U);
    EXPECT_EQ(doubled_or_late, 0U);
    EXPECT_EQ(missing, 0U);
  }
  std::uint64_t count = 0, torn = 0, doubled_or_late = 0, missing = 0, skipped = 0;

 private:
  std::vector<std::uint64_t> next_;
  bool may_skip_;
};

/// Moves the calling thread to another core now and then, and lets it go where it likes in the end.
class migration {
 public:
  migration() { known_ = sched_getaffinity(0, sizeof before_, &before_) == 0; }
  migration(const migration&) = delete;
  migration& operator=(const migration&) = delete;
  ~migration() {
    if (known_) static_cast<void>(sched_setaffinity(0, sizeof before_, &before_));
  }
  void perhaps(random_numbers& chance) const {
    if (!known_ || chance.below(2000) != 0) return;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(chance.below(std::max(1U, std::thread::hardware_concurrency())), &cores);
    static_cast<void>(sched_setaffinity(0, sizeof cores, &cores));  // a core that is not ours is refused
  }

 private:
  cpu_set_t before_{};
  bool known_ = false;
};

/// Sends in every way until the time is over; how many were sent.
template <class T>
std::uint64_t send_for_a_while(weft::sender<T> to, std::uint32_t producer, std::chrono::steady_clock::time_point end,
                               bool may_reserve) {
  random_numbers chance{producer + 17};
  const migration cores;
  std::vector<T> batch(64);
  std::uint64_t number = 0;
  while (std::chrono::steady_clock::now() < (number == 0 ? end + samples::soon : end)) {
    cores.perhaps(chance);
    const std::size_t wanted = 1 + chance.below(chance.below(4) == 0 ? batch.size() : 6);
    for (std::size_t i = 0; i < wanted; ++i) batch[i].seal(producer, number + i);
    const std::span<const T> messages{batch.data(), wanted};
    switch (chance.below(may_reserve ? 6 : 5)) {
      case 0:
        number += to.try_send(batch[0]) == queue_status::ok ? 1U : 0U;
        break;
      case 1:
        number += to.send(batch[0]) == queue_status::ok ? 1U : 0U;
        break;
      case 2:
        number += to.try_send_batch(messages).count;
        break;
      case 3:
        number += to.send_batch(messages).count;
        break;
      case 4:
        number += to.send_batch_for(messages, nanoseconds{static_cast<std::int64_t>(chance.below(30000))}).count;
        break;
      default: {
        auto places = to.reserve(wanted);
        for (std::size_t i = 0; i < places.size(); ++i) places[i].seal(producer, number + i);
        const std::size_t sent = chance.below(places.size() + 1);
        places.commit(sent);
        number += sent;
      }
    }
  }
  return number;
}

/// Receives in every way until the queue is closed.
template <class T>
void receive_until_closed(weft::receiver<T>& from, ledger<T>& seen) {
  random_numbers chance{99};
  const migration cores;
  std::vector<T> batch(64);
  for (;;) {
    cores.perhaps(chance);
    queue_status status = queue_status::ok;
    switch (chance.below(5)) {
      case 0: {
        T one;
        status = from.try_receive(one);
        if (status == queue_status::ok) seen.enter(one);
        break;
      }
      case 1: {
        T one;
        status = from.receive(one);
        if (status == queue_status::ok) seen.enter(one);
        break;
      }
      case 2: {
        const auto got = from.try_receive_batch(std::span<T>{batch.data(), 1 + chance.below(batch.size())});
        for (std::size_t i = 0; i < got.count; ++i) seen.enter(batch[i]);
        status = got.status;
        break;
      }
      case 3: {
        const std::size_t most = 1 + chance.below(batch.size());
        const auto got =
            from.receive_batch_for(std::span<T>{batch.data(), most},
                                   nanoseconds{static_cast<std::int64_t>(chance.below(30000))}, 1 + chance.below(most));
        for (std::size_t i = 0; i < got.count; ++i) seen.enter(batch[i]);
        status = got.status;
        break;
      }
      default: {
        T looked;
        const queue_status peeked = from.try_peek(looked);
        const T* at = from.front();
        if (peeked == queue_status::ok) {
          EXPECT_TRUE(at != nullptr && at->sequence == looked.sequence && at->producer == looked.producer);
        }
        if (at != nullptr) {
          seen.enter(*at);
          from.pop();
        }
      }
    }
    if (status == queue_status::closed) return;
    if (status == queue_status::failed) {
      ADD_FAILURE() << to_string(from.failure().value_or(weft::error{}));
      return;
    }
  }
}

template <class T>
void soak(const queue_options& options) {
  const machine m = play(wired(2));
  const weft::message_queue<T> queue{m, gpu0, gpu1, options};
  auto from = queue.open_receiver();
  const auto producers = static_cast<std::size_t>(options.producers);
  const bool overwrites = options.when_full == backpressure::overwrite_oldest;
  std::vector<std::uint64_t> sent(producers);
  std::vector<std::thread> threads;
  const auto end = end_of_case();
  for (std::size_t i = 0; i < producers; ++i) {
    threads.emplace_back([&sent, i, end, to = queue.open_sender(),
                          may_reserve = options.when_full == backpressure::block && !options.validate]() mutable {
      sent[i] = send_for_a_while(std::move(to), static_cast<std::uint32_t>(i), end, may_reserve);
    });
  }
  ledger<T> seen{producers, overwrites};
  receive_until_closed(from, seen);
  for (std::thread& thread : threads) thread.join();
  seen.expect_clean();
  std::uint64_t all = 0;
  for (const std::uint64_t each : sent) all += each;
  EXPECT_EQ(seen.count + seen.skipped, all);
  EXPECT_GT(seen.count, 0U);
  const weft::queue_statistics s = queue.statistics();
  EXPECT_EQ(s.sent, all);
  EXPECT_EQ(s.received, seen.count);
  EXPECT_EQ(s.lost, seen.skipped) << "exactly";
  EXPECT_EQ(s.in_flight + s.cleared + s.discarded + s.dropped, 0U);
}

queue_options of(std::size_t capacity, transfer_mode mode = transfer_mode::direct, int producers = 1) {
  queue_options made;
  made.capacity = capacity;
  made.mode = mode;
  made.producers = producers;
  made.timeout = samples::soon;
  return made;
}

TEST(soak, delivers_every_message_once_in_every_layout) {
  for (const auto mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    SCOPED_TRACE(weft::to_string(mode));
    soak<packed>(of(1024, mode));
    soak<dense>(of(1024, mode));
    soak<large>(of(64, mode));
  }
}

TEST(soak, delivers_every_message_once_through_the_smallest_ring) {
  for (const auto mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    SCOPED_TRACE(weft::to_string(mode));
    soak<packed>(of(16, mode));
    soak<dense>(of(16, mode));
    soak<large>(of(16, mode));
  }
}

TEST(soak, delivers_every_message_of_three_producers_once) {
  for (const auto mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    SCOPED_TRACE(weft::to_string(mode));
    soak<packed>(of(16, mode, 3));
    soak<dense>(of(64, mode, 3));
  }
}

TEST(soak, delivers_every_message_once_whatever_the_options) {
  for (const auto mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    SCOPED_TRACE(weft::to_string(mode));
    queue_options validated = of(16, mode);
    validated.validate = true;
    soak<packed>(validated);
    soak<dense>(validated);
    queue_options sampled = of(64, mode);
    sampled.sample_every = 4;
    soak<dense>(sampled);
    queue_options spilling = of(16, mode);
    spilling.when_full = backpressure::spill;
    spilling.spill_limit = weft::bytes{100 * sizeof(dense)};
    soak<dense>(spilling);
    soak<dense>([&] {
      queue_options three = spilling;
      three.producers = 3;
      return three;
    }());
  }
}

TEST(soak, wakes_every_sleeper) {
  for (const auto mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    SCOPED_TRACE(weft::to_string(mode));
    queue_options sleepy = of(16, mode);
    sleepy.wait_policy = weft::waiting::park;
    soak<packed>(sleepy);
    soak<dense>(sleepy);
  }
}

/// For how long the threads of this process have run, or stood in line for a core: what a slow or busy machine adds to
/// the time that something takes.
nanoseconds with_work() {
  std::int64_t sum = 0;
  for (const auto& thread : std::filesystem::directory_iterator{"/proc/self/task"}) {
    std::int64_t ran = 0, stood_in_line = 0;
    std::ifstream{thread.path() / "schedstat"} >> ran >> stood_in_line;
    sum += ran + stood_in_line;
  }
  return nanoseconds{sum};
}

TEST(soak, brings_what_was_spilled_without_another_send) {
  const machine m = play(wired(2));
  for (const auto mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    queue_options options = of(16, mode);
    options.when_full = backpressure::spill;
    const weft::message_queue<dense> queue{m, gpu0, gpu1, options};
    auto to = queue.open_sender();
    auto from = queue.open_receiver();
    std::uint64_t sent = 0, received = 0;
    // Not woken, whoever drains the spill comes by every 20 ms, and in nearly every round all sleep until then. A
    // machine that stands still may look the same: so it is rounds until those in which nobody slept lead by 20.
    const auto until = std::chrono::steady_clock::now() + samples::only_a_hang / 2;
    for (int lead = 0; lead < 20;) {
      ASSERT_LT(std::chrono::steady_clock::now(), until) << "whoever drains the spill was not woken: " << lead;
      dense message;
      for (int i = 0; i < 40; ++i) {
        message.seal(0, sent++);
        ASSERT_EQ(to.try_send(message), queue_status::ok);
      }
      const nanoseconds before = with_work();
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < 40; ++i) {
        ASSERT_EQ(from.receive(message), queue_status::ok);
        ASSERT_EQ(message.sequence, received++);
      }
      const auto took = std::chrono::steady_clock::now() - begin;
      lead += took - (with_work() - before) < milliseconds{8} ? 1 : -1;
    }
  }
}

TEST(soak, an_overwriting_queue_gives_whole_messages_in_order_and_counts_the_others) {
  for (const auto mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    SCOPED_TRACE(weft::to_string(mode));
    queue_options options = of(16, mode);
    options.when_full = backpressure::overwrite_oldest;
    soak<packed>(options);
    soak<dense>(options);
    options.capacity = 1024;
    options.validate = true;
    soak<dense>(options);
  }
}

// ---- cancellation ---------------------------------------------------------------------------------------------------

/// A stop_source that somebody else stops at an unknown moment, and its owner replaces.
class target {
 public:
  std::stop_token renew() {
    const std::lock_guard lock{mutex_};
    source_ = std::stop_source{};
    return source_.get_token();
  }
  void stop() {
    std::stop_source shot;
    {
      const std::lock_guard lock{mutex_};
      shot = source_;
    }
    shot.request_stop();
  }

 private:
  std::mutex mutex_;
  std::stop_source source_;
};

/// Sends and receives with stops that come at any moment: what was cancelled moved nothing, and everything else once.
void cancellation_storm(const queue_options& options) {
  const machine m = play(wired(2));
  const weft::message_queue<dense> queue{m, gpu0, gpu1, options};
  target sending, receiving;
  std::atomic<bool> over{false};
  std::uint64_t cancelled_sends = 0, cancelled_receives = 0, sent = 0;
  const auto end = end_of_case();
  std::thread storm{[&] {
    random_numbers chance{7};
    while (!over.load(std::memory_order_relaxed)) {
      for (std::size_t i = chance.below(2000); i != 0; --i) chance.next();
      (chance.below(2) == 0 ? sending : receiving).stop();
    }
  }};
  std::thread sender{[&, to = queue.open_sender()]() mutable {
    random_numbers chance{5};
    std::array<dense, 40> batch;
    while (std::chrono::steady_clock::now() < (sent == 0 ? end + samples::soon : end)) {
      const std::size_t wanted = chance.below(2) == 0 ? 1 : 1 + chance.below(batch.size());
      for (std::size_t i = 0; i < wanted; ++i) batch[i].seal(0, sent + i);
      const std::stop_token stop = sending.renew();
      if (wanted == 1) {
        const queue_status status = to.send(batch[0], stop);
        ASSERT_TRUE(status == queue_status::ok || status == queue_status::cancelled) << weft::to_string(status);
        (status == queue_status::ok ? sent : cancelled_sends) += 1;
      } else {
        const auto got = to.send_batch(std::span<const dense>{batch.data(), wanted}, stop);
        ASSERT_EQ(got.status, got.count == wanted ? queue_status::ok
                              : got.count == 0    ? queue_status::cancelled
                                                  : queue_status::partial);
        if (got.count < wanted) ++cancelled_sends;
        sent += got.count;
      }
    }
  }};
  ledger<dense> seen{1};
  {
    auto from = queue.open_receiver();
    random_numbers chance{3};
    std::array<dense, 40> batch;
    for (queue_status status{}; status != queue_status::closed;) {
      const std::size_t wanted = chance.below(2) == 0 ? 1 : 1 + chance.below(batch.size());
      const std::stop_token stop = receiving.renew();
      if (wanted == 1) {
        status = from.receive(batch[0], stop);
        if (status == queue_status::ok) seen.enter(batch[0]);
      } else {
        const auto got = from.receive_batch(std::span<dense>{batch.data(), wanted}, wanted, stop);
        for (std::size_t i = 0; i < got.count; ++i) seen.enter(batch[i]);
        status = got.status;
      }
      if (status == queue_status::cancelled) ++cancelled_receives;
      if (status == queue_status::failed || status == queue_status::timed_out) {
        ADD_FAILURE() << weft::to_string(status);
        break;
      }
    }
  }
  sender.join();
  over = true;
  storm.join();
  seen.expect_clean();
  EXPECT_EQ(seen.count, sent);
  EXPECT_GT(sent, 0U);
  const weft::queue_statistics s = queue.statistics();
  EXPECT_EQ(s.sent, sent);
  EXPECT_EQ(s.received, sent);
  EXPECT_GE(s.send_cancellations + s.receive_cancellations, cancelled_receives);
}

TEST(cancellation_storm, loses_and_doubles_no_message) {
  for (const auto mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    for (const auto policy : {weft::waiting::adaptive, weft::waiting::park}) {
      for (const auto when_full : {backpressure::block, backpressure::spill}) {
        queue_options options = of(16, mode);
        options.wait_policy = policy;
        options.when_full = when_full;
        options.spill_limit = weft::bytes{20 * sizeof(dense)};
        SCOPED_TRACE(std::string{weft::to_string(mode)} + " " + std::string{weft::to_string(when_full)});
        cancellation_storm(options);
      }
    }
  }
}

/// The same for coroutines: an operation that was stopped while it was suspended moved nothing.
weft::task<std::uint64_t> send_suspended(weft::sender<dense> to, target& stops,
                                         std::chrono::steady_clock::time_point end) {
  std::uint64_t number = 0;
  dense message;
  while (std::chrono::steady_clock::now() < (number == 0 ? end + samples::soon : end)) {
    message.seal(0, number);
    const queue_status status = co_await to.sending(message, stops.renew());
    if (status == queue_status::ok) ++number;
  }
  co_return number;
}

weft::task<ledger<dense>> receive_suspended(weft::receiver<dense> from, target& stops) {
  ledger<dense> seen{1};
  dense message;
  for (queue_status status{}; status != queue_status::closed;) {
    status = co_await from.receiving(message, stops.renew());
    if (status == queue_status::ok) seen.enter(message);
  }
  co_return seen;
}

TEST(cancellation_storm, over_suspended_coroutines_loses_and_doubles_no_message) {
  for (const auto mode : {transfer_mode::direct, transfer_mode::host_staged}) {
    const machine m = play(wired(2));
    const weft::message_queue<dense> queue{m, gpu0, gpu1, of(16, mode)};
    target sending, receiving;
    std::atomic<bool> over{false};
    std::thread storm{[&] {
      random_numbers chance{11};
      while (!over.load(std::memory_order_relaxed)) {
        for (std::size_t i = chance.below(2000); i != 0; --i) chance.next();
        (chance.below(2) == 0 ? sending : receiving).stop();
      }
    }};
    std::uint64_t sent = 0;
    std::thread sender{[&, to = queue.open_sender()]() mutable {
      sent = weft::sync_wait(send_suspended(std::move(to), sending, end_of_case()));
    }};
    const ledger<dense> seen = weft::sync_wait(receive_suspended(queue.open_receiver(), receiving));
    sender.join();
    over = true;
    storm.join();
    seen.expect_clean();
    EXPECT_EQ(seen.count, sent);
    EXPECT_GT(sent, 0U);
  }
}

}  // namespace queue_soak_test
