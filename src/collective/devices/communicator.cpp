// SPDX-License-Identifier: Apache-2.0
#include "weft/collective/communicator.hpp"

#include "collective/devices/communicator_body.hpp"
#include "collective/schedule/cost/schedule_replay.hpp"
#include "core/errors/called_from.hpp"
#include "core/errors/decision_log.hpp"
#include "core/errors/make_error.hpp"
#include "core/profiler_range.hpp"
#include "memory/memory_state.hpp"
#include "os/parking.hpp"
#include "runtime/peer_checks.hpp"

#include <algorithm>
#include <new>
#include <set>

namespace weft {
namespace {

using detail::memory_ref;

constexpr std::size_t here_steps = 256;
constexpr std::size_t most_plans = 64;
constexpr std::size_t spare_calls = 8;

std::shared_ptr<const detail::collective_ranks> ranks_of(std::span<const device> devices) {
  if (devices.empty()) raise(errc::invalid_argument, "a communicator of no devices");
  if (devices.size() > static_cast<std::size_t>(communicator::max_size)) {
    raise(errc::invalid_argument, "a communicator of " + std::to_string(devices.size()) + " ranks: at most " +
                                      std::to_string(communicator::max_size));
  }
  std::vector<device_id> ids;
  auto made = std::make_shared<detail::collective_ranks>();
  made->state = detail::state_of(devices.front());
  made->state->require_open();
  for (const device& d : devices) {
    if (detail::state_of(d) != made->state)
      raise(errc::wrong_device, "a communicator over the devices of two machines");
    made->devices.push_back(d);
    made->drivers.push_back(&made->state->backend_of(d.id()));
    ids.push_back(d.id());
  }
  made->nodes = nodes_of(made->state->layout(), ids);
  return made;
}

/// Bytes that a call's steps touch at most for the calling thread to do it itself: below, handing work to the devices'
/// threads takes longer than the work (docs/reference/collectives.md). Each device has to be woken, in the time in
/// which one thread touches a mebibyte; then as many as there are cores share the work.
std::uint64_t most_here(std::size_t devices) {
  const auto cores = static_cast<std::uint64_t>(parking::cores());
  if (cores < 2) return std::uint64_t{1} << 30;  // beyond, a limit or a token should not have to wait
  return std::max(std::uint64_t{8}, devices * cores / (cores - 1)) << 20;
}

/// Streams for what arrives at one rank at the same time. On the host's wall clock each would be a thread, and all of
/// them share the memory's bandwidth anyway.
int lanes_of(const detail::collective_ranks& ranks) {
  const bool threads =
      ranks.state->options().clock == clock_kind::wall && ranks.drivers.front()->kind() == backend_kind::host;
  return threads ? 1 : detail::stream_layout::lanes_for(ranks.size());
}

/// Time to start a kernel: the virtual clock's, or the usual one for real devices, of which none was measured.
std::chrono::nanoseconds launch_latency_of(const detail::collective_ranks& ranks) {
  static_assert(usual_launch_latency == simulation{}.launch_latency);
  const bool is_modelled =
      ranks.state->options().clock == clock_kind::virtual_time && ranks.drivers.front()->kind() == backend_kind::host;
  return is_modelled ? ranks.state->options().model.launch_latency : usual_launch_latency;
}

std::vector<device> neighbours(const machine& m) {
  std::vector<device_id> in_layout;
  std::vector<device> found, others;
  for (const device& d : m.devices()) {
    if (d.id().value() < m.layout().device_count()) {
      in_layout.push_back(d.id());
    } else {
      others.push_back(d);
    }
  }
  for (const device_id id : neighbour_order(m.layout(), in_layout)) found.push_back(m[id]);
  found.insert(found.end(), others.begin(), others.end());
  return found;
}

}  // namespace

// ---- a communicator's body ------------------------------------------------------------------------------------------

communicator::body::body(std::span<const device> devices, const communicator_options& with)
    : options(with), ranks(ranks_of(devices)), streams(ranks, lanes_of(*ranks)) {
  detail::machine_state& state = *ranks->state;
  const auto count = devices.size();
  for (const device& d : devices) ids.push_back(d.id());
  traffic_.resize(count * count);
  std::set<std::pair<device_id, device_id>> pairs;
  for (const device_id from : ids) {
    for (const device_id to : ids) {
      if (from != to) pairs.insert({from, to});
    }
  }
  for (const auto& [from, to] : pairs) {
    const auto refuse = [&, a = from, b = to](const std::string& why) {
      if (no_access.empty()) no_access = to_string(a) + " cannot use the memory of " + to_string(b) + ": " + why;
    };
    if (!options.peer_access) {
      refuse("the communicator was made without peer access");
    } else if (auto known = state.backend_of(from).peer(from, to); !known || !known->can_access) {
      refuse(known ? known->why : known.error().what);
    } else if (const std::string lost = detail::peers_of(state).failure(from, to); !lost.empty()) {
      refuse(lost);
    } else {
      try {
        leases.push_back(detail::make<peer_access>(ranks->state, from, to));
      } catch (const error_exception& failed) {
        refuse(failed.cause().what);  // copies go through the host then
      }
    }
  }
  access_epoch_ = ranks->drivers.front()->peer_epoch();
  may_run_here_ = state.options().clock == clock_kind::wall && no_access.empty() && state.layout().faults.empty() &&
                  !state.checks_order();
}

communicator::body::~body() {
  backend& by = *ranks->drivers.front();
  for (const auto& word : traffic_) {
    if (word) by.unwatch_traffic(word->id);
  }
  if (ranks->state->closed() || by.on_worker()) return;
  // not by waiting for the calls' events, which would count as telling what failed in the callers' streams
  if (std::all_of(calls_.begin(), calls_.end(), [](const auto& call) { return call->finished(); })) return;
  for (std::size_t r = 0; r < ids.size(); ++r) static_cast<void>(ranks->drivers[r]->drain(ids[r], no_deadline));
}

std::size_t communicator::body::checked(rank of, const char* what, std::source_location where) const {
  if (of.value() < 0 || of.value() >= ranks->size()) {
    raise(errc::invalid_argument,
          std::string{what} + ": there is no rank " + std::to_string(of.value()) + " among " +
              std::to_string(ranks->size()),
          where);
  }
  return of.index();
}

void communicator::body::require_usable(std::source_location where) const {
  ranks->state->require_open(where);
  if (stop.stop_requested()) raise(*failure());
}

void communicator::body::abort(std::string_view why) {
  {
    const std::scoped_lock lock{failing_};
    if (!failure_) failure_ = make_error(errc::cancelled, "the communicator was aborted: " + std::string{why});
  }
  stop.request_stop();
}

std::optional<error> communicator::body::failure() const {
  const std::scoped_lock lock{failing_};
  return failure_;
}

// ---- plans ----------------------------------------------------------------------------------------------------------

collective_choice communicator::body::choose(std::source_location where) const {
  const std::size_t size = size_of(wish_.type);
  const topology& layout = ranks->state->layout();
  const bool is_user = wish_.op == reduction_op::kind::user;
  const std::string& no_direct =
      is_user ? "a kernel of the program's combines two arrays, on one device" : wish_.no_direct;
  const std::chrono::nanoseconds launch = launch_latency_of(*ranks);
  const auto chosen = [&](collective_algorithm wanted) {
    return value_or_raise(
        choose_collective(wish_.shape, size, layout, ids, wish_.order, wanted, launch, wish_.in_place), where);
  };
  if (no_direct.empty()) return chosen(wish_.wanted);
  if (wish_.wanted == collective_algorithm::direct) raise(errc::unsupported, "direct: " + no_direct, where);
  collective_choice made = chosen(wish_.wanted);
  if (made.algorithm == collective_algorithm::direct) {
    const auto next = std::find_if(made.candidates.begin(), made.candidates.end(), [](const auto& c) {
      return c.possible && c.algorithm != collective_algorithm::direct;
    });
    if (next == made.candidates.end()) {
      raise(errc::unsupported,
            std::string{to_string(wish_.shape.what)} +
                " has no algorithm but direct here, and direct is not possible: " + no_direct,
            where);
    }
    made = chosen(next->algorithm);
    made.is_forced = false;
    made.candidates.front().why = "the best but for direct, which is not possible here";
  }
  for (collective_candidate& c : made.candidates) {
    if (c.algorithm != collective_algorithm::direct) continue;
    c.possible = false;
    c.why = no_direct;
  }
  return made;
}

const communicator::body::kept_plan& communicator::body::plan(std::source_location where) {
  const auto known =
      std::find_if(plans_.begin(), plans_.end(), [&](const kept_plan& p) { return p.plan->is_for(wish_); });
  if (known != plans_.end()) {
    std::rotate(plans_.begin(), known, known + 1);
    return plans_.front();
  }
  auto made = std::make_shared<detail::collective_plan>();
  made->shape = wish_.shape;
  made->type = wish_.type;
  made->op = wish_.op;
  made->user = wish_.user;
  made->in_place = wish_.in_place;
  made->order = wish_.order;
  made->wanted = wish_.wanted;
  made->no_direct = wish_.no_direct;
  made->choice = choose(where);
  const std::size_t size = size_of(wish_.type);
  if (is_logged(log_level::info)) {
    const collective_choice& choice = made->choice;
    detail::log_decision(std::string{to_string(wish_.shape.what)} + " over " + std::to_string(wish_.shape.ranks) +
                         " ranks of " +
                         to_string(bytes{static_cast<std::uint64_t>(collective_bytes(wish_.shape, size))}) + ": " +
                         std::string{to_string(choice.algorithm)} + ", " + choice.candidates.front().why +
                         (wish_.no_direct.empty() ? "" : "; not direct, for " + wish_.no_direct));
  }
  const std::int64_t piece =
      best_piece(wish_.shape, size, made->choice.algorithm, ranks->state->layout(), ids, launch_latency_of(*ranks));
  auto schedule = value_or_raise(make_schedule(wish_.shape, made->choice.algorithm, piece), where);
  made->bytes_between = made->choice.candidates.front().cost.bytes_between;
  if (ranks->state->options().clock == clock_kind::virtual_time)
    made->remote_seconds = detail::remote_seconds_of(schedule, {ranks->state->layout(), ids, size});
  made->steps =
      std::make_unique<const detail::schedule_steps>(std::move(schedule), wish_.in_place, streams.layout().lanes);
  for (const detail::schedule_step& s : made->steps->all()) {
    made->touched_bytes += s.move != nullptr ? 2 * static_cast<std::uint64_t>(s.move->count) * size
                                             : static_cast<std::uint64_t>(s.fold->count) * size *
                                                   (s.fold->inputs.size() + s.fold->outputs.size());
  }
  if (made->touched_bytes <= most_here(ids.size()) && made->steps->all().size() <= here_steps)
    made->turns = made->steps->in_turn(size);
  auto over = std::make_shared<collective_run::body>();
  over->ranks = ranks;
  over->plan = made;
  over->over = true;
  if (plans_.size() >= most_plans) plans_.pop_back();
  plans_.insert(plans_.begin(), {std::move(made), std::move(over)});
  return plans_.front();
}

// ---- doing it -------------------------------------------------------------------------------------------------------

bool communicator::body::try_here(const detail::collective_plan& plan, std::source_location where) {
  if (!may_run_here_ || plan.turns.empty() || !plan.no_direct.empty() ||
      (plan.steps->uses_scratch() && space_->scratch_user && !space_->scratch_user->finished())) {
    return false;
  }
  for (int r = 0; r < ranks->size(); ++r) {
    if (!streams.is_settled(r)) return false;
    if (ranks->drivers[static_cast<std::size_t>(r)]->lost(ids[static_cast<std::size_t>(r)])) return false;
  }
  if (plan.steps->uses_scratch()) grow_scratch(plan.steps->schedule().scratch);
  const struct let_go_at_end {  // also where a window is refused: what is held is in use
    std::vector<std::shared_ptr<std::byte>>& held;
    ~let_go_at_end() { held.clear(); }
  } holding{held_};
  windows_.in = memory_.in;
  windows_.out = memory_.out;
  windows_.scratch = memory_.scratch;
  bool offered = true;
  const auto open = [&](memory_ref& m, std::size_t r, const char* side) {
    if (m.size == 0 || !offered) return;
    auto window = ranks->drivers[r]->host_window(ids[r], m.address, bytes{m.size});
    if (!window && window.error().code == errc::unsupported) {
      offered = false;
      return;
    }
    if (!window) {
      error cause = std::move(window).error();
      cause.what = name(r) + ": its " + side + ": " + cause.what;
      cause.where = where;
      raise(std::move(cause));
    }
    m.address = window->get();
    held_.push_back(std::move(*window));
  };
  for (std::size_t r = 0; r < ids.size() && offered; ++r) {
    open(windows_.out[r], r, "output");
    open(windows_.in[r], r, "input");
    if (plan.steps->uses_scratch()) open(windows_.scratch[r], r, "scratch");
  }
  if (!offered) {
    may_run_here_ = false;
    return false;
  }
  run_here(plan, windows_, ranks->state->checks_access());
  count_traffic(plan);
  return true;
}

void communicator::body::count_traffic(const detail::collective_plan& plan) {
  const std::size_t n = ids.size();
  for (std::size_t i = 0; i < plan.bytes_between.size(); ++i) {
    if (plan.bytes_between[i] == 0 || ids[i / n] == ids[i % n]) continue;
    auto& word = traffic_[i];
    if (!word) {
      word = std::make_unique<traffic_word>();
      word->id = ranks->drivers[i / n]->watch_traffic({ids[i / n], ids[i % n], &word->count, 1});
    }
    __atomic_store_n(&word->count, word->count + plan.bytes_between[i], __ATOMIC_RELAXED);
  }
}

void communicator::body::grow_scratch(const std::vector<std::int64_t>& elements) {
  const std::size_t size = size_of(wish_.type);
  memory_.scratch.resize(ids.size());
  for (std::size_t r = 0; r < ids.size(); ++r) {
    const std::size_t needed = static_cast<std::size_t>(elements[r]) * size;
    buffer<std::byte>& scratch = space_->scratch[r];
    const bool is_gone = !scratch.empty() && !ranks->drivers[r]->find(scratch.data());  // with a reset
    // what is let go stays until the work that was submitted with it has ended
    if (is_gone || scratch.size() < needed) scratch = buffer<std::byte>{ranks->devices[r], needed};
    memory_.scratch[r] = detail::untyped(scratch.span());
  }
}

void communicator::body::clear_streams(const collective_options& o) {
  const bool failed = space_->last && space_->last->failed();
  const std::chrono::nanoseconds timeout = o.timeout.value_or(options.timeout);
  streams.clear(failed, failed ? deadline_after(ranks->state->now(), timeout) : no_deadline);
}

std::shared_ptr<collective_run::body> communicator::body::new_call(std::string_view what, const collective_options& o) {
  std::shared_ptr<collective_run::body> made;
  for (auto& call : calls_) {
    if (call.use_count() != 1 || !call->finished()) continue;
    // use_count() is a relaxed load: this pairs with the release of whoever let go last
    std::atomic_thread_fence(std::memory_order_acquire);
    made = call;
    break;
  }
  if (!made) {
    if (calls_.size() >= spare_calls) std::erase_if(calls_, [](const auto& call) { return call->finished(); });
    made = calls_.emplace_back(std::make_shared<collective_run::body>());
  }
  made->clear();
  made->ranks = ranks;
  made->what = what;
  made->submitted = ranks->state->now();
  made->timeout = o.timeout.value_or(options.timeout);
  return made;
}

/// Whether what each rank's kernels write into the memory of the others arrives; tried before they do it first.
bool communicator::body::writes_arrive() {
  detail::peer_checks& peers = detail::peers_of(*ranks->state);
  if (verified_ && *verified_ == peers.epoch()) return true;
  for (const peer_access& lease : leases) {
    const auto why = peers.refusal(lease.from(), lease.to(), peer_way::allocations);
    if (!why) continue;
    no_access = to_string(lease.from()) + " cannot use the memory of " + to_string(lease.to()) + ": " + *why;
    return false;
  }
  verified_ = peers.epoch();
  return true;
}

event_ref communicator::body::record_start(std::size_t rank) {
  if (streams.is_settled(static_cast<int>(rank))) return {};
  const int r = static_cast<int>(rank);
  return ranks->value(r, ranks->drivers[rank]->record(streams.home(r).native()));
}

collective_run communicator::body::start(collective what, data_type type, const detail::rank_memory& in,
                                         const detail::rank_memory& out, const reduction_op* op,
                                         const collective_options& o, std::source_location where) {
  const detail::profiler_range range{[&] { return std::string{to_string(what)}; }};
  require_usable(where);
  take(what, type, in, out, op, o, where);
  streams.begin(o.streams, where);
  const kept_plan* chosen = &plan(where);
  if (chosen->plan->steps->all().empty()) {
    check_memory(where);
    return run_empty(to_string(what), *chosen, o);
  }
  space_ = &streams.take_workspace();
  if (try_here(*chosen->plan, where)) return detail::make<collective_run>(chosen->over);
  if (chosen->plan->choice.algorithm == collective_algorithm::direct && !writes_arrive()) {
    wish_.no_direct = why_not_direct();
    chosen = &plan(where);
  }
  const kept_plan& kept = *chosen;
  check_memory(where);
  clear_streams(o);
  grow_scratch(kept.plan->steps->schedule().scratch);
  const auto before = kept.plan->steps->uses_scratch() ? space_->scratch_user : nullptr;
  const auto call = new_call(to_string(what), o);
  call->plan = kept.plan;
  const auto keep = [&] {
    space_->last = call;
    if (kept.plan->steps->uses_scratch()) space_->scratch_user = call;
  };
  const auto end = [&](const error& cause) {
    // where nothing was submitted, the scratch memory is still its last user's
    if (std::none_of(call->steps.begin(), call->steps.end(), [](const event_ref& e) { return bool{e}; })) raise(cause);
    keep();
    fail_in_homes(streams, *call, std::make_shared<const error>(cause));
  };
  try {
    run_schedule(*kept.plan, memory_, streams, before.get(), stop.get_token(), *call, where);
    end_in_homes(streams, *call, kept.plan->steps->ends(), kept.plan->steps->last());
  } catch (const error_exception& failed) {
    end(failed.cause());
  } catch (const std::bad_alloc&) {
    end(no_host_memory());
  }
  keep();
  return detail::make<collective_run>(call);
}

collective_run communicator::body::send(rank from, const memory_ref& src, rank to, const memory_ref& dst,
                                        const collective_options& o, std::source_location where) {
  require_usable(where);
  const std::size_t source = checked(from, "send", where);
  const std::size_t target = checked(to, "send", where);
  if (src.size != dst.size) {
    raise(errc::incompatible,
          "send: " + to_string(bytes{src.size}) + " of " + name(source) + " into " + to_string(bytes{dst.size}) +
              " of " + name(target),
          where);
  }
  streams.begin(o.streams, where);
  memory_.in.assign(ids.size(), {});
  memory_.out.assign(ids.size(), {});
  memory_.in[source] = src;
  memory_.out[target] = dst;
  for (const auto& [m, r, side] : {std::tuple{&src, source, "source"}, std::tuple{&dst, target, "destination"}}) {
    const bool is_everybodys = m->kind == memory_kind::pinned || m->kind == memory_kind::unified;
    if (m->size == 0) continue;
    if (m->state != ranks->state.get() || (m->device != ids[r] && !is_everybodys)) {
      raise(errc::wrong_device,
            "send: the " + std::string{side} + " is " +
                (m->state == nullptr ? "host memory" : "memory of " + to_string(m->device)) + ", not of " + name(r),
            where);
    }
  }
  check_memory(where);
  const auto call = new_call("send", o);
  call->done.assign(ids.size(), {});
  if (src.size == 0) {
    call->over = true;
    return detail::make<collective_run>(call);
  }
  call->starts.assign(ids.size(), {});
  const stream& receives = streams.home(to.value());
  const stream& sends = streams.home(from.value());
  if (source != target) call->starts[source] = record_start(source);
  if (call->starts[source])
    ranks->value(to.value(), ranks->drivers[target]->wait_event(receives.native(), call->starts[source]), where);
  copy_options with;
  with.stop = stop.get_token();
  copy_shape shape;
  shape.width = src.size;
  call->steps.push_back(detail::copy_in(receives, dst, src, shape, with, where).record());
  call->step_ranks.push_back(to.value());
  call->done[target] = call->steps.front();
  if (source != target) {
    ranks->value(from.value(), ranks->drivers[source]->wait_event(sends.native(), call->steps.front()), where);
    call->done[source] = ranks->value(from.value(), ranks->drivers[source]->record(sends.native()), where);
  }
  return detail::make<collective_run>(call);
}

/// One rank has its result where it is, and nothing moves; but it has it when its stream has got there.
collective_run communicator::body::run_empty(std::string_view what, const kept_plan& kept,
                                             const collective_options& o) {
  const std::size_t count = ids.size();
  std::size_t settled = 0;
  while (settled < count && streams.is_settled(static_cast<int>(settled))) ++settled;
  if (settled == count) return detail::make<collective_run>(kept.over);
  const auto call = new_call(what, o);
  call->plan = kept.plan;
  call->starts.assign(count, {});
  for (std::size_t r = 0; r < count; ++r) {
    const int rank = static_cast<int>(r);
    call->done.push_back(ranks->value(rank, ranks->drivers[r]->record(streams.home(rank).native())));
  }
  return detail::make<collective_run>(call);
}

collective_run communicator::body::barrier(const collective_options& o, std::source_location where) {
  require_usable(where);
  streams.begin(o.streams, where);
  for (std::size_t r = 0; r < ids.size(); ++r) check_device(r, where);
  const auto call = new_call("barrier", o);
  const std::size_t count = ids.size();
  call->done.assign(count, {});
  call->starts.assign(count, {});
  bool waits = false;
  for (std::size_t r = 0; r < count; ++r) {
    call->starts[r] = record_start(r);
    waits = waits || call->starts[r];
  }
  if (!waits) {
    call->over = true;
    return detail::make<collective_run>(call);
  }
  const auto wait = [&](std::size_t r, const event_ref& e) {
    const int rank = static_cast<int>(r);
    if (e) ranks->value(rank, ranks->drivers[r]->wait_event(streams.home(rank).native(), e), where);
  };
  const auto record = [&](std::size_t r) {
    const int rank = static_cast<int>(r);
    call->done[r] = ranks->value(rank, ranks->drivers[r]->record(streams.home(rank).native()), where);
  };
  for (std::size_t r = 1; r < count; ++r) wait(0, call->starts[r]);
  record(0);
  for (std::size_t r = 1; r < count; ++r) {
    wait(r, call->done[0]);
    record(r);
  }
  return detail::make<collective_run>(call);
}

// ---- the communicator -----------------------------------------------------------------------------------------------

namespace detail {

void rank_memory::push(const memory_ref& one, std::source_location where) {
  if (size_ == capacity) {
    raise(errc::invalid_argument, "a collective was given memory of more than " + std::to_string(capacity) + " ranks",
          where);
  }
  list_[size_++] = one;
}

}  // namespace detail

communicator::communicator(const machine& m, const communicator_options& options, std::source_location where)
    : communicator(neighbours(m), options, where) {}
communicator::communicator(std::span<const device> ranks, const communicator_options& options,
                           std::source_location where) {
  const called_from here{where};
  body_ = std::make_unique<body>(ranks, options);
}
communicator::communicator(std::unique_ptr<body> made) : body_(std::move(made)) {}
communicator::communicator(communicator&&) noexcept = default;
communicator& communicator::operator=(communicator&&) noexcept = default;
communicator::~communicator() = default;

communicator::body& communicator::owned() const { return *detail::not_moved_from(body_, "communicator"); }

int communicator::size() const { return owned().ranks->size(); }

device communicator::on(rank of, std::source_location where) const {
  const called_from here{where};
  return owned().ranks->devices[owned().checked(of, "on", where)];
}

std::vector<communicator> communicator::split(std::span<const int> colours, std::source_location where) const {
  const called_from here{where};
  if (colours.size() != static_cast<std::size_t>(size())) {
    raise(errc::invalid_argument,
          "split: " + std::to_string(colours.size()) + " colours for " + std::to_string(size()) + " ranks");
  }
  const std::set<int> different{colours.begin(), colours.end()};
  std::vector<communicator> made;
  for (const int colour : different) {
    if (colour < 0) continue;
    std::vector<device> members;
    for (std::size_t r = 0; r < colours.size(); ++r) {
      if (colours[r] == colour) members.push_back(owned().ranks->devices[r]);
    }
    made.emplace_back(members, owned().options);
  }
  return made;
}

communicator communicator::sub(std::span<const rank> ranks, std::source_location where) const {
  const called_from here{where};
  std::vector<device> members;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::size_t r = owned().checked(ranks[i], "sub", where);
    if (std::find(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(i), ranks[i]) !=
        ranks.begin() + static_cast<std::ptrdiff_t>(i)) {
      raise(errc::invalid_argument, "sub: " + owned().name(r) + " is listed twice");
    }
    members.push_back(owned().ranks->devices[r]);
  }
  return communicator{members, owned().options};
}

