// SPDX-License-Identifier: Apache-2.0
#include "collective/ranks/rank_meeting.hpp"

#include "collective/ranks/rank_call.hpp"
#include "collective/schedule/rank_bit.hpp"
#include "runtime/machine_state.hpp"
#include "weft/core/raise.hpp"

#include <algorithm>
#include <unistd.h>

namespace weft::detail {
namespace {

// Some twenty microseconds: longer than ranks that run are apart, shorter than a sleep and its wake.
constexpr int usual_spins = 400;
// A microsecond: enough for one that comes at the same time.
constexpr int few_spins = 16;
// Who waits longer than this waits for work, or for nobody: a sleep no longer counts.
constexpr std::chrono::microseconds yielding_time{1500};
// The dead and the late are looked for at least this often.
constexpr std::chrono::milliseconds longest_nap{16};

// A driver may see that a process has died before its group does.
constexpr std::chrono::milliseconds death_notice{100};

constexpr std::uint64_t ended_as(errc code, int reporter) {
  return (static_cast<std::uint64_t>(code) + 1) | (static_cast<std::uint64_t>(reporter) + 1) << 8;
}

std::string lasting(std::chrono::nanoseconds timeout) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  return ms >= 1000 && ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

}  // namespace

rank_meeting::rank_meeting(std::shared_ptr<process_group> group, std::vector<rank> members, int self,
                           control_block block, std::unique_ptr<far_ranks> far, waiting policy,
                           std::shared_ptr<machine_state> machine)
    : group_(std::move(group)),
      members_(std::move(members)),
      self_(self),
      block_(std::move(block)),
      far_(std::move(far)),
      words_(&block_.words()),
      mine_(&block_.area(self)),
      policy_(policy),
      machine_(std::move(machine)),
      // more ranks than cores: who spins keeps the core from the one that it waits for
      most_spins_(parking::cores() < block_.shape().near ? 0 : usual_spins),
      least_spins_(parking::cores() < block_.shape().near ? 0 : few_spins),
      spins_(most_spins_) {}

rank_meeting::patience::step rank_meeting::patience::next() noexcept {
  ++turns_;
  look_ = false;
  if (policy_ == waiting::spin) {
    look_ = turns_ % 16384 == 0;
    return step::spin;
  }
  if (policy_ == waiting::park) {
    look_ = true;
    return step::sleep;
  }
  if (turns_ <= spins_) return step::spin;
  if ((turns_ - spins_) % 32 == 0) {
    const auto now = std::chrono::steady_clock::now();
    if (yielding_ == std::chrono::steady_clock::time_point{}) yielding_ = now;
    if (now - yielding_ > yielding_time) {
      --turns_;
      look_ = true;
      return step::sleep;
    }
  }
  return step::give_way;
}

std::chrono::steady_clock::time_point rank_meeting::patience::nap_end() noexcept {
  const auto end = std::chrono::steady_clock::now() + nap_;
  nap_ = std::min(nap_ * 2, longest_nap);
  return end;
}

int rank_meeting::enter(std::uint64_t fingerprint, std::uint64_t brought) {
  entrance& own = mine_->entrances[number_ & 1];
  own.fingerprint.store(fingerprint, std::memory_order_relaxed);
  // pairs with acquire below; seq_cst for ring()
  own.number.store(number_, std::memory_order_seq_cst);
  ring();
  int next = 0;
  const bool leads = far_ && far_->is_leader();
  if (leads) far_->begin(number_);
  const auto come = [&] {
    const bool is_told = !leads || far_->exchange(block_, brought);
    if (leads && is_told) ring();
    while (next < size() && entrance_of(next).number.load(std::memory_order_acquire) == number_) ++next;
    return is_told && next == size();
  };
  const auto missing = [&] {
    std::uint64_t whom = 0;
    for (int r = next; r < size(); ++r) {
      if (entrance_of(r).number.load(std::memory_order_acquire) != number_) whom |= bit(r);
    }
    return whom;
  };
  try {
    wait(come, missing);
  } catch (const error_exception& e) {
    // what another node has said makes no sense: this node's ranks wait for its leader
    if (e.cause().code == errc::corrupt) end(e.cause().code, e.cause().what);
    throw;
  }
  has_met_ = true;
  const std::uint64_t first = entrance_of(0).fingerprint.load(std::memory_order_relaxed);
  for (int r = 1; r < size(); ++r) {
    if (entrance_of(r).fingerprint.load(std::memory_order_relaxed) != first) return r;
  }
  return -1;
}

void rank_meeting::meet() {
  mine_->step.store(++step_, std::memory_order_seq_cst);  // pairs with acquire below; seq_cst for ring()
  ring();
  int next = 0;
  const auto come = [&] {
    while (next < size() && area(next).step.load(std::memory_order_acquire) >= step_) ++next;
    return next == size();
  };
  wait(come, [&] {
    std::uint64_t missing = 0;
    for (int r = next; r < size(); ++r) {
      if (area(r).step.load(std::memory_order_acquire) < step_) missing |= bit(r);
    }
    return missing;
  });
}

void rank_meeting::wake() const noexcept {
  words_->bell.fetch_add(1, std::memory_order_seq_cst);
  parking::wake_all(words_->bell, parking::word_scope::shared);
}

void rank_meeting::look(std::uint64_t missing) {
  suspects_ = 0;
  if (far_ && far_->is_leader()) {
    if (far_->hear(block_)) wake();
    // who has told that it lets the communicator go is looked for when it is missed
    const int lost = far_->lost_leader(block_);
    if (lost >= 0 && words_->ended.load(std::memory_order_acquire) == 0) fail_dead(bit(lost));
  }
  if (words_->ended.load(std::memory_order_acquire) != 0) raise_ended();  // pairs with release in end
  if (machine_->closed()) {
    end(errc::cancelled, "the machine of " + name_of(self_) + " was closed during " + call_in_words());
    raise(errc::machine_closed, "the machine was closed during " + call_in_words());
  }
  for (int r = 0; r < size(); ++r) {
    if ((missing >> r & 1) != 0 && r != self_ && !is_here(r)) suspects_ |= bit(r);
  }
  if (suspects_ != 0 || missing == 0) return;
  const auto now = std::chrono::steady_clock::now();
  if (until_ == std::chrono::steady_clock::time_point{}) {
    const auto left = std::chrono::steady_clock::time_point::max() - now;
    until_ = timeout_ < left ? now + timeout_ : std::chrono::steady_clock::time_point::max();
    if (timeout_.count() > 0) return;
  }
  if (now < until_) return;
  fail(errc::timed_out, names_of(missing) + " did not come within " + lasting(timeout_) + " to " + call_in_words() +
                            ", in which " + name_of(self_) + " waits");
}

void rank_meeting::fail_dead(std::uint64_t who) {
  std::string why;
  for (int r = 0; r < size(); ++r) {
    if ((who >> r & 1) == 0) continue;
    if (!why.empty()) why += ", ";
    why += name_of(r);
    if (const auto lost = is_near(r) ? std::nullopt : far_->carrier().failure(r)) {
      why += " has died or left (" + *lost + ")";
    } else {
      why += is_near(r) && !group_->alive(members_[static_cast<std::size_t>(r)]) ? " has died or left"
                                                                                 : " has let the communicator go";
    }
  }
  fail(errc::peer_dead, why + " during " + call_in_words());
}

void rank_meeting::give_up(const error& cause) {
  const bool is_of_others = cause.code == errc::peer_dead || cause.code == errc::closed;
  const auto until = std::chrono::steady_clock::now() + death_notice;
  while (words_->ended.load(std::memory_order_acquire) == 0) {
    std::uint64_t gone = 0;
    for (int r = 0; r < size(); ++r) {
      if (r != self_ && !is_here(r)) gone |= bit(r);
    }
    if (gone != 0) fail_dead(gone);
    if (!is_of_others || std::chrono::steady_clock::now() >= until) break;
    ::sched_yield();
  }
  end(cause.code, name_of(self_) + " cannot go on: " + cause.what);
  const auto known = failure();
  const bool is_of_the_end = known && known->code == cause.code && known->what == cause.what;
  // A driver knows no ranks: another rank that ended the call for a death has named it.
  const bool is_named = known && (known->code == errc::peer_dead || known->code == errc::closed) &&
                        words_->ended.load(std::memory_order_acquire) != ended_as(known->code, self_);
  if (is_of_the_end || (is_of_others && is_named)) raise_ended();
  raise_own(cause);
}

void rank_meeting::give_up_alone(const error& cause) {
  end(cause.code, name_of(self_) + " cannot go on: " + cause.what);
  raise_own(cause);
}

void rank_meeting::raise_own(error cause) const {
  const std::string name = name_of(self_) + ": ";
  if (!cause.what.starts_with(name)) cause.what.insert(0, name);
  raise(std::move(cause));
}

void rank_meeting::end(errc code, std::string_view why) noexcept {
  {
    const std::lock_guard lock{ending_};
    // who came first has said it
    if (words_->ended.load(std::memory_order_acquire) == 0) {
      mine_->why.set(why);
      std::uint64_t none = 0;
      // release: the text before the word; pairs with acquire wherever `ended` is read
      words_->ended.compare_exchange_strong(none, ended_as(code, self_), std::memory_order_acq_rel);
    }
  }
  wake();
  tell_far();
}

bool rank_meeting::has_timed_out(const group_words& words) noexcept {
  constexpr std::uint64_t code_bits = 0xff;
  return (words.ended.load(std::memory_order_acquire) & code_bits) == (ended_as(errc::timed_out, 0) & code_bits);
}

void rank_meeting::tell_far() const noexcept {
  if (!far_ || !far_->is_leader()) return;
  const std::lock_guard lock{ending_};
  const std::uint64_t ended = words_->ended.load(std::memory_order_acquire);
  const std::uint64_t reporter = (ended >> 8 & 0xff) - 1;
  if (ended != 0 && reporter < static_cast<std::uint64_t>(size()))
    far_->tell(ended, area(static_cast<int>(reporter)).why.get());
}

void rank_meeting::fail(errc code, std::string_view why) {
  end(code, why);
  raise_ended();
}

std::optional<error> rank_meeting::failure() const {
  const std::uint64_t ended = words_->ended.load(std::memory_order_acquire);  // pairs with release in end
  if (ended == 0) return std::nullopt;
  error cause;
  cause.scope = error_scope::endpoint;
  cause.where = {};
  const std::uint64_t code = (ended & 0xff) - 1;
  const std::uint64_t reporter = (ended >> 8 & 0xff) - 1;
  if (code > static_cast<std::uint64_t>(errc::device_lost) || reporter >= static_cast<std::uint64_t>(size())) {
    cause.code = errc::corrupt;
    cause.what = "the memory of the communicator is damaged";
    return cause;
  }
  cause.code = static_cast<errc>(code);
  cause.what = area(static_cast<int>(reporter)).why.get();
  return cause;
}

void rank_meeting::raise_ended() const {
  tell_far();
  auto cause = failure();
  raise(cause ? std::move(*cause) : error{errc::corrupt, error_scope::endpoint, 0, "a failure that is none", {}});
}

std::string rank_meeting::name_of(int r) const {
  if (far_) return far_->carrier().name_of(r);
  return "rank " + std::to_string(r) + " (pid " +
         std::to_string(group_->peer(members_[static_cast<std::size_t>(r)]).pid) + ")";
}

std::string rank_meeting::names_of(std::uint64_t ranks) const {
  std::string made;
  for (int r = 0; r < size(); ++r) {
    if ((ranks >> r & 1) == 0) continue;
    if (!made.empty()) made += ", ";
    made += name_of(r);
  }
  return made;
}

bool rank_meeting::is_here(int r) const {
  if (!is_near(r) && far_->carrier().failure(r)) return false;
  // what a rank on another node has sent may still be on its way when it has gone: it is missed where it is to enter
  if (!is_near(r) && has_met_) return true;
  if (area(r).departed.load(std::memory_order_acquire) != 0) return false;
  return !is_near(r) || group_->alive(members_[static_cast<std::size_t>(r)]);
}

std::string rank_meeting::call_in_words() const {
  if (!doing_.empty()) return std::string{doing_};
  return "call " + std::to_string(number_) + ", " + text_of(mine_->calls[number_ & 1]);
}

}  // namespace weft::detail
