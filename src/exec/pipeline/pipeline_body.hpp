// SPDX-License-Identifier: Apache-2.0
// A line of steps: take in, stages, hops, give out. Step i reads place i − 1 and writes place i; a place is a few
// buffers on one device, taken in turn. All steps of a batch are submitted at once. What orders them is their tracks
// (streams) and two events: the step before has ended, and whoever had the buffer last has.
//
// A failure makes streams skip what is queued behind it. The marks before and after each step tell a step that failed
// from one that was skipped; when nothing moves any more the streams are cleared, and the skipped steps go in again.
#pragma once

#include "exec/pipeline/place_stages.hpp"
#include "runtime/machine_state.hpp"
#include "weft/exec/pipeline.hpp"
#include "weft/memory/buffer.hpp"

#include <deque>
#include <exception>
#include <mutex>
#include <new>

namespace weft::detail {

class pipeline_body : public std::enable_shared_from_this<pipeline_body> {
 public:
  pipeline_body(std::shared_ptr<machine_state> state, std::size_t in_element, std::vector<untyped_stage> stages,
                pipeline_options options);
  ~pipeline_body();
  pipeline_body(const pipeline_body&) = delete;
  pipeline_body& operator=(const pipeline_body&) = delete;

  void assemble(const machine& m, std::size_t max_items);
  std::optional<event> push(std::span<const std::byte> in, std::size_t items, std::span<std::byte> out,
                            std::size_t results, std::optional<std::chrono::nanoseconds> timeout,
                            std::source_location where);
  wait_outcome drain(std::optional<std::chrono::nanoseconds> timeout);
  /// Waits for what is under way, as far as this thread may.
  void finish() noexcept;
  [[nodiscard]] pipeline_report report() const;
  [[nodiscard]] std::vector<std::size_t> counts_of(std::size_t items, std::source_location where) const;

 private:
  enum class action : std::uint8_t { take_in, stage, hop, give_out };

  struct track {
    device_id on;
    backend* owner = nullptr;
    stream_handle handle{};
    stream order;  // the same, for stages and copies
  };
  struct step {
    action what = action::stage;
    std::size_t stage = 0;  // which; for a hop the one before it
    std::size_t track = 0;
    device_id from, to;  // of a hop
  };
  struct place {
    std::size_t boundary = 0;  // 0: the input; s + 1: what stage s gives
    device_id device;
    std::size_t element = 0;
    std::vector<buffer<std::byte>> slots;
    std::vector<event_ref> last;  // the last step that touched each
  };
  struct passage {
    std::chrono::nanoseconds begin{0}, end{0};
  };
  struct batch {
    std::uint64_t number = 0;
    std::span<const std::byte> in;
    std::span<std::byte> out;
    std::vector<std::size_t> counts;
    event_ref gate;  // what the caller waits for
    struct marks {
      event_ref before, after;
    };
    std::vector<marks> steps;
    std::chrono::nanoseconds pushed{0};
    std::shared_ptr<const error> refused;  // a step could not be submitted
    std::exception_ptr thrown;
    bool taken_up = false;  // again, after a failure of another one; before that a refusal is thrown, not kept
    // under mutex_: what a clearing found out
    std::shared_ptr<const error> over;  // why it ends here
    bool is_told = false;               // or is about to be, by one clearing
    std::size_t from = 0;               // the step at which it is taken up
    event_ref last;                     // what it ends with then
    bool is_unwatched = false;
  };
  using batch_ref = std::shared_ptr<batch>;
  struct entry {
    std::uint64_t number = 0;
    std::size_t items = 0;
    std::chrono::nanoseconds pushed{0}, finished{0};
    std::vector<passage> steps;  // empty when it failed
  };

  void place_stages_on(const machine& m);
  void build_steps(const machine& m);
  std::size_t add_track(const machine& m, device_id on);
  [[nodiscard]] placement_problem problem_of(const machine& m, const std::vector<device>& devices) const;

  [[nodiscard]] std::string name_of(const step& s) const;
  [[nodiscard]] memory_ref slot_of(std::size_t place, const batch& b) const;
  [[nodiscard]] event_ref submit(batch& b, std::size_t first);
  void watch(const batch_ref& b, const event_ref& last);
  void end_copies(const batch& b);
  void run(const step& s, std::size_t index, const batch& b);
  void ended(const batch_ref& b) noexcept;
  void complete(const batch_ref& b, const std::shared_ptr<const error>& cause) noexcept;
  void keep(const batch& b, bool is_well, std::chrono::nanoseconds now);
  void clear_soon() noexcept;
  void clear() noexcept;
  void look_for_end();
  [[nodiscard]] std::shared_ptr<const error> verdict_of(batch& b, std::shared_ptr<const error>& skipped_by) noexcept;
  /// The first batch of this number or a later one that fits. Takes no memory.
  template <class F>
  [[nodiscard]] batch_ref on_line(std::uint64_t number, const F& fits) const noexcept {
    const std::lock_guard lock{mutex_};
    for (const batch_ref& b : under_way_) {
      if (b->number >= number && fits(*b)) return b;
    }
    return nullptr;
  }
  template <class F>
  [[nodiscard]] std::shared_ptr<const error> made_or_no_memory(const F& make) const noexcept {
    try {
      return make();
    } catch (const std::bad_alloc&) {
      return no_memory_;
    }
  }
  [[nodiscard]] wait_outcome wait_for_gates(wait_deadline deadline) const noexcept;

  std::shared_ptr<machine_state> state_;
  std::size_t in_element_;
  std::vector<untyped_stage> stages_;
  pipeline_options options_;
  std::vector<std::size_t> capacity_;  // elements at each boundary
  stage_placement placement_;
  bool has_costs_ = false;
  std::vector<track> tracks_;
  std::vector<step> steps_;
  std::vector<place> places_;

  // Whoever submits, a push or the clearing after a failure. Taken before mutex_, and never by a step that ends.
  std::mutex submitting_;
  mutable std::mutex mutex_;
  std::uint64_t pushed_ = 0;
  std::uint64_t finished_ = 0, failed_ = 0;
  std::deque<batch_ref> under_way_;
  std::size_t submitted_ = 0;               // batches of those with work in the streams
  bool broken_ = false;                     // a failure is in the streams: nothing is submitted until they are clear
  event_ref cleared_;                       // for those who wait for that
  std::shared_ptr<const error> end_;        // nothing goes in any more
  std::shared_ptr<const error> failure_;    // the first since the last drain
  std::shared_ptr<const error> no_memory_;  // made in time
  std::deque<entry> history_;
  std::optional<entry> first_, last_;           // that went well; the history may have forgotten them
  std::vector<std::chrono::nanoseconds> busy_;  // of each step
};

}  // namespace weft::detail
