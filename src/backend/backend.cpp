// SPDX-License-Identifier: Apache-2.0
#include "weft/backend/backend.hpp"

#include "backend/address.hpp"
#include "backend/calls/call_gate.hpp"
#include "backend/memory_word.hpp"
#include "core/errors/make_error.hpp"
#include "core/profiler_range.hpp"
#include "core/text/hex.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace weft {

error identity_facet::not_offered(std::string_view what) const {
  return make_error(errc::unsupported,
                    "the " + std::string{to_string(kind())} + " backend does not offer " + std::string{what});
}

std::pair<copy_request, copy_request> two_steps(const copy_request& piece, void* slot) {
  copy_request in = piece, out = piece;
  in.dst = slot;
  in.dst_is_host = false;
  in.shape.dst_pitch = piece.shape.width;
  in.shape.dst_slice = piece.shape.width * piece.shape.height;
  out.src = slot;
  out.src_is_host = false;
  out.shape.src_pitch = in.shape.dst_pitch;
  out.shape.src_slice = in.shape.dst_slice;
  return {std::move(in), std::move(out)};
}

error peers_facet::without_path(device_id from, device_id to) {
  const auto about = do_peer(from, to);
  return make_error(errc::peer_unsupported, to_string(from) + " cannot map " + to_string(to) + ": " +
                                                (about ? about->why : about.error().what));
}

backend::backend(backend_identity what) : watch_facet(std::move(what)), gate_(std::make_unique<detail::call_gate>()) {}
backend::~backend() = default;

bool backend::forked() const noexcept { return gate_->forked(); }
bool backend::in_call() noexcept { return gate_->is_inside(); }

// ---- the ways in ----------------------------------------------------------------------------------------------------

/// What begins something, of devices of this backend.
template <class F>
auto backend::checked(std::initializer_list<device_id> ids, F&& f) noexcept -> decltype(f()) {
  const detail::call_gate::pass inside{*gate_};
  return guarded([&]() -> decltype(f()) {
    if (!inside) return gate_->refusal();
    for (const device_id id : ids) {
      if (!has(id)) return unknown(id);
    }
    return f();
  });
}

/// What ends something, as the end of the machine does too.
template <class F>
result<void> backend::ended(F&& f) noexcept {
  const detail::call_gate::pass inside{*gate_};
  return inside ? guarded(std::forward<F>(f)) : result<void>{};
}

/// A question whose answer is `otherwise` once the machine was closed. Without memory to find out: no.
template <class F>
bool backend::asked(bool otherwise, F&& f) noexcept {
  const detail::call_gate::pass inside{*gate_};
  if (!inside) return otherwise;
  const auto answer = guarded([&]() -> result<bool> { return f(); });
  return answer && *answer;
}

/// What can report no error. Without memory for it, it is not done.
template <class F>
void backend::told(F&& f) noexcept {
  static_cast<void>(ended([&]() -> result<void> {
    f();
    return {};
  }));
}

error backend::unknown(device_id id) const {
  return make_error(errc::invalid_device, "there is no " + to_string(id) + ": this machine has " +
                                              std::to_string(devices().size()) + " devices, from " +
                                              to_string(first_device()));
}

std::optional<error> backend::check_pair(device_id from, device_id to, bool needs_path) {
  if (from == to) return make_error(errc::invalid_device, to_string(from) + " is not a peer of itself");
  if (!needs_path || do_can_access(from, to)) return std::nullopt;
  return without_path(from, to);
}

std::optional<error> backend::check_mapping(device_id by, const void* address, bytes size,
                                            const memory_description& source) {
  const device_id owner = source.device;
  if (source.kind != memory_kind::device)
    return make_error(errc::not_found, hex(address) + " is not memory of a device");
  if (owner == by) return make_error(errc::invalid_device, to_string(by) + " owns this memory and needs no mapping");
  if (!do_can_access(by, owner)) return without_path(by, owner);
  if (!do_peer_enabled(by, owner)) {
    return make_error(errc::not_enabled, to_string(by) + " has no access to " + to_string(owner) +
                                             ": enable it (peer_access) before mapping");
  }
  return beyond_end("a mapping", size.value(), address, source.base, source.size.value());
}

