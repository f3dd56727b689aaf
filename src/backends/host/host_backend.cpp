// SPDX-License-Identifier: Apache-2.0
#include "backends/host/host_backend.hpp"

#include "backend/parking.hpp"
#include "backends/host/factory.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
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

}  // namespace

host_backend::host_backend(const backend_options& options, topology machine)
    : machine_(std::move(machine)),
      first_(options.first_device),
      check_access_(options.check_access),
      faults_(machine_),
      memory_(machine_, first_, memory_options_of(options), faults_),
      transfers_(machine_, first_, memory_, faults_),
      scheduler_(machine_, first_, this, {options.clock, options.wait_policy, options.max_in_flight}, faults_) {
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
    return memory_.allocate(device, size.size(), kind);
  } catch (const std::bad_alloc&) {
    return make(errc::out_of_memory, "the host has no memory left for the tables of " + to_string(device));
  }
}

result<void> host_backend::release(void* base) noexcept {
  if (scheduler_.closed()) return {};  // everything went with the machine
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
  return memory_.adopt(device, base, size.size());
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
  return submitted(
      scheduler_.submit(**stream, [held = pin{std::move(memory)}, first, count = size.size()]() -> work::outcome {
        for (std::size_t i = 0; i < count; i += page_size())
          static_cast<void>(*static_cast<volatile std::byte*>(first + i));
        return nullptr;
      }));
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
  if (scheduler_.closed()) return {};
  if (auto cause = check_call("unmap_peer", {by})) return *cause;
  return memory_.unmap(by, mapped);
}

