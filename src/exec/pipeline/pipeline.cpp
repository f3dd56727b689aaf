// SPDX-License-Identifier: Apache-2.0
// What a pipeline tells, and its face without types.
#include "weft/exec/pipeline.hpp"

#include "core/errors/called_from.hpp"
#include "exec/pipeline/pipeline_body.hpp"

#include <algorithm>

namespace weft::detail {

using std::chrono::nanoseconds;

pipeline_report pipeline_body::report() const {
  pipeline_report made;
  const std::lock_guard lock{mutex_};
  made.pushed = pushed_;
  made.finished = finished_;
  made.failed = failed_;
  made.placement = placement_;
  made.has_costs = has_costs_;
  made.simulated = state_->options().clock == clock_kind::virtual_time;
  const entry* before = nullptr;
  std::vector<nanoseconds> between;
  std::deque<entry> history = history_;
  std::sort(history.begin(), history.end(), [](const entry& a, const entry& b) { return a.number < b.number; });
  for (const entry& e : history) {
    made.batches.push_back({e.number, e.items, e.pushed, e.finished, e.steps.empty()});
    if (e.steps.empty()) continue;
    if (before != nullptr) between.push_back(e.finished - before->finished);
    before = &e;
  }
  if (!between.empty()) {
    const auto middle = between.begin() + static_cast<std::ptrdiff_t>(between.size() / 2);
    std::nth_element(between.begin(), middle, between.end());
    made.period = *middle;
  }
  if (first_ && last_) {
    made.elapsed = last_->finished - first_->pushed;
    const auto track_of = [&](std::size_t stage) {
      return std::find_if(steps_.begin(), steps_.end(),
                          [&](const step& s) { return s.what == action::stage && s.stage == stage; })
          ->track;
    };
    const auto on = [](std::size_t wanted) { return [wanted](const step& s) { return s.track == wanted; }; };
    const auto begin = std::find_if(steps_.begin(), steps_.end(), on(track_of(stages_.size() - 1))) - steps_.begin();
    const auto end = steps_.rend() - std::find_if(steps_.rbegin(), steps_.rend(), on(track_of(0))) - 1;
    made.fill = first_->steps[static_cast<std::size_t>(begin)].begin - first_->pushed;
    made.drain = last_->finished - last_->steps[static_cast<std::size_t>(end)].end;
    if (made.elapsed.count() > 0)
      made.batches_per_second =
          static_cast<double>(finished_ - failed_) * 1e9 / static_cast<double>(made.elapsed.count());
  }
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const step& s = steps_[i];
    if (s.what != action::stage) {
      made.hops.push_back({s.from, s.to, busy_[i]});
      continue;
    }
    made.stages.push_back({stages_[s.stage].name, s.to, busy_[i],
                           made.elapsed.count() > 0
                               ? static_cast<double>(busy_[i].count()) / static_cast<double>(made.elapsed.count())
                               : 0.0,
                           placement_.why[s.stage]});
  }
  for (std::size_t i = 0; i < places_.size(); ++i) {
    // A batch is on an edge from when it begins to be written until it has been read.
    std::vector<std::pair<nanoseconds, int>> changes;
    for (const entry& e : history) {
      if (e.steps.empty() || e.steps[i].begin == e.steps[i + 1].end) continue;
      changes.emplace_back(e.steps[i].begin, 1);
      changes.emplace_back(e.steps[i + 1].end, -1);
    }
    std::sort(changes.begin(), changes.end());  // at one instant, who leaves goes first
    int now = 0, peak = 0;
    for (const auto& [time, change] : changes) peak = std::max(peak, now += change);
    const std::size_t boundary = places_[i].boundary;
    made.edges.push_back({(boundary == 0 ? "input" : stages_[boundary - 1].name) + " → " +
                              (boundary == stages_.size() ? "result" : stages_[boundary].name),
                          places_[i].device, static_cast<int>(places_[i].slots.size()), peak});
  }
  return made;
}

untyped_pipeline::untyped_pipeline(const machine& m, std::size_t max_items, std::size_t in_element,
                                   std::vector<untyped_stage> stages, const pipeline_options& options,
                                   std::source_location where)
    : body_(std::make_shared<pipeline_body>(state_of(m), in_element, std::move(stages), options)) {
  const called_from here{where};
  state_of(m)->require_open();
  body_->assemble(m, max_items);
}

untyped_pipeline::~untyped_pipeline() { body_->finish(); }

std::optional<event> untyped_pipeline::push(std::span<const std::byte> batch, std::size_t items,
                                            std::span<std::byte> result, std::size_t results,
                                            std::optional<nanoseconds> timeout, std::source_location where) {
  return body_->push(batch, items, result, results, timeout, where);
}

wait_outcome untyped_pipeline::drain(std::optional<nanoseconds> timeout, std::source_location where) {
  const called_from here{where};
  return body_->drain(timeout);
}

pipeline_report untyped_pipeline::report() const { return body_->report(); }

std::size_t untyped_pipeline::results_of(std::size_t items, std::source_location where) const {
  return body_->counts_of(items, where).back();
}

}  // namespace weft::detail
