// SPDX-License-Identifier: Apache-2.0
// A backend as the layers above call it. What a driver offers are the do_… functions of the same names, in one facet
// for each group (facets/*_facet.hpp): there stands what each does. Here stands what is checked before them, once for
// every backend: that the machine is open and is not used in the child of a fork (machine_closed, closed), that a
// device is one of this backend (invalid_device), and what the arguments say by themselves (invalid_argument). Plain
// values go in, result<T> comes out, and a failed allocation comes out as resource_exhausted.
//
// A port overrides what its driver can do; the rest answers `unsupported` with the reason. src/backends/null is the
// smallest one; the conformance suite says whether yours is right.
#pragma once

#include "weft/backend/facets/watch_facet.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <utility>
#include <vector>

namespace weft {

namespace detail {
class call_gate;
}

/// Device ids are those of the machine: this backend's devices are first_device() … + devices().size() − 1.
/// Thread: any, for every function. A derived class calls close() when its destructor begins.
class backend : public watch_facet {
 public:
  explicit backend(backend_identity what);
  virtual ~backend();

  // discover
  [[nodiscard]] std::span<const std::string> notes() const noexcept { return do_notes(); }
  [[nodiscard]] result<memory_use> memory(device_id device) noexcept;
  /// A device is no peer of itself, which is no error.
  [[nodiscard]] result<peer_description> peer(device_id from, device_id to) noexcept;
  [[nodiscard]] result<device_health> health(device_id device) noexcept;

  // allocate; what ends something, here and below, does nothing once the machine was closed: its end did it
  [[nodiscard]] result<void*> allocate(device_id device, bytes size, memory_kind kind) noexcept;
  [[nodiscard]] result<void*> allocate_coherent(device_id device, bytes size) noexcept;
  [[nodiscard]] result<void> release(void* base) noexcept;
  [[nodiscard]] result<memory_description> find(const void* address) noexcept;
  [[nodiscard]] result<void> adopt(device_id device, void* base, bytes size) noexcept;
  [[nodiscard]] result<event_ref> prefetch(stream_handle stream, void* base, bytes size) noexcept;
  [[nodiscard]] result<void> advise(void* base, bytes size, memory_advice advice, device_id device) noexcept;
  [[nodiscard]] result<std::shared_ptr<std::byte>> host_window(device_id by, void* address, bytes size) noexcept;
  [[nodiscard]] result<std::shared_ptr<bus_window>> open_bus_window(void* address, bytes size) noexcept;

  // peers: a pair without a path is peer_unsupported, a device and itself invalid_device
  [[nodiscard]] result<void> enable_peer(device_id from, device_id to) noexcept;
  [[nodiscard]] result<void> disable_peer(device_id from, device_id to) noexcept;
  [[nodiscard]] bool peer_enabled(device_id from, device_id to) noexcept;
  [[nodiscard]] std::uint64_t peer_epoch() noexcept { return do_peer_epoch(); }
  [[nodiscard]] result<void*> map_peer(device_id by, void* address, bytes size) noexcept;
  [[nodiscard]] result<void> unmap_peer(device_id by, void* mapped) noexcept;
  [[nodiscard]] result<peer_delivery> verify_peer(device_id from, device_id to, peer_way way) noexcept;
  [[nodiscard]] result<atomic_support> peer_atomics(device_id from, device_id to, atomic_operation operation) noexcept;

  // blocks
  [[nodiscard]] result<block_granularity> granularity(device_id device) noexcept;
  [[nodiscard]] result<block_id> create_block(device_id device, bytes size, bool shareable) noexcept;
  [[nodiscard]] result<void> release_block(block_id block) noexcept;
  [[nodiscard]] result<block_description> describe_block(block_id block) noexcept;
  [[nodiscard]] result<void*> reserve(bytes size, bytes alignment, void* hint) noexcept;
  [[nodiscard]] result<void> free_reservation(void* base, bytes size) noexcept;
  [[nodiscard]] result<void> map_block(void* address, bytes size, block_id block) noexcept;
  [[nodiscard]] result<void> unmap_block(void* address, bytes size) noexcept;
  [[nodiscard]] result<void> set_access(void* address, bytes size, std::span<const device_right> rights) noexcept;
  [[nodiscard]] result<access_right> access_of(device_id device, const void* address) noexcept;
  [[nodiscard]] result<block_id> block_of(const void* address) noexcept;
  [[nodiscard]] result<int> export_block(block_id block) noexcept;
  [[nodiscard]] result<block_id> import_block(std::optional<device_id> device, int file, bytes size = {}) noexcept;

