// SPDX-License-Identifier: Apache-2.0
// One launch over devices while it runs: asks the balancer for pieces, submits what each needs, and decides what comes
// next whenever one has ended. Whoever comes first makes it go on: the thread that waits, or the machine's thread for
// launches.
#pragma once

#include "exec/arrays/array_body.hpp"
#include "exec/balance/balancer.hpp"
#include "exec/split_launch/lane.hpp"
#include "weft/exec/launch_run.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace weft::detail {

/// An argument as a launch over devices needs it.
struct job_argument {
  kernel_argument plain;  // complete for a scalar
  access_rule access;
  std::string name;
  std::shared_ptr<array_body> array;  // null for a scalar
  bool is_temporary = false;          // the array stands for memory of the caller's
  bool reads = false;
  bool writes = false;
  bool reduces = false;
  std::int64_t slab = 1;  // elements in one step of the outermost dimension; 0: not known, everything is needed

  [[nodiscard]] bool is_halo() const { return access.kind == access_kind::halo || access.kind == access_kind::wrap; }
  /// The elements that the steps begin … end − 1 reach. Before 0 and from the end on: those of a periodic halo.
  [[nodiscard]] interval reach(const interval& steps) const;
  /// The part of it that no other steps reach: without a halo. None where all steps reach everything.
  [[nodiscard]] interval own(const interval& steps) const;
};

/// A launch whose arguments have been checked.
struct job_plan {
  std::shared_ptr<machine_state> state;
  std::shared_ptr<const kernel_code> code;
  kernel_range over;
  std::vector<job_argument> arguments;
  spread_options options;
  std::vector<device> devices;
  std::string one_device_because;  // why it may not be divided; empty when it may
  std::source_location where;

  [[nodiscard]] std::int64_t steps() const;
  [[nodiscard]] std::size_t outer() const { return static_cast<std::size_t>(over.dimensions - 1); }
};

/// Holds the mutexes of several arrays, taken in their order.
class array_locks {
 public:
  explicit array_locks(std::span<array_body* const> arrays) : arrays_(arrays) {
    for (array_body* a : arrays_) a->mutex.lock();
  }
  array_locks(const array_locks&) = delete;
  array_locks& operator=(const array_locks&) = delete;
  ~array_locks() {
    for (array_body* a : arrays_) a->mutex.unlock();
  }

 private:
  std::span<array_body* const> arrays_;
};

class launch_job : public std::enable_shared_from_this<launch_job> {
 public:
  explicit launch_job(job_plan plan);

  /// Submits what can be submitted now. Errors: what the plan cannot be done with.
  void begin();
  wait_outcome wait_until(wait_deadline deadline);
  /// Returns when nothing more will be submitted.
  void wait_submitted();
  [[nodiscard]] bool has_submitted() const { return submitted_.load(std::memory_order_acquire); }
  [[nodiscard]] bool settled() const { return settled_.load(std::memory_order_acquire); }
  /// Once settled: why it failed, or null.
  [[nodiscard]] std::shared_ptr<const error> failure() const;
  /// The same, and counts as told.
  [[nodiscard]] std::shared_ptr<const error> tell();
  [[nodiscard]] event done();
  void cancel();
  /// Lets a backend that only moves when it is asked go on, and looks at what has ended. Never waits.
  void look();
  /// Looks at what has ended, and submits what comes next.
  void advance();
  [[nodiscard]] launch_report report() const;
  [[nodiscard]] bool borrows_host_memory() const { return borrows_host_memory_; }
  [[nodiscard]] const std::shared_ptr<machine_state>& state() const { return plan_.state; }

 private:
  struct worker {
    std::shared_ptr<lane> way;
    int in_flight = 0;
    int depth = 1;            // at most so many
    bool is_waiting = false;  // for memory, until something of the launch has ended
    bool has_waited = false;  // and with nothing else on its way had no memory: the piece is too large
    std::chrono::nanoseconds last_end{0};
    bool is_lost = false;
    std::vector<unique_handle<memory_traits>> partial;  // for each reduction, in the order of the arguments
    bool has_begun = false;                             // something of this launch may be in its lane
    bool has_worked = false;
  };
  struct flight {
    piece what;
    std::size_t by = 0;  // the worker
    std::size_t record = 0;
    event last;
    event kernel;
    array_moves in, out;
    std::vector<array_body::held_before> before;  // where it may be done again, by argument
    bool is_watched = false;
    bool is_queued = false;        // the first of its worker, in streams with earlier work
    std::vector<event> behind;     // likewise: what has to end before it
    bool reads_unwritten = false;  // by a launch that failed: no other device finds it either
    bool is_leftover = false;      // what a piece had submitted when it could not go on
  };
  enum class phase : std::uint8_t { blocked, running, combining, settled };

