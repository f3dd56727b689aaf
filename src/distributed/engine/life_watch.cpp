// SPDX-License-Identifier: Apache-2.0
#include "distributed/engine/life_watch.hpp"

#include "core/errors/make_error.hpp"

#include <cstdio>
#include <new>
#include <pthread.h>
#include <system_error>
#include <utility>

namespace weft::detail {
namespace {

constexpr message_tag tag_of_notices{message_tag::most_own - 2, true};

constexpr int most_heard = 1000;  // in a beat

std::string in_seconds(std::chrono::nanoseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace

life_watch::life_watch(std::shared_ptr<messenger> by, int self, int ranks, std::chrono::nanoseconds silence)
    : by_(std::move(by)), self_(self), ranks_(ranks), silence_(in_seconds(silence)) {
  by_->leave_last_words_to_a_watch();
  await_notice();
}

life_watch::~life_watch() {
  if (coming_.is_under_way()) by_->cancel(coming_, self_);
  for (auto& [rank, p] : peers_)
    if (p.going.is_under_way()) by_->cancel(p.going, rank);
}

void life_watch::await_notice() {
  coming_.at = transfer::stage::under_way;
  by_->start_receive_any(coming_, tag_of_notices, std::as_writable_bytes(std::span{&heard_, 1}));
}

bool life_watch::is_asking(int rank) const {
  const auto known = peers_.find(rank);
  return known != peers_.end() && known->second.has_to_answer;
}

void life_watch::listen() {
  while (by_->progress()) {
  }
  for (int n = 0; n < most_heard && !coming_.is_under_way(); ++n) {
    if (coming_.at == transfer::stage::done && coming_.bytes == sizeof heard_) hear(heard_);
    await_notice();
  }
  for (auto& [rank, p] : peers_)
    if (p.owes_answer) p.owes_answer = !say(rank, p, by_->has_lost(rank) ? word::lost : word::here);
}

void life_watch::beat() {
  listen();
  for (const int rank : by_->awaited()) {
    if (by_->has_lost(rank)) continue;
    peer& p = peers_[rank];
    if (!p.has_to_answer && say(rank, p, word::are_you_there)) {
      p.has_to_answer = true;
      p.beats = 0;
    } else if (++p.beats > beats_to_answer) {
      by_->lose(rank, "it gave no sign of life for " + silence_);
    }
  }
}

void life_watch::hear(const notice& heard) {
  if (heard.from < 0 || heard.from >= ranks_ || heard.from == self_) return;
  peer& p = peers_[heard.from];
  if (heard.what == word::are_you_there) p.owes_answer = true;
  if (heard.what == word::here) p.has_to_answer = false;
  p.beats = 0;  // also those of a notice that does not leave: either word is a sign of life
  if (heard.what == word::lost)
    by_->lose(heard.from,
              "it ended the connection: this rank gave it no sign of life, or it gave up a copy or a message");
}

/// False where the notice before is still on its way.
bool life_watch::say(int to, peer& p, word what) {
  if (p.going.is_under_way()) return false;
  p.said = {what, self_};
  p.going.at = transfer::stage::under_way;
  by_->start_last_word(p.going, to, tag_of_notices, std::as_bytes(std::span{&p.said, 1}));
  return true;
}

result<std::unique_ptr<life_watcher>> life_watcher::start(std::shared_ptr<messenger> by, int self, int ranks,
                                                          std::chrono::nanoseconds silence) {
  auto made = std::make_unique<life_watcher>(std::move(by), self, ranks, silence);
  try {
    made->thread_ = std::thread{[all = made.get()] {
      pthread_setname_np(pthread_self(), "weft-life-watch");
      all->run();
    }};
  } catch (const std::system_error&) {
    return make_error(errc::resource_exhausted,
                      "no thread could be started that looks for lost ranks; raise the limit of threads (ulimit -u)");
  }
  return made;
}

life_watcher::~life_watcher() {
  {
    const std::lock_guard lock{mutex_};
    is_over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void life_watcher::run() noexcept {
  std::unique_lock lock{mutex_};
  while (!is_over_) {
    lock.unlock();
    try {
      watch_.beat();
    } catch (const std::bad_alloc&) {  // the next one tries again
    }
    lock.lock();
    changed_.wait_for(lock, every_, [this] { return is_over_; });
  }
}

}  // namespace weft::detail
