// SPDX-License-Identifier: Apache-2.0
#include "weft/runtime/machine.hpp"

#include "core/errors/called_from.hpp"
#include "runtime/machine_state.hpp"
#include "weft/runtime/stream.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace weft {

machine::machine(std::source_location where) : machine(machine_options{}, where) {}

machine::machine(const machine_options& options, std::source_location where) {
  const called_from here{where};
  state_ = std::make_shared<detail::machine_state>(options);
  lease_ = std::shared_ptr<void>(nullptr, [state = state_](void*) { state->close_from_anywhere(); });
}

machine machine::load(std::string_view name_or_file, std::source_location where) {
  const called_from here{where};
  machine_options options;
  options.sim = std::string{name_or_file};
  return machine{options};
}

std::vector<device> machine::devices() const {
  std::vector<device> all;
  all.reserve(static_cast<std::size_t>(state()->device_count()));
  for (int i = 0; i < state()->device_count(); ++i) all.push_back(detail::make<device>(state(), device_id{i}));
  return all;
}

device machine::operator[](const detail::placed_id& which) const {
  const called_from here{which.where};
  static_cast<void>(state()->description_of(which.id));
  return detail::make<device>(state(), which.id);
}

int machine::device_count() const { return state()->device_count(); }

int machine::device_count(std::string_view backend) const {
  int count = 0;
  for (int i = 0; i < state()->device_count(); ++i) count += state()->backend_name(device_id{i}) == backend ? 1 : 0;
  return count;
}

