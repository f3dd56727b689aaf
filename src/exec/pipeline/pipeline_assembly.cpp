// SPDX-License-Identifier: Apache-2.0
// Puts a pipeline together: where its stages go, its tracks, its steps and the buffers between them.
#include "exec/launch_check.hpp"
#include "exec/pipeline/pipeline_body.hpp"
#include "exec/pipeline/place_stages.hpp"
#include "memory/memory_state.hpp"

#include <algorithm>

namespace weft::detail {
namespace {

constexpr int most_depth = 1024;

double seconds_of(const lane_facts& lane, std::uint64_t size) {
  return lane.latency_seconds + (lane.bytes_per_second > 0 ? static_cast<double>(size) / lane.bytes_per_second : 0);
}

}  // namespace

void pipeline_body::assemble(const machine& m, std::size_t max_items) {
  if (stages_.empty()) raise(errc::invalid_argument, "a pipeline without a stage: add one before build()");
  if (options_.depth < 1 || options_.depth > most_depth) {
    raise(errc::invalid_argument,
          "a pipeline of depth " + std::to_string(options_.depth) + ": it is 1 to " + std::to_string(most_depth));
  }
  capacity_.push_back(max_items);
  for (const untyped_stage& s : stages_)
    capacity_.push_back(s.options.count ? s.options.count(capacity_.back()) : capacity_.back());
  for (std::size_t i = 0; i < capacity_.size(); ++i) {
    const std::size_t element = i == 0 ? in_element_ : stages_[i - 1].out_element;
    std::size_t size = 0;
    if (__builtin_mul_overflow(capacity_[i], element, &size) ||
        __builtin_mul_overflow(size, static_cast<std::size_t>(most_depth) * 4, &size)) {
      raise(errc::out_of_range, "a pipeline for batches of " + std::to_string(max_items) +
                                    " elements: " + std::to_string(capacity_[i]) + " elements " +
                                    (i == 0 ? "of input" : "from stage '" + stages_[i - 1].name + "'") +
                                    " are more than memory can have");
    }
  }
  place_stages_on(m);
  build_steps(m);
  busy_.resize(steps_.size());
}

placement_problem pipeline_body::problem_of(const machine& m, const std::vector<device>& devices) const {
  placement_problem made;
  double known = 0;
  int costs = 0;
  const auto cost_of = [&](std::size_t s) {
    const kernel_cost& c = *stages_[s].options.cost;
    return c.seconds + c.seconds_per_item * static_cast<double>(capacity_[s]);
  };
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    if (!stages_[s].options.cost) continue;
    known += cost_of(s);
    ++costs;
  }
  const auto bytes_at = [&](std::size_t boundary) {
    return capacity_[boundary] * (boundary == 0 ? in_element_ : stages_[boundary - 1].out_element);
  };
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    made.stages.push_back({stages_[s].name,
                           stages_[s].options.cost ? cost_of(s)
                           : costs > 0             ? known / costs
                                                   : 1.0,
                           bytes_at(s + 1),
                           static_cast<std::uint64_t>(options_.depth) * (bytes_at(s) + bytes_at(s + 1))});
  }
  for (const device& d : devices) {
    const auto& known_devices = m.layout().devices;
    const double speed = d.id().index() < known_devices.size() ? known_devices[d.id().index()].speed : 1.0;
    made.devices.push_back({d.id(), speed, d.free_memory().value()});
  }
  made.bytes_in = bytes_at(0);
  made.overlap_hops = options_.overlap_hops;
  made.hop_seconds = [facts = memory_of(*state_).facts()](device_id from, device_id to, std::uint64_t size) {
    const auto known_to_facts = [&](device_id id) { return id == device_id{} || id.index() < facts.devices; };
    if (size == 0 || !known_to_facts(from) || !known_to_facts(to)) return 0.0;
    if (from == device_id{}) return seconds_of(facts.from_host[to.index() * facts.devices + to.index()], size);
    if (to == device_id{}) return seconds_of(facts.to_host[from.index()], size);
    const auto way = route(facts, from, to, bytes{size});
    return way ? way->predicted_seconds : 0.0;
  };
  return made;
}

