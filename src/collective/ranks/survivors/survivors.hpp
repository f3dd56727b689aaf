// SPDX-License-Identifier: Apache-2.0
// How the ranks that are left agree who they are, and that each of them has the memory of their new communicator.
//
// The ranks share a chain of words. A word is a set of ranks, and is written once, by compare and swap: the first value
// stands, and all ranks follow it. The first word of a shrink is the set of those who came. The first rank of a set
// makes memory and offers it to the others; a rank that has it says that it is ready. Once all are ready, the next word
// repeats the set, and all return with it. If one is gone or late before that, the next word is a smaller set, whose
// first rank makes memory anew. So no two ranks return with different sets, no rank returns before the others have all
// they need, and there are at most as many tries as ranks. tests/collective/survivors_test.cpp takes every order of
// steps and deaths.
#pragma once

#include "collective/schedule/rank_bit.hpp"

#include <bit>
#include <cstdint>

namespace weft::detail {

/// One rank's part, in steps of at most one access to what is shared: a test can so take them in any order.
/// `World` offers, for ranks r and positions p of the chain:
///   arrive(p)             says that this rank waits for word p;  has_arrived(r, p)  whether r has said so
///   word(p)               the set, or 0 while it is not written;  write(p, set)     writes it unless it is written
///   say_ready(p), ready(p)  of the set that word p holds
///   make(set)             makes the memory;  offer(p, r)  false while r has no room
///   take(p, from, set)    false until the memory is there
///   is_here(r)            false once r is known to be gone;  is_late()  whether time is up;  begin()  gives new time
///   rest()                called when there was nothing to do
template <class World>
class survivors {
 public:
  /// `among`: the ranks that word `position` can name.
  survivors(int self, std::uint64_t among, std::uint32_t position) noexcept
      : set_(among), position_(position), self_(self) {}

  [[nodiscard]] bool is_over() const noexcept { return phase_ == phase::agreed || phase_ == phase::left_out; }
  /// Whether the others go on without this rank, once it is over.
  [[nodiscard]] bool is_left_out() const noexcept { return phase_ == phase::left_out; }
  /// False where the chain holds what no rank of weft writes.
  [[nodiscard]] bool is_sound() const noexcept { return sound_; }
  [[nodiscard]] std::uint64_t set() const noexcept { return set_; }
  /// Of the first word of the next shrink, once it is over.
  [[nodiscard]] std::uint32_t position() const noexcept { return position_; }

