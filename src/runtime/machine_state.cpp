// SPDX-License-Identifier: Apache-2.0
#include "runtime/machine_state.hpp"

#include "weft/core/log.hpp"
#include "weft/core/nearest.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX declares it only with _GNU_SOURCE

namespace weft::detail {
namespace {

/// Every variable that is read.
constexpr std::array<std::string_view, 5> variables{"WEFT_BACKEND", "WEFT_TOPOLOGY", "WEFT_DEVICES", "WEFT_STRICT",
                                                    "WEFT_CHECK_ORDER"};

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read once, when a machine is made
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string{value};
}

int whole_number(const std::string& text, const char* name) {
  int value = 0;
  const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (bad != std::errc{} || end != text.data() + text.size() || value < 1 || value > max_devices) {
    raise(errc::invalid_argument, std::string{name} + " is '" + text + "': expected a number of devices from 1 to " +
                                      std::to_string(max_devices));
  }
  return value;
}

}  // namespace

machine_state::machine_state(const machine_options& options) : options_(options) {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text{*entry};
    if (!text.starts_with("WEFT_")) continue;
    const std::string_view name = text.substr(0, text.find('='));
    if (std::find(variables.begin(), variables.end(), name) != variables.end()) continue;
    std::string note = "the environment variable " + std::string{name} + " is not known";
    if (const auto close = nearest_name(name, variables)) note += "; did you mean " + std::string{*close} + "?";
    notes_.push_back(std::move(note));
  }
  if (!options_.backend) options_.backend = variable("WEFT_BACKEND");
  // what the program asks for goes before what the environment says
  if (!options_.sim && !options_.machine && !options_.devices) options_.sim = variable("WEFT_TOPOLOGY");
  if (!options_.devices) {
    if (const auto text = variable("WEFT_DEVICES")) options_.devices = whole_number(*text, "WEFT_DEVICES");
  }
  if (!options_.strict) {
    if (const auto text = variable("WEFT_STRICT")) options_.strict = *text != "0";
  }
  if (const auto text = variable("WEFT_CHECK_ORDER"); text && *text != "0") options_.check_order = true;
  open_backends();
}

machine_state::~machine_state() {
  close();
  if (!here_.forked()) return;
  // Threads, and locks that they held when the process was copied, are the parent's: ending them here would wait for
  // ever. The memory goes with the child.
  for (auto& b : backends_) {
    [[maybe_unused]] const auto* left = b.release();
  }
  for (slot& part : parts_) {
    [[maybe_unused]] const auto* left = new (std::nothrow) std::shared_ptr<void>{std::move(part.owner)};
  }
  for (serving* place : {&callbacks_, &deciders_}) {
    [[maybe_unused]] const auto* left = place->thread.release();
  }
}

void machine_state::open_backends() {
  backend_options plan;
  plan.device_count = options_.devices.value_or(4);
  plan.memory_per_device = options_.memory_per_device;
  plan.clock = options_.clock;
  plan.strict = options_.strict;
  plan.check_access = options_.check_access;
  plan.check_order = options_.check_order;
  plan.fill_new_memory = options_.fill_new_memory;
  plan.max_in_flight = options_.max_in_flight;
  plan.wait_policy = options_.wait_policy;
  plan.model = options_.model;
  if (options_.clock == clock_kind::virtual_time) hold_ = plan.hold = std::make_shared<clock_hold>();
  if (options_.machine) {
    plan.machine = value_or_raise(complete_topology(*options_.machine));
  } else if (options_.sim) {
    plan.machine = value_or_raise(load_topology(*options_.sim));
  }
  std::string wanted = options_.backend.value_or("");
  if (plan.machine && wanted.empty()) wanted = "host";  // only the host backend plays topologies
  if (plan.machine && wanted != "host") {
    raise(errc::invalid_argument,
          "a topology is played by the host backend; it cannot go with backend '" + wanted + "'");
  }
  std::vector<backend_entry> entries = options_.more_backends;
  entries.insert(entries.end(), built_backends().begin(), built_backends().end());
  const auto is_wanted = [&](const backend_entry& e) { return e.name == wanted; };
  if (!wanted.empty() && std::none_of(entries.begin(), entries.end(), is_wanted)) {
    std::vector<std::string_view> names;
    names.reserve(entries.size());
    for (const backend_entry& e : entries) names.push_back(e.name);
    std::string text = "this build has no backend '" + wanted + "'";
    if (const auto close = nearest_name(wanted, names)) text += "; did you mean '" + std::string{*close} + "'?";
    text += "; it has:";
    for (const std::string_view n : names) text += " " + std::string{n};
    if (options_.backend_required) raise(errc::not_found, std::move(text));
    notes_.push_back(text + "; fell back to the best one present");
    wanted.clear();
  }
  // The default machine is one kind: the GPUs of the first backend that has any, else the host's devices.
  std::optional<error> why_not;
  for (const backend_entry& entry : entries) {
    backend_status status{std::string{entry.name}, false, ""};
    const bool candidate = wanted.empty() ? entry.kind != backend_kind::null : entry.name == wanted;
    if (candidate && backends_.empty()) {
      auto opened = entry.open(plan);
      if (opened && !(*opened)->devices().empty()) {
        status.available = true;
        backends_.push_back(std::move(*opened));
      } else {
        status.why = opened ? "no devices" : to_string(opened.error());
        if (!opened) why_not = opened.error();
      }
    } else {
      status.available = true;
      status.why = candidate ? "present, not used: another backend was preferred" : "present, not asked for";
    }
    statuses_.push_back(std::move(status));
  }
  if (backends_.empty() && !wanted.empty() && !options_.backend_required) {
    notes_.push_back("the backend '" + wanted + "' is not available (" + (why_not ? why_not->what : "no devices") +
                     "); fell back to the host");
    auto opened = find_backend("host")->open(plan);
    if (!opened) raise(std::move(opened).error());
    backends_.push_back(std::move(*opened));
  }
  if (backends_.empty()) {
    if (why_not) raise(*why_not);
    raise(errc::not_found, "no backend has a device");
  }
  for (const auto& b : backends_) device_count_ += static_cast<int>(b->devices().size());
}

