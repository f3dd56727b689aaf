// SPDX-License-Identifier: Apache-2.0
#include "distributed/engine/messenger.hpp"

#include "core/errors/make_error.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace weft::detail {
namespace {

using namespace std::chrono_literals;

constexpr auto nap = 200us;  // where nothing wakes a thread

class one_more {
 public:
  explicit one_more(int& count) : count_(count) { ++count_; }
  ~one_more() { --count_; }
  one_more(const one_more&) = delete;
  one_more& operator=(const one_more&) = delete;

 private:
  int& count_;
};

}  // namespace

messenger::messenger(std::unique_ptr<engine> by, std::function<std::string(int)> name)
    : engine_(std::move(by)), name_(std::move(name)), bell_(event_bell::make()) {}

result<void> messenger::send(int to, std::uint32_t tag, std::span<const std::byte> bytes,
                             std::chrono::nanoseconds timeout, const std::stop_token& stop) {
  std::unique_lock lock{mutex_};
  transfer t;
  send_by_engine(t, to, {tag}, bytes);
  auto sent = finish(lock, t, {to, tag, true, bytes.size()}, timeout, stop);
  return sent ? result<void>{} : std::move(sent).error();
}

result<std::size_t> messenger::receive(int from, std::uint32_t tag, std::span<std::byte> into,
                                       std::chrono::nanoseconds timeout, const std::stop_token& stop) {
  std::unique_lock lock{mutex_};
  transfer t;
  engine_->receive(t, from, {tag}, into);
  return finish(lock, t, {from, tag, false, into.size()}, timeout, stop);
}

void messenger::start_send(transfer& t, int to, message_tag tag, std::span<const std::byte> bytes) {
  const std::lock_guard lock{mutex_};
  send_by_engine(t, to, tag, bytes);
  if (is_watched_) bell_.ring();
}

void messenger::start_last_word(transfer& t, int to, message_tag tag, std::span<const std::byte> bytes) {
  const std::lock_guard lock{mutex_};
  engine_->send(t, to, tag, bytes);
  if (is_watched_) bell_.ring();
}

void messenger::send_by_engine(transfer& t, int to, message_tag tag, std::span<const std::byte> bytes) {
  if (const std::string* const lost = why_lost(to)) {  // MPI would go on with small ones
    t.why = *lost;
    t.end(transfer::stage::failed);
  } else {
    engine_->send(t, to, tag, bytes);
  }
}

void messenger::start_receive(transfer& t, int from, message_tag tag, std::span<std::byte> into) {
  const std::lock_guard lock{mutex_};
  engine_->receive(t, from, tag, into);
  if (is_watched_) bell_.ring();
}

void messenger::start_receive_any(transfer& t, message_tag tag, std::span<std::byte> into) {
  const std::lock_guard lock{mutex_};
  engine_->receive_any(t, tag, into);
}

std::shared_ptr<engine_group> messenger::all_ranks() {
  const std::lock_guard lock{mutex_};
  return engine_->all_ranks();
}

void messenger::settle(engine_group& group, std::chrono::nanoseconds timeout) {
  const wait_deadline until = deadline_after(steady_now(), timeout);
  for (;;) {
    {
      const std::lock_guard lock{mutex_};
      engine_->progress();
      if (engine_->is_settled(group)) return;
    }
    if (steady_now() >= until) return;  // it may be there when it is asked for
    std::this_thread::yield();
  }
}

void messenger::start(transfer& t, const std::shared_ptr<engine_group>& of, const engine_call& wanted) {
  const std::lock_guard lock{mutex_};
  engine_->start(t, of, wanted);
  if (is_watched_) bell_.ring();
}

void messenger::forget(transfer& t) {
  const std::lock_guard lock{mutex_};
  engine_->forget(t);
  wake_others();
}

void messenger::cancel(transfer& t, int peer) {
  const std::lock_guard lock{mutex_};
  engine_->cancel(t, peer);
  wake_others();
}