std::optional<error> backend::check_unified(const void* base, bytes size, const char* what) {
  const auto memory = do_find(base);
  if (!memory || memory->kind != memory_kind::unified)
    return make_error(errc::invalid_argument, hex(base) + " is not unified memory");
  return beyond_end(what, size.value(), base, memory->base, memory->size.value());
}

// ---- discover -------------------------------------------------------------------------------------------------------

result<memory_use> backend::memory(device_id device) noexcept {
  return checked({device}, [&] { return do_memory(device); });
}

result<peer_description> backend::peer(device_id from, device_id to) noexcept {
  return checked({from, to}, [&]() -> result<peer_description> {
    if (from != to) return do_peer(from, to);
    peer_description itself;
    itself.why = "a device is not a peer of itself";
    return itself;
  });
}

result<device_health> backend::health(device_id device) noexcept {
  return checked({device}, [&] { return do_health(device); });
}

// ---- allocate -------------------------------------------------------------------------------------------------------

result<void*> backend::allocate(device_id device, bytes size, memory_kind kind) noexcept {
  return checked({device}, [&]() -> result<void*> {
    if (kind == memory_kind::unified && !has_all(description_of(device).capabilities, capability::unified_memory)) {
      return make_error(errc::unsupported, to_string(device) + " (" + description_of(device).name +
                                               ") has no unified memory: " + std::string{do_why_no_unified()} +
                                               "; take pinned memory instead");
    }
    if (kind != memory_kind::device && kind != memory_kind::pinned && kind != memory_kind::unified)
      return make_error(errc::invalid_argument, std::string{to_string(kind)} + " memory is not allocated");
    return do_allocate(device, size, kind);
  });
}

result<void*> backend::allocate_coherent(device_id device, bytes size) noexcept {
  return checked({device}, [&] { return do_allocate_coherent(device, size); });
}

result<void> backend::release(void* base) noexcept {
  return ended([&] { return do_release(base); });
}

result<memory_description> backend::find(const void* address) noexcept {
  return checked({}, [&] { return do_find(address); });
}

result<void> backend::adopt(device_id device, void* base, bytes size) noexcept {
  return checked({device}, [&] { return do_adopt(device, base, size); });
}

result<event_ref> backend::prefetch(stream_handle stream, void* base, bytes size) noexcept {
  return checked({}, [&]() -> result<event_ref> {
    if (auto wrong = check_unified(base, size, "a prefetch")) return std::move(*wrong);
    return do_prefetch(stream, base, size);
  });
}

result<void> backend::advise(void* base, bytes size, memory_advice advice, device_id device) noexcept {
  return checked({device}, [&]() -> result<void> {
    if (auto wrong = check_unified(base, size, "advice")) return std::move(*wrong);
    return do_advise(base, size, advice, device);
  });
}

result<std::shared_ptr<std::byte>> backend::host_window(device_id by, void* address, bytes size) noexcept {
  return checked({by}, [&]() -> result<std::shared_ptr<std::byte>> {
    const auto memory = do_find(address);
    if (!memory) return error{memory.error()};
    if (auto wrong = beyond_end("a window", size.value(), address, memory->base, memory->size.value()))
      return std::move(*wrong);
    return do_host_window(by, address, size);
  });
}

result<std::shared_ptr<bus_window>> backend::open_bus_window(void* address, bytes size) noexcept {
  return checked({}, [&]() -> result<std::shared_ptr<bus_window>> {
    const auto memory = do_find(address);
    if (!memory) return error{memory.error()};
    if (auto wrong = beyond_end("a window", size.value(), address, memory->base, memory->size.value()))
      return std::move(*wrong);
    return do_open_bus_window(address, size);
  });
}

// ---- peers ----------------------------------------------------------------------------------------------------------

result<void> backend::enable_peer(device_id from, device_id to) noexcept {
  return checked({from, to}, [&]() -> result<void> {
    if (auto wrong = check_pair(from, to, true)) return std::move(*wrong);
    return do_enable_peer(from, to);
  });
}