communicator communicator::shrink(std::source_location where) const {
  const called_from here{where};
  std::vector<device> alive;
  for (const device& d : owned().ranks->devices) {
    if (!d.is_lost()) alive.push_back(d);
  }
  if (alive.empty()) raise(errc::device_lost, "shrink: all " + std::to_string(size()) + " devices are lost");
  return communicator{alive, owned().options};
}

void communicator::abort(std::string_view why, std::source_location where) {
  const called_from here{where};
  owned().abort(why);
}

std::optional<error> communicator::failure() const { return owned().failure(); }

collective_run communicator::start(collective what, data_type type, const detail::rank_memory& in,
                                   const detail::rank_memory& out, const reduction_op* op, const collective_options& o,
                                   std::source_location where) {
  const called_from here{where};
  return owned().start(what, type, in, out, op, o, where);
}

collective_run communicator::send_bytes(rank from, const detail::memory_ref& src, rank to,
                                        const detail::memory_ref& dst, const collective_options& o,
                                        std::source_location where) {
  const called_from here{where};
  return owned().send(from, src, to, dst, o, where);
}

collective_run communicator::barrier(const collective_options& o, std::source_location where) {
  const called_from here{where};
  return owned().barrier(o, where);
}

bytes communicator::footprint() const {
  std::uint64_t sum = 0;
  for (const auto& space : owned().streams.workspaces())
    for (const auto& one : space.scratch) sum += one.size();
  return bytes{sum};
}

}  // namespace weft