void messenger::withdraw(transfer& t) {
  const std::lock_guard lock{mutex_};
  engine_->withdraw(t);
}

bool messenger::progress(bool is_user) {
  const std::lock_guard lock{mutex_};
  const bool moved = engine_->progress();
  if (moved && is_user) last_use_ = steady_now();
  if (moved) wake_others();
  return moved;
}

void messenger::count_user(int more) {
  const std::lock_guard lock{mutex_};
  users_ += more;
  last_use_ = steady_now();
}

void messenger::rest(wait_deadline until) {
  std::unique_lock lock{mutex_};
  if (is_watched_) {
    const one_more other{others_};
    changed_.wait_for(lock, until - steady_now());
  } else {
    stop_signal none{{}};
    sleep(lock, none, until);
  }
  last_use_ = steady_now();
}

void messenger::rest_in_background(wait_deadline until, const std::atomic<bool>& news, bool needed) {
  std::unique_lock lock{mutex_};
  if (news) return;
  const auto now = steady_now();
  const bool is_in_use = users_ > 0 || (!needed && now < last_use_ + turn_of_users);
  if (!is_in_use && !is_watched_) {
    stop_signal none{{}};
    return sleep(lock, none, until);
  }
  resting here{news, {}};
  background_.push_back(&here);
  here.told.wait_for(lock, (is_in_use ? std::min(until, now + turn_of_users) : until) - now);
  std::erase(background_, &here);
}

void messenger::wake() {
  const std::lock_guard lock{mutex_};
  wake_others();
  for (resting* const one : background_) one->told.notify_all();
}

std::optional<std::string> messenger::failure(int rank) {
  const std::lock_guard lock{mutex_};
  const std::string* why = trouble(rank);
  return why != nullptr ? std::optional{*why} : std::nullopt;
}

messenger::waiters& messenger::waiters_for(int rank) {
  const auto at = static_cast<std::size_t>(rank);
  if (at >= waiters_.size()) waiters_.resize(at + 1);
  return waiters_[at];
}

const std::string* messenger::trouble(int rank) {
  waiters_for(rank).has_asked = true;
  return why_lost(rank);
}

const std::string* messenger::why_lost(int rank) const {
  const auto known = lost_.find(rank);
  return known != lost_.end() ? &known->second : engine_->failure(rank);
}

bool messenger::has_lost(int rank) {
  const std::lock_guard lock{mutex_};
  return why_lost(rank) != nullptr;
}

void messenger::leave_last_words_to_a_watch() {
  const std::lock_guard lock{mutex_};
  has_watch_ = true;
}

std::string messenger::transport_to(int rank) {
  const std::lock_guard lock{mutex_};
  return engine_->transport_to(rank);
}

void messenger::lose(int rank, const std::string& why) {
  const std::lock_guard lock{mutex_};
  if (lost_.try_emplace(rank, why).second && !has_watch_) engine_->disconnect(rank);
  wake_others();
}

std::vector<int> messenger::awaited() {
  const std::lock_guard lock{mutex_};
  std::vector<int> made;
  for (std::size_t r = 0; r < waiters_.size(); ++r) {
    if (waiters_[r].asleep > 0 || std::exchange(waiters_[r].has_asked, false)) made.push_back(static_cast<int>(r));
  }
  return made;
}

void messenger::tell_background() {
  for (resting* const one : background_)
    if (one->news) one->told.notify_all();
}

// Somebody's transfer may have ended without the thread that sleeps for it.
void messenger::wake_others() {
  if (others_ > 0) changed_.notify_all();
  tell_background();
  if (is_watched_) bell_.ring();
}

error messenger::failed(const call& c, errc code, const std::string& how) const {
  return make_error(code,
                    (c.is_send ? "sending " + std::to_string(c.size) + " bytes to " + name_(c.peer)
                               : "receiving from " + name_(c.peer)) +
                        " with tag " + std::to_string(c.tag) + " by " + engine_->name() + ": " + how,
                    code == errc::peer_dead ? error_scope::process : error_scope::call);
}

