// SPDX-License-Identifier: Apache-2.0
#include "runtime/machine_state.hpp"

#include "backends/mixed/factory.hpp"
#include "core/environment.hpp"
#include "core/errors/make_error.hpp"
#include "core/text/nearest.hpp"
#include "core/topology/joined_topology.hpp"
#include "weft/core/log.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX declares it only with _GNU_SOURCE

namespace weft::detail {
namespace {

/// Every variable that is read, here or by a backend.
constexpr std::array variables = std::to_array<std::string_view>(
    {"WEFT_BACKEND",    "WEFT_TOPOLOGY",       "WEFT_DEVICES",     "WEFT_LOGICAL_DEVICES",  "WEFT_VERIFY_PEERS",
     "WEFT_STRICT",     "WEFT_CHECK",          "WEFT_CHECK_ORDER", "WEFT_CUDA_DRIVER",      "WEFT_CUDA_NVRTC",
     "WEFT_CUDA_NVML",  "WEFT_CUDA_GDRCOPY",   "WEFT_LIBCLANG",    "WEFT_CUDA_PARTITIONS",  "WEFT_HIP_DRIVER",
     "WEFT_HIP_HIPRTC", "WEFT_HIP_PARTITIONS", "WEFT_LOG",         "WEFT_MASTER_PORT",      "WEFT_WORLD_INTERFACE",
     "WEFT_WORLD_NODE", "WEFT_WORLD_SILENCE",  "WEFT_WORLD_TOKEN", "WEFT_WORLD_TOKEN_FILE", "WEFT_INTERRUPT_GRACE"});

#ifdef NDEBUG
constexpr bool is_debug_build = false;
#else
constexpr bool is_debug_build = true;
#endif

int whole_number(const std::string& text, const char* name) {
  int value = 0;
  const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (bad != std::errc{} || end != text.data() + text.size() || value < 1 || value > max_devices) {
    raise(errc::invalid_argument, std::string{name} + " is '" + text + "': expected a number of devices from 1 to " +
                                      std::to_string(max_devices));
  }
  return value;
}

peer_verification verification_named(const std::string& text) {
  if (text == "never") return peer_verification::never;
  if (text == "first_use") return peer_verification::first_use;
  if (text == "always") return peer_verification::always;
  raise(errc::invalid_argument, "WEFT_VERIFY_PEERS is '" + text + "': expected never, first_use or always");
}

/// "host, opencl" → host and opencl.
std::vector<std::string> names_in(std::string_view list) {
  std::vector<std::string> names;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    std::string_view one = list.substr(0, end);
    while (one.starts_with(' ')) one.remove_prefix(1);
    while (one.ends_with(' ')) one.remove_suffix(1);
    if (!one.empty()) names.emplace_back(one);
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return names;
}

bool has_host(const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), "host") != names.end();
}

/// Whether a variable names the driver of a backend: WEFT_CUDA_DRIVER, WEFT_HIP_DRIVER.
bool has_named_driver(std::string_view backend) {
  std::string variable = "WEFT_" + std::string{backend} + "_DRIVER";
  std::transform(variable.begin(), variable.end(), variable.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return environment(variable.c_str()).has_value();
}

}  // namespace

machine_state::machine_state(const machine_options& options) : options_(options), host_only_(options) {
  if (auto wrong = contradiction(options)) raise(*std::move(wrong));
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text{*entry};
    if (!text.starts_with("WEFT_")) continue;
    const std::string_view name = text.substr(0, text.find('='));
    if (std::find(variables.begin(), variables.end(), name) != variables.end()) continue;
    if (name.starts_with("WEFT_VIRTUAL_")) continue;  // a virtual driver's own, which knows them
    std::string note = "the environment variable " + std::string{name} + " is not known";
    if (const auto close = nearest_name(name, variables)) note += "; did you mean " + std::string{*close} + "?";
    notes_.push_back(std::move(note));
  }
  read_environment();
  open_backends();
  log_opened();
}

