// SPDX-License-Identifier: Apache-2.0
// How a launch is divided: what each step needs, what fits, where the data lies, and what the balancer is told of it.
#include "core/errors/decision_log.hpp"
#include "exec/balance/find_onward.hpp"
#include "exec/balance/memory_cap.hpp"
#include "exec/launch_check.hpp"
#include "exec/split_launch/launch_job.hpp"
#include "exec/split_launch/launch_state.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace weft::detail {
namespace {

/// Bytes per second of a move between devices, where only the order of magnitude counts: PCIe by way of the host.
constexpr double likely_rate = 10e9;
/// Host memory that comes for a piece and leaves with it: pieces of at most so many bytes. One is copied while another
/// is computed, few blocks of a pool serve all of them, and what a copy has left in a cache is still there.
constexpr std::uint64_t most_passing = std::uint64_t{16} << 20;
/// But not where more than this part of it stays, in as many memories as there are pieces: later launches go through
/// all of them. The partial sums of a reduction are 1 in 512.
constexpr std::uint64_t staying_part = 256;
/// And so many times what a piece reads on either side of its own.
constexpr std::int64_t halos_per_piece = 64;

/// Devices of one model, as far as their descriptions tell.
bool are_alike(const job_plan& plan) {
  const device& first = plan.devices.front();
  const auto speed = [&](const device& d) {  // of a device that is played
    const auto& played = plan.state->layout().devices;
    const auto at = static_cast<std::size_t>(d.id().value());
    return at < played.size() ? played[at].speed : 1;
  };
  return std::all_of(plan.devices.begin(), plan.devices.end(), [&](const device& d) {
    return d.kind() == first.kind() && d.name() == first.name() && d.compute_units() == first.compute_units() &&
           d.total_memory() == first.total_memory() && speed(d) == speed(first);
  });
}

}  // namespace

interval job_argument::reach(const interval& steps) const {
  const std::int64_t most = array->count();
  const std::int64_t beyond = access.kind == access_kind::wrap ? access.amount * slab : 0;  // at most `most`: checked
  const auto elements = [&](std::int64_t step, std::int64_t times) {
    std::int64_t at = 0;
    if (__builtin_mul_overflow(step, times, &at)) at = step < 0 ? -beyond : most + beyond;
    return std::clamp<std::int64_t>(at, -beyond, most + beyond);
  };
  if (slab == 0 || reduces || access.kind == access_kind::whole) return {0, most};
  switch (access.kind) {
    case access_kind::halo:
    case access_kind::wrap:
      return {elements(steps.begin - access.amount, slab), elements(steps.end + access.amount, slab)};
    case access_kind::rows:
      return {elements(steps.begin, access.amount * slab), elements(steps.end, access.amount * slab)};
    default:
      return {elements(steps.begin, slab), elements(steps.end, slab)};
  }
}

interval job_argument::own(const interval& steps) const {
  if (slab == 0 || reduces || access.kind == access_kind::whole) return {};
  if (!is_halo()) return reach(steps);
  job_argument without = *this;
  without.access.amount = 0;
  return without.reach(steps);
}

std::int64_t job_plan::steps() const { return over.end[outer()] - over.begin[outer()]; }

std::string launch_job::history_key() const {
  std::int64_t inner = 1;
  for (std::size_t d = 0; d < plan_.outer(); ++d) inner *= plan_.over.end[d] - plan_.over.begin[d];
  return inner == 1 ? plan_.code->name : plan_.code->name + "/" + std::to_string(inner);
}

/// New memory gets room for the halo of what is read with one, and of what is written beside it in the same shape: the
/// next launch may read that so.
void launch_job::expect_halos() const {
  for (const job_argument& a : plan_.arguments) {
    if (!a.array || a.slab == 0 || !a.is_halo()) continue;
    const interval around = a.reach({0, 0});  // what no steps at all need of those on either side
    const auto expect = [&](array_body& of) { of.expect_halo(around.end, -around.begin); };
    expect(*a.array);
    for (const job_argument& b : plan_.arguments) {
      if (!b.array || b.is_temporary || !b.writes || b.reduces) continue;
      if (b.slab == a.slab && b.array->count() == a.array->count()) expect(*b.array);
    }
  }
}

