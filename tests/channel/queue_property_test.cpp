// SPDX-License-Identifier: Apache-2.0
// message_queue against std::deque: schedules drawn from a seed, over sizes, alignments, capacities, policies, modes,
// checksums and numbers of producers. Everything runs on one thread, so that what must happen is known at each step;
// where a thread of the library takes part (staged, spill) only what it may decide is left open.
#include "support/processes.hpp"
#include "support/rounds.hpp"
#include "support/samples.hpp"
#include "weft/channel/message_queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <numeric>
#include <optional>
#include <sstream>

namespace queue_property_test {

using samples::gpu0;
using samples::gpu1;
using samples::play;
using samples::wired;
using weft::backpressure;
using weft::batch_result;
using weft::machine;
using weft::queue_options;
using weft::queue_statistics;
using weft::queue_status;
using weft::transfer_mode;

/// A message of N bytes with the alignment A.
template <std::size_t N, std::size_t A = 1>
struct alignas(A) blob {
  std::array<std::uint8_t, N> bytes;

  friend bool operator==(const blob& a, const blob& b) { return a.bytes == b.bytes; }
};

class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ULL + 1) {}
  std::size_t below(std::size_t n) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<std::size_t>(state_ >> 20) % n;
  }

 private:
  std::uint64_t state_;
};

struct settings {
  backpressure policy = backpressure::block;
  transfer_mode mode = transfer_mode::direct;
  bool validate = false;
  std::size_t producers = 1;
  std::size_t capacity = 16;
  std::uint64_t seed = 0;
};

constexpr std::size_t spill_messages = 50;

template <class T>
class schedule {
 public:
  schedule(const machine& m, const settings& with)
      : with_(with),
        queue_(m, gpu0, gpu1, options(with)),
        chance_(with.seed),
        waiting_(with.producers),
        numbers_(with.producers) {
    for (std::size_t i = 0; i < with.producers; ++i) senders_.push_back(queue_.open_sender());
    receiver_ = queue_.open_receiver();
  }

  void run(std::size_t steps) {
    for (std::size_t i = 0; i < steps && !testing::Test::HasFatalFailure(); ++i) step();
    if (!testing::Test::HasFatalFailure()) finish();
  }

 private:
  static queue_options options(const settings& with) {
    queue_options made;
    made.capacity = with.capacity;
    made.mode = with.mode;
    made.when_full = with.policy;
    made.validate = with.validate;
    made.producers = static_cast<int>(with.producers);
    made.spill_limit = weft::bytes{spill_messages * sizeof(T)};
    made.timeout = samples::soon;
    return made;
  }

  [[nodiscard]] bool overwrites() const { return with_.policy == backpressure::overwrite_oldest; }
  [[nodiscard]] bool spills() const { return with_.policy == backpressure::spill; }
  /// True when nothing but this thread moves messages.
  [[nodiscard]] bool alone() const { return with_.mode == transfer_mode::direct && !spills(); }
  /// True when a peek takes the message out of the ring.
  [[nodiscard]] bool holds() const { return peeked_.has_value() && (with_.validate || overwrites()); }
  [[nodiscard]] std::size_t there() const {
    return std::accumulate(waiting_.begin(), waiting_.end(), std::size_t{0},
                           [](std::size_t sum, const auto& each) { return sum + each.size(); });
  }

