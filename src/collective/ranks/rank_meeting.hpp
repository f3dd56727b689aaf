// SPDX-License-Identifier: Apache-2.0
// How the ranks of a communicator wait for each other, and how a failure of one becomes known to all.
#pragma once

#include "collective/ranks/control_block.hpp"
#include "collective/ranks/transfer/far_ranks.hpp"
#include "os/parking.hpp"
#include "weft/collective/rank_communicator.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <sched.h>
#include <string>
#include <string_view>
#include <vector>

namespace weft::detail {

/// Thread: one at a time; fail(), failure() and what only reads from any.
class rank_meeting {
 public:
  /// `members`: the ranks' places in the group of their node; what stands for those that are `far` is not looked at.
  rank_meeting(std::shared_ptr<process_group> group, std::vector<rank> members, int self, control_block block,
               std::unique_ptr<far_ranks> far, waiting policy, std::shared_ptr<machine_state> machine);

  [[nodiscard]] int self() const { return self_; }
  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  [[nodiscard]] const std::vector<rank>& members() const { return members_; }
  [[nodiscard]] process_group& group() const { return *group_; }
  [[nodiscard]] const std::shared_ptr<process_group>& shared_group() const { return group_; }
  [[nodiscard]] const control_block& block() const { return block_; }
  /// Null where the communicator was made of one node's group.
  [[nodiscard]] far_ranks* far() const { return far_.get(); }
  [[nodiscard]] bool is_near(int rank) const { return !far_ || far_->is_near(rank); }
  [[nodiscard]] bool is_on_several_nodes() const { return far_ && far_->near_count() != size(); }
  /// A rank's place among those of its node.
  [[nodiscard]] int local(int rank) const { return far_ ? far_->local(rank) : rank; }
  [[nodiscard]] rank_area& area(int of) const { return block_.area(of); }
  [[nodiscard]] rank_area& mine() const { return *mine_; }

  /// The number of the call that begins. `timeout` counts from when somebody is found missing. Errors: failure().
  std::uint64_t begin(std::chrono::nanoseconds timeout) {
    if (words_->ended.load(std::memory_order_acquire) != 0) raise_ended();  // pairs with release in end
    timeout_ = timeout;
    until_ = {};
    doing_ = {};
    has_met_ = false;
    if (far_) far_->set_waiting(false);
    return ++number_;
  }
  /// Begins what is no call of all ranks, named `doing` in messages. Errors: failure().
  void resume(std::chrono::nanoseconds timeout, std::string_view doing) {
    if (words_->ended.load(std::memory_order_acquire) != 0) raise_ended();  // pairs with release in end
    timeout_ = timeout;
    until_ = {};
    doing_ = doing;
  }
  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] entrance& entrance_of(int of) const { return block_.area(of).entrances[number_ & 1]; }

  /// Says that this rank is in the call, and waits until all are. The first rank whose call is not rank 0's, or −1.
  /// `brought`: bytes of each entrance that ranks on other nodes are to see.
  int enter(std::uint64_t fingerprint, std::uint64_t brought = 0);
  /// Waits until all ranks have come here as often.
  void meet();
  void finish() { mine_->finished.store(number_, std::memory_order_relaxed); }

  /// Wakes those who sleep, if any: after every word that somebody may wait for, stored with seq_cst.
  void ring() const noexcept {
    // Dekker with wait(): either the sleeper sees the word, or this sees the sleeper
    if (words_->sleepers.load(std::memory_order_seq_cst) != 0) wake();
  }

  /// Waits until done(). `missing()` tells, as bits, whom for. Errors: peer_dead, timed_out, cancelled; and those with
  /// which others have ended the communicator.
  template <class Done, class Missing>
  void wait(const Done& done, const Missing& missing) {
    if (done()) return;
    patience p{*this};
    while (!done()) {
      switch (p.next()) {
        case patience::step::spin:
          parking::pause();
          break;
        case patience::step::give_way:
          ::sched_yield();
          break;
        case patience::step::sleep: {
          if (far_ && far_->is_waiting()) {
            far_->carrier().rest(p.nap_end());
            break;
          }
          words_->sleepers.fetch_add(1, std::memory_order_seq_cst);
          const std::uint32_t heard = words_->bell.load(std::memory_order_seq_cst);
          const bool go_on = done() || words_->ended.load(std::memory_order_seq_cst) != 0;
          if (!go_on) parking::park(words_->bell, heard, p.nap_end(), parking::word_scope::shared);
          words_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
          break;
        }
        case patience::step::look:
          break;
      }
      if (p.time_to_look() || words_->ended.load(std::memory_order_relaxed) != 0) {
        if (done()) return learn(p);
        look(missing());
        // what the dead have said before is still true, and may have been said since done() was asked
        if (suspects_ != 0 && done()) return learn(p);
        if (suspects_ != 0 && (missing() & suspects_) != 0) fail_dead(missing() & suspects_);
      }
    }
    learn(p);
  }