result<void> backend::disable_peer(device_id from, device_id to) noexcept {
  return checked({from, to}, [&]() -> result<void> {
    if (auto wrong = check_pair(from, to, true)) return std::move(*wrong);
    return do_disable_peer(from, to);
  });
}

bool backend::peer_enabled(device_id from, device_id to) noexcept {
  return asked(false, [&] { return has(from) && has(to) && do_peer_enabled(from, to); });
}

result<void*> backend::map_peer(device_id by, void* address, bytes size) noexcept {
  return checked({by}, [&]() -> result<void*> {
    if (address == nullptr || size.value() == 0)
      return make_error(errc::invalid_argument, "mapping null or zero bytes");
    const auto source = do_find(address);
    if (!source && source.error().code != errc::not_found) return error{source.error()};
    if (source) {  // else the backend says whether it maps at all
      if (auto wrong = check_mapping(by, address, size, *source)) return std::move(*wrong);
    }
    return do_map_peer(by, address, size);
  });
}

result<void> backend::unmap_peer(device_id by, void* mapped) noexcept {
  return ended([&]() -> result<void> {
    if (!has(by)) return unknown(by);
    return do_unmap_peer(by, mapped);
  });
}

result<peer_delivery> backend::verify_peer(device_id from, device_id to, peer_way way) noexcept {
  return checked({from, to}, [&]() -> result<peer_delivery> {
    if (auto wrong = check_pair(from, to, false)) return std::move(*wrong);
    return do_verify_peer(from, to, way);
  });
}

result<atomic_support> backend::peer_atomics(device_id from, device_id to, atomic_operation operation) noexcept {
  return checked({from, to}, [&]() -> result<atomic_support> {
    if (auto wrong = check_pair(from, to, false)) return std::move(*wrong);
    if (static_cast<std::size_t>(operation) >= atomic_operation_count) {
      return make_error(errc::invalid_argument,
                        "there is no atomic operation " + std::to_string(static_cast<int>(operation)));
    }
    return do_peer_atomics(from, to, operation);
  });
}

// ---- blocks ---------------------------------------------------------------------------------------------------------

result<block_granularity> backend::granularity(device_id device) noexcept {
  return checked({device}, [&] { return do_granularity(device); });
}
result<block_id> backend::create_block(device_id device, bytes size, bool shareable) noexcept {
  return checked({device}, [&] { return do_create_block(device, size, shareable); });
}
result<void> backend::release_block(block_id block) noexcept {
  return ended([&] { return do_release_block(block); });
}
result<block_description> backend::describe_block(block_id block) noexcept {
  return checked({}, [&] { return do_describe_block(block); });
}
result<void*> backend::reserve(bytes size, bytes alignment, void* hint) noexcept {
  return checked({}, [&] { return do_reserve(size, alignment, hint); });
}
result<void> backend::free_reservation(void* base, bytes size) noexcept {
  return ended([&] { return do_free_reservation(base, size); });
}
result<void> backend::map_block(void* address, bytes size, block_id block) noexcept {
  return checked({}, [&] { return do_map_block(address, size, block); });
}
result<void> backend::unmap_block(void* address, bytes size) noexcept {
  return ended([&] { return do_unmap_block(address, size); });
}
result<void> backend::set_access(void* address, bytes size, std::span<const device_right> rights) noexcept {
  return checked({}, [&]() -> result<void> {
    for (const device_right& one : rights) {
      if (!has(one.device)) return unknown(one.device);
    }
    return do_set_access(address, size, rights);
  });
}
result<access_right> backend::access_of(device_id device, const void* address) noexcept {
  return checked({device}, [&] { return do_access_of(device, address); });
}
result<block_id> backend::block_of(const void* address) noexcept {
  return checked({}, [&] { return do_block_of(address); });
}
result<int> backend::export_block(block_id block) noexcept {
  return checked({}, [&] { return do_export_block(block); });
}
result<block_id> backend::import_block(std::optional<device_id> device, int file, bytes size) noexcept {
  return checked({device.value_or(first_device())}, [&] { return do_import_block(device, file, size); });
}

// ---- multicast ------------------------------------------------------------------------------------------------------

