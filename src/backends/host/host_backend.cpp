// SPDX-License-Identifier: Apache-2.0
#include "backends/host/host_backend.hpp"

#include "backend/parking.hpp"
#include "backends/host/factory.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <thread>
#include <unistd.h>

namespace weft::host {
namespace {

error make(errc code, std::string what, error_scope scope = error_scope::call) {
  error cause;
  cause.code = code;
  cause.scope = scope;
  cause.what = std::move(what);
  cause.where = {};
  return cause;
}

std::shared_ptr<const error> shared(error cause) { return std::make_shared<const error>(std::move(cause)); }

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
  return make(errc::closed, "this machine belongs to process " + std::to_string(::getppid()) +
                                ": the child of a fork has none of its threads. Make a machine in the child, or fork "
                                "before there is one");
}

bytes memory_of_host() {
  const auto pages = ::sysconf(_SC_PHYS_PAGES);
  return bytes{static_cast<std::uint64_t>(pages > 0 ? pages : 1) * page_size()};
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

std::string hex(const void* address) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%zx", reinterpret_cast<std::size_t>(address));
  return text;
}

/// A duration that a model may have; false for NaN too.
bool is_time(double seconds) { return seconds >= 0 && std::isfinite(seconds); }

/// Indices of a range; the largest number when that is more than 64 bits hold.
std::int64_t items_of(const kernel_range& range) {
  std::int64_t items = 1;
  for (std::size_t d = 0; d < std::min(static_cast<std::size_t>(range.dimensions), range.end.size()); ++d) {
    const std::int64_t extent = std::max<std::int64_t>(range.end[d] - range.begin[d], 0);
    if (__builtin_mul_overflow(items, extent, &items)) return std::numeric_limits<std::int64_t>::max();
  }
  return items;
}

std::optional<error> wrong_model(const simulation& model) {
  if (model.launch_latency.count() < 0 || model.delay.count() < 0) {
    return make(errc::invalid_argument, "a simulation has no negative times: launch_latency is " +
                                            std::to_string(model.launch_latency.count()) + " ns, delay is " +
                                            std::to_string(model.delay.count()) + " ns");
  }
  if (is_time(model.noise)) return std::nullopt;
  return make(errc::invalid_argument,
              "the noise of a simulation is a standard deviation, 0 or more, not " + std::to_string(model.noise));
}

}  // namespace

