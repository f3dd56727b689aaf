// SPDX-License-Identifier: Apache-2.0
#include "backends/host/host_backend.hpp"

#include "backend/address.hpp"
#include "backends/host/factory.hpp"
#include "core/errors/make_error.hpp"
#include "core/fnv.hpp"
#include "os/parking.hpp"
#include "weft/core/host_memory.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace weft::host {
namespace {

/// A name-based identity: the same for the same machine and place, different between equal models.
std::string uuid_of(const topology& machine, std::size_t index) {
  detail::fnv hash;
  hash.add_text("weft-host/" + machine.name + "/" + std::to_string(index));
  const std::uint64_t a = hash.value();
  std::uint64_t b = (a ^ 0x9e3779b97f4a7c15) * 0x100000001b3;  // other bits of the same
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

backend_identity identity_of(device_id first, topology machine) {
  backend_identity made{backend_kind::host, first, {}, std::move(machine)};
  for (std::size_t i = 0; i < made.layout.devices.size(); ++i) {
    const topology_device& d = made.layout.devices[i];
    device_description one;
    one.name = d.name;
    one.kind = backend_kind::host;
    one.uuid = uuid_of(made.layout, i);
    one.pci_address = d.pci_address;
    one.numa_node = d.numa_node;
    one.memory = d.memory;
    one.compute_units = d.compute_units;
    one.capabilities = d.capabilities;
    one.simulated = made.layout.simulated;
    made.devices.push_back(std::move(one));
  }
  return made;
}

}  // namespace

host_backend::host_backend(const backend_options& options, topology machine)
    : backend(identity_of(options.first_device, std::move(machine))),
      bandwidths_(bandwidths_of(layout())),
      check_access_(options.check_access),
      faults_(layout(), first_device()),
      memory_(layout(), first_device(), memory_options_of(options), faults_),
      sharing_(layout(), first_device(), memory_, identities_of(layout())),
      order_(options.check_order ? std::make_unique<order_watch>(memory_) : nullptr),
      transfers_(layout(), first_device(), memory_, faults_),
      scheduler_(
          layout(), first_device(), this,
          {options.clock, options.wait_policy, options.max_in_flight, options.model, options.hold, options.epoch},
          faults_) {
  if (options.logical_devices > 1) {
    notes_.emplace_back("the host's devices are not split into " + std::to_string(options.logical_devices) +
                        " each: they are virtual, and there are as many as machine_options::devices asks for");
  }
  for (std::size_t i = 0; i < devices().size(); ++i)
    default_streams_.push_back(scheduler_.create(global(i), 0, true)->handle());
}

host_backend::~host_backend() { close(); }

std::optional<error> host_backend::injected(std::string_view function, std::initializer_list<device_id> ids) {
  return faults_.empty() ? std::nullopt : faults_.on_call(function, {ids.begin(), ids.size()});
}

result<host_stream*> host_backend::stream_of(std::string_view function, stream_handle handle) {
  host_stream* stream = scheduler_.find(handle);
  if (auto cause = stream != nullptr ? injected(function, {stream->device()}) : injected(function, {})) return *cause;
  if (stream == nullptr) return make_error(errc::not_found, "the stream was destroyed, or belongs to another machine");
  if (auto cause = scheduler_.lost(stream->device())) return error{*cause};
  return stream;
}

// ---- discover -------------------------------------------------------------------------------------------------------

result<memory_use> host_backend::do_memory(device_id device) {
  if (auto cause = injected("memory", {device})) return *cause;
  return memory_.use(device);
}

result<peer_description> host_backend::do_peer(device_id from, device_id to) {
  if (auto cause = injected("peer", {from, to})) return *cause;
  peer_description known_of;
  const link_path& path = path_between(from, to);
  known_of.can_access = has_access(from, to);
  known_of.hops = static_cast<int>(path.links.size());
  if (!known_of.can_access) {
    known_of.why = path.links.empty() ? "no link between " + to_string(from) + " and " + to_string(to)
                                      : "the topology '" + layout().name + "' does not allow " + to_string(from) +
                                            " to map the memory of " + to_string(to);
    return known_of;
  }
  // the slowest link names the pair, as it limits it
  const auto slowest = std::min_element(path.links.begin(), path.links.end(), [this](int x, int y) {
    return layout().links[static_cast<std::size_t>(x)].bytes_per_second <
           layout().links[static_cast<std::size_t>(y)].bytes_per_second;
  });
  if (slowest != path.links.end()) known_of.kind = layout().links[static_cast<std::size_t>(*slowest)].kind;
  known_of.atomics = true;
  known_of.native_atomics = path.native_atomics;
  known_of.array_access = true;  // one memory, one layout
  if (path.bytes_per_second > 0 || path.latency.count() > 0) known_of.latency = path.latency;
  if (path.bytes_per_second > 0) {
    known_of.bytes_per_second = path.bytes_per_second;
  } else {
    known_of.why = known_of.latency
                       ? "bandwidth is not published for this link; measure_peers() finds it"
                       : "bandwidth and latency are not published for this link; measure_peers() finds them";
  }
  const auto rank = std::lower_bound(bandwidths_.begin(), bandwidths_.end(), path.bytes_per_second, std::greater<>{});
  known_of.performance_rank = static_cast<int>(rank - bandwidths_.begin());
  return known_of;
}

// ---- allocate -------------------------------------------------------------------------------------------------------

result<void*> host_backend::do_allocate(device_id device, bytes size, memory_kind kind) {
  if (auto cause = injected("allocate", {device})) return *cause;
  if (auto cause = scheduler_.lost(device)) return error{*cause};
  auto made = memory_.allocate(device, size.size(), kind);
  if (order_ && made) order_->renewed(*made, size.value());
  return made;
}

result<void> host_backend::do_release(void* base) {
  if (order_) do_note_reuse(base);
  return memory_.release(base);
}

result<memory_description> host_backend::do_find(const void* address) {
  if (auto cause = injected("find", {})) return *cause;
  return memory_.describe(address);
}

result<void> host_backend::do_adopt(device_id device, void* base, bytes size) {
  if (auto cause = injected("adopt", {device})) return *cause;
  auto made = memory_.adopt(device, base, size.size());
  if (order_ && made) order_->renewed(base, size.value());
  return made;
}

result<event_ref> host_backend::do_prefetch(stream_handle handle, void* base, bytes size) {
  auto stream = stream_of("prefetch", handle);
  if (!stream) return std::move(stream).error();
  auto memory = memory_.find(base);
  if (!memory) return not_allocated(base);
  const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(base) - memory->user);
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
}