result<bytes> backend::multicast_granularity(std::span<const device_id> team) noexcept {
  return checked({}, [&]() -> result<bytes> {
    for (const device_id one : team) {
      if (!has(one)) return unknown(one);
    }
    return do_multicast_granularity(team);
  });
}
result<multicast_id> backend::create_multicast(std::size_t devices, bytes size) noexcept {
  return checked({}, [&] { return do_create_multicast(devices, size); });
}
void backend::release_multicast(multicast_id group) noexcept {
  told([&] { do_release_multicast(group); });
}
result<void> backend::add_multicast_device(multicast_id group, device_id device) noexcept {
  return checked({device}, [&] { return do_add_multicast_device(group, device); });
}
result<void> backend::bind_multicast(multicast_id group, block_id block) noexcept {
  return checked({}, [&] { return do_bind_multicast(group, block); });
}
result<void> backend::unbind_multicast(multicast_id group, device_id device) noexcept {
  return checked({device}, [&] { return do_unbind_multicast(group, device); });
}
result<event_ref> backend::multicast_store(stream_handle stream, multicast_id group, bytes offset, const void* src,
                                           bytes size) noexcept {
  return checked({}, [&] { return do_multicast_store(stream, group, offset, src, size); });
}
result<event_ref> backend::multicast_load(stream_handle stream, void* dst, multicast_id group, bytes offset,
                                          std::size_t count, element_type type, multicast_reduction how) noexcept {
  return checked({}, [&]() -> result<event_ref> {
    std::uint64_t size = 0;
    if (__builtin_mul_overflow(count, size_of(type), &size))
      return make_error(errc::invalid_argument, std::to_string(count) + " elements: the size in bytes overflows");
    return do_multicast_load(stream, dst, group, offset, count, type, how);
  });
}

// ---- handles of memory ----------------------------------------------------------------------------------------------

result<void*> backend::allocate_shareable(device_id device, bytes size, handle_family family) noexcept {
  return checked({device}, [&] { return do_allocate_shareable(device, size, family); });
}
result<shared_bytes> backend::export_memory(const void* address, bytes size, handle_family family) noexcept {
  return checked({}, [&]() -> result<shared_bytes> {
    if (address == nullptr || size.value() == 0)
      return make_error(errc::invalid_argument, "exporting null or zero bytes");
    return do_export_memory(address, size, family);
  });
}
result<opened_memory_description> backend::open_memory(std::optional<device_id> device, const shared_bytes& handle,
                                                       handle_family family,
                                                       std::chrono::nanoseconds timeout) noexcept {
  return checked({device.value_or(first_device())}, [&] { return do_open_memory(device, handle, family, timeout); });
}
result<void> backend::close_memory(void* address) noexcept {
  return ended([&] { return do_close_memory(address); });
}
result<void> backend::set_memory_access(void* address, std::span<const device_right> rights) noexcept {
  return checked({}, [&]() -> result<void> {
    for (const device_right& one : rights) {
      if (!has(one.device)) return unknown(one.device);
    }
    return do_set_memory_access(address, rights);
  });
}
result<access_right> backend::memory_access(device_id device, const void* address) noexcept {
  return checked({device}, [&] { return do_memory_access(device, address); });
}

// ---- order ----------------------------------------------------------------------------------------------------------