void machine_state::raise_unknown(device_id id) const {
  raise(errc::invalid_device,
        "there is no " + to_string(id) + ": this machine has " + std::to_string(device_count_) + " devices, from gpu0");
}

backend& machine_state::backend_of(const void* address) const {
  if (backends_.size() > 1) {
    for (const auto& b : backends_) {
      if (b->find(address)) return *b;
    }
  }
  return *backends_.front();
}

callback_thread& machine_state::started(serving& place, callback_thread::kind what) {
  std::call_once(place.once, [&] {
    place.thread = std::make_unique<callback_thread>(std::move(what));
    place.seen.store(place.thread.get(), std::memory_order_release);  // pairs with acquire in close
  });
  return *place.thread;
}

callback_thread& machine_state::callbacks() { return started(callbacks_, {}); }

callback_thread& machine_state::deciders() {
  // On the virtual clock nothing happens unless somebody waits: a thread that polled would let time run while the
  // program is still submitting.
  return started(deciders_, {"weft-launches", options_.clock != clock_kind::virtual_time, hold_});
}

void machine_state::trace_to(const std::shared_ptr<trace_sink>& sink) {
  const std::lock_guard lock{trace_mutex_};
  trace_ = sink;
  tracing_.store(sink != nullptr, std::memory_order_release);  // pairs with acquire in trace
  for (const auto& b : backends_) b->trace_to(sink);
}

std::shared_ptr<trace_sink> machine_state::locked_trace() const {
  const std::lock_guard lock{trace_mutex_};
  return trace_;
}

void machine_state::close() noexcept {
  if (here_.forked()) {
    closed_.store(true, std::memory_order_release);
    return;
  }
  if (closed_.exchange(true, std::memory_order_acq_rel)) {
    // Another thread closes, or has: its end is waited for, but not by a callback that it waits for itself.
    for (const serving* place : {&callbacks_, &deciders_}) {
      const callback_thread* thread = place->seen.load(std::memory_order_acquire);
      if (thread != nullptr && thread->is_current()) return;
    }
    ended_.wait(false, std::memory_order_acquire);
    return;
  }
  std::vector<std::function<void()>> closing;
  {
    const std::lock_guard lock{closing_mutex_};
    closing.swap(closing_);
  }
  for (const auto& f : closing) f();
  for (const auto& b : backends_) b->close();
  // every event has ended; launches and coroutines that waited see that
  for (serving* place : {&deciders_, &callbacks_}) {
    if (callback_thread* thread = place->seen.load(std::memory_order_acquire)) thread->end();
  }
  ended_.store(true, std::memory_order_release);  // pairs with acquire above
  ended_.notify_all();
}

void machine_state::before_close(std::function<void()> f) {
  const std::lock_guard lock{closing_mutex_};
  if (!closed()) closing_.push_back(std::move(f));
}

void machine_state::before_synchronize(pending_work f) {
  const std::lock_guard lock{closing_mutex_};
  pending_.push_back(std::move(f));
}

result<wait_outcome> machine_state::finish_pending(wait_deadline deadline) {
  std::vector<pending_work> pending;
  {
    const std::lock_guard lock{closing_mutex_};
    pending = pending_;
  }
  for (const pending_work& f : pending) {
    auto done = f(deadline);
    if (!done || *done != wait_outcome::ok) return done;
  }
  return wait_outcome::ok;
}

void machine_state::off_workers(std::function<void()> f) noexcept {
  // The last handle of a machine, or a stream, may have been captured by work and go with it.
  const bool busy = std::any_of(backends_.begin(), backends_.end(), [](const auto& b) { return b->on_worker(); });
  if (!busy) {
    f();
    return;
  }
  try {
    std::thread{[keep = shared_from_this(), f = std::move(f)] { f(); }}.detach();
  } catch (const std::system_error&) {
    log(log_level::error, "a machine or stream went inside its own work, and no thread could be started to end it");
  }
}

void raise_failure(const event_record& record) { raise(*record.cause()); }

}  // namespace weft::detail