result<void> host_backend::do_advise(void*, bytes, memory_advice, device_id device) {
  if (auto cause = injected("advise", {device})) return *cause;
  return {};  // advice is allowed to change nothing, and one memory leaves nothing to change
}

// ---- order ----------------------------------------------------------------------------------------------------------

result<event_ref> host_backend::submitted(event_ref event, order_watch::mark_ref mark) const {
  if (event) {
    if (mark) event->order_mark = std::move(mark);
    return event;
  }
  return scheduler_.closed() ? closed_machine() : no_thread();
}

result<stream_handle> host_backend::do_create_stream(device_id device, int priority, bool told) {
  if (auto cause = injected("create_stream", {device})) return *cause;
  if (const host_stream* made = scheduler_.create(device, priority, told)) {
    if (order_ && !told) order_->quiet(made->handle());
    return made->handle();
  }
  return make_error(errc::resource_exhausted,
                    "a stream on " + to_string(device) + ": there are too many streams already");
}

void host_backend::do_destroy_stream(stream_handle stream) {
  scheduler_.destroy(stream);
  if (order_) order_->stream_gone(stream);
}

result<stream_handle> host_backend::do_default_stream(device_id device) {
  if (auto cause = injected("default_stream", {device})) return *cause;
  return default_streams_[local(device)];
}

result<event_ref> host_backend::do_record(stream_handle handle) {
  auto stream = stream_of("record", handle);
  if (!stream) return std::move(stream).error();
  auto mark = order_ ? order_->recorded(handle) : nullptr;
  return submitted(scheduler_.submit_or_run(**stream, true, [] { return work::outcome{}; }), std::move(mark));
}

result<void> host_backend::do_wait_event(stream_handle handle, const event_ref& event) {
  auto stream = stream_of("wait_event", handle);
  if (!stream) return std::move(stream).error();
  if (!event) return {};
  if (order_) order_->wait(handle, *event, this);
  if (event->finished() && !event->cause()) return {};
  auto made = submitted(scheduler_.submit(**stream, [] { return work::outcome{}; }, {}, {}, {}, event));
  if (!made) return std::move(made).error();
  return {};
}

result<event_ref> host_backend::do_create_gate() {
  if (auto cause = injected("create_gate", {})) return *cause;
  return submitted(scheduler_.create_gate(), order_ ? order_->create_gate() : nullptr);
}

void host_backend::do_open_gate(const event_ref& gate, std::shared_ptr<const error> cause) {
  if (order_) order_->open_gate(*gate);
  scheduler_.open_gate(*gate, std::move(cause));
}