  // The producer in the lowest two bits, the number above them as far as the size goes, and a pattern behind.
  T made(std::size_t producer, std::uint64_t number) const {
    T message;
    const std::uint64_t head = number << 2 | producer;
    const std::uint64_t seed = (number * 4 + producer + 1) * 0x9e3779b97f4a7c15ULL;
    std::uint8_t* const to = message.bytes.data();  // not optimised, an index into an array is two calls
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      std::uint64_t x = seed + i * 0xd6e8feb86659fd93ULL;
      x ^= x >> 31;
      to[i] = static_cast<std::uint8_t>(i < 8 ? head >> (8 * i) : x >> 24);
    }
    return message;
  }

  void step() {
    // phases of mostly sending and mostly receiving, so that rings run full and empty
    if (chance_.below(60) == 0) sending_ = !sending_;
    const bool send = chance_.below(4) == 0 ? !sending_ : sending_;
    send ? send_something(chance_.below(with_.producers)) : receive_something();
    if (chance_.below(16) == 0) check_counts();
  }

  // ---- sending

  void send_something(std::size_t p) {
    // of one byte, 64 numbers are told apart: what is skipped between two receives must be fewer
    if (sizeof(T) == 1 && overwrites() && waiting_[p].size() > 40) return;
    const std::size_t most = sizeof(T) == 1 && overwrites() ? 8 : chance_.below(8) == 0 ? with_.capacity + 3 : 12;
    switch (chance_.below(8)) {
      case 0:
      case 1:
        return after_send(p, 1, one(senders_[p].try_send(made(p, numbers_[p]))), false);
      case 2:
        return after_send(p, 1, one(senders_[p].send_for(made(p, numbers_[p]), std::chrono::nanoseconds{0})), true);
      case 3:
        return send_stopped(p);
      case 4:
        return reserve(p, most);
      default:
        break;
    }
    const std::vector<T> batch = several(p, chance_.below(most + 1));
    if (chance_.below(4) == 0) {
      after_send(p, batch.size(), senders_[p].send_batch_for(batch, std::chrono::nanoseconds{0}), true);
    } else {
      after_send(p, batch.size(), senders_[p].try_send_batch(batch), false);
    }
  }

  static batch_result one(queue_status status) { return {status, status == queue_status::ok ? std::size_t{1} : 0}; }

  std::vector<T> several(std::size_t p, std::size_t count) {
    std::vector<T> batch(count);
    for (std::size_t i = 0; i < count; ++i) batch[i] = made(p, numbers_[p] + i);
    return batch;
  }

  void send_stopped(std::size_t p) {
    std::stop_source stop;
    stop.request_stop();
    const queue_status status = senders_[p].send(made(p, numbers_[p]), stop.get_token());
    if (status == queue_status::cancelled) {
      ASSERT_TRUE(with_.policy == backpressure::block || spills());
      return refused(p);
    }
    after_send(p, 1, one(status), false);
  }

  void after_send(std::size_t p, std::size_t asked, batch_result got, bool waits) {
    ASSERT_LE(got.count, asked);
    std::size_t sent = got.count;
    if (with_.policy == backpressure::drop_newest) {
      // those that were dropped count as done, and may be any of the last ones
      ASSERT_EQ(got, (batch_result{queue_status::ok, asked}));
      const std::uint64_t dropped = queue_.statistics().dropped;
      ASSERT_LE(dropped - dropped_, asked);
      sent = asked - static_cast<std::size_t>(dropped - dropped_);
      if (dropped != dropped_) refused_after(p, sent);
      dropped_ = dropped;
    } else if (got.count == asked) {
      ASSERT_EQ(got.status, queue_status::ok);
    } else {
      const bool timed = waits && (with_.policy == backpressure::block || spills());
      const queue_status short_of = timed ? queue_status::timed_out : queue_status::full;
      ASSERT_EQ(got.status, got.count == 0 ? short_of : queue_status::partial);
      refused_after(p, sent);
    }
    accept(p, sent);
    // the numbers of what was not sent are used again, so that a slot that was half written would be seen
  }

  void accept(std::size_t p, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) waiting_[p].push_back(numbers_[p]++);
    accepted_ += count;
    if (overwrites()) return;
    const std::size_t room = queue_.capacity() + (spills() ? spill_messages : 0) + (holds() ? 1 : 0);
    ASSERT_LE(waiting_[p].size(), room) << "more than the queue can hold";
  }
  void refused_after(std::size_t p, std::size_t sent) {
    accept(p, sent);
    refused(p);
    accepted_ -= sent;
    numbers_[p] -= sent;
    for (std::size_t i = 0; i < sent; ++i) waiting_[p].pop_back();
  }
  /// Space comes back a quarter of the ring at a time: a sender may be refused only when more than three are unread.
  void refused(std::size_t p) {
    ASSERT_FALSE(overwrites()) << "it is never full";
    const std::size_t least = spills() ? spill_messages - 1 : queue_.capacity() - queue_.capacity() / 4;
    ASSERT_GT(waiting_[p].size(), least) << "there was space";
  }

  void reserve(std::size_t p, std::size_t most) {
    const std::size_t wanted = chance_.below(most + 1);
    auto places = senders_[p].reserve(wanted);
    if (with_.validate || overwrites() || spills()) {
      ASSERT_EQ(places.size(), 0U);
      ASSERT_EQ(places.status(), queue_status::failed);
      return;
    }
    ASSERT_LE(places.size(), wanted);
    if (places.size() < wanted) refused_after(p, places.size());
    ASSERT_EQ(places.status(), wanted == 0 || places.size() != 0 ? queue_status::ok : queue_status::full);
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = made(p, numbers_[p] + i);
    if (chance_.below(4) == 0) return;  // abandoned
    const std::size_t sent = chance_.below(places.size() + 1);
    places.commit(sent);
    accept(p, sent);
  }

  // ---- receiving

  void receive_something() {
    switch (chance_.below(sizeof(T) > 1000 ? 14 : 18)) {
      case 0:
        return peek();
      case 1:
        return take_front();
      case 2:
        return receive_at_once();
      case 3:
      case 4: {
        std::vector<T> batch(chance_.below(chance_.below(8) == 0 ? with_.capacity + 3 : 12));
        const batch_result got = receiver_.try_receive_batch(batch);
        if (batch.empty()) {
          ASSERT_EQ(got, (batch_result{queue_status::ok, 0}));
          return;
        }
        ASSERT_LE(got.count, batch.size());
        for (std::size_t i = 0; i < got.count; ++i) ASSERT_NO_FATAL_FAILURE(took(batch[i]));
        ASSERT_EQ(got.status, got.count != 0 ? queue_status::ok : queue_status::empty);
        if (got.count < batch.size()) nothing_there();
        return;
      }
      case 5:
        return receive_waiting();
      case 6:
        if (chance_.below(12) == 0) return clear();
        break;
      default:
        break;
    }
    T message;
    const queue_status status = receiver_.try_receive(message);
    if (status == queue_status::ok) return took(message);
    ASSERT_EQ(status, queue_status::empty);
    nothing_there();
  }

  void nothing_there() {
    if (!alone()) return;
    ASSERT_EQ(there(), 0U) << "there was a message";
  }

  void took(const T& message) {
    if (peeked_) {
      ASSERT_EQ(message, *peeked_) << "not the message that was peeked at";
      peeked_.reset();
    }
    const std::size_t p = message.bytes[0] & 3U;
    ASSERT_LT(p, with_.producers);
    std::deque<std::uint64_t>& line = waiting_[p];
    while (overwrites() && !line.empty() && !(message == made(p, line.front()))) {
      line.pop_front();
      ++lost_;
    }
    ASSERT_FALSE(line.empty()) << "a message that was not sent, or came twice";
    const T expected = made(p, line.front());
    if (message != expected) {
      const auto at = std::mismatch(message.bytes.begin(), message.bytes.end(), expected.bytes.begin()).first;
      FAIL() << "message " << line.front() << " of " << p << ", first bad byte " << at - message.bytes.begin();
    }
    line.pop_front();
    ++received_;
  }

  void peek() {
    T message;
    const queue_status status = receiver_.try_peek(message);
    if (status != queue_status::ok) {
      ASSERT_EQ(status, queue_status::empty);
      ASSERT_FALSE(peeked_.has_value());
      return nothing_there();
    }
    if (peeked_) {
      ASSERT_EQ(message, *peeked_) << "another message than at the last look";
    }
    peeked_ = message;
  }

  void take_front() {
    const T* at = receiver_.front();
    if (at == nullptr) {
      ASSERT_FALSE(peeked_.has_value());
      return nothing_there();
    }
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(at) % alignof(T), 0U);
    const T message = *at;
    ASSERT_EQ(receiver_.front(), at) << "a second look";
    receiver_.pop();
    took(message);
  }

  void receive_at_once() {
    std::stop_source stop;
    stop.request_stop();
    T message;
    const bool by_stop = chance_.below(2) == 0;
    const queue_status status = by_stop ? receiver_.receive(message, stop.get_token())
                                        : receiver_.receive_for(message, std::chrono::nanoseconds{0});
    if (status == queue_status::ok) return took(message);
    ASSERT_EQ(status, by_stop ? queue_status::cancelled : queue_status::timed_out);
    nothing_there();
  }

  void receive_waiting() {
    if (there() == 0) return;
    T message;
    ASSERT_EQ(receiver_.receive(message), queue_status::ok) << there() << " are on their way";
    took(message);
  }

  void clear() {
    const std::size_t before = there();
    const std::size_t dropped = receiver_.clear();
    cleared_ += dropped;
    if (overwrites()) {
      ASSERT_LE(dropped, before);
      lost_ += before - dropped;
    } else {
      ASSERT_EQ(dropped, before);
    }
    for (auto& line : waiting_) line.clear();
    peeked_.reset();
    check_counts();
  }

  // ---- counts

  void check_counts() {
    // while the library's thread moves messages out of a spill, they are on neither side or on both
    if (spills()) return;
    const queue_statistics s = queue_.statistics();
    ASSERT_EQ(s.sent, accepted_);
    ASSERT_EQ(s.cleared, cleared_);
    ASSERT_EQ(s.dropped, dropped_);
    ASSERT_EQ(s.corrupted, 0U);
    if (alone() || !overwrites()) {
      ASSERT_EQ(s.sent, s.received + s.lost + s.cleared + s.discarded + s.in_flight);
      ASSERT_EQ(s.received, received_) << "what was peeked at is not received";
    }
    if (!overwrites()) {
      ASSERT_EQ(s.lost, 0U);
      ASSERT_EQ(queue_.size(), there());
      ASSERT_EQ(queue_.empty(), queue_.size() == 0);
    }
    // a staged queue that overwrites has two rings; what a peek took out of them is there too
    const std::size_t rings = overwrites() && !queue_.is_direct() ? 2 : 1;
    ASSERT_LE(queue_.size(), queue_.capacity() * with_.producers * rings + (holds() ? 1 : 0));
  }

  // ---- the end

  void finish() {
    switch (chance_.below(3)) {
      case 0:
        return close_senders();
      case 1:
        return close_receiver();
      default:
        return close_all();
    }
  }

  void close_senders() {
    for (auto& sender : senders_) sender.close();
    T message;
    for (queue_status status{}; (status = receiver_.receive(message)) != queue_status::closed;) {
      ASSERT_EQ(status, queue_status::ok) << there() << " are left";
      ASSERT_NO_FATAL_FAILURE(took(message));
    }
    ASSERT_EQ(there(), 0U) << "closed before everything was received";
    ASSERT_EQ(receiver_.try_receive(message), queue_status::closed) << "and closed it stays";
    const queue_statistics s = queue_.statistics();
    ASSERT_EQ(s.sent, accepted_);
    ASSERT_EQ(s.received, received_);
    ASSERT_EQ(s.lost, lost_) << "exactly those that were overwritten";
    ASSERT_EQ(s.cleared, cleared_);
    ASSERT_EQ(s.bytes, received_ * sizeof(T));
    ASSERT_EQ(s.in_flight + s.discarded, 0U);
    ASSERT_EQ(s.sent, s.received + s.lost + s.cleared);
    const weft::moved& way = queue_.is_direct() ? s.direct : s.staged;
    ASSERT_EQ(queue_.is_direct() ? s.staged : s.direct, weft::moved{});
    if (!overwrites() && !spills() && way.messages != accepted_) {
      // the forwarder counts what it has moved, behind the receiver's back
      ASSERT_FALSE(queue_.is_direct());
      ASSERT_TRUE(processes::comes_true([&] { return queue_.statistics().staged.messages == accepted_; }));
    }
  }

  void close_receiver() {
    receiver_.close();
    T message;
    ASSERT_EQ(receiver_.try_receive(message), queue_status::closed);
    for (std::size_t p = 0; p < with_.producers; ++p) {
      const std::size_t most = 3 * queue_.capacity() + spill_messages;
      queue_status status = queue_status::ok;
      for (std::size_t i = 0; i < most && status != queue_status::closed; ++i) {
        status = senders_[p].try_send(made(p, numbers_[p]));
        if (status == queue_status::ok) ++accepted_;
      }
      ASSERT_EQ(status, queue_status::closed) << "the sender learns of it within a ring";
    }
    const queue_statistics s = queue_.statistics();
    ASSERT_EQ(s.in_flight, 0U);
    if (alone()) {
      ASSERT_EQ(s.sent, s.received + s.lost + s.cleared + s.discarded);
    }
    if (!overwrites()) {
      ASSERT_EQ(s.sent, accepted_);
    }
  }

  void close_all() {
    queue_.close();
    T message;
    queue_status status = queue_status::ok;
    for (std::size_t i = there() + 1; i != 0 && status == queue_status::ok; --i)
      status = receiver_.try_receive(message);
    ASSERT_EQ(status, queue_status::closed);
    for (std::size_t p = 0; p < with_.producers; ++p) {
      status = queue_status::ok;
      for (std::size_t i = 0; i < 3 * queue_.capacity() + spill_messages && status == queue_status::ok; ++i) {
        status = senders_[p].send(made(p, numbers_[p]));
      }
      ASSERT_EQ(status, queue_status::closed);
    }
  }

  settings with_;
  weft::message_queue<T> queue_;
  random_numbers chance_;
  std::vector<weft::sender<T>> senders_;
  weft::receiver<T> receiver_;
  std::vector<std::deque<std::uint64_t>> waiting_;  // by producer: the numbers of what was accepted and not yet seen
  std::vector<std::uint64_t> numbers_;              // by producer: of the next message
  std::optional<T> peeked_;
  bool sending_ = true;
  std::uint64_t accepted_ = 0, received_ = 0, cleared_ = 0, lost_ = 0, dropped_ = 0;
};