result<std::shared_ptr<std::byte>> host_backend::host_window(device_id by, void* address, bytes size) noexcept {
  if (auto cause = check_call("host_window", {by})) return *cause;
  auto memory = memory_.find(address);
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

// ---- order ----------------------------------------------------------------------------------------------------------

result<event_ref> host_backend::submitted(event_ref event) const {
  if (event) return event;
  if (scheduler_.closed()) return make(errc::machine_closed, "the machine is closed");
  return make(errc::resource_exhausted,
              "no thread could be started for a stream; raise the limit of threads (ulimit -u) or use fewer streams");
}

result<stream_handle> host_backend::create_stream(device_id device, int priority, bool told) noexcept {
  if (auto cause = check_call("create_stream", {device})) return *cause;
  try {
    if (const host_stream* made = scheduler_.create(device, priority, told)) return made->handle();
    return make(errc::resource_exhausted, "a stream on " + to_string(device) + ": there are too many streams already");
  } catch (const std::exception& failed) {
    return make(errc::resource_exhausted, "a stream on " + to_string(device) + ": " + failed.what());
  }
}

void host_backend::destroy_stream(stream_handle stream) noexcept { scheduler_.destroy(stream); }

result<stream_handle> host_backend::default_stream(device_id device) noexcept {
  if (auto cause = check_call("default_stream", {device})) return *cause;
  return default_streams_[static_cast<std::size_t>(device.value() - first_.value())];
}

result<event_ref> host_backend::record(stream_handle handle) noexcept {
  auto stream = stream_of("record", handle);
  if (!stream) return std::move(stream).error();
  return submitted(scheduler_.submit(**stream, [] { return work::outcome{}; }));
}

result<void> host_backend::wait_event(stream_handle handle, const event_ref& event) noexcept {
  auto stream = stream_of("wait_event", handle);
  if (!stream) return std::move(stream).error();
  if (!event) return {};
  if (event->finished() && !event->cause()) return {};
  auto made = submitted(scheduler_.submit(**stream, [] { return work::outcome{}; }, {}, {}, event));
  if (!made) return std::move(made).error();
  return {};
}

result<event_ref> host_backend::create_gate() noexcept {
  if (auto cause = check_call("create_gate", {})) return *cause;
  return submitted(scheduler_.create_gate());
}

void host_backend::open_gate(const event_ref& gate, std::shared_ptr<const error> cause) noexcept {
  scheduler_.open_gate(*gate, std::move(cause));
}

wait_outcome host_backend::wait(event_record& event, wait_deadline deadline, const std::stop_token& stop) noexcept {
  return scheduler_.wait(event, deadline, stop);
}

bool host_backend::ready(event_record& event) noexcept { return scheduler_.ready(event); }

bool host_backend::idle(stream_handle handle) noexcept {
  const host_stream* stream = scheduler_.find(handle);
  return stream == nullptr || stream->idle();
}

bool host_backend::settled(stream_handle handle) noexcept {
  const host_stream* stream = scheduler_.find(handle);
  return stream == nullptr || stream->settled();
}

result<wait_outcome> host_backend::synchronize(stream_handle handle, wait_deadline deadline,
                                               const std::stop_token& stop) noexcept {
  host_stream* stream = scheduler_.find(handle);
  if (auto cause = stream != nullptr ? check_call("synchronize", {stream->device()}) : check_call("synchronize", {}))
    return *cause;
  if (stream == nullptr) return make(errc::not_found, "the stream was destroyed, or belongs to another machine");
  return scheduler_.synchronize(*stream, deadline, stop);
}

bool host_backend::drain(device_id device, wait_deadline deadline) noexcept {
  if (scheduler_.closed()) return true;
  for (const stream_handle handle : scheduler_.streams_of(device)) {
    host_stream* stream = scheduler_.find(handle);
    if (stream != nullptr && !scheduler_.drain(*stream, deadline)) return false;
  }
  return true;
}

std::vector<stream_handle> host_backend::streams_of(device_id device) noexcept { return scheduler_.streams_of(device); }

// ---- move -----------------------------------------------------------------------------------------------------------

result<event_ref> host_backend::copy(stream_handle handle, const copy_request& request) noexcept {
  auto stream = stream_of("copy", handle);
  if (!stream) return std::move(stream).error();
  if (request.shape.total() == 0) return record(handle);
  auto ready = transfers_.prepare(request);
  if (!ready) return std::move(ready).error();
  if (request.wait) {
    std::shared_ptr<const error> failure;
    if (request.stop.stop_requested()) return make(errc::cancelled, "a copy was cancelled before it started");
    if (scheduler_.try_inline(**stream, [&] { return transfers_.move(*ready); }, failure)) {
      if (failure) return error{*failure};
      return event_ref{};
    }
  }
  const cost price = transfers_.cost_of(*ready);
  auto boxed = std::make_unique<prepared_copy>(std::move(*ready));
  auto stop = request.stop;
  return submitted(scheduler_.submit(
      **stream, [this, boxed = std::move(boxed)] { return transfers_.move(*boxed); }, price, std::move(stop)));
}

result<event_ref> host_backend::copy_batch(stream_handle handle, std::span<const copy_request> requests) noexcept {
  auto stream = stream_of("copy_batch", handle);
  if (!stream) return std::move(stream).error();
  try {
    auto batch = std::make_unique<std::vector<prepared_copy>>();
    batch->reserve(requests.size());
    cost price;
    for (const copy_request& request : requests) {
      if (request.shape.total() == 0) continue;
      auto ready = transfers_.prepare(request);
      if (!ready) return std::move(ready).error();
      const cost one = transfers_.cost_of(*ready);
      price = {one.path, price.bytes + one.bytes, one.local_rate};
      batch->push_back(std::move(*ready));
    }
    auto stop = requests.empty() ? std::stop_token{} : requests.front().stop;
    return submitted(scheduler_.submit(
        **stream,
        [this, batch = std::move(batch)]() -> work::outcome {
          for (const prepared_copy& one : *batch) {
            if (auto cause = transfers_.move(one)) return cause;
          }
          return nullptr;
        },
        price, std::move(stop)));
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
  auto first = transfers_.prepare(in);
  if (!first) return std::move(first).error();
  auto second = transfers_.prepare(out);
  if (!second) return std::move(second).error();
  struct both {
    prepared_copy in, out;
  };
  try {
    auto boxed = std::make_unique<both>(both{std::move(*first), std::move(*second)});
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
        {}, std::move(stop)));
  } catch (const std::bad_alloc&) {
    return make(errc::out_of_memory, "the host has no memory left for a staged copy");
  }
}

