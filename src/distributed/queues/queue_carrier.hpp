// SPDX-License-Identifier: Apache-2.0
// Carries the messages of queues whose ends are on two nodes.
#pragma once

#include "channel/region_side.hpp"
#include "distributed/engine/messenger.hpp"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace weft::detail {

/// One end of a queue in this process. The user's side works on a ring in memory of this process; the carrier does with
/// the ring what the other end would do. Everything here belongs to the carrier, under its lock.
struct far_end {
  int peer = 0;
  std::uint32_t own = 0;      // its number in this process
  std::uint32_t their = 0;    // and that of the other end in its own; 0: not known yet, or there is none
  std::uint64_t channel = 0;  // of an offer
  bool sends = false;
  bool overwrites = false;
  bool is_left = false;  // by its user
  bool has_ended = false;
  bool is_owed = false;  // credit that the sender was not told of
  bool is_stuck = false;
  bool is_lent = false;
  region_words* words = nullptr;
  queue_end ring;                  // of the other side
  std::uint64_t unused = 0;        // credit of an end that reads and gives none
  std::uint64_t told = 0;          // credit
  std::uint64_t calls = 0;         // of its user
  std::uint64_t passed = 0;        // where the sender overwrites: its messages that came or were lost
  std::vector<std::byte> message;  // on its way between a frame and a ring of atomics
  bool is_answered = false;        // the other end knows of this one, or has refused it
  std::string refusal;
  std::shared_ptr<void> memory;
  std::weak_ptr<queue_state> queue;
  std::shared_ptr<const error> cause;
};

/// A rank's offer to receive.
struct far_offer {
  std::uint32_t number = 0;
  std::vector<std::byte> header;
};

/// Shape: frames of up to 128 KiB to each peer, in order, each a row of records: messages of a queue, credit, the end
/// of a queue. The ring of the sender is as long as that of the receiver and gets its credit from there, so what is
/// sent has room where it arrives, and the memory for arrivals is two frames for each peer. Thread: any. Messages move
/// on the threads that send and receive; a thread of the carrier's own takes over while they sleep or do other things.
class queue_carrier {
 public:
  explicit queue_carrier(std::shared_ptr<messenger> by) : by_(std::move(by)) {}
  /// Every user holds it: its thread ends behind the last of them, and what was sent has left by then, or a
  /// second has gone by.
  [[nodiscard]] static std::shared_ptr<queue_carrier> open(std::shared_ptr<messenger> by);

  [[nodiscard]] std::string name_of(int peer) const { return by_->name_of(peer); }

  /// Errors: peer_dead.
  [[nodiscard]] result<void> offer(const std::shared_ptr<far_end>& end, std::uint64_t channel,
                                   const region_header& header);
  /// Errors of all three: timed_out, cancelled, peer_dead; incompatible with what the other rank says against it.
  [[nodiscard]] result<void> await_answer(far_end& end, wait_deadline until, const std::stop_token& stop);
  [[nodiscard]] result<far_offer> await_offer(int peer, std::uint64_t channel, wait_deadline until,
                                              const std::stop_token& stop);
  void take(const std::shared_ptr<far_end>& end, const far_offer& offered);
  /// False where the receiver had given up what was taken: there may be another offer behind it.
  [[nodiscard]] result<bool> await_receiver(far_end& end, wait_deadline until, const std::stop_token& stop);
  void refuse(int peer, const far_offer& offered, const std::string& why);

  /// Moves on what this end has moved, and whatever has arrived. True when anything was.
  bool bring(far_end& end) noexcept;
  /// Why nothing moves any more; called by who is about to sleep.
  [[nodiscard]] std::shared_ptr<const error> trouble(far_end& end) noexcept;
  /// The user has gone; what was sent goes on. An offer without an answer is withdrawn.
  void leave(far_end& end) noexcept;

 private:
  struct frame {
    static constexpr std::size_t room = std::size_t{128} << 10;
    transfer on_its_way;
    std::unique_ptr<std::byte[]> bytes = std::make_unique_for_overwrite<std::byte[]>(room);
    std::size_t size = 0;
  };
  struct line {
    int peer = 0;
    std::deque<std::unique_ptr<frame>> leaving;
    std::vector<std::unique_ptr<frame>> spare;
    std::unique_ptr<frame> open;  // being filled
    std::deque<std::unique_ptr<frame>> arriving;
    std::vector<std::shared_ptr<far_end>> owed, stuck;
    bool was_full = false;  // somebody was told that there is no room
    std::chrono::nanoseconds owed_since{};
    std::map<std::uint64_t, std::deque<far_offer>> offers;  // by channel
    std::size_t offers_here = 0;
    std::shared_ptr<const error> cause;  // it has ended
  };
  struct record;

  // All below with the lock.
  line& line_to(int peer);
  bool has_room(line& l, std::size_t size, bool always = false);
  static void append(line& l, const record& r, std::span<const std::byte> bytes = {});
  void say(line& l, record r, std::span<const std::byte> bytes);
  bool reply(line& l, record r, std::span<const std::byte> bytes);
  void take_back(line& l);
  void flush(line& l);
  void receive_next(line& l, std::unique_ptr<frame> room);
  bool pump(bool is_user);
  bool handle_arrivals(line& l);
  bool handle(line& l, std::span<const std::byte> frame);
  bool handle_record(line& l, const record& r, std::span<const std::byte> bytes);
  bool put(far_end& end, const record& r, std::span<const std::byte> bytes);
  bool move(const std::shared_ptr<far_end>& end);
  bool send_messages(line& l, far_end& end);
  bool tell_credit(line& l, const std::shared_ptr<far_end>& end);
  bool tell_end(line& l, far_end& end);
  void tell_owed(line& l);
  void forget_if_done(far_end& end);
  bool end_line(line& l, errc code, std::string why);
  bool lose_line(line& l, const std::string& why);
  void look_for_failures();
  [[nodiscard]] static bool is_anything_leaving(const line& l);
  [[nodiscard]] bool is_drained() const;
  template <class Done>
  result<void> wait(std::unique_lock<std::mutex>& lock, line& l, const char* doing, wait_deadline until,
                    const std::stop_token& stop, const Done& done);

  /// Queues that are told of their end when the lock is open, since telling them may come back here.
  using ended_queues = std::vector<std::pair<std::shared_ptr<queue_state>, std::shared_ptr<const error>>>;
  void tell_ended(std::unique_lock<std::mutex>& lock) noexcept;
  void run() noexcept;
  void end() noexcept;

  std::shared_ptr<messenger> by_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, std::unique_ptr<line>> lines_;  // by peer
  std::unordered_map<std::uint32_t, std::shared_ptr<far_end>> ends_;
  std::set<std::shared_ptr<far_end>> lent_;  // to kernels, which ring no bell
  std::uint32_t last_number_ = 0;
  ended_queues to_end_;
  std::thread thread_;
  bool is_over_ = false;
  std::atomic<bool> is_handed_over_{false};
  std::atomic<std::uint64_t> looks_{0};  // of users
  std::atomic<bool> news_{false};        // something of its own has ended
};

}  // namespace weft::detail
