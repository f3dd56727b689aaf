// SPDX-License-Identifier: Apache-2.0
#include "collective/schedule/schedule_run.hpp"

#include "collective/schedule/cost/schedule_replay.hpp"
#include "runtime/machine_state.hpp"
#include "weft/memory/copy.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace weft::detail {
namespace {

using fold_addresses = std::array<void*, static_cast<std::size_t>(communicator::max_size) + 1>;

/// A fold of the plan with its addresses, which stay in `in` and `out`.
fold_request request_of(const collective_plan& plan, const schedule_fold& fold, const collective_buffers& memory,
                        fold_addresses& in, fold_addresses& out) {
  const std::size_t size = size_of(plan.type);
  fold_request made;
  made.type = plan.type;
  made.op = plan.op;
  made.user = plan.user;
  made.count = fold.count;
  if (plan.op == reduction_op::kind::average && fold.is_last) made.divide_by = plan.shape.ranks;
  const auto fill = [&](const std::vector<schedule_place>& places, fold_addresses& into) {
    if (places.size() > into.size()) raise(errc::unsupported, "a fold of " + std::to_string(places.size()) + " places");
    for (std::size_t i = 0; i < places.size(); ++i) into[i] = memory.at(places[i], fold.count, size).address;
    return std::span<void* const>{into.data(), places.size()};
  };
  made.inputs = fill(fold.inputs, in);
  made.outputs = fill(fold.outputs, out);
  return made;
}

void wait_in(const collective_ranks& ranks, int rank, const stream& order, const event_ref& before) {
  if (before) ranks.value(rank, ranks.drivers[static_cast<std::size_t>(rank)]->wait_event(order.native(), before));
}

/// More single waits than this for each rank, and one stream gathers them for all.
constexpr std::size_t waits_apart = 4;

/// What each rank's stream holds now; one event for all of them where each would be waited for by many.
void record_starts(const schedule_steps& steps, const collective_ranks& ranks, collective_streams& streams,
                   collective_call& into) {
  const auto count = static_cast<std::size_t>(ranks.size());
  into.starts.assign(count, {});
  std::uint64_t wanted = 0;
  std::size_t waits = 0;
  for (const schedule_step& s : steps.all()) {
    wanted |= s.starts;
    waits += static_cast<std::size_t>(__builtin_popcountll(s.starts));
  }
  for (int r = 0; r < ranks.size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    if ((wanted >> i & 1U) != 0 && !streams.is_settled(r))
      into.starts[i] = ranks.value(r, ranks.drivers[i]->record(streams.home(r).native()));
  }
  if (waits <= waits_apart * count) return;
  if (std::none_of(into.starts.begin(), into.starts.end(), [](const event_ref& e) { return bool{e}; })) return;
  const stream& gathers = streams.home(0);
  for (const event_ref& start : into.starts) wait_in(ranks, 0, gathers, start);
  into.gathered = ranks.value(0, ranks.drivers[0]->record(gathers.native()));
}

/// A virtual clock knows what a kernel's own memory costs, and nothing of links that it reads over: the model's time
/// for all ranks stands for each one's, who work at the same time. Each launch of the fold takes its share.
std::optional<kernel_cost> model_of(const collective_plan& plan, const schedule_step& step, const fold_request& request,
                                    const topology& machine, device_id by) {
  const double seconds = plan.remote_seconds.empty() ? 0 : plan.remote_seconds[static_cast<std::size_t>(step.round)];
  if (seconds <= 0 || by.index() >= machine.devices.size() || !is_remote(*step.fold)) return std::nullopt;
  std::vector<fold_launch> launches;
  launches_of(request, launches);
  if (launches.empty()) return std::nullopt;
  return kernel_cost{seconds / static_cast<double>(launches.size()) * machine.devices[by.index()].speed, 0};
}

event_ref submit(const collective_plan& plan, const schedule_step& step, const collective_buffers& memory,
                 const stream& order, const std::stop_token& stop, std::source_location where) {
  const std::size_t size = size_of(plan.type);
  if (step.move != nullptr) {
    copy_options options;
    options.stop = stop;
    const memory_ref dst = memory.at(step.move->to, step.move->count, size);
    copy_shape shape;
    shape.width = dst.size;
    return copy_in(order, dst, memory.at(step.move->from, step.move->count, size), shape, options, where).record();
  }
  launch_options options;
  options.stop = stop;
  fold_addresses in, out;
  const fold_request request = request_of(plan, *step.fold, memory, in, out);
  options.model = model_of(plan, step, request, state_of(order)->layout(), order.on_id());
  return fold_in(order, request, options, where).record();
}

}  // namespace