std::string described(const settings& with, std::size_t size) {
  std::ostringstream text;
  text << size << " bytes, " << weft::to_string(with.policy) << ", " << weft::to_string(with.mode)
       << (with.validate ? ", validated" : "") << ", " << with.producers << " producers, capacity " << with.capacity
       << ", seed " << with.seed;
  return text.str();
}

/// WEFT_TEST_SEED runs one seed alone.
std::vector<std::uint64_t> seeds() {
  if (const char* one = std::getenv("WEFT_TEST_SEED")) return {std::strtoull(one, nullptr, 10)};
  std::vector<std::uint64_t> all(samples::by_night() ? 200 : 2);
  std::iota(all.begin(), all.end(), std::uint64_t{1});
  return all;
}

template <class T>
class a_queue_of : public testing::Test {};

using sizes =
    testing::Types<blob<1>, blob<2>, blob<2, 2>, blob<4>, blob<4, 4>, blob<8>, blob<8, 8>, blob<12>, blob<12, 4>,
                   blob<16>, blob<16, 16>, blob<24, 8>, blob<25>, blob<56, 8>, blob<60, 4>, blob<60>, blob<64>,
                   blob<64, 64>, blob<100, 2>, blob<256, 32>, blob<513>, blob<4096>, blob<4096, 64>, blob<4097>>;