/// What this machine is, for who listens: WEFT_LOG, set_log_hook().
void machine_state::log_opened() const {
  for (const std::string& note : notes_) log(log_level::info, note);
  if (!is_logged(log_level::info)) return;
  std::string text = "machine of";
  for (const device_description& d : backends_.front()->devices())
    text += (text.ends_with("of") ? " " : ", ") + d.name + " (" + std::string{to_string(d.kind)} + ")";
  log(log_level::info, text);
}

/// What the program asks for goes before what the environment says.
void machine_state::read_environment() {
  if (const auto level = environment("WEFT_LOG");
      level && *level != "debug" && *level != "info" && *level != "warning" && *level != "error")
    raise(errc::invalid_argument, "WEFT_LOG is '" + *level + "': expected debug, info, warning or error");
  const bool excludes_host = options_.backend && !has_host(names_in(*options_.backend));
  if (!options_.backend) options_.backend = backend_of_environment();
  if (const auto named = environment("WEFT_TOPOLOGY"); named && !options_.sim && !options_.machine) {
    if (options_.devices || excludes_host) {
      notes_.push_back("WEFT_TOPOLOGY is '" + *named + "', and the program asks for " +
                       (excludes_host ? "the backend '" + *options_.backend + "' without the host"
                                      : std::to_string(*options_.devices) + " devices without a topology") +
                       ": it is not played");
    } else {
      options_.sim = named;
    }
  }
  if (const auto text = environment("WEFT_DEVICES"); text && !options_.devices) {
    options_.devices = whole_number(*text, "WEFT_DEVICES");
    host_only_.take("WEFT_DEVICES");
    if (options_.sim || options_.machine)
      notes_.push_back("WEFT_DEVICES is " + *text + ", and the topology has devices of its own: it is not used");
  }
  if (!options_.logical_devices) {
    if (const auto text = environment("WEFT_LOGICAL_DEVICES"))
      options_.logical_devices = whole_number(*text, "WEFT_LOGICAL_DEVICES");
  }
  if (!options_.verify_peers) {
    if (const auto text = environment("WEFT_VERIFY_PEERS")) options_.verify_peers = verification_named(*text);
  }
  const auto take = [&](std::optional<bool>& option, const char* variable) {
    if (option) return;
    option = environment_switch(variable);
    if (option) host_only_.take(variable);
  };
  take(options_.strict, "WEFT_STRICT");
  take(options_.check_access, "WEFT_CHECK");
  checks_order_ = options_.check_order;
  if (!checks_order_ && environment_switch("WEFT_CHECK_ORDER").value_or(false)) {
    checks_order_ = true;
    host_only_.take("WEFT_CHECK_ORDER");
  }
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

/// WEFT_BACKEND, unless the program asks for what the host alone can play.
std::optional<std::string> machine_state::backend_of_environment() {
  auto named = environment("WEFT_BACKEND");
  if (!named) return named;
  const std::vector<std::string> names = names_in(*named);
  const bool is_virtual = options_.clock == clock_kind::virtual_time;
  const bool has_topology = options_.sim || options_.machine;
  if (!(has_topology && !has_host(names)) && !(is_virtual && (names.size() > 1 || !has_host(names)))) return named;
  notes_.push_back("WEFT_BACKEND is '" + *named + "', and the program asks for " +
                   (is_virtual ? "virtual time" : "a topology") + ", which is the host backend's: it is used instead");
  return "host";
}

bool machine_state::checks_access() const { return options_.check_access.value_or(is_debug_build); }

void machine_state::open_backends() {
  backend_options plan;
  plan.device_count = options_.devices.value_or(4);
  plan.memory_per_device = options_.memory_per_device;
  plan.logical_devices = options_.logical_devices.value_or(1);
  if (plan.logical_devices < 1 || plan.logical_devices > max_devices) {
    raise(errc::invalid_argument, "machine_options::logical_devices is " + std::to_string(plan.logical_devices) +
                                      ": expected a number of devices from 1 to " + std::to_string(max_devices));
  }
  plan.clock = options_.clock;
  plan.strict = options_.strict;
  plan.check_access = checks_access();
  plan.check_order = checks_order_;
  plan.fill_new_memory = options_.fill_new_memory;
  plan.max_in_flight = options_.max_in_flight;
  plan.wait_policy = options_.wait_policy;
  plan.model = options_.model;
  if (options_.clock == clock_kind::virtual_time) hold_ = plan.hold = std::make_shared<clock_hold>();
  if (options_.machine) {
    plan.machine = value_or_raise(complete_topology(*std::exchange(options_.machine, std::nullopt)));
  } else if (options_.sim) {
    plan.machine = value_or_raise(load_topology(*options_.sim));
  }
  std::vector<std::string> wanted = names_in(options_.backend.value_or(""));
  if (options_.backend && wanted.empty())
    raise(errc::invalid_argument, "'" + *options_.backend + "' names no backend: expected names such as cuda,host");
  if (plan.machine && wanted.empty()) wanted = {"host"};  // only the host backend plays topologies
  if (plan.machine && !has_host(wanted)) {
    raise(errc::invalid_argument, "a topology is played by the host backend; it cannot go with backend '" +
                                      options_.backend.value_or("") + "'");
  }
  std::vector<backend_entry> entries = options_.more_backends;
  entries.insert(entries.end(), built_backends().begin(), built_backends().end());
  drop_unknown(wanted, entries);
  for (const backend_entry& entry : entries) statuses_.push_back({std::string{entry.name}, false, "", false});
  std::optional<error> why_not;
  if (wanted.empty()) {
    // The default machine is one kind: the GPUs of the first backend that has any, else the host's devices.
    for (std::size_t i = 0; i < entries.size() && backends_.empty(); ++i) {
      if (entries[i].kind == backend_kind::null) continue;
      std::optional<error> cause;
      if (open_one(entries[i], plan, statuses_[i], cause) || !cause) continue;
      // what somebody set wrongly must not cost the GPUs in silence
      if (cause->code == errc::invalid_argument) raise(*cause);
      if (has_named_driver(entries[i].name) && !host_only_.refusal(entries[i].name)) notes_.push_back(cause->what);
      // the host alone is expected to open: its reason counts most
      if (!why_not || entries[i].kind == backend_kind::host) why_not = std::move(cause);
    }
  } else {
    open_several(wanted, entries, plan, why_not);
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (statuses_[i].looked_at) continue;
    if (!entries[i].is_built) {
      statuses_[i].looked_at = true;
      statuses_[i].why = to_string(entries[i].open(plan).error());
      continue;
    }
    statuses_[i].why = wanted.empty() && entries[i].kind != backend_kind::null
                           ? "not looked at: another backend was preferred"
                           : "not looked at: it was not asked for";
  }
  if (backends_.empty() && !wanted.empty() && !options_.backend_required) {
    notes_.push_back("the backend '" + options_.backend.value_or("") + "' is not available (" +
                     (why_not ? why_not->what : "no devices") + "); fell back to the host");
    const auto host = std::ranges::find(entries, "host", &backend_entry::name);
    backend_status& of_host = statuses_[static_cast<std::size_t>(host - entries.begin())];
    of_host.why.clear();
    open_one(*host, plan, of_host, why_not);
  }
  if (backends_.empty()) {
    if (why_not) raise(*why_not);
    raise(errc::not_found, "no backend has a device");
  }
  for (const auto& b : backends_) {
    notes_.insert(notes_.end(), b->notes().begin(), b->notes().end());
  }
  default_streams_ = std::vector<std::atomic<stream_handle>>(backend_names_.size());
  join_backends(plan);
}

/// Takes out names that no backend has, or fails with what there is.
void machine_state::drop_unknown(std::vector<std::string>& wanted, std::span<const backend_entry> entries) {
  std::erase_if(wanted, [&](const std::string& name) {
    if (std::any_of(entries.begin(), entries.end(), [&](const backend_entry& e) { return e.name == name; }))
      return false;
    std::vector<std::string_view> names;
    names.reserve(entries.size());
    for (const backend_entry& e : entries) names.push_back(e.name);
    std::string text = "this build has no backend '" + name + "'";
    if (const auto close = nearest_name(name, names)) text += "; did you mean '" + std::string{*close} + "'?";
    text += "; it has:";
    for (const std::string_view n : names) text += " " + std::string{n};
    if (options_.backend_required) raise(errc::not_found, std::move(text));
    notes_.push_back(text + "; it is left out");
    return true;
  });
  if (wanted.empty() && options_.backend)
    notes_.push_back("no backend of '" + *options_.backend + "' is in this build; fell back to the best one present");
}

bool machine_state::open_one(const backend_entry& entry, const backend_options& plan, backend_status& status,
                             std::optional<error>& why_not) {
  const bool is_mixed = plan.epoch.has_value();
  const bool is_host = entry.kind == backend_kind::host;
  status.looked_at = true;
  if (!is_host && !is_mixed && entry.is_built) {
    if (auto cause = host_only_.refusal(entry.name)) {
      status.why = to_string(*cause);
      if (!options_.backend) notes_.push_back(cause->what);
      why_not = std::move(cause);
      return false;
    }
  }
  auto opened = entry.open(plan);
  status.available = opened && !(*opened)->devices().empty();
  if (status.available) {
    backend_names_.insert(backend_names_.end(), (*opened)->devices().size(), status.name);
    backends_.push_back(std::move(*opened));
    if (!is_host) {
      for (std::string& note : host_only_.notes(entry.name, is_mixed)) notes_.push_back(std::move(note));
    }
  } else {
    status.why = opened ? "no devices" : to_string(opened.error());
    if (!opened) why_not = std::move(opened).error();
  }
  return status.available;
}

// In the order in which they were named, which is that of the devices; who comes first keeps a device that two see.
void machine_state::open_several(std::span<const std::string> wanted, std::span<const backend_entry> entries,
                                 backend_options& plan, std::optional<error>& why_not) {
  if (wanted.size() > 1) {
    require_mixable(wanted);
    if (std::exchange(plan.check_order, false))
      notes_.emplace_back("WEFT_CHECK_ORDER is not followed: it sees the order of one backend's work only");
    plan.epoch = std::chrono::steady_clock::now();
  }
  const auto topology_of_host = plan.machine;
  int next = 0;
  for (const std::string& name : wanted) {
    const auto entry =
        std::find_if(entries.begin(), entries.end(), [&](const backend_entry& e) { return e.name == name; });
    backend_status& status = statuses_[static_cast<std::size_t>(entry - entries.begin())];
    plan.first_device = device_id{next};
    plan.machine = entry->name == "host" ? topology_of_host : std::nullopt;
    std::size_t left_out = 0;
    if (next > 0 && !options_.keep_duplicates) {
      plan.leave_out = [&](const device_description& device) {
        const device_description* const twin = known_twin(device);
        if (twin == nullptr) return false;
        ++left_out;
        notes_.push_back("the device " + device.name + " of the backend '" + name + "' is left out: it is " +
                         twin->name + " of the backend '" + std::string{to_string(twin->kind)} + "'" +
                         (twin->uuid == device.uuid ? ", with the same uuid" : ", at the same PCI address"));
        return true;
      };
    }
    why_not.reset();
    const bool is_open = open_one(*entry, plan, status, why_not);
    plan.leave_out = nullptr;
    if (is_open) {
      next += static_cast<int>(backends_.back()->devices().size());
      continue;
    }
    if (left_out > 0) {
      status.available = true;
      status.why = "each of its devices appears with an earlier backend";
      why_not.reset();
      continue;
    }
    if (wanted.size() == 1) break;
    if (options_.backend_required) {
      if (!why_not) why_not = error{.code = errc::not_found, .what = "it has no devices", .where = {}};
      why_not->what = "of the backends '" + options_.backend.value_or("") + "', '" + name +
                      "' cannot be opened: " + why_not->what + "; leave it out, or set backend_required to false";
      raise(*why_not);
    }
    notes_.push_back("the backend '" + name + "' is left out: " + (why_not ? why_not->what : "it has no devices"));
  }
  plan.machine = topology_of_host;
  plan.first_device = device_id{0};
}

/// What one backend alone can do, and several together cannot.
void machine_state::require_mixable(std::span<const std::string> wanted) const {
  const auto refuse = [&](errc code, const std::string& why) {
    raise(code, "the backends '" + options_.backend.value_or("") + "' on one machine: " + why);
  };
  if (wanted.size() > mixed::most_backends)
    refuse(errc::invalid_argument, "at most " + std::to_string(mixed::most_backends) + " can be mixed");
  for (std::size_t i = 1; i < wanted.size(); ++i) {
    if (std::find(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(i), wanted[i]) !=
        wanted.begin() + static_cast<std::ptrdiff_t>(i))
      refuse(errc::invalid_argument, "'" + wanted[i] + "' is named twice");
  }
  if (options_.clock == clock_kind::virtual_time)
    refuse(errc::unsupported,
           "virtual time is the host backend's alone; open it with backend 'host', or on the wall clock");
  if (options_.check_order) {
    refuse(errc::unsupported,
           "check_order sees the order of one backend's work only, and would report what another one "
           "orders; open one backend, or leave it off");
  }
}

/// The device of the machine so far that is the same as this one: the same uuid, else the same PCI address.
const device_description* machine_state::known_twin(const device_description& device) const {
  for (const auto& b : backends_) {
    for (const device_description& known : b->devices()) {
      if (!device.uuid.empty() && known.uuid == device.uuid) return &known;
      if (!device.pci_address.empty() && known.pci_address == device.pci_address) return &known;
    }
  }
  return nullptr;
}

/// Several backends go on as one.
void machine_state::join_backends(const backend_options& plan) {
  if (backends_.size() < 2) return;
  std::vector<const topology*> layouts;
  layouts.reserve(backends_.size());
  for (const auto& b : backends_) layouts.push_back(&b->layout());
  topology joined = value_or_raise(join_topologies(layouts));
  try {
    auto one = mixed::join(std::move(backends_), std::move(joined), *plan.epoch);
    backends_.clear();
    backends_.push_back(std::move(one));
  } catch (const std::system_error&) {
    raise(errc::resource_exhausted,
          "no thread could be started for a machine of several backends; raise the limit of threads (ulimit -u)");
  }
}

void machine_state::raise_unknown(device_id id) const {
  raise(errc::invalid_device, "there is no " + to_string(id) + ": this machine has " + std::to_string(device_count()) +
                                  " devices, from gpu0");
}

callback_thread& machine_state::started(serving& place, callback_thread::kind what) {
  std::call_once(place.once, [&] {
    try {
      place.thread = std::make_unique<callback_thread>(std::move(what));
    } catch (const std::system_error&) {
      raise(no_thread());
    }
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
  backends_.front()->trace_to(sink);
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
  for (const auto& f : closing) {
    try {
      f();
    } catch (const std::bad_alloc&) {
      log(log_level::error, "a part of a machine had no host memory to end in order");
    }
  }
  backends_.front()->close();
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

void machine_state::add_unreported(device_id device, stream_handle stream, error cause) {
  const std::lock_guard lock{unreported_mutex_};
  if (std::any_of(unreported_.begin(), unreported_.end(),
                  [&](const unreported& one) { return is_same_failure(one.cause, cause); }))
    return;
  unreported_.push_back({device, stream, std::move(cause)});
  has_unreported_.store(true, std::memory_order_release);  // pairs with acquire in take_unreported
}

bool machine_state::on_worker() const noexcept { return backends_.front()->on_worker(); }

void machine_state::start_thread(std::function<void()> f) {
  std::thread{[keep = shared_from_this(), f = std::move(f)] { f(); }}.detach();
}

void machine_state::close_from_anywhere() noexcept {
  if (!on_worker() && !backends_.front()->in_call()) return close();
  on_another_thread([this] { close(); });
}

bool is_same_failure(const error& a, const error& b) {
  if (a.code != b.code || a.native_code != b.native_code || a.what != b.what) return false;
  return a.where.line() == 0 || b.where.line() == 0 || a.where.line() == b.where.line();
}

void raise_failure(error cause, std::source_location where) {
  if (cause.where.line() == 0) cause.where = where;
  raise(std::move(cause));
}

}  // namespace weft::detail
