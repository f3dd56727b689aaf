// SPDX-License-Identifier: Apache-2.0
#include "collective/schedule/cost/schedule_replay.hpp"

#include "collective/fold/fold.hpp"
#include "collective/schedule/cost/timeline.hpp"
#include "core/modelled_time.hpp"

#include <algorithm>

namespace weft::detail {
namespace {

double seconds_of(std::chrono::nanoseconds t) { return std::chrono::duration<double>(t).count(); }

/// What the folds of one round keep busy, until it is read.
class round_load {
 public:
  explicit round_load(const replay_ground& ground)
      : ground_(ground), wires_(move_ways::wires_of(ground.machine)), memories_(ground.machine.devices.size()) {}

  void add(const schedule_fold& f) {
    const std::uint64_t size = static_cast<std::uint64_t>(f.count) * ground_.element_size;
    for (const schedule_place& place : f.inputs) {
      reach(place.rank, f.at, size);
      use_memory(place.rank, size);
    }
    for (const schedule_place& place : f.outputs) {
      reach(f.at, place.rank, size);
      use_memory(place.rank, size);
    }
    // several passes keep what they have in the first output, and copy it to those that did not fit
    constexpr std::size_t width = fold_width;
    std::uint64_t again = 0;
    if (f.inputs.size() > width) again += 2 * ((f.inputs.size() - width + width - 2) / (width - 1));
    if (f.outputs.size() > width) again += (f.outputs.size() - 1) / width;
    use_memory(f.outputs.front().rank, again * size);
  }

  /// How long it takes; then nothing is busy.
  [[nodiscard]] double take() {
    double busiest = 0;
    for (std::vector<double>* const list : {&wires_, &memories_}) {
      for (double& busy : *list) {
        busiest = std::max(busiest, busy);
        busy = 0;
      }
    }
    const double all = is_known_ ? busiest + delay_ : 0;
    delay_ = 0;
    is_known_ = true;
    return all;
  }

 private:
  void use_memory(int rank, std::uint64_t size) {
    const std::size_t on = ground_.devices[static_cast<std::size_t>(rank)].index();
    const double rate = ground_.machine.devices[on].bytes_per_second;
    if (rate > 0) memories_[on] += static_cast<double>(size) / rate;
  }

  void reach(int from, int to, std::uint64_t size) {
    const topology& machine = ground_.machine;
    const device_id a = ground_.devices[static_cast<std::size_t>(from)];
    const device_id b = ground_.devices[static_cast<std::size_t>(to)];
    if (a == b) return;
    const link_path& way = machine.peer_paths[machine.pair(a, b)];
    is_known_ = is_known_ && !way.links.empty() && way.bytes_per_second > 0;
    delay_ = std::max(delay_, seconds_of(way.latency));
    for (const int index : way.links) {
      const topology_link& link = machine.links[static_cast<std::size_t>(index)];
      if (link.bytes_per_second > 0)
        wires_[static_cast<std::size_t>(link.wire)] += static_cast<double>(size) / link.bytes_per_second;
    }
  }

  const replay_ground& ground_;
  std::vector<double> wires_, memories_;
  double delay_ = 0;
  bool is_known_ = true;
};

/// Submits steps to a timeline as the communicator submits them to streams.
class player {
 public:
  player(const schedule_steps& steps, const replay_ground& ground, move_ways& ways,
         std::chrono::nanoseconds launch_latency)
      : steps_(steps),
        ground_(ground),
        ways_(ways),
        launch_latency_(launch_latency),
        wires_(move_ways::wires_of(ground.machine)),
        on_(wires_ + ground.machine.devices.size()),
        streams_(static_cast<std::size_t>(steps.layout().count()), -1),
        remote_(remote_seconds_of(steps.schedule(), ground)) {
    for (std::size_t d = 0; d < ground.machine.devices.size(); ++d) engines_.push_back(static_cast<int>(wires_ + d));
  }

  [[nodiscard]] std::chrono::nanoseconds play() {
    std::vector<int> ends;
    ends.reserve(steps_.all().size());
    for (const schedule_step& step : steps_.all()) {
      int& stream = streams_[static_cast<std::size_t>(step.stream)];
      if (stream < 0) stream = on_.add_stream();
      for (const int before : step.after) on_.add_wait(stream, ends[static_cast<std::size_t>(before)]);
      ends.push_back(step.move != nullptr ? add(*step.move, stream) : add(step, stream));
    }
    return on_.run();
  }

