// SPDX-License-Identifier: Apache-2.0
#include "weft/runtime/machine.hpp"

#include "core/called_from.hpp"
#include "runtime/machine_state.hpp"
#include "weft/runtime/stream.hpp"

#include <algorithm>

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
  all.reserve(static_cast<std::size_t>(state_->device_count()));
  for (int i = 0; i < state_->device_count(); ++i) all.push_back(detail::make<device>(state_, device_id{i}));
  return all;
}

device machine::operator[](const detail::placed_id& which) const {
  const called_from here{which.where};
  static_cast<void>(state_->description_of(which.id));
  return detail::make<device>(state_, which.id);
}

int machine::device_count() const { return state_->device_count(); }

int machine::device_count(std::string_view backend) const {
  int count = 0;
  for (const device_description& d : state_->backends().front()->devices())
    count += to_string(d.kind) == backend ? 1 : 0;
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
    if (by_backend && to_string(d.kind()) != *where.backend) {
      return "is of backend " + std::string{to_string(d.kind())} + ", not " + *where.backend;
    }
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
    for (std::size_t i = 0; i < chosen.size(); ++i) scored.emplace_back(where.score(chosen[i]), i);
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

const std::vector<backend_status>& machine::backends() const { return state_->statuses(); }
const std::vector<std::string>& machine::notes() const { return state_->notes(); }
const topology& machine::layout() const { return state_->layout(); }
bool machine::simulated() const { return state_->layout().simulated || clock() == clock_kind::virtual_time; }
clock_kind machine::clock() const { return state_->options().clock; }
std::chrono::nanoseconds machine::now() const { return state_->now(); }

namespace {

wait_outcome synchronize_devices(detail::machine_state& state, device_id first, int count, wait_deadline deadline) {
  state.require_open();
  std::optional<error> failure;
  for (int i = 0; i < count; ++i) {
    const device_id id{first.value() + i};
    backend& b = state.backend_of(id);
    for (const stream_handle stream : b.streams_of(id)) {
      auto done = b.synchronize(stream, deadline, {});
      if (!done) {
        // a stream that was destroyed meanwhile has nothing left to wait for
        if (done.error().code == errc::not_found) continue;
        if (!failure) failure = std::move(done).error();
      } else if (*done == wait_outcome::timed_out) {
        if (failure) raise(std::move(*failure));  // it was told to nobody else
        return wait_outcome::timed_out;
      }
    }
  }
  if (failure) raise(std::move(*failure));
  return wait_outcome::ok;
}

}  // namespace

namespace {

wait_outcome synchronize_machine(detail::machine_state& state, wait_deadline deadline) {
  state.require_open();
  auto launches = state.finish_pending(deadline);
  if (launches && *launches != wait_outcome::ok) return *launches;
  // what a launch leaves behind is told, but only after the streams have ended as well
  const wait_outcome streams = synchronize_devices(state, device_id{0}, state.device_count(), deadline);
  value_or_raise(std::move(launches));
  return streams;
}

}  // namespace

void machine::synchronize(std::source_location where) const {
  const called_from here{where};
  synchronize_machine(*state_, no_deadline);
}

wait_outcome machine::synchronize_for(std::chrono::nanoseconds timeout, std::source_location where) const {
  const called_from here{where};
  return synchronize_machine(*state_, deadline_after(now(), timeout));
}

std::vector<order_violation> machine::order_violations() const {
  return state_->backends().front()->order_violations();
}

link_traffic machine::traffic() const { return state_->backends().front()->traffic(); }
void machine::trace_to(const std::shared_ptr<trace_sink>& sink) const { state_->trace_to(sink); }

void machine::close() { state_->close_from_anywhere(); }
bool machine::closed() const { return state_->closed(); }

// ---- device ---------------------------------------------------------------------------------------------------------

device::device(std::shared_ptr<detail::machine_state> state, device_id id) : state_(std::move(state)), id_(id) {}

const std::string& device::name() const { return state_->description_of(id_).name; }
backend_kind device::kind() const { return state_->description_of(id_).kind; }
const std::string& device::uuid() const { return state_->description_of(id_).uuid; }
const std::string& device::driver() const { return state_->description_of(id_).driver; }
const std::string& device::pci_address() const { return state_->description_of(id_).pci_address; }
bool device::has_own_compute_units() const { return state_->description_of(id_).own_compute_units; }
const std::string& device::part_of() const { return state_->description_of(id_).part_of; }
std::optional<int> device::numa_node() const { return state_->description_of(id_).numa_node; }
bytes device::total_memory() const { return state_->description_of(id_).memory; }
bytes device::free_memory(std::source_location where) const {
  const called_from here{where};
  return value_or_raise(state_->backend_of(id_).memory(id_)).free;
}
device_health device::health(std::source_location where) const {
  const called_from here{where};
  return value_or_raise(state_->backend_of(id_).health(id_));
}
int device::compute_units() const { return state_->description_of(id_).compute_units; }
capability device::capabilities() const { return state_->description_of(id_).capabilities; }
bool device::simulated() const { return state_->description_of(id_).simulated; }

stream device::default_stream(std::source_location where) const {
  const called_from here{where};
  state_->require_open();
  return stream{detail::stream_identity{state_, value_or_raise(state_->default_stream(id_)), id_, false}};
}

void device::synchronize(std::source_location where) const {
  const called_from here{where};
  synchronize_devices(*state_, id_, 1, no_deadline);
}
wait_outcome device::synchronize_for(std::chrono::nanoseconds timeout, std::source_location where) const {
  const called_from here{where};
  return synchronize_devices(*state_, id_, 1, deadline_after(state_->now(), timeout));
}

bool device::is_lost() const { return state_->backend_of(id_).lost(id_) != nullptr; }
std::optional<error> device::lost_cause() const {
  const auto cause = state_->backend_of(id_).lost(id_);
  if (!cause) return std::nullopt;
  return *cause;
}
void device::reset(std::source_location where) const {
  const called_from here{where};
  state_->require_open();
  value_or_raise(state_->backend_of(id_).reset(id_));
}

}  // namespace weft