result<stream_handle> backend::create_stream(device_id device, int priority, bool told) noexcept {
  return checked({device}, [&] { return do_create_stream(device, priority, told); });
}
result<std::unique_ptr<thread_place>> backend::enter(device_id device) noexcept {
  return checked({device}, [&] { return do_enter(device); });
}
result<stream_handle> backend::adopt_stream(device_id device, void* driver_queue) noexcept {
  return checked({device}, [&] { return do_adopt_stream(device, driver_queue); });
}
result<void*> backend::driver_queue(stream_handle stream) noexcept {
  return checked({}, [&] { return do_driver_queue(stream); });
}
void backend::destroy_stream(stream_handle stream) noexcept {
  told([&] { do_destroy_stream(stream); });
}
result<stream_handle> backend::default_stream(device_id device) noexcept {
  return checked({device}, [&] { return do_default_stream(device); });
}
result<event_ref> backend::record(stream_handle stream) noexcept {
  return checked({}, [&] { return do_record(stream); });
}
result<void> backend::wait_event(stream_handle stream, const event_ref& event) noexcept {
  return checked({}, [&] { return do_wait_event(stream, event); });
}
result<event_ref> backend::write_value(stream_handle stream, const word_request& request) noexcept {
  return checked({}, [&]() -> result<event_ref> {
    if (auto wrong = detail::refused_word(request, false)) return std::move(*wrong);
    return do_write_value(stream, request);
  });
}
result<event_ref> backend::wait_value(stream_handle stream, const word_request& request) noexcept {
  return checked({}, [&]() -> result<event_ref> {
    if (auto wrong = detail::refused_word(request, true)) return std::move(*wrong);
    return do_wait_value(stream, request);
  });
}
result<event_ref> backend::create_gate() noexcept {
  return checked({}, [&] { return do_create_gate(); });
}
void backend::open_gate(const event_ref& gate, std::shared_ptr<const error> cause) noexcept {
  told([&] { do_open_gate(gate, std::move(cause)); });
}

wait_outcome backend::wait(event_record& event, wait_deadline deadline, const std::stop_token& stop) noexcept {
  const wait_outcome own = wait_for_own(event, deadline, stop);
  if (own != wait_outcome::failed || !rest_ || gate_->forked()) return own;
  while (const event_ref other = rest_(event)) {
    const wait_outcome ended = other->owner->wait(*other, deadline, stop);
    if (ended == wait_outcome::timed_out || ended == wait_outcome::cancelled) return ended;
  }
  return own;
}

wait_outcome backend::wait_for_own(event_record& event, wait_deadline deadline, const std::stop_token& stop) noexcept {
  if (const detail::call_gate::pass inside{*gate_}; inside) return do_wait(event, deadline, stop);
  if (gate_->forked()) {
    // nobody here completes it
    if (!event.finished()) event.complete(shared_error(gate_->refusal()));
    return event.cause() ? wait_outcome::failed : wait_outcome::ok;
  }
  // who closes completes it
  return event.wait(std::chrono::steady_clock::time_point::max(), stop, waiting::adaptive);
}

bool backend::ready(event_record& event) noexcept {
  {
    const detail::call_gate::pass inside{*gate_};
    if (!(inside ? do_ready(event) : event.finished())) return false;
  }
  if (!event.cause() || !rest_ || gate_->forked()) return true;
  while (const event_ref other = rest_(event)) {
    if (!other->owner->ready(*other)) return false;
  }
  return true;
}
bool backend::idle(stream_handle stream) noexcept {
  return asked(true, [&] { return do_idle(stream); });
}
bool backend::settled(stream_handle stream) noexcept {
  return asked(true, [&] { return do_settled(stream); });
}
result<wait_outcome> backend::synchronize(stream_handle stream, wait_deadline deadline,
                                          const std::stop_token& stop) noexcept {
  return checked({}, [&] { return do_synchronize(stream, deadline, stop); });
}
bool backend::drain(device_id device, wait_deadline deadline) noexcept {
  return asked(true, [&] { return !has(device) || do_drain(device, deadline); });
}
std::vector<stream_handle> backend::streams_of(device_id device) {
  const detail::call_gate::pass inside{*gate_};
  return inside && has(device) ? do_streams_of(device) : std::vector<stream_handle>{};
}
bool backend::tells(stream_handle stream) noexcept {
  return asked(true, [&] { return do_tells(stream); });
}

// ---- move -----------------------------------------------------------------------------------------------------------

namespace {

std::optional<error> check_copy(const copy_request& request) {
  if (request.shape.total() != 0 && (request.dst == nullptr || request.src == nullptr))
    return make_error(errc::invalid_argument, "a copy from or to null");
  if (request.wait && request.stop.stop_requested())
    return make_error(errc::cancelled, "a copy was cancelled before it started");
  return std::nullopt;
}

/// The name of its range for a profiler.
std::string words_of(const copy_request& request) { return "copy " + to_string(bytes{request.shape.total()}); }

}  // namespace