std::string collective_ranks::name(int rank) const {
  return "rank " + std::to_string(rank) + " (" + to_string(devices[static_cast<std::size_t>(rank)].id()) + ")";
}

std::string collective_ranks::names(std::span<const int> list) const {
  std::string text;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (i != 0) text += i + 1 == list.size() ? " and " : ", ";
    text += name(list[i]);
  }
  return text;
}

bool collective_plan::is_for(const collective_plan& wish) const {
  return type == wish.type && op == wish.op && user == wish.user && in_place == wish.in_place && order == wish.order &&
         wanted == wish.wanted && shape == wish.shape && no_direct == wish.no_direct;
}

memory_ref collective_buffers::at(const schedule_place& place, std::int64_t count, std::size_t size) const {
  const auto rank = static_cast<std::size_t>(place.rank);
  const memory_ref& whole = place.where == schedule_place::memory::input    ? in[rank]
                            : place.where == schedule_place::memory::output ? out[rank]
                                                                            : scratch[rank];
  memory_ref part = whole;
  part.address = static_cast<std::byte*>(whole.address) + place.at * static_cast<std::int64_t>(size);
  part.size = static_cast<std::uint64_t>(count) * size;
  return part;
}

collective_streams::collective_streams(std::shared_ptr<const collective_ranks> ranks, int lanes)
    : ranks_(std::move(ranks)), layout_{ranks_->size(), lanes} {
  defaults_.reserve(ranks_->devices.size());
  for (const device& d : ranks_->devices) defaults_.push_back(d.default_stream());
}

void collective_streams::begin(std::span<const stream> given, std::source_location where) {
  given_ = {};
  if (given.empty()) return;
  if (given.size() != defaults_.size()) {
    raise(errc::invalid_argument,
          std::to_string(given.size()) + " streams for " + std::to_string(defaults_.size()) + " ranks: one for each",
          where);
  }
  for (std::size_t r = 0; r < given.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (!state_of(given[r])) raise(errc::invalid_argument, ranks_->name(rank) + ": an empty stream", where);
    if (state_of(given[r]) != ranks_->state || given[r].on_id() != ranks_->devices[r].id()) {
      raise(errc::wrong_device,
            ranks_->name(rank) + ": its stream is of " + to_string(given[r].on_id()) +
                (state_of(given[r]) != ranks_->state ? " of another machine" : ""),
            where);
    }
  }
  given_ = given;
}

const stream& collective_streams::at(int index) {
  if (index < layout_.ranks) return home(index);
  auto& place = now_->streams[static_cast<std::size_t>(index - layout_.ranks)];
  if (!place) place = std::make_unique<own_stream>(ranks_->devices[static_cast<std::size_t>(layout_.rank_of(index))]);
  return place->face();
}

bool collective_streams::is_settled(int rank) const {
  return ranks_->drivers[static_cast<std::size_t>(rank)]->settled(home(rank).native());
}