wait_outcome host_backend::do_wait(event_record& event, wait_deadline deadline, const std::stop_token& stop) noexcept {
  const wait_outcome outcome = scheduler_.wait(event, deadline, stop);
  if (order_ && (outcome == wait_outcome::ok || outcome == wait_outcome::failed)) order_->host_waited(event);
  return outcome;
}

bool host_backend::do_ready(event_record& event) {
  const bool is_ready = scheduler_.ready(event);
  if (order_ && is_ready) order_->host_waited(event);
  return is_ready;
}

bool host_backend::do_idle(stream_handle handle) {
  const host_stream* stream = scheduler_.find(handle);
  const auto mark = order_ && stream != nullptr ? order_->recorded(handle) : nullptr;
  const bool is_idle = stream == nullptr || stream->idle();
  if (mark && is_idle) order_->host_waited(mark);
  return is_idle;
}

bool host_backend::do_settled(stream_handle handle) {
  const host_stream* stream = scheduler_.find(handle);
  const auto mark = order_ && stream != nullptr ? order_->recorded(handle) : nullptr;
  const bool is_settled = stream == nullptr || stream->settled();
  if (mark && is_settled) order_->host_waited(mark);
  return is_settled;
}

result<wait_outcome> host_backend::do_synchronize(stream_handle handle, wait_deadline deadline,
                                                  const std::stop_token& stop) {
  host_stream* stream = scheduler_.find(handle);
  if (auto cause = stream != nullptr ? injected("synchronize", {stream->device()}) : injected("synchronize", {}))
    return *cause;
  if (stream == nullptr) return make_error(errc::not_found, "the stream was destroyed, or belongs to another machine");
  const auto mark = order_ ? order_->recorded(handle) : nullptr;
  auto done = scheduler_.synchronize(*stream, deadline, stop);
  // an error is a failure of work that has ended
  if (mark && (!done || *done == wait_outcome::ok)) order_->host_waited(mark);
  return done;
}

bool host_backend::do_drain(device_id device, wait_deadline deadline) {
  bool is_done = true;
  scheduler_.for_each_stream(device, [&](host_stream& stream) {
    if (!is_done) return;
    const auto mark = order_ ? order_->recorded(stream.handle()) : nullptr;
    is_done = scheduler_.drain(stream, deadline);
    if (mark && is_done) order_->host_waited(mark);
  });
  return is_done;
}

std::vector<stream_handle> host_backend::do_streams_of(device_id device) { return scheduler_.streams_of(device); }

bool host_backend::do_tells(stream_handle handle) {
  host_stream* const stream = scheduler_.find(handle);
  return stream == nullptr || scheduler_.tells(*stream);
}

// ---- watch ----------------------------------------------------------------------------------------------------------

link_traffic host_backend::do_traffic() { return transfers_.traffic().now(); }

std::uint64_t host_backend::do_watch_traffic(const traffic_source& source) {
  return transfers_.traffic().watch(source);
}

void host_backend::do_unwatch_traffic(std::uint64_t id) { transfers_.traffic().unwatch(id); }

std::vector<order_violation> host_backend::do_order_violations() {
  return order_ ? order_->violations() : std::vector<order_violation>{};
}

void host_backend::do_note_copy(stream_handle order, const copy_request& whole) {
  const host_stream* stream = order_ ? scheduler_.find(order) : nullptr;
  if (stream != nullptr) static_cast<void>(order_->copies(order, stream->device(), {&whole, 1}));
}

void host_backend::do_note_reuse(void* base) {
  if (!order_) return;
  if (const auto memory = memory_.find(base); memory && memory->user == base && !memory->source)
    order_->renewed(base, memory->size);
}

std::shared_ptr<const error> host_backend::do_lost(device_id device) { return scheduler_.cause_of_loss(device); }

result<void> host_backend::do_reset(device_id device) {
  if (auto cause = injected("reset", {device})) return *cause;
  // what is still queued is refused while the device counts as lost
  scheduler_.lose(device, shared_error(make_error(errc::cancelled, to_string(device) + " is being reset")));
  for (const stream_handle handle : scheduler_.streams_of(device)) {
    if (host_stream* stream = scheduler_.find(handle))
      static_cast<void>(scheduler_.synchronize(*stream, no_deadline, {}));
  }
  await_others(device);
  blocks_.forget(device);
  memory_.forget(device);
  scheduler_.restore(device);
  return {};
}

void host_backend::do_end_work() noexcept { scheduler_.close(); }

void host_backend::do_close() noexcept {
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