host_backend::host_backend(const backend_options& options, topology machine)
    : machine_(std::move(machine)),
      first_(options.first_device),
      check_access_(options.check_access),
      faults_(machine_),
      memory_(machine_, first_, memory_options_of(options), faults_),
      sharing_(machine_, first_, memory_, identities_of(machine_)),
      order_(options.check_order ? std::make_unique<order_watch>(memory_) : nullptr),
      transfers_(machine_, first_, memory_, faults_),
      scheduler_(machine_, first_, this,
                 {options.clock, options.wait_policy, options.max_in_flight, options.model, options.hold}, faults_) {
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

std::optional<error> host_backend::check_call(std::string_view function,
                                              std::initializer_list<device_id> ids) noexcept {
  if (here_.forked()) return forked();
  if (scheduler_.closed()) return make(errc::machine_closed, "the machine is closed");
  for (const device_id id : ids) {
    if (!known(id)) {
      return make(errc::invalid_device, "there is no " + to_string(id) + ": this machine has " +
                                            std::to_string(machine_.device_count()) + " devices, from " +
                                            to_string(first_));
    }
  }
  if (!faults_.empty()) return faults_.on_call(function, {ids.begin(), ids.size()});
  return std::nullopt;
}

result<host_stream*> host_backend::stream_of(std::string_view function, stream_handle handle) noexcept {
  host_stream* stream = scheduler_.find(handle);
  if (auto cause = stream != nullptr ? check_call(function, {stream->device()}) : check_call(function, {}))
    return *cause;
  if (stream == nullptr) return make(errc::not_found, "the stream was destroyed, or belongs to another machine");
  if (auto cause = scheduler_.lost(stream->device())) return error{*cause};
  return stream;
}

// ---- discover -------------------------------------------------------------------------------------------------------

result<memory_use> host_backend::memory(device_id device) noexcept {
  if (auto cause = check_call("memory", {device})) return *cause;
  return memory_.use(device);
}

result<peer_description> host_backend::peer(device_id from, device_id to) noexcept {
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
  // rank 0 is the best bandwidth class of this machine, 1 the next, and so on
  std::vector<double> classes;
  for (std::size_t i = 0; i < machine_.peer_paths.size(); ++i) {
    if (machine_.access[i]) classes.push_back(machine_.peer_paths[i].bytes_per_second);
  }
  std::sort(classes.begin(), classes.end(), std::greater<>{});
  classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
  known_of.performance_rank =
      static_cast<int>(std::find(classes.begin(), classes.end(), path.bytes_per_second) - classes.begin());
  return known_of;
}

// ---- allocate -------------------------------------------------------------------------------------------------------

result<void*> host_backend::allocate(device_id device, bytes size, memory_kind kind) noexcept {
  if (auto cause = check_call("allocate", {device})) return *cause;
  if (auto cause = scheduler_.lost(device)) return error{*cause};
  const auto& description = descriptions_[static_cast<std::size_t>(device.value() - first_.value())];
  if (kind == memory_kind::unified && !has_all(description.capabilities, capability::unified_memory)) {
    return make(errc::unsupported,
                to_string(device) + " (" + description.name + ") has no unified memory; take pinned memory instead");
  }
  try {
    auto made = memory_.allocate(device, size.size(), kind);
    if (order_ && made) order_->renewed(*made, size.value());
    return made;
  } catch (const std::bad_alloc&) {
    return make(errc::out_of_memory, "the host has no memory left for the tables of " + to_string(device));
  }
}

result<void> host_backend::release(void* base) noexcept {
  if (scheduler_.closed() || here_.forked()) return {};  // everything went with the machine
  if (order_) note_reuse(base);
  return memory_.release(base);
}

result<memory_description> host_backend::find(const void* address) noexcept {
  if (auto cause = check_call("find", {})) return *cause;
  const auto found = memory_.find(address);
  if (!found) return make(errc::not_found, hex(address) + " lies in no allocation of this machine; was it freed?");
  memory_description made;
  made.base = found->user;
  made.size = bytes{found->size};
  made.kind = found->kind;
  made.device = found->kind == memory_kind::mapped ? found->by : found->owner;
  made.pending = found->pending.load(std::memory_order_acquire);  // pairs with release in ~pin
  return made;
}

result<void> host_backend::adopt(device_id device, void* base, bytes size) noexcept {
  if (auto cause = check_call("adopt", {device})) return *cause;
  auto made = memory_.adopt(device, base, size.size());
  if (order_ && made) order_->renewed(base, size.value());
  return made;
}

result<event_ref> host_backend::prefetch(stream_handle handle, void* base, bytes size) noexcept {
  auto stream = stream_of("prefetch", handle);
  if (!stream) return std::move(stream).error();
  auto memory = memory_.find(base);
  if (!memory || memory->kind != memory_kind::unified)
    return make(errc::invalid_argument, hex(base) + " is not unified memory");
  const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(base) - memory->user);
  if (size.size() > memory->size - offset) return make(errc::out_of_range, "a prefetch past the end of its memory");
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

result<void> host_backend::advise(void* base, bytes size, memory_advice, device_id device) noexcept {
  if (auto cause = check_call("advise", {device})) return *cause;
  const auto memory = memory_.find(base);
  if (!memory || memory->kind != memory_kind::unified)
    return make(errc::invalid_argument, hex(base) + " is not unified memory");
  if (size.size() > memory->size - static_cast<std::size_t>(static_cast<std::byte*>(base) - memory->user)) {
    return make(errc::out_of_range, "advice past the end of its memory");
  }
  return {};  // advice is allowed to change nothing, and one memory leaves nothing to change
}

// ---- share ----------------------------------------------------------------------------------------------------------

result<void> host_backend::enable_peer(device_id from, device_id to) noexcept {
  if (auto cause = check_call("enable_peer", {from, to})) return *cause;
  if (from == to) return make(errc::invalid_device, to_string(from) + " is not a peer of itself");
  const device_id a{from.value() - first_.value()};
  const device_id b{to.value() - first_.value()};
  if (!machine_.can_access(a, b)) {
    return make(errc::peer_unsupported, to_string(from) + " cannot map " + to_string(to) + ": " + peer(from, to)->why);
  }
  return memory_.enable(from, to);
}

result<void> host_backend::disable_peer(device_id from, device_id to) noexcept {
  if (auto cause = check_call("disable_peer", {from, to})) return *cause;
  if (from == to) return make(errc::invalid_device, to_string(from) + " is not a peer of itself");
  if (!machine_.can_access(device_id{from.value() - first_.value()}, device_id{to.value() - first_.value()})) {
    return make(errc::peer_unsupported, to_string(from) + " cannot map " + to_string(to) + ": " + peer(from, to)->why);
  }
  return memory_.disable(from, to);
}

bool host_backend::peer_enabled(device_id from, device_id to) noexcept {
  return known(from) && known(to) && memory_.enabled(from, to);
}

result<void*> host_backend::map_peer(device_id by, void* address, bytes size) noexcept {
  if (auto cause = check_call("map_peer", {by})) return *cause;
  if (address == nullptr || size.value() == 0) return make(errc::invalid_argument, "mapping null or zero bytes");
  const auto source = memory_.find(address);
  if (!source) return make(errc::not_found, hex(address) + " lies in no allocation of this machine; was it freed?");
  if (source->owner == by) return make(errc::invalid_device, to_string(by) + " owns this memory and needs no mapping");
  if (!memory_.enabled(by, source->owner)) {
    const device_id a{by.value() - first_.value()};
    const device_id b{source->owner.value() - first_.value()};
    if (!machine_.can_access(a, b)) {
      return make(errc::peer_unsupported,
                  to_string(by) + " cannot map " + to_string(source->owner) + ": " + peer(by, source->owner)->why);
    }
    return make(errc::not_enabled, to_string(by) + " has no access to " + to_string(source->owner) +
                                       ": enable it (peer_access) before mapping");
  }
  try {
    return memory_.map(by, address, size.size());
  } catch (const std::bad_alloc&) {
    return make(errc::resource_exhausted, "the host has no memory left for a mapping");
  }
}

result<void> host_backend::unmap_peer(device_id by, void* mapped) noexcept {
  if (scheduler_.closed() || here_.forked()) return {};
  if (auto cause = check_call("unmap_peer", {by})) return *cause;
  return memory_.unmap(by, mapped);
}

result<std::shared_ptr<std::byte>> host_backend::host_window(device_id by, void* address, bytes size) noexcept {
  if (auto cause = check_call("host_window", {by})) return *cause;
  auto memory = memory_.find(address, size.value());
  if (!memory) return make(errc::not_found, hex(address) + " lies in no allocation of this machine; was it freed?");
  const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(address) - memory->user);
  if (size.value() > memory->size - offset) {
    return make(errc::out_of_range, "a window of " + to_string(size) + " at offset " + std::to_string(offset) +
                                        " of an allocation of " + to_string(bytes{memory->size}));
  }
  auto seen = memory_.resolve(by, *memory, address);
  if (!seen) return std::move(seen).error();
  std::byte* at = *seen;
  return std::shared_ptr<std::byte>{std::move(memory), at};
}