collective_workspace& collective_streams::take_workspace() {
  const auto is_of_these = [&](const collective_workspace& w) {
    for (int r = 0; r < layout_.ranks; ++r)
      if (w.homes[static_cast<std::size_t>(r)] != home(r).native()) return false;
    return true;
  };
  const auto is_idle = [&](const collective_workspace& w) {
    const auto is_over = [](const event_ref& e) { return !e || e->owner->ready(*e); };
    if (w.last &&
        !(w.last->over || (std::ranges::all_of(w.last->done, is_over) && std::ranges::all_of(w.last->steps, is_over))))
      return false;
    for (std::size_t i = 0; i < w.streams.size(); ++i)
      if (w.streams[i] && !driver_of_own(i).idle(w.streams[i]->face().native())) return false;
    return true;
  };
  auto found = std::ranges::find_if(workspaces_, is_of_these);
  if (found == workspaces_.end()) found = std::ranges::find_if(workspaces_, is_idle);
  if (found == workspaces_.end() && workspaces_.size() < most_workspaces) {
    collective_workspace made;
    made.homes.resize(defaults_.size());
    made.streams.resize(static_cast<std::size_t>(layout_.count() - layout_.ranks));
    made.scratch.resize(defaults_.size());
    workspaces_.push_front(std::move(made));
    found = workspaces_.begin();
  }
  if (found == workspaces_.end()) --found;  // that used least lately: the call comes after the one that has it
  workspaces_.splice(workspaces_.begin(), workspaces_, found);
  for (int r = 0; r < layout_.ranks; ++r) found->homes[static_cast<std::size_t>(r)] = home(r).native();
  now_ = &*found;
  return *found;
}

backend& collective_streams::driver_of_own(std::size_t index) const {
  const int rank = layout_.rank_of(static_cast<int>(index) + layout_.ranks);
  return *ranks_->drivers[static_cast<std::size_t>(rank)];
}

void collective_streams::clear(bool all, wait_deadline deadline) noexcept {
  const auto& own = now_->streams;
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (!own[i]) continue;
    backend& by = driver_of_own(i);
    const stream_handle handle = own[i]->face().native();
    // what is idle and not settled keeps a failure that whoever submitted it has told
    if (all || (by.idle(handle) && !by.settled(handle))) static_cast<void>(by.synchronize(handle, deadline, {}));
  }
}

bool collective_call::finished() const {
  const auto is_over = [](const event_ref& e) { return !e || e->finished(); };
  return over || (std::all_of(done.begin(), done.end(), is_over) && std::all_of(steps.begin(), steps.end(), is_over));
}

bool collective_call::failed() const {
  const auto has_failed = [](const event_ref& e) { return e && e->finished() && e->cause(); };
  return std::any_of(done.begin(), done.end(), has_failed) || std::any_of(steps.begin(), steps.end(), has_failed);
}

void collective_call::clear() {
  plan = nullptr;
  broken = nullptr;
  over = is_whole = false;
  starts.clear();
  gathered = {};
  steps.clear();
  step_ranks.clear();
  done.clear();
}

namespace {

/// Lets a stream wait for the last steps of a call; of one that was submitted in part, for what there is of it.
void follow(const collective_call& before, const collective_ranks& ranks, int at, const stream& order) {
  const auto wait = [&](const event_ref& ends) {
    // what has failed is over too, and no reason to fail
    if (ends && !ends->finished()) wait_in(ranks, at, order, ends);
  };
  if (!before.is_whole) {
    std::ranges::for_each(before.steps, wait);
    return;
  }
  for (const int last : before.plan->steps->last()) wait(before.steps[static_cast<std::size_t>(last)]);
}

}  // namespace