result<event_ref> host_backend::fill(stream_handle handle, const fill_request& request) noexcept {
  auto stream = stream_of("fill", handle);
  if (!stream) return std::move(stream).error();
  if (request.count == 0) return record(handle);
  auto memory = memory_.find(request.dst);
  if (!memory)
    return make(errc::not_found, "the destination " + hex(request.dst) +
                                     " of a fill lies in no allocation of this machine; was it freed?");
  const auto offset = static_cast<std::uint64_t>(static_cast<std::byte*>(request.dst) - memory->user);
  if (request.count > (memory->size - offset) / request.pattern_size) {
    return make(errc::out_of_range, "a fill of " + std::to_string(request.count) + " elements at offset " +
                                        std::to_string(offset) + " passes the end of an allocation of " +
                                        to_string(bytes{memory->size}));
  }
  struct boxed_fill {
    pin dst;
    fill_request request;
  };
  auto boxed = std::make_unique<boxed_fill>(boxed_fill{pin{std::move(memory)}, request});
  const device_id by = (*stream)->device();
  const cost price{nullptr, request.count * request.pattern_size, transfers_.memory_rate(*boxed->dst.get())};
  return submitted(scheduler_.submit(
      **stream,
      [this, by, boxed = std::move(boxed)]() -> work::outcome {
        allocation& a = *boxed->dst.get();
        const device_id actor =
            a.kind == memory_kind::device && a.owner != by && !memory_.enabled(by, a.owner) ? a.owner : by;
        auto to = memory_.resolve(a.kind == memory_kind::mapped ? a.by : actor, a, boxed->request.dst);
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
      price, request.stop));
}

// ---- run ------------------------------------------------------------------------------------------------------------

result<event_ref> host_backend::launch(stream_handle handle, const launch_request& request) noexcept {
  auto stream = stream_of("launch", handle);
  if (!stream) return std::move(stream).error();
  if (request.kernel->host == nullptr) {
    return make(errc::unsupported,
                "the kernel '" + request.kernel->name + "' has no host version; it runs where its text or source does");
  }
  struct boxed_launch {
    launch_request request;
    std::vector<pin> memory;  // one for each argument; empty for scalars
  };
  try {
    auto boxed = std::make_unique<boxed_launch>();
    boxed->request = request;
    for (std::size_t i = 0; i < request.arguments.size(); ++i) {
      const kernel_argument& argument = request.arguments[i];
      pin held;
      if (argument.direction != parameter_direction::scalar && argument.count != 0) {
        auto memory = memory_.find(argument.address);
        if (!memory) {
          return make(errc::not_found, "argument " + std::to_string(i + 1) + " of '" + request.kernel->name + "' at " +
                                           hex(argument.address) +
                                           " lies in no allocation of this machine; was it freed?");
        }
        const auto offset = static_cast<std::uint64_t>(static_cast<std::byte*>(argument.address) - memory->user);
        const std::uint64_t extent = static_cast<std::uint64_t>(argument.count) * size_of(argument.type);
        if (extent > memory->size - offset) {
          return make(errc::out_of_range, "argument " + std::to_string(i + 1) + " of '" + request.kernel->name +
                                              "' passes the end of its allocation of " +
                                              to_string(bytes{memory->size}));
        }
        held = pin{std::move(memory)};
      }
      boxed->memory.push_back(std::move(held));
    }
    const device_id by = (*stream)->device();
    return submitted(scheduler_.submit(
        **stream,
        [this, by, boxed = std::move(boxed)]() -> work::outcome {
          launch_request& r = boxed->request;
          for (std::size_t i = 0; i < r.arguments.size(); ++i) {
            allocation* memory = boxed->memory[i].get();
            if (memory == nullptr) continue;
            auto at = memory_.resolve(by, *memory, r.arguments[i].address);
            if (!at) {
              error cause = std::move(at).error();
              cause.what =
                  "kernel '" + r.kernel->name + "' on " + to_string(by) + ", argument " + std::to_string(i + 1) +
                  (i < r.kernel->parameters.size() ? " (" + r.kernel->parameters[i].name + ")" : std::string{}) + ": " +
                  cause.what;
              if (cause.code == errc::illegal_access) cause.scope = error_scope::device;
              return shared(std::move(cause));
            }
            r.arguments[i].address = *at;
            if (memory->owner != by && memory->kind == memory_kind::device) {
              const std::uint64_t size =
                  static_cast<std::uint64_t>(r.arguments[i].count) * size_of(r.arguments[i].type);
              const auto direction = r.arguments[i].direction;
              if (direction != parameter_direction::out) transfers_.account(memory->owner, by, size);
              if (direction != parameter_direction::in) transfers_.account(by, memory->owner, size);
            }
          }
          if (check_access_ && r.kernel->host_checked != nullptr) {
            if (auto bad = r.kernel->host_checked(r.range, r.arguments)) {
              return shared(
                  make(errc::illegal_access, describe(*r.kernel, *bad) + " on " + to_string(by), error_scope::device));
            }
            return nullptr;
          }
          r.kernel->host(r.range, r.arguments);
          return nullptr;
        },
        {}, request.stop));
  } catch (const std::bad_alloc&) {
    return make(errc::out_of_memory, "the host has no memory left to launch '" + request.kernel->name + "'");
  }
}

result<event_ref> host_backend::call(stream_handle handle, std::function<result<void>()> function) noexcept {
  auto stream = stream_of("call", handle);
  if (!stream) return std::move(stream).error();
  return submitted(scheduler_.submit(**stream, [f = std::move(function)]() -> work::outcome {
    auto done = f();
    return done ? nullptr : shared(std::move(done).error());
  }));
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
  memory_.forget(device);
  scheduler_.restore(device);
  return {};
}

void host_backend::close() noexcept {
  scheduler_.close();
  memory_.clear();
}

// ---- factory --------------------------------------------------------------------------------------------------------

result<std::unique_ptr<backend>> open(const backend_options& options) noexcept {
  try {
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