  void step(World& world) {
    switch (phase_) {
      case phase::arrive:
        world.begin();
        world.arrive(position_);
        return look_from(phase::first_word);
      case phase::first_word:
        phase_ = world.word(position_) != 0 ? phase::follow : phase::who_came;
        return;
      case phase::who_came:
        if (!next_of_set()) {
          phase_ = phase::propose;
        } else if (rank_ == self_ || world.has_arrived(rank_, position_)) {
          found_ |= bit(rank_++);
        } else {
          phase_ = phase::who_is_gone;
        }
        return;
      case phase::who_is_gone:
        if (world.is_here(rank_)) {
          phase_ = phase::who_is_late;
        } else {
          ++rank_;
          phase_ = phase::who_came;
        }
        return;
      case phase::who_is_late:
        if (world.is_late()) {
          ++rank_;
          phase_ = phase::who_came;
          return;
        }
        world.rest();
        return look_from(phase::first_word);
      case phase::propose:
        world.write(position_, found_);
        return look_from(phase::follow);
      case phase::follow:
        return follow(world);
      case phase::make:
        world.make(set_);
        return look_from(phase::offer_or_stop);
      case phase::offer_or_stop:
        phase_ = world.word(position_ + 1) != 0 ? phase::follow : phase::offer;
        return;
      case phase::offer:
        if (next_of_set()) {
          if (rank_ == self_ || (found_ & bit(rank_)) != 0 || world.offer(position_, rank_)) found_ |= bit(rank_);
          ++rank_;
          phase_ = phase::offer_or_stop;
        } else if (found_ == set_ || world.is_late()) {
          phase_ = phase::say_ready;
        } else {  // those who had no room
          world.rest();
          rank_ = 0;
          phase_ = phase::offer_or_stop;
        }
        return;
      case phase::take:
        phase_ = world.take(position_, first(), set_) ? phase::say_ready : phase::outcome;
        return;
      case phase::say_ready:
        world.say_ready(position_);
        is_ready_ = true;
        phase_ = phase::outcome;
        return;
      case phase::outcome:
        phase_ = world.word(position_ + 1) != 0 ? phase::follow : phase::who_is_ready;
        return;
      case phase::who_is_ready:
        look_from(phase::who_has_gone);
        ready_ = world.ready(position_) & set_;
        if (ready_ == set_) decide(set_);
        return;
      case phase::who_has_gone:
        if (!next_of_set()) {
          if (found_ != 0) return decide(set_ & ~found_);
          phase_ = phase::has_time;
        } else {
          if (rank_ != self_ && !world.is_here(rank_)) found_ |= bit(rank_);
          ++rank_;
        }
        return;
      case phase::has_time:
        if (world.is_late()) {
          // the maker may have kept all others waiting
          const std::uint64_t maker = bit(first());
          const std::uint64_t rest = (ready_ & maker) != 0 ? ready_ | bit(self_) : set_ & ~maker;
          return decide(rest != set_ ? rest : set_ & ~bit(self_));
        }
        world.rest();
        return look_from(is_ready_ ? phase::outcome : phase::take);
      case phase::write:
        world.write(position_ + 1, outcome_);
        return look_from(phase::follow);
      case phase::agreed:
      case phase::left_out:
        return;
    }
  }

 private:
  enum class phase : std::uint8_t {
    arrive,
    first_word,
    who_came,
    who_is_gone,
    who_is_late,
    propose,
    follow,
    make,
    offer_or_stop,
    offer,
    take,
    say_ready,
    outcome,
    who_is_ready,
    who_has_gone,
    has_time,
    write,
    agreed,
    left_out,
  };

  [[nodiscard]] int first() const noexcept { return std::countr_zero(set_); }
  void look_from(phase where) noexcept {
    phase_ = where;
    rank_ = 0;
    found_ = ready_ = outcome_ = 0;
  }
  /// Moves to the next rank of the set, if there is one.
  [[nodiscard]] bool next_of_set() noexcept {
    while (rank_ < 64 && (set_ & bit(rank_)) == 0) ++rank_;
    return rank_ < 64;
  }
  void decide(std::uint64_t what) noexcept {
    outcome_ = what;
    phase_ = phase::write;
  }
  /// Takes over the word that is written.
  void follow(World& world) {
    const std::uint64_t said = world.word(has_set_ ? position_ + 1 : position_);
    look_from(phase::follow);
    if (has_set_ && said == set_ && is_ready_) {
      position_ += 2;
      phase_ = phase::agreed;
      return;
    }
    // a set is repeated only once all of it are ready, this rank too
    sound_ = said != 0 && (said & ~set_) == 0 && !(has_set_ && said == set_);
    if (has_set_) ++position_;
    has_set_ = true;
    is_ready_ = false;
    set_ = said & set_;
    if (!sound_ || (said & bit(self_)) == 0) {
      phase_ = phase::left_out;
      return;
    }
    world.begin();
    phase_ = self_ == first() ? phase::make : phase::take;
  }

  std::uint64_t set_, found_ = 0, ready_ = 0, outcome_ = 0;
  std::uint32_t position_;
  int self_, rank_ = 0;
  phase phase_ = phase::arrive;
  bool has_set_ = false;  // set_ is a word of the chain
  bool is_ready_ = false, sound_ = true;
};

}  // namespace weft::detail
