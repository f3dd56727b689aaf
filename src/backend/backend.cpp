// SPDX-License-Identifier: Apache-2.0
#include "weft/backend/backend.hpp"

namespace weft {

std::string_view to_string(backend_kind kind) {
  switch (kind) {
    case backend_kind::host:
      return "host";
    case backend_kind::cuda:
      return "cuda";
    case backend_kind::hip:
      return "hip";
    case backend_kind::opencl:
      return "opencl";
    case backend_kind::null:
      return "null";
    case backend_kind::mixed:
      return "mixed";
  }
  return "null";
}

std::string_view to_string(memory_kind kind) {
  switch (kind) {
    case memory_kind::device:
      return "device";
    case memory_kind::pinned:
      return "pinned";
    case memory_kind::unified:
      return "unified";
    case memory_kind::adopted:
      return "adopted";
    case memory_kind::mapped:
      return "mapped";
    case memory_kind::block:
      return "block";
  }
  return "device";
}

std::string_view to_string(access_right right) {
  switch (right) {
    case access_right::none:
      return "none";
    case access_right::read:
      return "read";
    case access_right::read_write:
      return "read_write";
  }
  return "none";
}

std::string_view to_string(word_comparison comparison) {
  switch (comparison) {
    case word_comparison::greater_equal:
      return "greater_equal";
    case word_comparison::equal:
      return "equal";
    case word_comparison::bits_any:
      return "bits_any";
    case word_comparison::nor:
      return "nor";
  }
  return "greater_equal";
}

std::string_view to_string(peer_way way) {
  switch (way) {
    case peer_way::commands:
      return "copies";
    case peer_way::allocations:
      return "allocations";
    case peer_way::pools:
      return "pools";
    case peer_way::blocks:
      return "blocks";
  }
  return "copies";
}

std::string_view to_string(atomic_operation operation) {
  static constexpr std::array<std::string_view, atomic_operation_count> names{
      "integer_add", "integer_min", "integer_max",      "integer_increment", "integer_decrement", "bit_and",  "bit_or",
      "bit_xor",     "exchange",    "compare_exchange", "float_add",         "float_min",         "float_max"};
  const auto at = static_cast<std::size_t>(operation);
  return at < names.size() ? names[at] : "unknown";
}

error backend::not_offered(std::string_view what) const {
  error cause;
  cause.code = errc::unsupported;
  cause.what = "the " + std::string{to_string(kind())} + " backend does not offer " + std::string{what};
  cause.where = {};
  return cause;
}

result<memory_use> backend::memory(device_id) noexcept { return not_offered("memory figures"); }
result<peer_description> backend::peer(device_id, device_id) noexcept {
  peer_description none;
  none.why = not_offered("peer access").what;
  return none;
}
result<device_health> backend::health(device_id) noexcept { return not_offered("sensors"); }
result<void*> backend::allocate(device_id, bytes, memory_kind) noexcept { return not_offered("memory"); }
result<void> backend::release(void*) noexcept { return not_offered("memory"); }
result<memory_description> backend::find(const void*) noexcept {
  error cause = not_offered("memory");
  cause.code = errc::not_found;
  return cause;
}
result<void> backend::adopt(device_id, void*, bytes) noexcept { return not_offered("adopted memory"); }
result<event_ref> backend::prefetch(stream_handle, void*, bytes) noexcept { return not_offered("prefetch"); }
result<void> backend::advise(void*, bytes, memory_advice, device_id) noexcept { return not_offered("advice"); }
result<void> backend::enable_peer(device_id, device_id) noexcept { return not_offered("peer access"); }
result<void> backend::disable_peer(device_id, device_id) noexcept { return not_offered("peer access"); }
std::span<const std::string> backend::notes() const noexcept { return {}; }
bool backend::peer_enabled(device_id, device_id) noexcept { return false; }
std::uint64_t backend::peer_epoch() noexcept { return 0; }
result<void*> backend::map_peer(device_id, void*, bytes) noexcept { return not_offered("peer mappings"); }
result<void> backend::unmap_peer(device_id, void*) noexcept { return not_offered("peer mappings"); }
result<peer_delivery> backend::verify_peer(device_id, device_id, peer_way) noexcept {
  return not_offered("a check of a pair without commands");
}
result<atomic_support> backend::peer_atomics(device_id, device_id, atomic_operation) noexcept {
  return not_offered("the atomics of a pair");
}

// share, blocks and mappings
result<block_granularity> backend::granularity(device_id) noexcept { return not_offered("blocks"); }
result<block_id> backend::create_block(device_id, bytes, bool) noexcept { return not_offered("blocks"); }
result<void> backend::retain_block(block_id) noexcept { return not_offered("blocks"); }
result<void> backend::release_block(block_id) noexcept { return not_offered("blocks"); }
result<block_description> backend::describe_block(block_id) noexcept { return not_offered("blocks"); }
result<void*> backend::reserve(bytes, bytes, void*) noexcept { return not_offered("reservations"); }
result<void> backend::free_reservation(void*, bytes) noexcept { return not_offered("reservations"); }
result<void> backend::map_block(void*, bytes, block_id) noexcept { return not_offered("mappings of blocks"); }
result<void> backend::unmap_block(void*, bytes) noexcept { return not_offered("mappings of blocks"); }
result<void> backend::set_access(void*, bytes, std::span<const device_right>) noexcept {
  return not_offered("rights per device");
}
result<access_right> backend::access_of(device_id, const void*) noexcept { return not_offered("rights per device"); }
result<block_id> backend::block_of(const void*) noexcept { return not_offered("mappings of blocks"); }
result<int> backend::export_block(block_id) noexcept { return not_offered("blocks that are shared by descriptor"); }
result<block_id> backend::import_block(device_id, int) noexcept {
  return not_offered("blocks that are shared by descriptor");
}

// share, multicast
result<bytes> backend::multicast_granularity(std::span<const device_id>) noexcept { return not_offered("multicast"); }
result<multicast_id> backend::create_multicast(std::size_t, bytes) noexcept { return not_offered("multicast"); }
void backend::release_multicast(multicast_id) noexcept {}
result<void> backend::add_multicast_device(multicast_id, device_id) noexcept { return not_offered("multicast"); }
result<void> backend::bind_multicast(multicast_id, block_id) noexcept { return not_offered("multicast"); }
result<void> backend::unbind_multicast(multicast_id, device_id) noexcept { return not_offered("multicast"); }
result<event_ref> backend::multicast_store(stream_handle, multicast_id, bytes, const void*, bytes) noexcept {
  return not_offered("multicast");
}
result<event_ref> backend::multicast_load(stream_handle, void*, multicast_id, bytes, std::size_t, element_type,
                                          multicast_reduction) noexcept {
  return not_offered("multicast");
}

result<stream_handle> backend::create_stream(device_id, int, bool) noexcept { return not_offered("streams"); }
result<stream_handle> backend::adopt_stream(device_id, void*) noexcept {
  return not_offered("streams of the program's");
}
result<void*> backend::driver_queue(stream_handle) noexcept { return not_offered("queues of a driver"); }
void backend::destroy_stream(stream_handle) noexcept {}
result<stream_handle> backend::default_stream(device_id) noexcept { return not_offered("streams"); }
result<event_ref> backend::write_value(stream_handle, const word_request&) noexcept {
  return not_offered("words of memory that streams write");
}
result<event_ref> backend::wait_value(stream_handle, const word_request&) noexcept {
  return not_offered("words of memory that streams wait for");
}
result<event_ref> backend::record(stream_handle) noexcept { return not_offered("events"); }
result<void> backend::wait_event(stream_handle, const event_ref&) noexcept { return not_offered("events"); }
result<event_ref> backend::create_gate() noexcept { return not_offered("gates"); }
// NOLINTNEXTLINE(performance-unnecessary-value-param): overriders keep it
void backend::open_gate(const event_ref&, std::shared_ptr<const error>) noexcept {}
wait_outcome backend::wait(event_record& event, wait_deadline, const std::stop_token& stop) noexcept {
  return event.wait(std::chrono::steady_clock::time_point::max(), stop, waiting::adaptive);
}
bool backend::ready(event_record& event) noexcept { return event.finished(); }
bool backend::idle(stream_handle) noexcept { return true; }
bool backend::settled(stream_handle stream) noexcept { return idle(stream); }
result<wait_outcome> backend::synchronize(stream_handle, wait_deadline, const std::stop_token&) noexcept {
  return not_offered("streams");
}
bool backend::drain(device_id, wait_deadline) noexcept { return true; }
std::vector<stream_handle> backend::streams_of(device_id) { return {}; }
std::chrono::nanoseconds backend::now() noexcept { return std::chrono::steady_clock::now().time_since_epoch(); }
result<event_ref> backend::copy(stream_handle, const copy_request&) noexcept { return not_offered("copies"); }
result<event_ref> backend::copy_batch(stream_handle stream, std::span<const copy_request> requests) noexcept {
  result<event_ref> last = event_ref{};
  for (const copy_request& request : requests) {
    last = copy(stream, request);
    if (!last) break;
  }
  return last;
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
bool backend::copies_through(device_id, device_id) noexcept { return false; }
result<event_ref> backend::copy_through(stream_handle, void*, const copy_request&) noexcept {
  return not_offered("copies through a slot");
}
result<event_ref> backend::fill(stream_handle, const fill_request&) noexcept { return not_offered("fills"); }
result<void> backend::prepare(device_id, const kernel_code&) noexcept { return {}; }
// NOLINTNEXTLINE(performance-unnecessary-value-param): an override takes it over
result<event_ref> backend::launch(stream_handle, launch_request) noexcept { return not_offered("kernels"); }
// NOLINTNEXTLINE(performance-unnecessary-value-param): overriders keep it
result<event_ref> backend::call(stream_handle, std::function<result<void>()>) noexcept {
  return not_offered("host functions");
}
link_traffic backend::traffic() { return {}; }
std::uint64_t backend::watch_traffic(const traffic_source&) noexcept { return 0; }
void backend::unwatch_traffic(std::uint64_t) noexcept {}
std::vector<order_violation> backend::order_violations() { return {}; }
void backend::note_copy(stream_handle, const copy_request&) noexcept {}
void backend::note_reuse(void*) noexcept {}
result<std::shared_ptr<std::byte>> backend::host_window(device_id, void*, bytes) noexcept {
  return not_offered("host windows");
}
result<void*> backend::allocate_shareable(device_id, bytes, handle_family) noexcept {
  return not_offered("handles of memory");
}
result<shared_bytes> backend::export_memory(const void*, bytes, handle_family) noexcept {
  return not_offered("handles of memory");
}
result<opened_memory_description> backend::open_memory(std::optional<device_id>, const shared_bytes&, handle_family,
                                                       std::chrono::nanoseconds) noexcept {
  return not_offered("handles of memory");
}
result<void> backend::close_memory(void*) noexcept { return not_offered("handles of memory"); }
result<void> backend::set_memory_access(void*, std::span<const device_right>) noexcept {
  return not_offered("access rights of an allocation");
}
result<access_right> backend::memory_access(device_id, const void*) noexcept {
  return not_offered("access rights of an allocation");
}
// NOLINTNEXTLINE(performance-unnecessary-value-param): an override keeps it
void backend::trace_to(std::shared_ptr<trace_sink> /*sink*/) noexcept {}
std::shared_ptr<const error> backend::lost(device_id) noexcept { return nullptr; }
bool backend::on_worker() noexcept { return false; }
result<void> backend::reset(device_id) noexcept { return not_offered("a reset"); }

}  // namespace weft
