// SPDX-License-Identifier: Apache-2.0
#include "backends/host/host_backend.hpp"

#include "backend/address.hpp"
#include "backend/parking.hpp"
#include "backends/host/factory.hpp"
#include "core/hex.hpp"
#include "core/make_error.hpp"
#include "weft/core/host_memory.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <unistd.h>

namespace weft::host {
namespace {

/// A name-based identity: the same for the same machine and place, different between equal models.
std::string uuid_of(const topology& machine, std::size_t index) {
  std::uint64_t a = 0xcbf29ce484222325;  // FNV-1a, 64 bit, twice with different ends
  std::uint64_t b = 0;
  const std::string text = "weft-host/" + machine.name + "/" + std::to_string(index);
  for (const char c : text) a = (a ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  b = (a ^ 0x9e3779b97f4a7c15) * 0x100000001b3;
  b ^= b >> 29;
  char out[37];
  std::snprintf(out, sizeof out, "%08x-%04x-8%03x-8%03x-%012llx", static_cast<unsigned>(a >> 32),
                static_cast<unsigned>((a >> 16) & 0xffff), static_cast<unsigned>(a & 0xfff),
                static_cast<unsigned>(b >> 52), static_cast<unsigned long long>(b & 0xffffffffffff));
  return out;
}

/// The same for every process that plays this machine.
std::vector<std::uint64_t> identities_of(const topology& machine) {
  std::vector<std::uint64_t> made;
  made.reserve(machine.devices.size());
  for (std::size_t i = 0; i < machine.devices.size(); ++i) {
    made.push_back(detail::identity_of(uuid_of(machine, i)));
  }
  return made;
}

error forked() {
  return make_error(errc::closed,
                    "this machine belongs to process " + std::to_string(::getppid()) +
                        ": the child of a fork has none of its threads. Make a machine in the child, or fork "
                        "before there is one");
}

#ifdef WEFT_TSAN
constexpr bool one_address_only = true;  // ThreadSanitizer cannot follow two addresses of one page
#else
constexpr bool one_address_only = false;
#endif

memory_options memory_options_of(const backend_options& options) {
  memory_options made;
  made.strict = options.strict.value_or(true) && !one_address_only;
  made.fill_new = options.fill_new_memory;
#ifndef NDEBUG
  if (!made.fill_new) made.fill_new = std::byte{0xcd};
#endif
  return made;
}

std::optional<error> wrong_model(const simulation& model) {
  if (model.launch_latency.count() < 0 || model.delay.count() < 0) {
    return make_error(errc::invalid_argument, "a simulation has no negative times: launch_latency is " +
                                                  std::to_string(model.launch_latency.count()) + " ns, delay is " +
                                                  std::to_string(model.delay.count()) + " ns");
  }
  if (model.noise >= 0 && std::isfinite(model.noise)) return std::nullopt;
  return make_error(errc::invalid_argument,
                    "the noise of a simulation is a standard deviation, 0 or more, not " + std::to_string(model.noise));
}

/// The classes of bandwidth among pairs that reach each other, best first: where one stands is the rank of its pairs.
std::vector<double> bandwidths_of(const topology& machine) {
  std::vector<double> all;
  for (std::size_t i = 0; i < machine.peer_paths.size(); ++i) {
    if (machine.access[i]) all.push_back(machine.peer_paths[i].bytes_per_second);
  }
  std::sort(all.begin(), all.end(), std::greater<>{});
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace

host_backend::host_backend(const backend_options& options, topology machine)
    : machine_(std::move(machine)),
      first_(options.first_device),
      bandwidths_(bandwidths_of(machine_)),
      check_access_(options.check_access),
      faults_(machine_, first_),
      memory_(machine_, first_, memory_options_of(options), faults_),
      sharing_(machine_, first_, memory_, identities_of(machine_)),
      order_(options.check_order ? std::make_unique<order_watch>(memory_) : nullptr),
      transfers_(machine_, first_, memory_, faults_),
      scheduler_(
          machine_, first_, this,
          {options.clock, options.wait_policy, options.max_in_flight, options.model, options.hold, options.epoch},
          faults_) {
  if (options.logical_devices > 1) {
    notes_.emplace_back("the host's devices are not split into " + std::to_string(options.logical_devices) +
                        " each: they are virtual, and there are as many as machine_options::devices asks for");
  }
  const std::size_t count = machine_.devices.size();
  for (std::size_t i = 0; i < count; ++i) {
    const topology_device& d = machine_.devices[i];
    device_description made;
    made.name = d.name;
    made.kind = backend_kind::host;
    made.uuid = uuid_of(machine_, i);
    made.pci_address = d.pci_address;
    made.numa_node = d.numa_node;
    made.memory = d.memory;
    made.compute_units = d.compute_units;
    made.capabilities = d.capabilities;
    made.simulated = machine_.simulated;
    descriptions_.push_back(std::move(made));
    default_streams_.push_back(scheduler_.create(device_id{first_.value() + static_cast<int>(i)}, 0, true)->handle());
  }
}

host_backend::~host_backend() { close(); }

bool host_backend::known(device_id id) const noexcept {
  return id >= first_ && id.value() < first_.value() + machine_.device_count();
}

std::optional<error> host_backend::check_devices(std::initializer_list<device_id> ids) noexcept {
  if (here_.forked()) return forked();
  if (scheduler_.closed()) return closed_machine();
  for (const device_id id : ids) {
    if (!known(id)) {
      return make_error(errc::invalid_device, "there is no " + to_string(id) + ": this machine has " +
                                                  std::to_string(machine_.device_count()) + " devices, from " +
                                                  to_string(first_));
    }
  }
  return std::nullopt;
}

std::optional<error> host_backend::check_call(std::string_view function,
                                              std::initializer_list<device_id> ids) noexcept {
  if (auto cause = check_devices(ids)) return cause;
  if (!faults_.empty()) return faults_.on_call(function, {ids.begin(), ids.size()});
  return std::nullopt;
}

result<host_stream*> host_backend::stream_of(std::string_view function, stream_handle handle) noexcept {
  return guarded([&]() -> result<host_stream*> {
    host_stream* stream = scheduler_.find(handle);
    if (auto cause = stream != nullptr ? check_call(function, {stream->device()}) : check_call(function, {}))
      return *cause;
    if (stream == nullptr)
      return make_error(errc::not_found, "the stream was destroyed, or belongs to another machine");
    if (auto cause = scheduler_.lost(stream->device())) return error{*cause};
    return stream;
  });
}

// ---- discover -------------------------------------------------------------------------------------------------------

result<memory_use> host_backend::memory(device_id device) noexcept {
  return guarded([&]() -> result<memory_use> {
    if (auto cause = check_call("memory", {device})) return *cause;
    return memory_.use(device);
  });
}

result<peer_description> host_backend::peer(device_id from, device_id to) noexcept {
  return guarded([&]() -> result<peer_description> {
    if (auto cause = check_call("peer", {from, to})) return *cause;
    const device_id a{from.value() - first_.value()};
    const device_id b{to.value() - first_.value()};
    peer_description known_of;
    if (a == b) {
      known_of.why = "a device is not a peer of itself";
      return known_of;
    }
    const link_path& path = machine_.peer_paths[machine_.pair(a, b)];
    known_of.can_access = machine_.can_access(a, b);
    known_of.hops = static_cast<int>(path.links.size());
    if (!known_of.can_access) {
      known_of.why = path.links.empty() ? "no link between " + to_string(from) + " and " + to_string(to)
                                        : "the topology '" + machine_.name + "' does not allow " + to_string(from) +
                                              " to map the memory of " + to_string(to);
      return known_of;
    }
    // the slowest link names the pair, as it limits it
    const auto slowest = std::min_element(path.links.begin(), path.links.end(), [this](int x, int y) {
      return machine_.links[static_cast<std::size_t>(x)].bytes_per_second <
             machine_.links[static_cast<std::size_t>(y)].bytes_per_second;
    });
    if (slowest != path.links.end()) known_of.kind = machine_.links[static_cast<std::size_t>(*slowest)].kind;
    known_of.atomics = true;
    known_of.native_atomics = path.native_atomics;
    known_of.array_access = true;  // one memory, one layout
    if (path.bytes_per_second > 0) {
      known_of.bytes_per_second = path.bytes_per_second;
      known_of.latency = path.latency;
    } else {
      known_of.why = "bandwidth and latency are not published for this link; measure_peers() finds them";
    }
    const auto rank = std::lower_bound(bandwidths_.begin(), bandwidths_.end(), path.bytes_per_second, std::greater<>{});
    known_of.performance_rank = static_cast<int>(rank - bandwidths_.begin());
    return known_of;
  });
}

// ---- allocate -------------------------------------------------------------------------------------------------------

result<void*> host_backend::allocate(device_id device, bytes size, memory_kind kind) noexcept {
  if (auto cause = check_call("allocate", {device})) return *cause;
  if (auto cause = scheduler_.lost(device)) return error{*cause};
  const auto& description = descriptions_[static_cast<std::size_t>(device.value() - first_.value())];
  if (kind == memory_kind::unified && !has_all(description.capabilities, capability::unified_memory)) {
    return make_error(errc::unsupported, to_string(device) + " (" + description.name +
                                             ") has no unified memory; take pinned memory instead");
  }
  try {
    auto made = memory_.allocate(device, size.size(), kind);
    if (order_ && made) order_->renewed(*made, size.value());
    return made;
  } catch (const std::bad_alloc&) {
    return make_error(errc::out_of_memory, "the host has no memory left for the tables of " + to_string(device));
  }
}

result<void> host_backend::release(void* base) noexcept {
  return guarded([&]() -> result<void> {
    if (scheduler_.closed() || here_.forked()) return {};  // everything went with the machine
    if (order_) note_reuse(base);
    return memory_.release(base);
  });
}

result<memory_description> host_backend::find(const void* address) noexcept {
  return guarded([&]() -> result<memory_description> {
    if (auto cause = check_call("find", {})) return *cause;
    const auto found = memory_.find(address);
    if (!found) return memory_.absent(address);
    memory_description made;
    made.base = found->user;
    made.size = bytes{found->size};
    made.kind = found->kind;
    made.device = found->kind == memory_kind::mapped ? found->by : found->owner;
    made.pending = found->pending.load(std::memory_order_acquire);  // pairs with release in ~pin
    return made;
  });
}

result<void> host_backend::adopt(device_id device, void* base, bytes size) noexcept {
  return guarded([&]() -> result<void> {
    if (auto cause = check_call("adopt", {device})) return *cause;
    auto made = memory_.adopt(device, base, size.size());
    if (order_ && made) order_->renewed(base, size.value());
    return made;
  });
}

result<event_ref> host_backend::prefetch(stream_handle handle, void* base, bytes size) noexcept {
  return guarded([&]() -> result<event_ref> {
    auto stream = stream_of("prefetch", handle);
    if (!stream) return std::move(stream).error();
    auto memory = memory_.find(base);
    if (!memory || memory->kind != memory_kind::unified)
      return make_error(errc::invalid_argument, hex(base) + " is not unified memory");
    const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(base) - memory->user);
    if (size.size() > memory->size - offset)
      return make_error(errc::out_of_range, "a prefetch past the end of its memory");
    // The host's memory is every virtual device's memory: what a prefetch can do here is to have the pages present.
    std::byte* first = memory->device_side + offset;
    operation_note note;
    note.kind = trace_kind::fill;
    note.bytes = size.value();
    note.name = "prefetch";
    auto mark = order_ ? order_->prefetch(handle, (*stream)->device(), base, size) : nullptr;
    return submitted(scheduler_.submit(
                         **stream,
                         [held = pin{std::move(memory)}, first, count = size.size()]() -> work::outcome {
                           for (std::size_t i = 0; i < count; i += page_size())
                             static_cast<void>(*static_cast<volatile std::byte*>(first + i));
                           return nullptr;
                         },
                         note),
                     std::move(mark));
  });
}

result<void> host_backend::advise(void* base, bytes size, memory_advice, device_id device) noexcept {
  return guarded([&]() -> result<void> {
    if (auto cause = check_call("advise", {device})) return *cause;
    const auto memory = memory_.find(base);
    if (!memory || memory->kind != memory_kind::unified)
      return make_error(errc::invalid_argument, hex(base) + " is not unified memory");
    if (size.size() > memory->size - static_cast<std::size_t>(static_cast<std::byte*>(base) - memory->user)) {
      return make_error(errc::out_of_range, "advice past the end of its memory");
    }
    return {};  // advice is allowed to change nothing, and one memory leaves nothing to change
  });
}

// ---- order ----------------------------------------------------------------------------------------------------------

result<event_ref> host_backend::submitted(event_ref event, order_watch::mark_ref mark) const {
  if (event) {
    if (mark) event->order_mark = std::move(mark);
    return event;
  }
  if (scheduler_.closed()) return closed_machine();
  return make_error(
      errc::resource_exhausted,
      "no thread could be started for a stream; raise the limit of threads (ulimit -u) or use fewer streams");
}

result<stream_handle> host_backend::create_stream(device_id device, int priority, bool told) noexcept {
  if (auto cause = check_call("create_stream", {device})) return *cause;
  try {
    if (const host_stream* made = scheduler_.create(device, priority, told)) {
      if (order_ && !told) order_->quiet(made->handle());
      return made->handle();
    }
    return make_error(errc::resource_exhausted,
                      "a stream on " + to_string(device) + ": there are too many streams already");
  } catch (const std::exception& failed) {
    return make_error(errc::resource_exhausted, "a stream on " + to_string(device) + ": " + failed.what());
  }
}

void host_backend::destroy_stream(stream_handle stream) noexcept {
  if (here_.forked()) return;
  scheduler_.destroy(stream);
  if (order_) order_->stream_gone(stream);
}

result<stream_handle> host_backend::default_stream(device_id device) noexcept {
  return guarded([&]() -> result<stream_handle> {
    if (auto cause = check_call("default_stream", {device})) return *cause;
    return default_streams_[static_cast<std::size_t>(device.value() - first_.value())];
  });
}

result<event_ref> host_backend::record(stream_handle handle) noexcept {
  return guarded([&]() -> result<event_ref> {
    auto stream = stream_of("record", handle);
    if (!stream) return std::move(stream).error();
    auto mark = order_ ? order_->recorded(handle) : nullptr;
    return submitted(scheduler_.submit(**stream, [] { return work::outcome{}; }), std::move(mark));
  });
}

result<void> host_backend::wait_event(stream_handle handle, const event_ref& event) noexcept {
  return guarded([&]() -> result<void> {
    auto stream = stream_of("wait_event", handle);
    if (!stream) return std::move(stream).error();
    if (!event) return {};
    if (order_) order_->wait(handle, *event, this);
    if (event->finished() && !event->cause()) return {};
    auto made = submitted(scheduler_.submit(**stream, [] { return work::outcome{}; }, {}, {}, {}, event));
    if (!made) return std::move(made).error();
    return {};
  });
}

result<event_ref> host_backend::create_gate() noexcept {
  return guarded([&]() -> result<event_ref> {
    if (auto cause = check_call("create_gate", {})) return *cause;
    return submitted(scheduler_.create_gate(), order_ ? order_->create_gate() : nullptr);
  });
}

void host_backend::open_gate(const event_ref& gate, std::shared_ptr<const error> cause) noexcept {
  if (order_) order_->open_gate(*gate);
  scheduler_.open_gate(*gate, std::move(cause));
}

wait_outcome host_backend::wait(event_record& event, wait_deadline deadline, const std::stop_token& stop) noexcept {
  if (here_.forked()) {
    // nobody here completes it
    if (!event.finished()) event.complete(shared_error(forked()));
    return event.cause() ? wait_outcome::failed : wait_outcome::ok;
  }
  const wait_outcome outcome = scheduler_.wait(event, deadline, stop);
  if (order_ && (outcome == wait_outcome::ok || outcome == wait_outcome::failed)) order_->host_waited(event);
  return outcome;
}

bool host_backend::ready(event_record& event) noexcept {
  if (here_.forked()) return event.finished();
  const bool is_ready = scheduler_.ready(event);
  if (order_ && is_ready) order_->host_waited(event);
  return is_ready;
}

bool host_backend::idle(stream_handle handle) noexcept {
  if (here_.forked()) return true;  // nothing runs here, and what was ending when it forked never says so
  const host_stream* stream = scheduler_.find(handle);
  const auto mark = order_ && stream != nullptr ? order_->recorded(handle) : nullptr;
  const bool is_idle = stream == nullptr || stream->idle();
  if (mark && is_idle) order_->host_waited(mark);
  return is_idle;
}

bool host_backend::settled(stream_handle handle) noexcept {
  if (here_.forked()) return true;
  const host_stream* stream = scheduler_.find(handle);
  const auto mark = order_ && stream != nullptr ? order_->recorded(handle) : nullptr;
  const bool is_settled = stream == nullptr || stream->settled();
  if (mark && is_settled) order_->host_waited(mark);
  return is_settled;
}

result<wait_outcome> host_backend::synchronize(stream_handle handle, wait_deadline deadline,
                                               const std::stop_token& stop) noexcept {
  return guarded([&]() -> result<wait_outcome> {
    host_stream* stream = scheduler_.find(handle);
    if (auto cause = stream != nullptr ? check_call("synchronize", {stream->device()}) : check_call("synchronize", {}))
      return *cause;
    if (stream == nullptr)
      return make_error(errc::not_found, "the stream was destroyed, or belongs to another machine");
    const auto mark = order_ ? order_->recorded(handle) : nullptr;
    auto done = scheduler_.synchronize(*stream, deadline, stop);
    // an error is a failure of work that has ended
    if (mark && (!done || *done == wait_outcome::ok)) order_->host_waited(mark);
    return done;
  });
}

bool host_backend::drain(device_id device, wait_deadline deadline) noexcept {
  if (scheduler_.closed() || here_.forked()) return true;
  bool is_done = true;
  scheduler_.for_each_stream(device, [&](host_stream& stream) {
    if (!is_done) return;
    const auto mark = order_ ? order_->recorded(stream.handle()) : nullptr;
    is_done = scheduler_.drain(stream, deadline);
    if (mark && is_done) order_->host_waited(mark);
  });
  return is_done;
}

std::vector<stream_handle> host_backend::streams_of(device_id device) { return scheduler_.streams_of(device); }

// ---- watch ----------------------------------------------------------------------------------------------------------

link_traffic host_backend::traffic() { return transfers_.traffic(); }

std::uint64_t host_backend::watch_traffic(const traffic_source& source) noexcept {
  for (const device_id end : {source.from, source.to}) {
    if (end != device_id{} && !known(end)) return 0;
  }
  const auto id = guarded([&]() -> result<std::uint64_t> { return transfers_.watch(source); });
  return id ? *id : 0;
}

void host_backend::unwatch_traffic(std::uint64_t id) noexcept { transfers_.unwatch(id); }

std::vector<order_violation> host_backend::order_violations() {
  return order_ ? order_->violations() : std::vector<order_violation>{};
}

void host_backend::note_copy(stream_handle order, const copy_request& whole) noexcept {
  const host_stream* stream = order_ ? scheduler_.find(order) : nullptr;
  if (stream != nullptr) static_cast<void>(order_->copies(order, stream->device(), {&whole, 1}));
}

void host_backend::note_reuse(void* base) noexcept {
  if (!order_) return;
  if (const auto memory = memory_.find(base); memory && memory->user == base && !memory->source)
    order_->renewed(base, memory->size);
}

std::shared_ptr<const error> host_backend::lost(device_id device) noexcept {
  return known(device) ? scheduler_.cause_of_loss(device) : nullptr;
}

result<void> host_backend::reset(device_id device) noexcept {
  return guarded([&]() -> result<void> {
    if (auto cause = check_call("reset", {device})) return *cause;
    // what is still queued is refused while the device counts as lost
    scheduler_.lose(device, shared_error(make_error(errc::cancelled, to_string(device) + " is being reset")));
    for (const stream_handle handle : scheduler_.streams_of(device)) {
      if (host_stream* stream = scheduler_.find(handle))
        static_cast<void>(scheduler_.synchronize(*stream, no_deadline, {}));
    }
    blocks_.forget(device);
    memory_.forget(device);
    scheduler_.restore(device);
    return {};
  });
}

void host_backend::end_work() noexcept {
  if (!here_.forked()) scheduler_.close();
}

void host_backend::close() noexcept {
  if (here_.forked()) return;  // its threads and its work are the parent's
  scheduler_.close();
  sharing_.end();
  multicasts_.clear();
  memory_.clear();
  blocks_.clear();
}

// ---- factory --------------------------------------------------------------------------------------------------------

result<std::unique_ptr<backend>> open(const backend_options& options) noexcept {
  try {
    if (auto cause = wrong_model(options.model)) return *cause;
    topology machine;
    if (options.machine) {
      machine = *options.machine;
    } else {
      if (options.device_count < 1 || options.device_count > max_devices) {
        return make_error(errc::invalid_argument, "a machine has 1 to " + std::to_string(max_devices) +
                                                      " host devices, asked for " +
                                                      std::to_string(options.device_count));
      }
      const auto share = memory_of_host().total.value() / 2 / static_cast<std::uint64_t>(options.device_count);
      machine = host_topology(options.device_count, bytes{std::max<std::uint64_t>(share, page_size())});
      for (topology_device& d : machine.devices) d.compute_units = parking::cores();
    }
    if (options.memory_per_device) {
      for (topology_device& d : machine.devices) d.memory = *options.memory_per_device;
    }
    return std::unique_ptr<backend>{std::make_unique<host_backend>(options, std::move(machine))};
  } catch (const std::exception& failed) {
    return make_error(errc::resource_exhausted, std::string{"the host backend: "} + failed.what());
  }
}

}  // namespace weft::host