struct named_by_size {
  template <class T>
  static std::string GetName(int) {
    return std::to_string(sizeof(T)) + "_bytes_aligned_to_" + std::to_string(alignof(T));
  }
};

TYPED_TEST_SUITE(a_queue_of, sizes, named_by_size);

TYPED_TEST(a_queue_of, behaves_as_a_deque_under_every_policy_mode_and_schedule) {
  const machine m = play(wired(2));
  for (const std::uint64_t seed : seeds()) {
    random_numbers chance{seed * 7919 + sizeof(TypeParam)};
    for (const auto policy : {backpressure::block, backpressure::reject, backpressure::drop_newest,
                              backpressure::overwrite_oldest, backpressure::spill}) {
      for (const auto mode : {transfer_mode::direct, transfer_mode::host_staged}) {
        for (const bool validate : {false, true}) {
          for (const std::size_t producers : {1U, 3U}) {
            constexpr std::array<std::size_t, 6> capacities{16, 16, 17, 64, 1024, 4096};
            settings with{policy, mode, validate, producers, capacities[chance.below(capacities.size())], seed};
            // many laps rather than much memory
            while (with.capacity > 16 && with.capacity * sizeof(TypeParam) > 256 * 1024) with.capacity /= 4;
            SCOPED_TRACE(described(with, sizeof(TypeParam)));
            schedule<TypeParam> run{m, with};
            run.run((with.capacity <= 64 ? 400U : 200U) / (samples::is_sanitized ? 4 : 1));
            if (this->HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

}  // namespace queue_property_test