  /// A launch that this one is blocked by, not settled if there is such a one; null where it is not blocked.
  [[nodiscard]] std::shared_ptr<launch_job> earlier();
  /// At the head of those, one behind the other, that this one comes after: in a loop, for there may be thousands.
  [[nodiscard]] std::shared_ptr<launch_job> first_in_line();

  void note_default_streams();
  [[nodiscard]] event once_seen(const event& e) const;
  void decide();  // makes the balancer
  void expect_halos() const;
  [[nodiscard]] std::string split_text(std::int64_t items) const;
  template <class F>
  void guarded(F&& decision);
  [[nodiscard]] balance_report reasons() const;
  [[nodiscard]] std::vector<piece> pieces_as_placed(const job_argument& guide, std::span<const array_part> parts,
                                                    const balance_request& request) const;
  [[nodiscard]] bool stays(const job_argument& guide, std::span<const piece> placed, const balance_request& request);
  void pump();
  void submit(const piece& next, worker& by);
  void run_piece(flight& f, worker& by);
  void leave_behind(const worker& by);
  void watch(const event& e);
  void watch_flights();  // those that nobody watches yet
  [[nodiscard]] const event& awaited(const flight& f) const;
  [[nodiscard]] bool retries() const { return plan_.options.on_failure == failure_policy::retry_elsewhere; }
  [[nodiscard]] std::chrono::nanoseconds began(const flight& done) const;
  void ended(flight& done);
  void fail(std::shared_ptr<const error> cause);
  void fail(errc code, const std::string& how);  // "the launch of 'add' " and how it failed
  void lose(const flight& undone, const std::shared_ptr<const error>& cause);
  void combine();
  void drop(const std::shared_ptr<lane>& spoiled);
  [[nodiscard]] event ending();  // done(), with the mutex held
  void give_up_the_rest();
  void decide_first();
  void conclude();
  void settle();
  void after_decision();
  [[nodiscard]] std::vector<std::shared_ptr<launch_job>> take_followers();
  [[nodiscard]] launch_request request_of(const piece& next) const;
  [[nodiscard]] route_wish route() const;
  [[nodiscard]] std::string history_key() const;
  /// In the history, behind the name: what pieces took that ran behind another one of their launch.
  static constexpr const char* overlapped_mark = "+";

  job_plan plan_;
  std::vector<array_body*> arrays_;  // each once, in the order in which they are locked
  std::string key_;                  // in the history
  std::uint64_t number_ = 0;
  std::stop_source stop_;  // ends what has not begun: a failure or a cancellation
  std::optional<std::stop_callback<std::function<void()>>> on_stop_;
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> submitted_{false};
  std::atomic<bool> settled_{false};
  bool is_accepted_ = false;  // begin() is over: wait() tells of a failure

  mutable std::mutex mutex_;
  phase phase_ = phase::blocked;
  int blockers_ = 0;
  std::vector<event> default_streams_;               // what those of its devices held when it was submitted
  std::vector<std::shared_ptr<launch_job>> before_;  // launches that this one comes after, until they have submitted
  std::vector<std::shared_ptr<launch_job>> followers_;
  std::optional<balance_request> request_;
  balance_plan plan_made_;
  std::optional<balancer> balancer_;
  bool stays_ = false;     // its data lies in these shares
  bool resident_ = false;  // its data was on the devices
  bool leaves_ = false;    // results leave the devices piece by piece
  int depth_ = 1;
  int again_ = 0;  // pieces that had to be done again
  std::vector<worker> workers_;
  std::vector<std::shared_ptr<lane>> spoiled_;  // something failed in them; not to end under the mutex
  std::vector<flight> flights_;
  std::vector<flight> ended_;  // that are looked at now
  std::shared_ptr<const error> failure_;
  std::shared_ptr<const error> stopped_;  // a piece did not begin because another one failed
  event_ref gate_;
  launch_record record_;
  bool borrows_host_memory_ = false;
  std::vector<std::vector<std::byte>> gathered_;  // partial results on the host
};

/// Combines partial results, one after the other, into the first.
void combine_partials(element_type type, reduce_op op, std::span<std::byte> into, std::span<const std::byte> more);
/// The value that changes nothing.
[[nodiscard]] fill_request identity_of(element_type type, reduce_op op);

}  // namespace weft::detail