namespace {

error no_tables() { return make(errc::resource_exhausted, "the host has no memory left for shared memory"); }

}  // namespace

result<void*> host_backend::allocate_shareable(device_id device, bytes size, handle_family family) noexcept {
  if (auto cause = check_call("allocate", {device})) return *cause;
  if (auto cause = scheduler_.lost(device)) return error{*cause};
  try {
    std::shared_ptr<access_list> only;
    if (family == handle_family::pool) {
      only = std::make_shared<access_list>(memory_.devices());
      only->set(memory_.local(device), access_right::read_write);
    }
    auto made = memory_.allocate(device, size.size(), memory_kind::device, true, std::move(only));
    if (order_ && made) order_->renewed(*made, size.value());
    return made;
  } catch (const std::bad_alloc&) {
    return no_tables();
  }
}

result<shared_bytes> host_backend::export_memory(const void* address, bytes size, handle_family family) noexcept {
  if (auto cause = check_call("export_memory", {})) return *cause;
  if (address == nullptr || size.value() == 0) return make(errc::invalid_argument, "exporting null or zero bytes");
  try {
    return sharing_.give(address, size.value(), family == handle_family::pool);
  } catch (const std::bad_alloc&) {
    return no_tables();
  }
}

result<opened_memory_description> host_backend::open_memory(std::optional<device_id> device, const shared_bytes& handle,
                                                            handle_family family,
                                                            std::chrono::nanoseconds limit) noexcept {
  if (auto cause = device ? check_call("open_memory", {*device}) : check_call("open_memory", {})) return *cause;
  if (device) {
    if (auto cause = scheduler_.lost(*device)) return error{*cause};
  }
  try {
    auto made = sharing_.open(device, handle, limit, family == handle_family::pool);
    if (order_ && made) order_->renewed(made->address, made->size.value());
    return made;
  } catch (const std::bad_alloc&) {
    return no_tables();
  }
}

result<void> host_backend::close_memory(void* address) noexcept {
  if (scheduler_.closed() || here_.forked()) return {};
  if (auto cause = check_call("close_memory", {})) return *cause;
  return sharing_.close(address);
}

