// SPDX-License-Identifier: Apache-2.0
// Steps of a schedule over the streams of devices, and on the calling thread where the memory is in reach.
#pragma once

#include "collective/fold/fold.hpp"
#include "collective/schedule/schedule_steps.hpp"
#include "exec/split_launch/lane.hpp"
#include "weft/collective/collective_cost.hpp"
#include "weft/collective/communicator.hpp"
#include "weft/core/raise.hpp"
#include "weft/memory/buffer.hpp"

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace weft::detail {

/// Who the ranks of a communicator are. Shared by all that it started.
struct collective_ranks {
  std::shared_ptr<machine_state> state;
  std::vector<device> devices;
  std::vector<backend*> drivers;
  std::vector<int> nodes;  // of the devices, as a shape has them

  [[nodiscard]] int size() const { return static_cast<int>(devices.size()); }
  /// "rank 2 (gpu2)".
  [[nodiscard]] std::string name(int rank) const;
  /// What the driver of a rank's device gave, or its error with the rank named.
  template <class T>
  T value(int rank, result<T> given, std::source_location where = {}) const {
    if (!given) {
      given.error().what = name(rank) + ": " + given.error().what;
      given.error().where = where;
    }
    return value_or_raise(std::move(given), where);
  }
  /// "rank 0 (gpu0), rank 2 (gpu2) and rank 3 (gpu3)".
  [[nodiscard]] std::string names(std::span<const int> list) const;
};

/// What is the same for every call of one shape.
struct collective_plan {
  // what it is a plan for
  collective_shape shape;
  data_type type = data_type::float32;
  reduction_op::kind op = reduction_op::kind::sum;
  std::shared_ptr<const kernel_code> user;
  std::uint64_t in_place = 0;
  reduction_order order = reduction_order::any;
  collective_algorithm wanted = collective_algorithm::automatic;
  std::string no_direct;  // why memory of other ranks may not be used, if so

  collective_choice choice;
  std::unique_ptr<const schedule_steps> steps;
  std::vector<schedule_turn> turns;          // what one thread does, where it may be the caller's
  std::vector<std::uint64_t> bytes_between;  // [from * ranks + to]
  std::uint64_t touched_bytes = 0;           // by all steps together
  std::vector<double> remote_seconds;        // on a virtual clock, by round: what folds over other ranks' memory take

  [[nodiscard]] bool is_for(const collective_plan& wish) const;
};

/// Memory of one call: inputs, outputs and scratch by rank.
struct collective_buffers {
  std::vector<memory_ref> in, out, scratch;

  /// Bytes of a place; `size` is that of an element.
  [[nodiscard]] memory_ref at(const schedule_place& place, std::int64_t count, std::size_t size) const;
};

struct collective_call;

/// Streams and memory for the calls in one set of callers' streams. Calls in another set neither wait for these nor
/// fail with them.
struct collective_workspace {
  std::vector<stream_handle> homes;                     // by rank, of its newest call
  std::vector<std::unique_ptr<own_stream>> streams;     // by index, less the homes; made when first needed
  std::vector<buffer<std::byte>> scratch;               // by rank
  std::shared_ptr<const collective_call> last;          // the newest call
  std::shared_ptr<const collective_call> scratch_user;  // the newest that works in the scratch memory
};

/// The streams of a communicator: those of the caller for one call, and its own.
class collective_streams {
 public:
  collective_streams(std::shared_ptr<const collective_ranks> ranks, int lanes);

  [[nodiscard]] const stream_layout& layout() const { return layout_; }
  /// The caller's for this call; empty for the default streams. Errors: invalid_argument, wrong_device.
  void begin(std::span<const stream> given, std::source_location where);
  [[nodiscard]] const stream& at(int index);
  [[nodiscard]] const stream& home(int rank) const {
    return given_.empty() ? defaults_[static_cast<std::size_t>(rank)] : given_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] bool is_settled(int rank) const;
  /// For the call that began: the one of the earlier calls in its streams, one that nobody works with, a new one, or
  /// at last the one that was used least lately.
  collective_workspace& take_workspace();
  [[nodiscard]] const std::list<collective_workspace>& workspaces() const { return workspaces_; }
  /// Forgets failures of earlier calls in the workspace; with `all`, waits for what they left until `deadline`.
  void clear(bool all, wait_deadline deadline) noexcept;

 private:
  [[nodiscard]] backend& driver_of_own(std::size_t index) const;

  static constexpr std::size_t most_workspaces = 8;
  std::shared_ptr<const collective_ranks> ranks_;
  stream_layout layout_;
  std::vector<stream> defaults_;
  std::span<const stream> given_;
  std::list<collective_workspace> workspaces_;  // used last first
  collective_workspace* now_ = nullptr;         // that of this call
};

/// One call that was submitted.
struct collective_call {
  std::shared_ptr<const collective_ranks> ranks;
  std::shared_ptr<const collective_plan> plan;  // null for send and barrier
  std::string_view what;
  std::chrono::nanoseconds submitted{0}, timeout{0};
  bool over = false;              // it had ended when the call returned
  bool is_whole = false;          // every step of its plan was submitted
  std::vector<event_ref> starts;  // by rank: what its stream held before; null: nothing
  event_ref gathered;             // all of them as one event, where the steps wait for that
  std::vector<event_ref> steps;
  std::vector<int> step_ranks;          // of calls without a plan
  std::vector<event_ref> done;          // by rank
  std::shared_ptr<const error> broken;  // why not all of it was submitted

  [[nodiscard]] bool finished() const;
  [[nodiscard]] bool failed() const;
  void clear();
};

/// Submits the steps of `plan`, after `before`, whose scratch it uses, where there is one. What was submitted is in
/// `into`, even when this ends with an error.
void run_schedule(const collective_plan& plan, const collective_buffers& memory, collective_streams& streams,
                  const collective_call* before, const std::stop_token& stop, collective_call& into,
                  std::source_location where);

/// Each caller's stream waits for the steps that `ends` lists for its rank; `last` are the last ones of each stream.
/// Fills `into.done`.
void end_in_homes(collective_streams& streams, collective_call& into, std::span<const std::vector<int>> ends,
                  std::span<const int> last);

/// After `cause` ended the submission half-way: lets each caller's stream wait for what was submitted and fail with the
/// cause, so that it is told as whatever else fails in a stream.
void fail_in_homes(collective_streams& streams, collective_call& into, std::shared_ptr<const error> cause) noexcept;

/// All steps on this thread; `memory` holds addresses that it may follow. Errors: those of fold_here.
void run_here(const collective_plan& plan, const collective_buffers& memory, bool checks_access);

}  // namespace weft::detail