  // multicast
  [[nodiscard]] result<bytes> multicast_granularity(std::span<const device_id> team) noexcept;
  [[nodiscard]] result<multicast_id> create_multicast(std::size_t devices, bytes size) noexcept;
  void release_multicast(multicast_id group) noexcept;
  [[nodiscard]] result<void> add_multicast_device(multicast_id group, device_id device) noexcept;
  [[nodiscard]] result<void> bind_multicast(multicast_id group, block_id block) noexcept;
  [[nodiscard]] result<void> unbind_multicast(multicast_id group, device_id device) noexcept;
  [[nodiscard]] result<event_ref> multicast_store(stream_handle stream, multicast_id group, bytes offset,
                                                  const void* src, bytes size) noexcept;
  [[nodiscard]] result<event_ref> multicast_load(stream_handle stream, void* dst, multicast_id group, bytes offset,
                                                 std::size_t count, element_type type,
                                                 multicast_reduction how) noexcept;

  // handles of memory
  [[nodiscard]] result<void*> allocate_shareable(device_id device, bytes size, handle_family family) noexcept;
  [[nodiscard]] result<shared_bytes> export_memory(const void* address, bytes size, handle_family family) noexcept;
  [[nodiscard]] result<opened_memory_description> open_memory(std::optional<device_id> device,
                                                              const shared_bytes& handle, handle_family family,
                                                              std::chrono::nanoseconds timeout) noexcept;
  [[nodiscard]] result<void> close_memory(void* address) noexcept;
  [[nodiscard]] result<void> set_memory_access(void* address, std::span<const device_right> rights) noexcept;
  [[nodiscard]] result<access_right> memory_access(device_id device, const void* address) noexcept;

  // order; once the machine was closed every event has ended and every stream is idle
  [[nodiscard]] result<std::unique_ptr<thread_place>> enter(device_id device) noexcept;
  [[nodiscard]] result<stream_handle> create_stream(device_id device, int priority, bool told = true) noexcept;
  [[nodiscard]] result<stream_handle> adopt_stream(device_id device, void* driver_queue) noexcept;
  [[nodiscard]] result<void*> driver_queue(stream_handle stream) noexcept;
  void destroy_stream(stream_handle stream) noexcept;
  [[nodiscard]] result<stream_handle> default_stream(device_id device) noexcept;
  [[nodiscard]] result<event_ref> record(stream_handle stream) noexcept;
  [[nodiscard]] result<void> wait_event(stream_handle stream, const event_ref& event) noexcept;
  [[nodiscard]] result<event_ref> write_value(stream_handle stream, const word_request& request) noexcept;
  [[nodiscard]] result<event_ref> wait_value(stream_handle stream, const word_request& request) noexcept;
  [[nodiscard]] result<event_ref> create_gate() noexcept;
  void open_gate(const event_ref& gate, std::shared_ptr<const error> cause) noexcept;
  /// Gives unfinished work that other backends of a mixed machine do for a failed event's stream, one piece at a time;
  /// null: there is none. A reset or the end of the machine may fail the event before that work ends: wait() and
  /// ready() then wait for the work too; finished() and callbacks do not.
  using unfinished_rest = std::function<event_ref(const event_record&)>;
  /// The mixed backend calls it once, before it submits work.
  void end_events_after(unfinished_rest rest) noexcept { rest_ = std::move(rest); }
  [[nodiscard]] wait_outcome wait(event_record& event, wait_deadline deadline, const std::stop_token& stop) noexcept;
  [[nodiscard]] bool ready(event_record& event) noexcept;
  [[nodiscard]] bool idle(stream_handle stream) noexcept;
  [[nodiscard]] bool settled(stream_handle stream) noexcept;
  [[nodiscard]] result<wait_outcome> synchronize(stream_handle stream, wait_deadline deadline,
                                                 const std::stop_token& stop) noexcept;
  [[nodiscard]] bool drain(device_id device, wait_deadline deadline) noexcept;
  /// Errors: std::bad_alloc is thrown.
  [[nodiscard]] std::vector<stream_handle> streams_of(device_id device);
  /// Whether its failures are told by a synchronization of the device. Those of other streams are their owners' affair,
  /// who alone synchronizes them: that lets a stream go on behind its failure.
  [[nodiscard]] bool tells(stream_handle stream) noexcept;
  [[nodiscard]] std::chrono::nanoseconds now() noexcept { return do_now(); }