void launch_job::decide() {
  launch_state& launches = launches_of(*plan_.state);
  const spread_options& options = plan_.options;
  const array_locks locks{arrays_};
  for (array_body* a : arrays_) {
    a->drop_duplicates();
    a->launched();
  }
  expect_halos();

  // Whoever is gone already takes no part, if the others may do its work.
  std::vector<double> weights = options.weights;
  if (options.on_failure == failure_policy::retry_elsewhere) {
    const auto is_gone = [](const device& d) { return d.is_lost(); };
    if (!std::all_of(plan_.devices.begin(), plan_.devices.end(), is_gone)) {
      for (std::size_t i = plan_.devices.size(); i-- > 0 && plan_.devices.size() > 1;) {
        if (!is_gone(plan_.devices[i])) continue;  // asked once for both lists: it may be lost meanwhile
        plan_.devices.erase(plan_.devices.begin() + static_cast<std::ptrdiff_t>(i));
        if (!weights.empty()) weights.erase(weights.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }

  // May it be divided? If not, it runs where most of its data is.
  if (!plan_.one_device_because.empty() && plan_.devices.size() > 1) {
    const auto lacking = [&](const device& d) {
      std::uint64_t sum = 0;
      for (const job_argument& a : plan_.arguments) {
        if (a.array && a.reads) sum += a.array->missing(d.id(), a.array->all());
      }
      return sum;
    };
    const auto best = std::min_element(plan_.devices.begin(), plan_.devices.end(),
                                       [&](const device& a, const device& b) { return lacking(a) < lacking(b); });
    plan_.devices = {*best};
    std::fill(weights.begin(), weights.end(), 1.0);  // it gets all, whatever its weight among several
  }
  for (const device& d : plan_.devices) {
    worker made;
    // Behind the launch before it, if that is still on its way: the order of a stream costs nothing.
    for (const job_argument& a : plan_.arguments) {
      if (a.array && !made.way) made.way = a.array->lane_on(d.id());
    }
    if (!made.way) made.way = launches.lanes.take(d);
    for (const job_argument& a : plan_.arguments) {
      if (a.array) a.array->used_by(made.way);
    }
    workers_.push_back(std::move(made));
  }

  balance_request request;
  request.items = plan_.steps();
  request.strategy = options.strategy;
  const int outer_block = options.block[plan_.outer()];
  request.granularity = std::min(options.granularity, largest_granularity);
  if (outer_block > 1) request.granularity = std::lcm(request.granularity, static_cast<std::int64_t>(outer_block));

  // What each step needs in memory that is not there yet, and where the data of the first divided argument is.
  memory_need need;
  std::vector<array_part> placed;
  const job_argument* guide = nullptr;
  bool keeps = false;
  bool moves = false;
  memory_need asked;                   // as need, without the part by which blocks of a pool are larger
  std::uint64_t passing_per_item = 0;  // of host memory
  std::uint64_t staying_per_item = 0;
  std::int64_t around = 0;
  bool all_pass = true;
  for (const job_argument& a : plan_.arguments) {
    if (!a.array || a.array->is_shared()) continue;
    all_pass = all_pass && a.is_temporary;
    const bool divided = !a.reduces && a.slab != 0 && a.access.kind != access_kind::whole;
    keeps = keeps || (!a.is_temporary && options.keep_on_device);
    moves = moves || (a.is_temporary && (a.reads || a.writes));
    const auto element = static_cast<std::uint64_t>(a.array->element());
    const auto per_step = static_cast<std::uint64_t>(a.slab) *
                          static_cast<std::uint64_t>(a.access.kind == access_kind::rows ? a.access.amount : 1) *
                          element;
    if (divided) {
      const bool passes = a.is_temporary && !a.array->borrows_device_memory();
      (passes ? passing_per_item : staying_per_item) += per_step;
      if (passes && a.is_halo()) around = std::max(around, a.access.amount);
    }
    if (divided && !a.is_temporary) {
      auto parts = a.array->distribution(a.own({plan_.over.begin[plan_.outer()], plan_.over.end[plan_.outer()]}));
      if (!parts.empty() && (guide == nullptr || a.array->count() > guide->array->count())) {
        placed = std::move(parts);
        guide = &a;
        continue;
      }
      if (!parts.empty()) continue;
    }
    if (divided) {
      // blocks of a pool may be a quarter larger than what is asked for
      need.bytes_per_item += a.is_temporary ? per_step + per_step / 4 + 1 : per_step;
      asked.bytes_per_item += per_step;
      need.bytes_once += 2 * static_cast<std::uint64_t>(a.array->halo()) * element;
    } else {
      need.bytes_once += static_cast<std::uint64_t>(a.array->count()) * element;
    }
  }
  resident_ = guide != nullptr && !moves;
  if (guide != nullptr) {
    // what a step brings along when another device takes it over
    const std::int64_t per_step = guide->slab * (guide->access.kind == access_kind::rows ? guide->access.amount : 1);
    request.moved_item_seconds =
        static_cast<double>(static_cast<std::uint64_t>(per_step) * guide->array->element()) / likely_rate;
  }
  leaves_ = !options.keep_on_device;
  request.keeps_data = keeps;
  const bool chunked = options.strategy == balance::guided || options.strategy == balance::automatic ||
                       options.strategy == balance::dynamic || options.strategy == balance::work_stealing;
  depth_ = moves && chunked ? 2 : 1;
  for (worker& w : workers_) w.depth = depth_;
  if (!keeps) need.bytes_per_item *= static_cast<std::uint64_t>(depth_);
  asked.bytes_once = need.bytes_once;

  key_ = history_key();
  // Alone it gets everything, whatever it is known for.
  const bool asks_history = plan_.devices.size() > 1;
  const bool bounded = need.bytes_per_item != 0 || need.bytes_once != 0 || !options.memory_limits.empty();
  for (std::size_t i = 0; i < plan_.devices.size(); ++i) {
    const device& d = plan_.devices[i];
    balance_device one;
    one.id = d.id();
    one.nominal_speed = std::max(1, d.compute_units());
    if (options.strategy == balance::weighted) one.weight = weights[i];
    if (asks_history) {
      const work_key work{key_, d.uuid(), resident_, record_.simulated};
      if (const auto cost = launches.history.cost(work)) {
        one.chunk_seconds = cost->seconds;
        one.items_per_second = 1 / cost->seconds_per_item;
      }
      // A piece behind another one hides its start: that says how fast, not what a start costs.
      const std::string hidden = key_ + overlapped_mark;
      if (one.items_per_second <= 0) {
        const work_key behind{hidden, d.uuid(), resident_, record_.simulated};
        if (const auto rate = launches.history.items_per_second(behind, request.items)) one.items_per_second = *rate;
      }
    }
    if (bounded) {
      const pool_statistics passing = launches.passing(d).statistics();
      const std::uint64_t kept = passing.reserved.value() - passing.used.value();
      // Earlier launches may have left room enough in the pool, which trims itself where the blocks do not fit: to ask
      // a driver takes as long as a launch.
      const bool fits = all_pass && options.memory_limits.empty() && kept >= asked.bytes_once &&
                        (kept - asked.bytes_once) / std::max<std::uint64_t>(1, asked.bytes_per_item) >=
                            static_cast<std::uint64_t>(request.items);
      if (!fits) {
        memory_room room;
        room.free = d.free_memory().value() + kept;
        for (const memory_limit& limit : options.memory_limits) {
          if (limit.device == d.id()) room.limit = limit.most.value();
        }
        one.cap = value_or_raise(items_that_fit(d.id(), room, need, request.granularity), plan_.where);
      }
    }
    request.devices.push_back(one);
  }
  request.alike = are_alike(plan_);
  if (request.devices.size() == 1 && request.devices.front().cap >= request.items) {
    const device_id only = request.devices.front().id;
    plan_made_.strategy = balance::static_equal;
    plan_made_.shares = {{only, 0, request.items, request.items}};
  } else {
    plan_made_ = value_or_raise(plan_balance(request), plan_.where);
  }

  std::vector<piece> placed_pieces;
  if (guide != nullptr && request.devices.size() > 1 &&
      (options.strategy == balance::automatic || options.strategy == balance::dynamic)) {
    placed_pieces = pieces_as_placed(*guide, placed, request);
    if (!placed_pieces.empty() && !stays(*guide, placed_pieces, request)) placed_pieces.clear();
  }
  if (plan_made_.in_passes) {
    leaves_ = true;
    request.keeps_data = false;
  }
  if (leaves_) {
    for (const job_argument& a : plan_.arguments) {
      if (a.array && a.writes) a.array->ensure_home();
    }
  }
  if (is_logged(log_level::info)) log_decision(split_text(request.items));
  request_ = std::move(request);
  if (placed_pieces.empty()) {
    balancer_.emplace(*request_, plan_made_);
  } else {
    balancer_.emplace(*request_, placed_pieces);
  }
  // A kernel that may not be divided is one launch; a reduction's result would go home and come back with each piece.
  const bool may_pass =
      depth_ > 1 && plan_.one_device_because.empty() && std::ranges::none_of(plan_.arguments, &job_argument::reduces);
  if (may_pass && passing_per_item > staying_part * staying_per_item) {
    const auto fitting = static_cast<std::int64_t>(most_passing / passing_per_item);
    balancer_->limit_pieces(std::max(fitting, halos_per_piece * around));
  }
}

/// How the launch is divided, with shares in twentieths: history moves them a little at each launch, which is no news.
std::string launch_job::split_text(std::int64_t items) const {
  std::string text = "launch of " + plan_.code->name + ": " + std::string{to_string(plan_made_.strategy)};
  for (const share& part : plan_made_.shares) {
    const double twentieths = items > 0 ? 20.0 * static_cast<double>(part.count) / static_cast<double>(items) : 0;
    text += ", " + to_string(part.device) + " about " + std::to_string(5 * std::lround(twentieths)) + "%";
  }
  if (!plan_.one_device_because.empty()) text += "; on one device: " + plan_.one_device_because;
  return text;
}

/// The steps as the data of one argument lies; none when that is no division into steps, or a device takes no part.
std::vector<piece> launch_job::pieces_as_placed(const job_argument& guide, std::span<const array_part> parts,
                                                const balance_request& request) const {
  std::vector<piece> made;
  const std::int64_t per_step = guide.slab * (guide.access.kind == access_kind::rows ? guide.access.amount : 1);
  const std::int64_t skipped = plan_.over.begin[plan_.outer()];
  std::size_t at_device = 0;
  for (const array_part& part : parts) {
    if (part.first % per_step != 0) return {};
    std::int64_t first = part.first / per_step - skipped;
    std::int64_t end = (part.first + part.count + per_step - 1) / per_step - skipped;
    if ((part.first + part.count) % per_step != 0 && end < request.items) return {};
    first = std::clamp<std::int64_t>(first, 0, request.items);
    end = std::clamp<std::int64_t>(end, 0, request.items);
    if (first == end) continue;
    if (first % request.granularity != 0 || (end % request.granularity != 0 && end != request.items)) return {};
    const balance_device* device =
        find_onward(request.devices, at_device, [&](const balance_device& d) { return d.id == part.device; });
    if (device == nullptr || end - first > device->cap) return {};
    made.push_back({part.device, first, end - first});
  }
  std::int64_t at = 0;
  for (const piece& p : made) {
    if (p.first != at) return {};
    at += p.count;
  }
  return at == request.items ? made : std::vector<piece>{};
}

/// Data that lies well stays: another split has to gain more than its moves cost. Writes down what was decided.
bool launch_job::stays(const job_argument& guide, std::span<const piece> placed, const balance_request& request) {
  balance_plan& plan = plan_made_;
  double now = 0;
  bool known = true;
  std::vector<share> shares(request.devices.size());
  for (std::size_t i = 0; i < shares.size(); ++i) shares[i].device = request.devices[i].id;
  std::vector<double> chunks(shares.size(), 0.0);
  std::size_t at = 0;
  for (const piece& p : placed) {
    share& s = *find_onward(shares, at, [&](const share& of) { return of.device == p.device; });
    if (s.count == 0) s.first = p.first;
    s.count += p.count;
    s.at_once = std::max(s.at_once, p.count);
    ++chunks[at];
  }
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const balance_device& d = request.devices[i];
    if (shares[i].count == 0) continue;
    known = known && d.items_per_second > 0;
    if (d.items_per_second > 0)
      now = std::max(now, chunks[i] * d.chunk_seconds + static_cast<double>(shares[i].count) / d.items_per_second);
  }
  if (known && plan.predicted_seconds > 0) {
    double to_move = 0;
    for (const share& s : plan.shares) {
      for (const job_argument& a : plan_.arguments) {
        if (!a.array || !a.reads) continue;
        const std::uint64_t bytes = a.array->missing(s.device, a.reach({s.first, s.first + s.count}));
        if (bytes > 0) to_move += 50e-6 + static_cast<double>(bytes) / likely_rate;
      }
    }
    // A loop that has come this far is likely to come as far again.
    const double expected_repeats = std::max(10, guide.array->launches());
    if (!worth_moving(now, plan.predicted_seconds, expected_repeats, to_move)) {
      guide.array->lies_well();
    } else if (guide.array->should_move()) {
      for (array_body* a : arrays_) a->divided_anew();
      return false;
    }
  }
  plan.shares = std::move(shares);
  plan.strategy = balance::dynamic;
  plan.in_passes = false;
  plan.predicted_seconds = known ? now : 0;
  stays_ = true;
  return true;
}

/// The reasons are put into words only when somebody asks for them.
balance_report launch_job::reasons() const {
  balance_report made;
  if (!request_) return made;
  if (auto explained = explain_balance(*request_)) made = std::move(explained).value();
  if (!stays_) return made;
  made.plan = plan_made_;
  made.why = "its data lies so, and another split would not pay for the move";
  for (std::size_t i = 0; i < plan_made_.shares.size() && i < made.devices.size(); ++i) {
    balance_reason& reason = made.devices[i];
    const double rate = request_->devices[i].items_per_second;
    reason.items = plan_made_.shares[i].count;
    reason.predicted_seconds = rate > 0 ? static_cast<double>(reason.items) / rate : 0;
    reason.is_capped = false;
    reason.why = reason.items > 0 ? "this part of the data is there" : "none of the data is there";
  }
  return made;
}

}  // namespace weft::detail