void pipeline_body::place_stages_on(const machine& m) {
  has_costs_ = std::all_of(stages_.begin(), stages_.end(), [](const untyped_stage& s) { return s.options.cost; });
  std::vector<device> devices;
  if (options_.placement.empty()) {
    for (const device& d : m.devices(options_.devices)) devices.push_back(d);
    placement_ = value_or_raise(place_stages(problem_of(m, devices)));
    return;
  }
  if (!takes_any_device(options_.devices))
    raise(errc::invalid_argument, "pipeline_options: a placement names the devices itself: leave `devices` out");
  for (const device_id id : options_.placement) {
    if (std::none_of(devices.begin(), devices.end(), [&](const device& d) { return d.id() == id; }))
      devices.push_back(m[id]);
  }
  placement_ = value_or_raise(judge_placement(problem_of(m, devices), options_.placement));
}

std::size_t pipeline_body::add_track(const machine& m, device_id on) {
  backend& owner = state_->backend_of(on);
  // not told: a failure belongs to its batch's event, and the pipeline clears its own streams
  const stream_handle handle = value_or_raise(owner.create_stream(on, 0, false));
  try {
    tracks_.push_back({on, &owner, handle, stream::adopt(m[on], handle)});
  } catch (...) {
    owner.destroy_stream(handle);
    std::rethrow_exception(std::current_exception());
  }
  return tracks_.size() - 1;
}

void pipeline_body::build_steps(const machine& m) {
  const std::vector<device_id>& on = placement_.device_of;
  const auto add_place = [&](std::size_t boundary, device_id device) {
    place made;
    made.boundary = boundary;
    made.device = device;
    made.element = boundary == 0 ? in_element_ : stages_[boundary - 1].out_element;
    places_.push_back(std::move(made));
  };
  // Stages that follow each other on one device share a track: a device does one of them at a time.
  std::size_t working = add_track(m, on.front());
  const auto hop_track = [&](device_id device) { return options_.overlap_hops ? add_track(m, device) : working; };
  steps_.push_back({action::take_in, 0, hop_track(on.front()), {}, on.front()});
  add_place(0, on.front());
  for (std::size_t s = 0; s < on.size(); ++s) {
    if (s > 0 && on[s] != on[s - 1]) {
      steps_.push_back({action::hop, s - 1, hop_track(on[s - 1]), on[s - 1], on[s]});
      add_place(s, on[s]);
      working = add_track(m, on[s]);
    }
    steps_.push_back({action::stage, s, working, on[s], on[s]});
    add_place(s + 1, on[s]);
  }
  steps_.push_back({action::give_out, on.size() - 1, hop_track(on.back()), on.back(), {}});
  for (std::size_t i = 0; i < places_.size(); ++i) {
    // Within one track the order alone keeps a buffer. The first edge is what a push waits for.
    const bool in_turn = i > 0 && steps_[i].track == steps_[i + 1].track;
    const int count = in_turn ? 1 : options_.depth;
    place& p = places_[i];
    for (int n = 0; n < count; ++n) p.slots.emplace_back(m[p.device], capacity_[p.boundary] * p.element);
    places_[i].last.resize(static_cast<std::size_t>(count));
  }
}

std::vector<std::size_t> pipeline_body::counts_of(std::size_t items, std::source_location where) const {
  std::vector<std::size_t> counts{items};
  for (const untyped_stage& s : stages_)
    counts.push_back(s.options.count ? s.options.count(counts.back()) : counts.back());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] <= capacity_[i]) continue;
    raise(errc::out_of_range,
          i == 0 ? "a batch of " + std::to_string(items) + " elements: this pipeline was made for " +
                       std::to_string(capacity_[0]) + " at most"
                 : "stage '" + stages_[i - 1].name + "' would give " + std::to_string(counts[i]) +
                       " elements for a batch of " + std::to_string(items) + ", and its buffers hold the " +
                       std::to_string(capacity_[i]) + " of the largest batch",
          where);
  }
  return counts;
}

}  // namespace weft::detail
