// SPDX-License-Identifier: Apache-2.0
#include "weft/profile/profiler.hpp"

#include "core/errors/called_from.hpp"
#include "runtime/machine_state.hpp"
#include "weft/profile/chrome_trace.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

namespace weft {
namespace {

using std::chrono::nanoseconds;

/// By start, then by end; equal ones as they came. All are of one clock, the machine's: backends bring the times of
/// their devices to it.
std::vector<trace_record> ordered(const std::vector<trace_record>& records) {
  std::vector<const trace_record*> order;
  order.reserve(records.size());
  for (const trace_record& r : records) order.push_back(&r);
  std::ranges::sort(order, {}, [](const trace_record* r) { return std::tuple{r->started, r->ended, r}; });
  std::vector<trace_record> sorted;
  sorted.reserve(records.size());
  for (const trace_record* r : order) sorted.push_back(*r);
  return sorted;
}

/// What a machine keeps for profilers: whether one lives.
struct profile_state {
  explicit profile_state(detail::machine_state& owner) { static_cast<void>(owner); }
  std::atomic<bool> taken{false};
};

/// The right to be a machine's profiler.
class only_profiler {
 public:
  explicit only_profiler(detail::machine_state& machine)
      : taken_(machine.part_of<profile_state>(detail::part::profile).taken) {
    // acquire: pairs with the release below, so that the one before has put the old sink back
    if (taken_.exchange(true, std::memory_order_acquire)) {
      raise(errc::already_enabled,
            "this machine has a profiler already: use that one, or end it before another one starts");
    }
  }
  ~only_profiler() { taken_.store(false, std::memory_order_release); }
  only_profiler(const only_profiler&) = delete;
  only_profiler& operator=(const only_profiler&) = delete;

 private:
  std::atomic<bool>& taken_;
};

}  // namespace

/// Keeps the machine's state and not the machine: a profiler that is forgotten must not keep it open.
class profiler::body {
 public:
  body(const machine& of, const profiler_options& options)
      : machine_(open_state(of)),
        only_(*machine_),
        capacity_(options.capacity),
        sink_(std::make_shared<trace_sink>(options.capacity)),
        simulated_(of.clock() == clock_kind::virtual_time) {
    for (const device& d : of.devices()) names_.push_back(d.name());
    paused_since_ = machine_->now();
    if (!options.paused) resume();
  }

  ~body() { pause(); }
  body(const body&) = delete;
  body& operator=(const body&) = delete;

  void pause() {
    const std::lock_guard lock{mutex_};
    if (paused_since_) return;
    auto before = std::exchange(before_, nullptr);
    if (machine_->trace() == sink_) machine_->trace_to(before);  // else the user has set another since
    paused_since_ = machine_->now();
  }

  void resume() {
    const std::lock_guard lock{mutex_};
    if (!paused_since_) return;
    machine_->require_open();
    pauses_.push_back({*paused_since_, machine_->now()});
    paused_since_.reset();
    before_ = machine_->trace();
    machine_->trace_to(sink_);
  }

  [[nodiscard]] bool is_recording() const {
    const std::lock_guard lock{mutex_};
    return !paused_since_;
  }

  void reset() {
    const std::lock_guard lock{mutex_};
    static_cast<void>(sink_->take());
    records_.clear();
    pauses_.clear();
    if (paused_since_) paused_since_ = machine_->now();
    forgotten_drops_ = sink_->dropped();
    overflowed_ = 0;
  }

  [[nodiscard]] machine_profile profile() {
    const std::lock_guard lock{mutex_};
    collect();
    profile_context context{names_, simulated_, drops(), pauses_};
    if (paused_since_) context.paused.push_back({*paused_since_, nanoseconds::max()});
    return summarise(ordered(records_), context);
  }

  [[nodiscard]] std::vector<trace_record> records() {
    const std::lock_guard lock{mutex_};
    collect();
    return ordered(records_);
  }

  [[nodiscard]] std::uint64_t dropped() {
    const std::lock_guard lock{mutex_};
    collect();
    return drops();
  }

  [[nodiscard]] std::string chrome_trace() {
    const std::lock_guard lock{mutex_};
    collect();
    return weft::chrome_trace(ordered(records_), {names_, simulated_, drops()});
  }

 private:
  static std::shared_ptr<detail::machine_state> open_state(const machine& of) {
    detail::state_of(of)->require_open();
    return detail::state_of(of);
  }

  /// Takes over what the sink has; both together hold no more than the capacity.
  void collect() {
    std::vector<trace_record> fresh = sink_->take();
    const std::size_t room = capacity_ - records_.size();
    if (fresh.size() > room) {
      overflowed_ += fresh.size() - room;
      fresh.resize(room);
    }
    records_.insert(records_.end(), std::make_move_iterator(fresh.begin()), std::make_move_iterator(fresh.end()));
  }

  [[nodiscard]] std::uint64_t drops() const { return sink_->dropped() - forgotten_drops_ + overflowed_; }

  const std::shared_ptr<detail::machine_state> machine_;
  const only_profiler only_;
  const std::size_t capacity_;
  const std::shared_ptr<trace_sink> sink_;
  const bool simulated_;
  std::vector<std::string> names_;

  mutable std::mutex mutex_;
  std::shared_ptr<trace_sink> before_;       // the user's own, while ours is in its place
  std::optional<nanoseconds> paused_since_;  // none: it records
  std::vector<time_range> pauses_;
  std::vector<trace_record> records_;
  std::uint64_t forgotten_drops_ = 0;
  std::uint64_t overflowed_ = 0;
};

profiler::profiler(const machine& of, const profiler_options& options, std::source_location where) {
  const called_from here{where};
  body_ = std::make_unique<body>(of, options);
}
profiler::~profiler() = default;

void profiler::pause() { body_->pause(); }
void profiler::resume(std::source_location where) {
  const called_from here{where};
  body_->resume();
}
bool profiler::is_recording() const { return body_->is_recording(); }
void profiler::reset() { body_->reset(); }
machine_profile profiler::profile() const { return body_->profile(); }
std::vector<trace_record> profiler::records() const { return body_->records(); }
std::uint64_t profiler::dropped() const { return body_->dropped(); }
std::string profiler::chrome_trace() const { return body_->chrome_trace(); }

void profiler::write_chrome_trace(const std::string& path, std::source_location where) const {
  const called_from here{where};
  const std::string json = chrome_trace();
  errno = 0;
  std::ofstream file{path, std::ios::binary};
  file.write(json.data(), static_cast<std::streamsize>(json.size()));
  file.close();  // a full disk may show only here
  if (!file) {
    const std::string why = errno == 0 ? "it failed" : std::error_code{errno, std::generic_category()}.message();
    raise(errc::io_failed, "cannot write the trace to " + path + ": " + why);
  }
}

}  // namespace weft