result<std::size_t> messenger::finish(std::unique_lock<std::mutex>& lock, transfer& t, const call& c,
                                      std::chrono::nanoseconds timeout, const std::stop_token& stop) {
  using stage = transfer::stage;
  const one_more looking{users_};
  const auto begin = steady_now();
  const wait_deadline until = deadline_after(begin, timeout);
  auto spin_until = begin + spinning;
  std::optional<stop_signal> signal;
  const auto over = [&] { return !t.is_under_way(); };
  for (unsigned turn = 0; !over(); ++turn) {
    bool has_slept = false;
    if (is_watched_) {
      has_slept = true;
      ++waiters_for(c.peer).asleep;
      bell_.ring();  // what was started may need what that thread sleeps for
      ++others_;
      if (stop.stop_possible()) {  // looked at a hundred times a second: whoever watches hears it at once
        changed_.wait_for(lock, 10ms, [&] { return over() || !is_watched_; });
      } else if (until == no_deadline) {
        changed_.wait(lock, [&] { return over() || !is_watched_; });
      } else {
        changed_.wait_for(lock, until - steady_now(), [&] { return over() || !is_watched_; });
      }
      --others_;
      --waiters_for(c.peer).asleep;
    } else if (!engine_->progress() && !over()) {
      const auto now = turn % 16 == 0 ? steady_now() : begin;  // to look at the clock costs as much as to progress
      if (now >= spin_until) {
        if (!signal) signal.emplace(stop);
        ++waiters_for(c.peer).asleep;
        sleep(lock, *signal, until);
        --waiters_for(c.peer).asleep;
        has_slept = true;
      } else if (others_ > 0 || turn % 16 == 15) {
        lock.unlock();  // others start theirs
        lock.lock();
      }
    } else {
      spin_until = steady_now() + spinning;
      tell_background();
    }
    if (over()) break;
    const std::string* gone = trouble(c.peer);
    const bool is_late = (has_slept || turn % 16 == 0) && steady_now() >= until;
    if (gone == nullptr && !is_late && !stop.stop_requested()) continue;
    // Said before the cancel, which may end the connection.
    const error cause = gone != nullptr         ? failed(c, errc::peer_dead, "that rank died or left (" + *gone + ")")
                        : stop.stop_requested() ? failed(c, errc::cancelled, "cancelled")
                                                : failed(c, errc::timed_out, "time is up");
    engine_->cancel(t, c.peer);
    wake_others();
    if (t.at == stage::done) break;  // it came at the last moment
    return cause;
  }
  last_use_ = spin_until;
  if (others_ > 0) changed_.notify_all();
  if (t.at == stage::done) return t.bytes;
  if (const std::string* gone = trouble(c.peer))
    return failed(c, errc::peer_dead, "that rank died or left (" + *gone + ")");
  return failed(c, errc::incompatible, t.why);
}

// Sleeps until the engine or another thread has something, as the one that looks after the engine.
void messenger::sleep(std::unique_lock<std::mutex>& lock, stop_signal& signal, wait_deadline until) {
  if (!engine_->arm()) return;
  is_watched_ = true;
  lock.unlock();
  std::vector<pollfd> these{{bell_.file(), POLLIN, 0}};
  const bool is_told = engine_->wake_file() >= 0 && bell_;  // without a descriptor to spare there is no bell
  if (is_told)
    these.push_back({engine_->wake_file(), POLLIN, 0});
  else
    until = std::min<wait_deadline>(until, steady_now() + nap);
  signal.poll(these, until);
  lock.lock();
  bell_.silence();
  is_watched_ = false;
  while (engine_->progress()) {
  }
  if (others_ > 0) changed_.notify_all();
  tell_background();
}

}  // namespace weft::detail
