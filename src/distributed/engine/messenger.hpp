// SPDX-License-Identifier: Apache-2.0
// Waits for messages between ranks: bounded, cancellable, from any thread.
#pragma once

#include "distributed/engine/engine.hpp"
#include "os/event_bell.hpp"
#include "processes/packet_socket.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

namespace weft::detail {

class messenger {
 public:
  /// Before a thread sleeps: about what it takes to wake one on another node's news.
  static constexpr std::chrono::microseconds spinning{50};
  /// Before a thread in the background looks after the engine.
  static constexpr std::chrono::milliseconds turn_of_users{2};

  /// `name` gives a rank's name for errors.
  messenger(std::unique_ptr<engine> by, std::function<std::string(int)> name);

  /// Returns when the memory is the caller's again; that rank may not have received it yet.
  result<void> send(int to, std::uint32_t tag, std::span<const std::byte> bytes, std::chrono::nanoseconds timeout,
                    const std::stop_token& stop);
  /// How many bytes came.
  result<std::size_t> receive(int from, std::uint32_t tag, std::span<std::byte> into, std::chrono::nanoseconds timeout,
                              const std::stop_token& stop);

  /// Messages that are waited for elsewhere: as the engine's functions, from any thread.
  void start_send(transfer& t, int to, message_tag tag, std::span<const std::byte> bytes);
  /// To a rank that is lost, too.
  void start_last_word(transfer& t, int to, message_tag tag, std::span<const std::byte> bytes);
  void start_receive(transfer& t, int from, message_tag tag, std::span<std::byte> into);
  void start_receive_any(transfer& t, message_tag tag, std::span<std::byte> into);
  /// As the engine's.
  [[nodiscard]] std::shared_ptr<engine_group> all_ranks();
  /// While all ranks are in the call that made it.
  void settle(engine_group& group, std::chrono::nanoseconds timeout);
  void start(transfer& t, const std::shared_ptr<engine_group>& of, const engine_call& wanted);
  void forget(transfer& t);
  void cancel(transfer& t, int peer);
  void withdraw(transfer& t);
  bool progress(bool is_user = true);  // false: of a thread in the background
  /// Threads that look after the engine now, one more or one less: those in the background leave it to them.
  void count_user(int more);
  /// For a call of several steps.
  class user {
   public:
    explicit user(messenger& of) : of_(of) { of_.count_user(1); }
    ~user() { of_.count_user(-1); }
    user(const user&) = delete;
    user& operator=(const user&) = delete;

   private:
    messenger& of_;
  };
  /// Sleeps until the engine may have something, or wake() is called.
  void rest(wait_deadline until);
  /// The same of a thread in the background, until one of its transfers has set `news`. While users look after the
  /// engine, and for a turn behind them unless it is `needed`, it leaves the engine to them.
  void rest_in_background(wait_deadline until, const std::atomic<bool>& news, bool needed = false);
  void wake();
  [[nodiscard]] std::optional<std::string> failure(int rank);
  /// From now on nothing reaches that rank but last words, which tell it so. Without a watch the connection ends.
  void lose(int rank, const std::string& why);
  void leave_last_words_to_a_watch();
  /// Whether failure() has a reason; without counting as a wait for that rank.
  [[nodiscard]] bool has_lost(int rank);
  /// The ranks that somebody waits for, or has asked for the failure() of since the last call.
  [[nodiscard]] std::vector<int> awaited();
  [[nodiscard]] std::string transport_to(int rank);
  [[nodiscard]] std::string name_of(int rank) const { return name_(rank); }

 private:
  struct call {
    int peer;
    std::uint32_t tag;
    bool is_send;
    std::size_t size;
  };
  /// Waits for a transfer that was started; the lock is held.
  result<std::size_t> finish(std::unique_lock<std::mutex>& lock, transfer& t, const call& c,
                             std::chrono::nanoseconds timeout, const std::stop_token& stop);
  const std::string* trouble(int rank);
  [[nodiscard]] const std::string* why_lost(int rank) const;
  void send_by_engine(transfer& t, int to, message_tag tag, std::span<const std::byte> bytes);
  void tell_background();
  void wake_others();
  void sleep(std::unique_lock<std::mutex>& lock, stop_signal& signal, wait_deadline until);
  error failed(const call& c, errc code, const std::string& how) const;

  std::mutex mutex_;
  std::condition_variable changed_;  // somebody's transfer has ended, or nobody looks after the engine
  std::unique_ptr<engine> engine_;
  std::function<std::string(int)> name_;
  struct waiters {
    bool has_asked = false;
    int asleep = 0;  // threads
  };
  waiters& waiters_for(int rank);
  std::vector<waiters> waiters_;     // by rank
  std::map<int, std::string> lost_;  // and why
  bool has_watch_ = false;
  bool is_watched_ = false;  // a thread looks after the engine: it progresses for all
  int others_ = 0;           // threads that wait for it
  int users_ = 0;            // in calls
  std::chrono::nanoseconds last_use_{};
  struct resting {
    const std::atomic<bool>& news;
    std::condition_variable told;
  };
  std::vector<resting*> background_;
  event_bell bell_;  // wakes that thread: something new was started
};

}  // namespace weft::detail