  /// Ends the communicator for all, unless somebody has done so already, and throws why it has ended.
  [[noreturn]] void fail(errc code, std::string_view why);
  /// Ends it for what this rank has failed with while the others wait for it, and throws that with this rank's name:
  /// but where what has failed is the memory of a rank that has died, for its death.
  [[noreturn]] void give_up(const error& cause);
  /// As give_up, where the others do not wait and no memory of theirs is used: those that have left are not at fault.
  [[noreturn]] void give_up_alone(const error& cause);
  /// As fail, without throwing.
  void end(errc code, std::string_view why) noexcept;
  [[nodiscard]] std::optional<error> failure() const;
  [[noreturn]] void raise_ended() const;

  /// Whether a meeting has ended because somebody did not come in time.
  [[nodiscard]] static bool has_timed_out(const group_words& words) noexcept;

  /// "rank 2 (pid 4711)".
  [[nodiscard]] std::string name_of(int rank) const;
  /// False once it has died, left the group or let the communicator go.
  [[nodiscard]] bool is_here(int rank) const;

 private:
  /// Spin while the others run, give the core away where they may need it, then sleep.
  class patience {
   public:
    enum class step : std::uint8_t { spin, give_way, sleep, look };
    explicit patience(const rank_meeting& m) noexcept
        : policy_(m.policy_), spins_(m.is_on_several_nodes() ? m.spins_ / far_turn : m.spins_) {}
    step next() noexcept;
    /// Until when the next sleep lasts: the first ones are short, so that the dead are soon looked for.
    [[nodiscard]] std::chrono::steady_clock::time_point nap_end() noexcept;
    [[nodiscard]] bool gave_way() const noexcept { return turns_ > spins_; }
    [[nodiscard]] bool time_to_look() const noexcept { return look_; }

   private:
    static constexpr int far_turn = 16;  // a look at the network takes as long as so many at memory
    waiting policy_;
    int spins_;
    int turns_ = 0;
    bool look_ = false;
    std::chrono::milliseconds nap_{1};
    std::chrono::steady_clock::time_point yielding_{};
  };
  friend class patience;
  /// Spins less after a spin that was in vain: the others may share this core, although there would be one for each.
  void learn(const patience& p) noexcept {
    spins_ = p.gave_way() ? std::max(spins_ / 2, least_spins_) : std::min(spins_ * 2, most_spins_);
  }

  void wake() const noexcept;
  /// The leader of a node tells the other nodes why the communicator has ended.
  void tell_far() const noexcept;
  void look(std::uint64_t missing);
  [[noreturn]] void fail_dead(std::uint64_t who);
  [[noreturn]] void raise_own(error cause) const;
  [[nodiscard]] std::string call_in_words() const;
  [[nodiscard]] std::string names_of(std::uint64_t ranks) const;

  std::shared_ptr<process_group> group_;
  std::vector<rank> members_;
  int self_;
  control_block block_;
  std::unique_ptr<far_ranks> far_;
  group_words* words_;
  rank_area* mine_;
  waiting policy_;
  std::shared_ptr<machine_state> machine_;
  int most_spins_, least_spins_, spins_;
  std::uint64_t number_ = 0;
  std::uint64_t step_ = 0;
  std::uint64_t suspects_ = 0;
  bool has_met_ = true;  // all ranks are in this call
  std::chrono::nanoseconds timeout_{};
  std::chrono::steady_clock::time_point until_{};  // of the call; not set before somebody is missing
  std::string_view doing_;                         // instead of the call's record
  mutable std::mutex ending_;
};

}  // namespace weft::detail