result<void> host_backend::set_memory_access(void* address, std::span<const device_right> rights) noexcept {
  if (auto cause = check_call("set_memory_access", {})) return *cause;
  const auto memory = memory_.find(address);
  if (!memory) return make(errc::not_found, hex(address) + " lies in no allocation of this machine; was it freed?");
  if (!memory->only) {
    return make(errc::invalid_argument, "the memory at " + hex(address) + " is " +
                                            std::string{to_string(memory->kind)} +
                                            " memory of no pool: peer access decides who may use it");
  }
  for (const device_right& r : rights) {
    if (auto cause = check_call("set_memory_access", {r.device})) return *cause;
    const device_id a{r.device.value() - first_.value()}, b{memory->owner.value() - first_.value()};
    if (a == b && r.right != access_right::read_write) {
      return make(errc::invalid_device, "the right of " + to_string(r.device) + " to its own memory cannot be " +
                                            std::string{to_string(r.right)});
    }
    if (a != b && r.right != access_right::none && !machine_.can_access(a, b)) {
      return make(errc::peer_unsupported, to_string(r.device) + " cannot map the memory of " +
                                              to_string(memory->owner) + ": " + peer(r.device, memory->owner)->why);
    }
  }
  for (const device_right& r : rights) memory->only->set(memory_.local(r.device), r.right);
  return {};
}

result<access_right> host_backend::memory_access(device_id device, const void* address) noexcept {
  if (auto cause = check_call("memory_access", {device})) return *cause;
  const auto memory = memory_.find(address);
  if (!memory) return make(errc::not_found, hex(address) + " lies in no allocation of this machine; was it freed?");
  if (memory_.denied(device, *memory, false)) return access_right::none;
  return memory_.denied(device, *memory, true) ? access_right::read : access_right::read_write;
}

// ---- order ----------------------------------------------------------------------------------------------------------

result<event_ref> host_backend::submitted(event_ref event, order_watch::mark_ref mark) const {
  if (event) {
    if (mark) event->order_mark = std::move(mark);
    return event;
  }
  if (scheduler_.closed()) return make(errc::machine_closed, "the machine is closed");
  return make(errc::resource_exhausted,
              "no thread could be started for a stream; raise the limit of threads (ulimit -u) or use fewer streams");
}

result<stream_handle> host_backend::create_stream(device_id device, int priority, bool told) noexcept {
  if (auto cause = check_call("create_stream", {device})) return *cause;
  try {
    if (const host_stream* made = scheduler_.create(device, priority, told)) {
      if (order_ && !told) order_->quiet(made->handle());
      return made->handle();
    }
    return make(errc::resource_exhausted, "a stream on " + to_string(device) + ": there are too many streams already");
  } catch (const std::exception& failed) {
    return make(errc::resource_exhausted, "a stream on " + to_string(device) + ": " + failed.what());
  }
}

void host_backend::destroy_stream(stream_handle stream) noexcept {
  if (here_.forked()) return;
  scheduler_.destroy(stream);
  if (order_) order_->stream_gone(stream);
}

result<stream_handle> host_backend::default_stream(device_id device) noexcept {
  if (auto cause = check_call("default_stream", {device})) return *cause;
  return default_streams_[static_cast<std::size_t>(device.value() - first_.value())];
}

result<event_ref> host_backend::record(stream_handle handle) noexcept {
  auto stream = stream_of("record", handle);
  if (!stream) return std::move(stream).error();
  auto mark = order_ ? order_->recorded(handle) : nullptr;
  return submitted(scheduler_.submit(**stream, [] { return work::outcome{}; }), std::move(mark));
}

result<void> host_backend::wait_event(stream_handle handle, const event_ref& event) noexcept {
  auto stream = stream_of("wait_event", handle);
  if (!stream) return std::move(stream).error();
  if (!event) return {};
  if (order_) order_->wait(handle, *event, this);
  if (event->finished() && !event->cause()) return {};
  auto made = submitted(scheduler_.submit(**stream, [] { return work::outcome{}; }, {}, {}, {}, event));
  if (!made) return std::move(made).error();
  return {};
}

result<event_ref> host_backend::create_gate() noexcept {
  if (auto cause = check_call("create_gate", {})) return *cause;
  return submitted(scheduler_.create_gate(), order_ ? order_->create_gate() : nullptr);
}

void host_backend::open_gate(const event_ref& gate, std::shared_ptr<const error> cause) noexcept {
  if (order_) order_->open_gate(*gate);
  scheduler_.open_gate(*gate, std::move(cause));
}