void run_schedule(const collective_plan& plan, const collective_buffers& memory, collective_streams& streams,
                  const collective_call* before, const std::stop_token& stop, collective_call& into,
                  std::source_location where) {
  const schedule_steps& steps = *plan.steps;
  const collective_ranks& ranks = *into.ranks;
  into.steps.assign(steps.all().size(), {});
  into.done.assign(static_cast<std::size_t>(ranks.size()), {});
  record_starts(steps, ranks, streams, into);
  for (std::size_t i = 0; i < steps.all().size(); ++i) {
    const schedule_step& step = steps.all()[i];
    const stream& order = streams.at(step.stream);
    if (before != nullptr && step.is_first_of_stream) follow(*before, ranks, step.at, order);
    if (into.gathered) {
      if (step.starts != 0) wait_in(ranks, step.at, order, into.gathered);
    } else {
      for (std::size_t r = 0; r < into.starts.size(); ++r)
        if ((step.starts >> r & 1U) != 0) wait_in(ranks, step.at, order, into.starts[r]);
    }
    for (const int other : step.after) wait_in(ranks, step.at, order, into.steps[static_cast<std::size_t>(other)]);
    try {
      into.steps[i] = submit(plan, step, memory, order, stop, where);
    } catch (const error_exception& failed) {
      error cause = failed.cause();
      cause.what = ranks.name(step.at) + ": " + cause.what;
      raise(std::move(cause));
    }
  }
  into.is_whole = true;
}

void end_in_homes(collective_streams& streams, collective_call& into, std::span<const std::vector<int>> ends,
                  std::span<const int> last) {
  const collective_ranks& ranks = *into.ranks;
  const auto count = static_cast<std::size_t>(ranks.size());
  into.done.assign(count, {});
  const auto record = [&](std::size_t r) {
    const int rank = static_cast<int>(r);
    into.done[r] = ranks.value(rank, ranks.drivers[r]->record(streams.home(rank).native()));
  };
  const std::size_t waits = std::accumulate(ends.begin(), ends.end(), std::size_t{0},
                                            [](std::size_t n, const auto& e) { return n + e.size(); });
  if (waits > waits_apart * count) {
    for (const int step : last) wait_in(ranks, 0, streams.home(0), into.steps[static_cast<std::size_t>(step)]);
    record(0);
    for (std::size_t r = 1; r < count; ++r) {
      wait_in(ranks, static_cast<int>(r), streams.home(static_cast<int>(r)), into.done[0]);
      record(r);
    }
    return;
  }
  std::uint64_t at_home = 0;
  if (into.plan && into.plan->steps->is_at_home()) {
    for (const schedule_step& s : into.plan->steps->all()) at_home |= std::uint64_t{1} << s.at;
  }
  for (std::size_t r = 0; r < count; ++r) {
    for (const int step : ends[r])
      wait_in(ranks, static_cast<int>(r), streams.home(static_cast<int>(r)),
              into.steps[static_cast<std::size_t>(step)]);
    if (!ends[r].empty() || (at_home >> r & 1U) != 0) record(r);
  }
}

void fail_in_homes(collective_streams& streams, collective_call& into, std::shared_ptr<const error> cause) noexcept {
  const collective_ranks& ranks = *into.ranks;
  into.broken = std::move(cause);
  into.done.assign(static_cast<std::size_t>(ranks.size()), {});
  for (std::size_t r = 0; r < into.done.size(); ++r) {
    backend& by = *ranks.drivers[r];
    const stream_handle home = streams.home(static_cast<int>(r)).native();
    // what cannot be submitted now belongs to a device that is lost: who waits is told
    for (const event_ref& step : into.steps) {
      if (step) static_cast<void>(by.wait_event(home, step));
    }
    auto failed = by.call(home, [told = into.broken]() -> result<void> { return error{*told}; });
    if (failed) into.done[r] = std::move(*failed);
  }
}

void run_here(const collective_plan& plan, const collective_buffers& memory, bool checks_access) {
  const std::size_t size = size_of(plan.type);
  fold_addresses in, out;
  for (const schedule_turn& turn : plan.turns) {
    if (turn.move == nullptr) {
      fold_request request = request_of(plan, turn.fold, memory, in, out);
      request.checks_access = checks_access;
      fold_here(request);
      continue;
    }
    const memory_ref dst = memory.at(turn.move->to, turn.move->count, size);
    const memory_ref src = memory.at(turn.move->from, turn.move->count, size);
    std::memcpy(dst.address, src.address, dst.size);
  }
}

}  // namespace weft::detail