  // move: no bytes are no work, and the event is that of what came before
  [[nodiscard]] result<event_ref> copy(stream_handle stream, const copy_request& request) noexcept;
  [[nodiscard]] result<event_ref> copy_batch(stream_handle stream, std::span<const copy_request> requests) noexcept;
  [[nodiscard]] bool copies_through(device_id from, device_id to) noexcept;
  [[nodiscard]] result<event_ref> copy_through(stream_handle stream, void* slot, const copy_request& request) noexcept;
  [[nodiscard]] result<event_ref> fill(stream_handle stream, const fill_request& request) noexcept;

  // run
  [[nodiscard]] result<void> prepare(device_id device, const kernel_code& kernel) noexcept;
  [[nodiscard]] result<event_ref> launch(stream_handle stream, launch_request request) noexcept;
  [[nodiscard]] result<event_ref> call(stream_handle stream, std::function<result<void>()> function) noexcept;

  // watch
  /// Errors: std::bad_alloc is thrown.
  [[nodiscard]] link_traffic traffic() { return do_traffic(); }
  [[nodiscard]] std::uint64_t watch_traffic(const traffic_source& source) noexcept;
  void unwatch_traffic(std::uint64_t id) noexcept;
  void trace_to(std::shared_ptr<trace_sink> sink) noexcept;
  /// Errors: std::bad_alloc is thrown.
  [[nodiscard]] std::vector<order_violation> order_violations() { return do_order_violations(); }
  void note_copy(stream_handle order, const copy_request& whole) noexcept;
  void note_reuse(void* base) noexcept;
  [[nodiscard]] std::shared_ptr<const error> lost(device_id device) noexcept;
  [[nodiscard]] result<void> reset(device_id device) noexcept;
  /// Waits until other backends of a mixed machine have done with host memory of a device.
  using wait_for_others = std::function<void(device_id)>;
  /// The mixed backend calls it once, before it submits work.
  void free_memory_after(wait_for_others others) noexcept { others_ = std::move(others); }
  [[nodiscard]] bool on_worker() noexcept { return do_on_worker(); }
  /// Whether a call of this thread is under way, which close() on it cannot wait for.
  [[nodiscard]] bool in_call() noexcept;
  /// Ends all work as close() does, and keeps memory, for who closes several backends that use each other's.
  void end_work() noexcept;
  /// Ends everything: pending work completes as cancelled, calls under way come back, threads are joined, memory is
  /// returned. Later calls fail with machine_closed.
  void close() noexcept;

 protected:
  /// For do_reset(), between the end of the device's work and that of its memory.
  void await_others(device_id device) const {
    if (others_) others_(device);
  }

 private:
  template <class F>
  [[nodiscard]] auto checked(std::initializer_list<device_id> ids, F&& f) noexcept -> decltype(f());
  template <class F>
  [[nodiscard]] result<void> ended(F&& f) noexcept;
  template <class F>
  [[nodiscard]] bool asked(bool otherwise, F&& f) noexcept;
  template <class F>
  void told(F&& f) noexcept;
  [[nodiscard]] bool forked() const noexcept;
  [[nodiscard]] wait_outcome wait_for_own(event_record& event, wait_deadline deadline,
                                          const std::stop_token& stop) noexcept;
  [[nodiscard]] error unknown(device_id id) const;
  [[nodiscard]] std::optional<error> check_pair(device_id from, device_id to, bool needs_path);
  [[nodiscard]] std::optional<error> check_mapping(device_id by, const void* address, bytes size,
                                                   const memory_description& source);
  [[nodiscard]] std::optional<error> check_unified(const void* base, bytes size, const char* what);

  std::unique_ptr<detail::call_gate> gate_;
  std::atomic<bool> work_ended_{false}, closed_{false};
  unfinished_rest rest_;
  wait_for_others others_;
};

}  // namespace weft