wait_outcome host_backend::wait(event_record& event, wait_deadline deadline, const std::stop_token& stop) noexcept {
  if (here_.forked()) {
    // nobody here completes it
    if (!event.finished()) event.complete(shared(forked()));
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
  const host_stream* stream = scheduler_.find(handle);
  const auto mark = order_ && stream != nullptr ? order_->recorded(handle) : nullptr;
  const bool is_idle = stream == nullptr || stream->idle();
  if (mark && is_idle) order_->host_waited(mark);
  return is_idle;
}

bool host_backend::settled(stream_handle handle) noexcept {
  const host_stream* stream = scheduler_.find(handle);
  const auto mark = order_ && stream != nullptr ? order_->recorded(handle) : nullptr;
  const bool is_settled = stream == nullptr || stream->settled();
  if (mark && is_settled) order_->host_waited(mark);
  return is_settled;
}

result<wait_outcome> host_backend::synchronize(stream_handle handle, wait_deadline deadline,
                                               const std::stop_token& stop) noexcept {
  host_stream* stream = scheduler_.find(handle);
  if (auto cause = stream != nullptr ? check_call("synchronize", {stream->device()}) : check_call("synchronize", {}))
    return *cause;
  if (stream == nullptr) return make(errc::not_found, "the stream was destroyed, or belongs to another machine");
  const auto mark = order_ ? order_->recorded(handle) : nullptr;
  auto done = scheduler_.synchronize(*stream, deadline, stop);
  // an error is a failure of work that has ended
  if (mark && (!done || *done == wait_outcome::ok)) order_->host_waited(mark);
  return done;
}

bool host_backend::drain(device_id device, wait_deadline deadline) noexcept {
  if (scheduler_.closed() || here_.forked()) return true;
  for (const stream_handle handle : scheduler_.streams_of(device)) {
    host_stream* stream = scheduler_.find(handle);
    if (stream == nullptr) continue;
    const auto mark = order_ ? order_->recorded(handle) : nullptr;
    if (!scheduler_.drain(*stream, deadline)) return false;
    if (mark) order_->host_waited(mark);
  }
  return true;
}

std::vector<stream_handle> host_backend::streams_of(device_id device) noexcept { return scheduler_.streams_of(device); }

// ---- move -----------------------------------------------------------------------------------------------------------

result<event_ref> host_backend::copy(stream_handle handle, const copy_request& request) noexcept {
  auto stream = stream_of("copy", handle);
  if (!stream) return std::move(stream).error();
  if (request.shape.total() == 0) return record(handle);
  auto ready = transfers_.prepare(request, (*stream)->device());
  if (!ready) return std::move(ready).error();
  const operation_note note = transfers::note_of(ready->src, ready->dst, request.shape.total());
  if (request.wait && request.stop.stop_requested())
    return make(errc::cancelled, "a copy was cancelled before it started");
  auto mark = order_ ? order_->copies(handle, (*stream)->device(), {&request, 1}) : nullptr;
  if (request.wait) {
    std::shared_ptr<const error> failure;
    if (scheduler_.try_inline(**stream, [&] { return transfers_.move(*ready); }, note, failure)) {
      if (mark) order_->host_waited(mark);
      if (failure) return error{*failure};
      return event_ref{};
    }
  }
  const cost price = transfers_.cost_of(*ready);
  auto boxed = std::make_unique<prepared_copy>(std::move(*ready));
  auto stop = request.stop;
  return submitted(
      scheduler_.submit(
          **stream, [this, boxed = std::move(boxed)] { return transfers_.move(*boxed); }, note, price, std::move(stop)),
      std::move(mark));
}

result<event_ref> host_backend::copy_batch(stream_handle handle, std::span<const copy_request> requests) noexcept {
  auto stream = stream_of("copy_batch", handle);
  if (!stream) return std::move(stream).error();
  try {
    auto batch = std::make_unique<std::vector<prepared_copy>>();
    batch->reserve(requests.size());
    cost price;
    operation_note note;
    note.kind = trace_kind::copy;
    for (const copy_request& request : requests) {
      if (request.shape.total() == 0) continue;
      auto ready = transfers_.prepare(request, (*stream)->device());
      if (!ready) return std::move(ready).error();
      const cost one = transfers_.cost_of(*ready);
      price = {one.path, price.bytes + one.bytes, one.local_rate};
      note = transfers::note_of(ready->src, ready->dst, price.bytes);
      batch->push_back(std::move(*ready));
    }
    auto stop = requests.empty() ? std::stop_token{} : requests.front().stop;
    auto mark = order_ ? order_->copies(handle, (*stream)->device(), requests) : nullptr;
    return submitted(scheduler_.submit(
                         **stream,
                         [this, batch = std::move(batch)]() -> work::outcome {
                           for (const prepared_copy& one : *batch) {
                             if (auto cause = transfers_.move(one)) return cause;
                           }
                           return nullptr;
                         },
                         note, price, std::move(stop)),
                     std::move(mark));
  } catch (const std::bad_alloc&) {
    return make(errc::out_of_memory,
                "the host has no memory left for a batch of " + std::to_string(requests.size()) + " copies");
  }
}

// On the virtual clock the two steps occupy their own wires, and with faults or a limit each belongs to its own device.
bool host_backend::copies_through() noexcept { return scheduler_.on_wall_clock() && faults_.empty(); }

result<event_ref> host_backend::copy_through(stream_handle handle, void* slot, const copy_request& request) noexcept {
  auto stream = stream_of("copy_through", handle);
  if (!stream) return std::move(stream).error();
  if (!copies_through()) return not_offered("copies through a slot");
  if (request.shape.total() == 0) return record(handle);
  auto [in, out] = two_steps(request, slot);
  auto first = transfers_.prepare(in, (*stream)->device());
  if (!first) return std::move(first).error();
  auto second = transfers_.prepare(out, (*stream)->device());
  if (!second) return std::move(second).error();
  struct both {
    prepared_copy in, out;
  };
  try {
    const operation_note note = transfers::note_of(first->src, second->dst, request.shape.total());
    auto boxed = std::make_unique<both>(both{std::move(*first), std::move(*second)});
    auto mark = order_ ? order_->copies(handle, (*stream)->device(), {&request, 1}) : nullptr;
    auto stop = request.stop;
    return submitted(scheduler_.submit(
                         **stream,
                         [this, boxed = std::move(boxed)]() -> work::outcome {
                           for (const pin* end : {&boxed->in.src, &boxed->out.dst}) {
                             if (*end) {
                               if (auto cause = scheduler_.lost(end->get()->owner)) return cause;
                             }
                           }
                           return transfers_.move_through(boxed->in, boxed->out);
                         },
                         note, {}, std::move(stop)),
                     std::move(mark));
  } catch (const std::bad_alloc&) {
    return make(errc::out_of_memory, "the host has no memory left for a staged copy");
  }
}

result<event_ref> host_backend::fill(stream_handle handle, const fill_request& request) noexcept {
  auto stream = stream_of("fill", handle);
  if (!stream) return std::move(stream).error();
  if (request.count == 0) return record(handle);
  std::uint64_t extent = 0;
  if (__builtin_mul_overflow(request.count, request.pattern_size, &extent)) extent = ~std::uint64_t{0};
  auto memory = memory_.find(request.dst, extent);
  if (!memory)
    return make(errc::not_found, "the destination " + hex(request.dst) +
                                     " of a fill lies in no allocation of this machine; was it freed?");
  const auto offset = static_cast<std::uint64_t>(static_cast<std::byte*>(request.dst) - memory->user);
  if (request.count > (memory->size - offset) / request.pattern_size) {
    return make(errc::out_of_range, "a fill of " + std::to_string(request.count) + " elements at offset " +
                                        std::to_string(offset) + " passes the end of an allocation of " +
                                        to_string(bytes{memory->size}));
  }
  if (memory->kind == memory_kind::block) {
    if (auto why = memory_.denied((*stream)->device(), *memory, true))
      return make(errc::invalid_argument, "a fill of a mapping of a block: " + *why);
  }
  struct boxed_fill {
    pin dst;
    fill_request request;
  };
  auto boxed = std::make_unique<boxed_fill>(boxed_fill{pin{std::move(memory)}, request});
  const device_id by = (*stream)->device();
  const cost price{nullptr, request.count * request.pattern_size, transfers_.memory_rate(*boxed->dst.get())};
  operation_note note;
  note.kind = trace_kind::fill;
  note.bytes = price.bytes;
  auto mark = order_ ? order_->fill(handle, by, request) : nullptr;
  return submitted(
      scheduler_.submit(
          **stream,
          [this, by, boxed = std::move(boxed)]() -> work::outcome {
            allocation& a = *boxed->dst.get();
            const device_id actor =
                a.kind == memory_kind::device && a.owner != by && memory_.denied(by, a, true) ? a.owner : by;
            auto to = memory_.resolve(a.kind == memory_kind::mapped ? a.by : actor, a, boxed->request.dst, true);
            if (!to) return shared(std::move(to).error());
            const fill_request& f = boxed->request;
            if (f.pattern_size == 1) {
              std::memset(*to, static_cast<int>(f.pattern[0]), f.count);
            } else {
              for (std::uint64_t i = 0; i < f.count; ++i)
                std::memcpy(*to + i * f.pattern_size, f.pattern.data(), f.pattern_size);
            }
            return nullptr;
          },
          note, price, request.stop),
      std::move(mark));
}

// ---- run ------------------------------------------------------------------------------------------------------------

cost host_backend::cost_of(const launch_request& request, device_id by) const noexcept {
  const topology_device& device = machine_.devices[static_cast<std::size_t>(by.value() - first_.value())];
  cost price;
  price.computes = true;
  if (request.model) {
    const double items = static_cast<double>(items_of(request.range));
    price.seconds = (request.model->seconds + items * request.model->seconds_per_item) / device.speed;
    return price;
  }
  // what is read and written passes its memory twice, as in a copy inside a device
  double touched = 0;
  for (const kernel_argument& argument : request.arguments) {
    if (argument.direction == parameter_direction::scalar) continue;
    const double times = argument.direction == parameter_direction::inout ? 2 : 1;
    touched += times * static_cast<double>(argument.count) * static_cast<double>(size_of(argument.type));
  }
  if (device.bytes_per_second > 0) price.seconds = touched / device.bytes_per_second;
  return price;
}

result<event_ref> host_backend::launch(stream_handle handle, launch_request request) noexcept {
  auto stream = stream_of("launch", handle);
  if (!stream) return std::move(stream).error();
  if (request.kernel->host == nullptr) {
    return make(errc::unsupported,
                "the kernel '" + request.kernel->name + "' has no host version; it runs where its text or source does");
  }
  if (request.model && !(is_time(request.model->seconds) && is_time(request.model->seconds_per_item))) {
    return make(errc::invalid_argument, "the model of the kernel '" + request.kernel->name +
                                            "' takes times that are neither negative nor infinite, not " +
                                            std::to_string(request.model->seconds) + " s and " +
                                            std::to_string(request.model->seconds_per_item) + " s per item");
  }
  struct boxed_launch {
    launch_request request;
    std::array<pin, 6> few;  // one for each argument; empty for scalars
    std::vector<pin> many;   // of a kernel that takes more
    [[nodiscard]] std::span<pin> memory() { return many.empty() ? std::span<pin>{few} : std::span<pin>{many}; }
  };
  try {
    auto boxed = std::make_unique<boxed_launch>();
    if (request.arguments.size() > boxed->few.size()) boxed->many.resize(request.arguments.size());
    const std::span<pin> memory_of = boxed->memory();
    for (std::size_t i = 0; i < request.arguments.size(); ++i) {
      const kernel_argument& argument = request.arguments[i];
      if (argument.direction != parameter_direction::scalar && argument.count != 0) {
        const std::uint64_t extent = static_cast<std::uint64_t>(argument.count) * size_of(argument.type);
        auto memory = memory_.find(argument.address, extent);
        if (!memory) {
          return make(errc::not_found, "argument " + std::to_string(i + 1) + " of '" + request.kernel->name + "' at " +
                                           hex(argument.address) +
                                           " lies in no allocation of this machine; was it freed?");
        }
        const auto offset = static_cast<std::uint64_t>(static_cast<std::byte*>(argument.address) - memory->user);
        if (extent > memory->size - offset) {
          return make(errc::out_of_range, "argument " + std::to_string(i + 1) + " of '" + request.kernel->name +
                                              "' passes the end of its allocation of " +
                                              to_string(bytes{memory->size}));
        }
        memory_of[i] = pin{std::move(memory)};
      }
    }
    const device_id by = (*stream)->device();
    operation_note note;
    note.kind = trace_kind::kernel;
    note.items = items_of(request.range);
    note.launch = request.launch;
    note.name = request.kernel->name;
    auto mark = order_ ? order_->launch(handle, by, request) : nullptr;
    auto talk = order_ && has_ring(*request.kernel) ? order_->talks(handle) : nullptr;
    const cost price = scheduler_.on_wall_clock() ? cost{} : cost_of(request, by);
    auto stop = request.stop;
    boxed->request = std::move(request);
    return submitted(
        scheduler_.submit(
            **stream,
            [this, by, boxed = std::move(boxed), talk = std::move(talk)]() -> work::outcome {
              if (talk) talk->begins();
              launch_request& r = boxed->request;
              for (std::size_t i = 0; i < r.arguments.size(); ++i) {
                allocation* memory = boxed->memory()[i].get();
                if (memory == nullptr) continue;
                const bool writes = r.arguments[i].direction != parameter_direction::in;
                auto at = memory_.resolve(by, *memory, r.arguments[i].address, writes);
                if (!at) {
                  error cause = std::move(at).error();
                  cause.what =
                      "kernel '" + r.kernel->name + "' on " + to_string(by) + ", argument " + std::to_string(i + 1) +
                      (i < r.kernel->parameters.size() ? " (" + r.kernel->parameters[i].name + ")" : std::string{}) +
                      ": " + cause.what;
                  if (cause.code == errc::illegal_access) cause.scope = error_scope::device;
                  return shared(std::move(cause));
                }
                r.arguments[i].address = *at;
                if (memory->owner != by &&
                    (memory->kind == memory_kind::device || memory->kind == memory_kind::block)) {
                  const std::uint64_t size =
                      static_cast<std::uint64_t>(r.arguments[i].count) * size_of(r.arguments[i].type);
                  const auto direction = r.arguments[i].direction;
                  if (direction != parameter_direction::out) transfers_.account(memory->owner, by, size);
                  if (direction != parameter_direction::in) transfers_.account(by, memory->owner, size);
                }
              }
              if (check_access_ && r.kernel->host_checked != nullptr) {
                if (auto bad = r.kernel->host_checked(r.range, r.arguments)) {
                  return shared(make(errc::illegal_access, describe(*r.kernel, *bad) + " on " + to_string(by),
                                     error_scope::device));
                }
                return nullptr;
              }
              r.kernel->host(r.range, r.arguments);
              return nullptr;
            },
            note, price, std::move(stop)),
        std::move(mark));
  } catch (const std::bad_alloc&) {
    return make(errc::out_of_memory, "the host has no memory left to launch a kernel");
  }
}

result<event_ref> host_backend::call(stream_handle handle, std::function<result<void>()> function) noexcept {
  auto stream = stream_of("call", handle);
  if (!stream) return std::move(stream).error();
  operation_note note;
  note.kind = trace_kind::host_call;
  auto mark = order_ ? order_->recorded(handle) : nullptr;
  auto talk = order_ ? order_->talks(handle) : nullptr;
  return submitted(scheduler_.submit(
                       **stream,
                       [f = std::move(function), talk = std::move(talk)]() -> work::outcome {
                         if (talk) talk->begins();
                         auto done = f();
                         return done ? nullptr : shared(std::move(done).error());
                       },
                       note),
                   std::move(mark));
}

// ---- watch ----------------------------------------------------------------------------------------------------------

link_traffic host_backend::traffic() noexcept { return transfers_.traffic(); }

std::uint64_t host_backend::watch_traffic(const traffic_source& source) noexcept {
  for (const device_id end : {source.from, source.to}) {
    if (end != device_id{} && !known(end)) return 0;
  }
  return transfers_.watch(source);
}

void host_backend::unwatch_traffic(std::uint64_t id) noexcept { transfers_.unwatch(id); }

std::vector<order_violation> host_backend::order_violations() noexcept {
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
  if (auto cause = check_call("reset", {device})) return *cause;
  // what is still queued is refused while the device counts as lost
  scheduler_.lose(device, shared(make(errc::cancelled, to_string(device) + " is being reset")));
  for (const stream_handle handle : scheduler_.streams_of(device)) {
    if (host_stream* stream = scheduler_.find(handle))
      static_cast<void>(scheduler_.synchronize(*stream, no_deadline, {}));
  }
  blocks_.forget(device);
  memory_.forget(device);
  scheduler_.restore(device);
  return {};
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
        return make(errc::invalid_argument, "a machine has 1 to " + std::to_string(max_devices) +
                                                " host devices, asked for " + std::to_string(options.device_count));
      }
      const auto share = memory_of_host().value() / 2 / static_cast<std::uint64_t>(options.device_count);
      machine = host_topology(options.device_count, bytes{std::max<std::uint64_t>(share, page_size())});
      for (topology_device& d : machine.devices) d.compute_units = parking::cores();
    }
    if (options.memory_per_device) {
      for (topology_device& d : machine.devices) d.memory = *options.memory_per_device;
    }
    return std::unique_ptr<backend>{std::make_unique<host_backend>(options, std::move(machine))};
  } catch (const std::exception& failed) {
    return make(errc::resource_exhausted, std::string{"the host backend: "} + failed.what());
  }
}

}  // namespace weft::host
