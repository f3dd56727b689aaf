// SPDX-License-Identifier: Apache-2.0
// Finds ranks that give no sign of life: behind a link that is cut, or standing still.
#pragma once

#include "distributed/engine/messenger.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace weft::detail {

/// A rank that somebody of this process waits for is asked whether it is there, and has some beats to answer in. Who is
/// not waited for is not asked, so that a world at rest sends nothing. Beats are counted, not time: a process that
/// stood still itself finds the answers first. A rank that has lost another one tells it so when asked.
/// Thread: one beats.
class life_watch {
 public:
  static constexpr int beats_to_answer = 8;

  /// `silence`: how long those beats take, for messages.
  life_watch(std::shared_ptr<messenger> by, int self, int ranks, std::chrono::nanoseconds silence);
  ~life_watch();
  life_watch(const life_watch&) = delete;
  life_watch& operator=(const life_watch&) = delete;

  /// Answers those who asked, and hears the answers.
  void listen();
  /// After that asks those who are waited for, and loses those who have not answered in time.
  void beat();
  [[nodiscard]] bool is_asking(int rank) const;

 private:
  enum class word : std::uint32_t { are_you_there = 1, here, lost };
  struct notice {
    word what{};
    std::int32_t from = 0;
  };
  struct peer {
    peer() { going.at = transfer::stage::done; }
    transfer going;  // the last notice to it
    notice said;
    bool owes_answer = false;    // this rank does
    bool has_to_answer = false;  // that rank does, for so many beats
    int beats = 0;
  };

  void await_notice();
  void hear(const notice& heard);
  bool say(int to, peer& p, word what);

  std::shared_ptr<messenger> by_;
  int self_, ranks_;
  std::string silence_;
  transfer coming_;
  notice heard_;
  std::map<int, peer> peers_;
};

/// A thread that beats for as long as it lives.
class life_watcher {
 public:
  /// Errors: resource_exhausted.
  [[nodiscard]] static result<std::unique_ptr<life_watcher>> start(std::shared_ptr<messenger> by, int self, int ranks,
                                                                   std::chrono::nanoseconds silence);
  life_watcher(std::shared_ptr<messenger> by, int self, int ranks, std::chrono::nanoseconds silence)
      : watch_(std::move(by), self, ranks, silence), every_(silence / life_watch::beats_to_answer) {}
  ~life_watcher();
  life_watcher(const life_watcher&) = delete;
  life_watcher& operator=(const life_watcher&) = delete;

 private:
  void run() noexcept;

  life_watch watch_;
  std::chrono::nanoseconds every_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace weft::detail