 private:
  [[nodiscard]] device_id device_of(int rank) const { return ground_.devices[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] double memory_rate(device_id on) const { return ground_.machine.devices[on.index()].bytes_per_second; }

  int add(const schedule_move& m, int stream) {
    const std::uint64_t size = static_cast<std::uint64_t>(m.count) * ground_.element_size;
    const device_id from = device_of(m.from.rank);
    const device_id to = device_of(m.to.rank);
    // inside a device it is read and written
    if (from == to) return on_.add(stream, time_in_memory(memory_rate(to) / 2, size));
    const move_ways::way& way = ways_.of(from, to, size);
    if (way.second != nullptr) return add_chunks(way, stream, size);
    return on_.add(stream, time_over(way.first->path, size), way.first->wires);
  }

  /// Into a slot in one stream and out of it in another, which both start with the copy's own stream and end before it.
  int add_chunks(const move_ways::way& way, int stream, std::uint64_t size) {
    const int first = on_.add_stream();
    const int second = on_.add_stream();
    const int start = on_.add(stream, {});
    on_.add_wait(first, start);
    on_.add_wait(second, start);
    std::vector<int> slot_free(static_cast<std::size_t>(std::max(way.depth, 1)), -1);
    int in = start, out = start;
    std::size_t slot = 0;
    for (std::uint64_t done = 0; done < size; done += way.chunk, slot = (slot + 1) % slot_free.size()) {
      const std::uint64_t part = std::min(way.chunk, size - done);
      if (slot_free[slot] >= 0) on_.add_wait(first, slot_free[slot]);
      in = on_.add(first, time_over(way.first->path, part), way.first->wires);
      on_.add_wait(second, in);
      out = slot_free[slot] = on_.add(second, time_over(way.second->path, part), way.second->wires);
    }
    on_.add_wait(stream, in);
    on_.add_wait(stream, out);
    return on_.add(stream, {});
  }

  int add(const schedule_step& step, int stream) {
    const schedule_fold& f = *step.fold;
    const device_id by = device_of(step.at);
    const double remote = remote_[static_cast<std::size_t>(step.round)];
    const bool is_far = remote > 0 && is_remote(f);
    list_launches(f);
    int last = -1;
    for (const fold_launch& each : launches_) {
      const std::uint64_t touched =
          static_cast<std::uint64_t>(f.count) * ground_.element_size * (each.inputs + each.outputs);
      const auto takes = is_far ? modelled_time(remote / static_cast<double>(launches_.size()))
                                : time_in_memory(memory_rate(by), touched);
      last = on_.add(stream, launch_latency_ + takes, std::span{&engines_[by.index()], 1});
    }
    return last >= 0 ? last : on_.add(stream, {});
  }

  /// Which outputs are inputs too is all that matters of their addresses.
  void list_launches(const schedule_fold& f) {
    const std::size_t count = f.inputs.size() + f.outputs.size();
    if (marks_.size() < count) marks_.resize(count);
    addresses_.resize(count);
    for (std::size_t i = 0; i < count; ++i) addresses_[i] = &marks_[i];
    for (std::size_t o = 0; o < f.outputs.size(); ++o) {
      const auto same = std::find(f.inputs.begin(), f.inputs.end(), f.outputs[o]);
      if (same != f.inputs.end())
        addresses_[f.inputs.size() + o] = &marks_[static_cast<std::size_t>(same - f.inputs.begin())];
    }
    fold_request request;
    request.count = f.count;
    request.inputs = std::span<void* const>{addresses_}.first(f.inputs.size());
    request.outputs = std::span<void* const>{addresses_}.subspan(f.inputs.size());
    launches_.clear();
    launches_of(request, launches_);
  }

  const schedule_steps& steps_;
  const replay_ground& ground_;
  move_ways& ways_;
  std::chrono::nanoseconds launch_latency_;
  std::size_t wires_;
  timeline on_;
  std::vector<int> streams_;  // of the timeline; -1: not used yet
  std::vector<double> remote_;
  std::vector<int> engines_;  // resources, by device
  std::vector<std::byte> marks_;
  std::vector<void*> addresses_;
  std::vector<fold_launch> launches_;
};

}  // namespace

bool is_remote(const schedule_fold& fold) {
  const auto is_far = [&](const schedule_place& p) { return p.rank != fold.at; };
  return std::any_of(fold.inputs.begin(), fold.inputs.end(), is_far) ||
         std::any_of(fold.outputs.begin(), fold.outputs.end(), is_far);
}

std::vector<double> remote_seconds_of(const collective_schedule& schedule, const replay_ground& ground) {
  std::vector<double> seconds(schedule.rounds.size());
  if (schedule.algorithm != collective_algorithm::direct) return seconds;  // only that one has such folds
  round_load load{ground};
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    for (const schedule_fold& f : schedule.rounds[i].folds) load.add(f);
    seconds[i] = load.take();
  }
  return seconds;
}

std::chrono::nanoseconds replay(const schedule_steps& steps, const replay_ground& ground, move_ways& ways,
                                std::chrono::nanoseconds launch_latency) {
  return player{steps, ground, ways, launch_latency}.play();
}

}  // namespace weft::detail