result<event_ref> backend::copy(stream_handle stream, const copy_request& request) noexcept {
  const detail::profiler_range range{[&] { return words_of(request); }};
  return checked({}, [&]() -> result<event_ref> {
    if (auto wrong = check_copy(request)) return std::move(*wrong);
    return request.shape.total() == 0 ? do_record(stream) : do_copy(stream, request);
  });
}

result<event_ref> backend::copy_batch(stream_handle stream, std::span<const copy_request> requests) noexcept {
  const detail::profiler_range range{[&] { return std::to_string(requests.size()) + " copies"; }};
  return checked({}, [&]() -> result<event_ref> {
    bool moves = false;
    for (const copy_request& request : requests) {
      if (auto wrong = check_copy(request)) return std::move(*wrong);
      moves = moves || request.shape.total() != 0;
    }
    return moves ? do_copy_batch(stream, requests) : do_record(stream);
  });
}

bool backend::copies_through(device_id from, device_id to) noexcept {
  return asked(false, [&] { return has(from) && has(to) && do_copies_through(from, to); });
}

result<event_ref> backend::copy_through(stream_handle stream, void* slot, const copy_request& request) noexcept {
  const detail::profiler_range range{[&] { return words_of(request); }};
  return checked({}, [&]() -> result<event_ref> {
    if (auto wrong = check_copy(request)) return std::move(*wrong);
    return request.shape.total() == 0 ? do_record(stream) : do_copy_through(stream, slot, request);
  });
}

result<event_ref> backend::fill(stream_handle stream, const fill_request& request) noexcept {
  const detail::profiler_range range{[&] { return "fill " + to_string(bytes{request.count * request.pattern_size}); }};
  return checked({}, [&] { return request.count == 0 ? do_record(stream) : do_fill(stream, request); });
}

// ---- run ------------------------------------------------------------------------------------------------------------

result<void> backend::prepare(device_id device, const kernel_code& kernel) noexcept {
  return checked({device}, [&] { return do_prepare(device, kernel); });
}
result<event_ref> backend::launch(stream_handle stream, launch_request request) noexcept {
  const detail::profiler_range range{[&] { return "launch " + request.kernel->name; }};
  return checked({}, [&] { return do_launch(stream, std::move(request)); });
}
result<event_ref> backend::call(stream_handle stream, std::function<result<void>()> function) noexcept {
  return checked({}, [&] { return do_call(stream, std::move(function)); });
}

// ---- watch ----------------------------------------------------------------------------------------------------------

std::uint64_t backend::watch_traffic(const traffic_source& source) noexcept {
  const auto id = checked({}, [&]() -> result<std::uint64_t> {
    for (const device_id end : {source.from, source.to}) {
      if (end != device_id{} && !has(end)) return unknown(end);
    }
    return do_watch_traffic(source);
  });
  return id ? *id : 0;
}
void backend::unwatch_traffic(std::uint64_t id) noexcept {
  static_cast<void>(guarded([&]() -> result<void> {
    do_unwatch_traffic(id);
    return {};
  }));
}
void backend::trace_to(std::shared_ptr<trace_sink> sink) noexcept {
  told([&] { do_trace_to(std::move(sink)); });
}
void backend::note_copy(stream_handle order, const copy_request& whole) noexcept {
  told([&] { do_note_copy(order, whole); });
}
void backend::note_reuse(void* base) noexcept {
  told([&] { do_note_reuse(base); });
}
std::shared_ptr<const error> backend::lost(device_id device) noexcept {
  return has(device) ? do_lost(device) : nullptr;
}
result<void> backend::reset(device_id device) noexcept {
  return checked({device}, [&] { return do_reset(device); });
}

// ---- the end --------------------------------------------------------------------------------------------------------

void backend::end_work() noexcept {
  if (forked() || work_ended_.exchange(true, std::memory_order_acq_rel)) return;  // a fork's work is the parent's
  gate_->shut();
  do_end_work();
}

void backend::close() noexcept {
  end_work();
  if (forked() || closed_.exchange(true, std::memory_order_acq_rel)) return;
  gate_->wait_until_empty();
  do_close();
}

}  // namespace weft