device_list machine::find_devices(const device_query& where, std::source_location caller) const {
  const called_from here{caller};
  std::vector<device> candidates;
  std::vector<rejected_device> rejected;
  std::vector<std::string> notes;
  if (where.ids.empty()) {
    candidates = devices();
  } else {
    for (const device_id id : where.ids) {
      const device d = (*this)[id];
      if (std::find(candidates.begin(), candidates.end(), d) == candidates.end()) candidates.push_back(d);
    }
    for (const device& d : devices()) {
      if (std::find(candidates.begin(), candidates.end(), d) == candidates.end())
        rejected.push_back({d.id(), "not in the list of ids"});
    }
  }
  for (const device_id id : where.exclude) static_cast<void>((*this)[id]);

  bool by_backend = where.backend.has_value();
  if (by_backend && !where.backend_required && device_count(*where.backend) == 0) {
    notes.push_back("no device of backend '" + *where.backend + "'; using the others");
    by_backend = false;
  }
  const auto why_not = [&](const device& d) -> std::string {
    if (std::find(where.exclude.begin(), where.exclude.end(), d.id()) != where.exclude.end()) return "excluded";
    if (const std::string& name = state()->backend_name(d.id()); by_backend && name != *where.backend)
      return "is of backend " + name + ", not " + *where.backend;
    if (!d.has(where.needs)) {
      std::string missing;
      for (const std::string_view name : names_of(where.needs)) {
        const auto have = names_of(d.capabilities());
        if (std::find(have.begin(), have.end(), name) == have.end())
          missing += (missing.empty() ? "" : ", ") + std::string{name};
      }
      return "does not offer " + missing;
    }
    if (d.compute_units() < where.min_compute_units) {
      return "has " + std::to_string(d.compute_units()) + " compute units, fewer than " +
             std::to_string(where.min_compute_units);
    }
    if (where.min_memory.value() != 0 && d.free_memory() < where.min_memory) {
      return "has " + to_string(d.free_memory()) + " free, less than " + to_string(where.min_memory);
    }
    if (const auto cause = d.lost_cause()) return cause->what;
    return "";
  };
  std::vector<device> chosen;
  for (const device& d : candidates) {
    if (std::string why = why_not(d); !why.empty()) {
      rejected.push_back({d.id(), std::move(why)});
    } else {
      chosen.push_back(d);
    }
  }
  if (where.score) {
    std::vector<std::pair<double, std::size_t>> scored;
    scored.reserve(chosen.size());
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const double score = where.score(chosen[i]);
      // a score that compares with none would leave the others without an order
      scored.emplace_back(std::isnan(score) ? -std::numeric_limits<double>::infinity() : score, i);
    }
    // equal scores stay in device order
    std::sort(scored.begin(), scored.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    std::vector<device> ordered;
    ordered.reserve(chosen.size());
    for (const auto& [score, i] : scored) ordered.push_back(chosen[i]);
    chosen = std::move(ordered);
  }
  while (chosen.size() > where.at_most) {
    rejected.push_back({chosen.back().id(), "more than " + std::to_string(where.at_most) + " were not wanted"});
    chosen.pop_back();
  }
  std::sort(rejected.begin(), rejected.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return {std::move(chosen), std::move(rejected), std::move(notes)};
}

device_list machine::devices(const device_query& where, std::source_location caller) const {
  const called_from here{caller};
  device_list found = find_devices(where);
  if (found.empty()) {
    std::string text = "no device is left";
    const char* separator = ": ";
    for (const rejected_device& r : found.rejected()) {
      text += separator + to_string(r.id) + " " + r.why;
      separator = "; ";
    }
    raise(errc::not_found, std::move(text));
  }
  return found;
}

const std::vector<backend_status>& machine::backends() const { return state()->statuses(); }
const std::vector<std::string>& machine::notes() const { return state()->notes(); }
const topology& machine::layout() const { return state()->layout(); }
bool machine::simulated() const { return state()->layout().simulated || clock() == clock_kind::virtual_time; }
clock_kind machine::clock() const { return state()->options().clock; }
std::chrono::nanoseconds machine::now() const { return state()->now(); }

namespace {

/// Each failure that it finds is kept, for a wait to report.
wait_outcome wait_for_streams(detail::machine_state& state, device_id id, wait_deadline deadline) {
  backend& b = state.backend_of(id);
  bool has_failed = false;
  for (const stream_handle stream : b.streams_of(id)) {
    if (!b.tells(stream)) continue;
    auto done = b.synchronize(stream, deadline, {});
    if (!done) {
      // a stream that was destroyed meanwhile has nothing left to wait for
      if (done.error().code == errc::not_found) continue;
      // the loss of a device is one failure, however many streams end with it
      if (!has_failed || !b.lost(id)) state.add_unreported(id, stream, std::move(done).error());
      has_failed = true;
    } else if (*done == wait_outcome::timed_out) {
      return wait_outcome::timed_out;
    }
  }
  // the others are waited for only: to synchronize them is their owners' affair
  return b.drain(id, deadline) ? wait_outcome::ok : wait_outcome::timed_out;
}

wait_outcome synchronize_device(detail::machine_state& state, device_id id, wait_deadline deadline) {
  state.require_open();
  const wait_outcome outcome = wait_for_streams(state, id, deadline);
  if (auto failure = state.take_unreported([id](const auto& one) { return one.device == id; })) raise(*failure);
  return outcome;
}

wait_outcome synchronize_machine(detail::machine_state& state, wait_deadline deadline) {
  state.require_open();
  auto launches = state.finish_pending(deadline);
  if (launches && *launches != wait_outcome::ok) return *launches;
  // what a launch leaves behind is told, but only after the streams have ended as well
  wait_outcome outcome = wait_outcome::ok;
  for (int i = 0; i < state.device_count() && outcome == wait_outcome::ok; ++i)
    outcome = wait_for_streams(state, device_id{i}, deadline);
  if (!launches) state.add_unreported({}, stream_handle::none, std::move(launches).error());
  if (auto failure = state.take_unreported([](const auto&) { return true; })) raise(*failure);
  return outcome;
}

}  // namespace

void machine::synchronize(std::source_location where) const {
  const called_from here{where};
  synchronize_machine(*state(), no_deadline);
}

wait_outcome machine::synchronize_for(std::chrono::nanoseconds timeout, std::source_location where) const {
  const called_from here{where};
  return synchronize_machine(*state(), deadline_after(now(), timeout));
}

std::vector<order_violation> machine::order_violations() const {
  return state()->backends().front()->order_violations();
}

link_traffic machine::traffic() const { return state()->backends().front()->traffic(); }
void machine::trace_to(const std::shared_ptr<trace_sink>& sink) const { state()->trace_to(sink); }

void machine::close() { state()->close_from_anywhere(); }
bool machine::closed() const { return state()->closed(); }

// ---- device ---------------------------------------------------------------------------------------------------------

device::device(std::shared_ptr<detail::machine_state> state, device_id id) : state_(std::move(state)), id_(id) {}

const std::string& device::name() const { return state()->description_of(id_).name; }
backend_kind device::kind() const { return state()->description_of(id_).kind; }
const std::string& device::uuid() const { return state()->description_of(id_).uuid; }
const std::string& device::driver() const { return state()->description_of(id_).driver; }
const std::string& device::pci_address() const { return state()->description_of(id_).pci_address; }
bool device::has_own_compute_units() const { return state()->description_of(id_).own_compute_units; }
const std::string& device::part_of() const { return state()->description_of(id_).part_of; }
std::optional<int> device::numa_node() const { return state()->description_of(id_).numa_node; }
bytes device::total_memory() const { return state()->description_of(id_).memory; }
bytes device::free_memory(std::source_location where) const {
  const called_from here{where};
  return value_or_raise(state()->backend_of(id_).memory(id_)).free;
}
device_health device::health(std::source_location where) const {
  const called_from here{where};
  return value_or_raise(state()->backend_of(id_).health(id_));
}
int device::compute_units() const { return state()->description_of(id_).compute_units; }
capability device::capabilities() const { return state()->description_of(id_).capabilities; }
bool device::simulated() const { return state()->description_of(id_).simulated; }

stream device::default_stream(std::source_location where) const {
  const called_from here{where};
  state()->require_open();
  return stream{detail::stream_identity{state(), value_or_raise(state()->default_stream(id_)), id_, false}};
}

void device::synchronize(std::source_location where) const {
  const called_from here{where};
  synchronize_device(*state(), id_, no_deadline);
}
wait_outcome device::synchronize_for(std::chrono::nanoseconds timeout, std::source_location where) const {
  const called_from here{where};
  return synchronize_device(*state(), id_, deadline_after(state()->now(), timeout));
}

bool device::is_lost() const { return state()->backend_of(id_).lost(id_) != nullptr; }
std::optional<error> device::lost_cause() const {
  const auto cause = state()->backend_of(id_).lost(id_);
  if (!cause) return std::nullopt;
  return *cause;
}
void device::reset(std::source_location where) const {
  const called_from here{where};
  state()->require_open();
  value_or_raise(state()->backend_of(id_).reset(id_));
  while (state()->take_unreported([this](const auto& one) { return one.device == id_; })) {
  }
}

}  // namespace weft
