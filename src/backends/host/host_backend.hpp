// SPDX-License-Identifier: Apache-2.0
// The host backend: each group of the interface is a few lines over memory_map (whose bytes, who may), scheduler (when,
// in what order) and transfers (over which links, how fast).
#pragma once

#include "backends/host/engine/fault_plan.hpp"
#include "backends/host/engine/transfers.hpp"
#include "backends/host/memory/block_map.hpp"
#include "backends/host/memory/memory_map.hpp"
#include "backends/host/memory/multicast.hpp"
#include "backends/host/memory/sharing.hpp"
#include "backends/host/order/scheduler.hpp"
#include "backends/host/race_check/order_watch.hpp"
#include "weft/backend/backend.hpp"
#include "weft/backend/registry.hpp"

#include <memory>
#include <string>
#include <vector>

namespace weft::host {

class host_backend final : public backend {
 public:
  host_backend(const backend_options& options, topology machine);
  ~host_backend() override;

  // discover
  [[nodiscard]] std::span<const std::string> do_notes() const noexcept override { return notes_; }
  [[nodiscard]] result<memory_use> do_memory(device_id device) override;
  [[nodiscard]] result<peer_description> do_peer(device_id from, device_id to) override;

  // allocate
  [[nodiscard]] result<void*> do_allocate(device_id device, bytes size, memory_kind kind) override;
  [[nodiscard]] result<void> do_release(void* base) override;
  [[nodiscard]] result<memory_description> do_find(const void* address) override;
  [[nodiscard]] result<void> do_adopt(device_id device, void* base, bytes size) override;
  [[nodiscard]] result<event_ref> do_prefetch(stream_handle stream, void* base, bytes size) override;
  [[nodiscard]] result<void> do_advise(void* base, bytes size, memory_advice advice, device_id device) override;
  [[nodiscard]] result<std::shared_ptr<std::byte>> do_host_window(device_id by, void* address, bytes size) override;

  // share
  [[nodiscard]] bool do_can_access(device_id from, device_id to) noexcept override;
  [[nodiscard]] result<void> do_enable_peer(device_id from, device_id to) override;
  [[nodiscard]] result<void> do_disable_peer(device_id from, device_id to) override;
  [[nodiscard]] bool do_peer_enabled(device_id from, device_id to) noexcept override;
  [[nodiscard]] result<peer_delivery> do_verify_peer(device_id from, device_id to, peer_way way) override;
  [[nodiscard]] std::uint64_t do_peer_epoch() noexcept override { return memory_.epoch(); }
  [[nodiscard]] result<void*> do_map_peer(device_id by, void* address, bytes size) override;
  [[nodiscard]] result<void> do_unmap_peer(device_id by, void* mapped) override;
  [[nodiscard]] result<atomic_support> do_peer_atomics(device_id from, device_id to,
                                                       atomic_operation operation) override;

  // share, blocks and mappings
  [[nodiscard]] result<block_granularity> do_granularity(device_id device) override;
  [[nodiscard]] result<block_id> do_create_block(device_id device, bytes size, bool shareable) override;
  [[nodiscard]] result<void> do_release_block(block_id block) override;
  [[nodiscard]] result<block_description> do_describe_block(block_id block) override;
  [[nodiscard]] result<void*> do_reserve(bytes size, bytes alignment, void* hint) override;
  [[nodiscard]] result<void> do_free_reservation(void* base, bytes size) override;
  [[nodiscard]] result<void> do_map_block(void* address, bytes size, block_id block) override;
  [[nodiscard]] result<void> do_unmap_block(void* address, bytes size) override;
  [[nodiscard]] result<void> do_set_access(void* address, bytes size, std::span<const device_right> rights) override;
  [[nodiscard]] result<access_right> do_access_of(device_id device, const void* address) override;
  [[nodiscard]] result<block_id> do_block_of(const void* address) override;
  [[nodiscard]] result<int> do_export_block(block_id block) override;
  [[nodiscard]] result<block_id> do_import_block(std::optional<device_id> device, int descriptor, bytes size) override;

  // share, multicast
  [[nodiscard]] result<bytes> do_multicast_granularity(std::span<const device_id> team) override;
  [[nodiscard]] result<multicast_id> do_create_multicast(std::size_t devices, bytes size) override;
  void do_release_multicast(multicast_id group) override;
  [[nodiscard]] result<void> do_add_multicast_device(multicast_id group, device_id device) override;
  [[nodiscard]] result<void> do_bind_multicast(multicast_id group, block_id block) override;
  [[nodiscard]] result<void> do_unbind_multicast(multicast_id group, device_id device) override;
  [[nodiscard]] result<event_ref> do_multicast_store(stream_handle stream, multicast_id group, bytes offset,
                                                     const void* src, bytes size) override;
  [[nodiscard]] result<event_ref> do_multicast_load(stream_handle stream, void* dst, multicast_id group, bytes offset,
                                                    std::size_t count, element_type type,
                                                    multicast_reduction how) override;

  // share, handles of memory
  [[nodiscard]] result<void*> do_allocate_shareable(device_id device, bytes size, handle_family family) override;
  [[nodiscard]] result<shared_bytes> do_export_memory(const void* address, bytes size, handle_family family) override;
  [[nodiscard]] result<opened_memory_description> do_open_memory(std::optional<device_id> device,
                                                                 const shared_bytes& handle, handle_family family,
                                                                 std::chrono::nanoseconds timeout) override;
  [[nodiscard]] result<void> do_close_memory(void* address) override;
  [[nodiscard]] result<void> do_set_memory_access(void* address, std::span<const device_right> rights) override;
  [[nodiscard]] result<access_right> do_memory_access(device_id device, const void* address) override;

  // order
  [[nodiscard]] result<stream_handle> do_create_stream(device_id device, int priority, bool told) override;
  void do_destroy_stream(stream_handle stream) override;
  [[nodiscard]] result<stream_handle> do_default_stream(device_id device) override;
  [[nodiscard]] result<event_ref> do_record(stream_handle stream) override;
  [[nodiscard]] result<void> do_wait_event(stream_handle stream, const event_ref& event) override;
  [[nodiscard]] result<event_ref> do_write_value(stream_handle stream, const word_request& request) override;
  [[nodiscard]] result<event_ref> do_wait_value(stream_handle stream, const word_request& request) override;
  [[nodiscard]] result<event_ref> do_create_gate() override;
  void do_open_gate(const event_ref& gate, std::shared_ptr<const error> cause) override;
  [[nodiscard]] wait_outcome do_wait(event_record& event, wait_deadline deadline,
                                     const std::stop_token& stop) noexcept override;
  [[nodiscard]] bool do_ready(event_record& event) override;
  [[nodiscard]] bool do_idle(stream_handle stream) override;
  [[nodiscard]] bool do_settled(stream_handle stream) override;
  [[nodiscard]] result<wait_outcome> do_synchronize(stream_handle stream, wait_deadline deadline,
                                                    const std::stop_token& stop) override;
  [[nodiscard]] bool do_drain(device_id device, wait_deadline deadline) override;
  [[nodiscard]] std::vector<stream_handle> do_streams_of(device_id device) override;
  [[nodiscard]] bool do_tells(stream_handle stream) override;
  [[nodiscard]] std::chrono::nanoseconds do_now() noexcept override { return scheduler_.now(); }

  // move
  [[nodiscard]] result<event_ref> do_copy(stream_handle stream, const copy_request& request) override;
  [[nodiscard]] result<event_ref> do_copy_batch(stream_handle stream, std::span<const copy_request> requests) override;
  [[nodiscard]] bool do_copies_through(device_id from, device_id to) noexcept override;
  [[nodiscard]] result<event_ref> do_copy_through(stream_handle stream, void* slot,
                                                  const copy_request& request) override;
  [[nodiscard]] result<event_ref> do_fill(stream_handle stream, const fill_request& request) override;

  // run
  [[nodiscard]] result<event_ref> do_launch(stream_handle stream, launch_request request) override;
  [[nodiscard]] result<event_ref> do_call(stream_handle stream, std::function<result<void>()> function) override;

  // watch
  [[nodiscard]] std::uint64_t do_watch_traffic(const traffic_source& source) override;
  void do_unwatch_traffic(std::uint64_t id) override;
  [[nodiscard]] link_traffic do_traffic() override;
  void do_trace_to(std::shared_ptr<trace_sink> sink) override { scheduler_.trace_to(std::move(sink)); }
  [[nodiscard]] std::vector<order_violation> do_order_violations() override;
  void do_note_copy(stream_handle order, const copy_request& whole) override;
  void do_note_reuse(void* base) override;
  [[nodiscard]] std::shared_ptr<const error> do_lost(device_id device) override;
  [[nodiscard]] result<void> do_reset(device_id device) override;
  [[nodiscard]] bool do_on_worker() noexcept override { return scheduler_.on_worker(); }
  void do_end_work() noexcept override;
  void do_close() noexcept override;

 private:
  /// What an injected fault says of a call.
  [[nodiscard]] std::optional<error> injected(std::string_view function, std::initializer_list<device_id> ids);
  [[nodiscard]] result<host_stream*> stream_of(std::string_view function, stream_handle handle);
  [[nodiscard]] result<event_ref> submitted(event_ref event, order_watch::mark_ref mark = {}) const;
  [[nodiscard]] cost cost_of(const launch_request& request, device_id by) const noexcept;

  struct word;
  /// Finds the memory of a word for work in a stream.
  [[nodiscard]] result<std::shared_ptr<const word>> word_of(device_id by, const word_request& request, bool waits);

  struct end_of_multicast {
    pin memory;  // empty for plain host memory
    void* address = nullptr;
  };
  [[nodiscard]] result<std::shared_ptr<multicast_group>> multicast_of(multicast_id group);
  [[nodiscard]] result<end_of_multicast> other_end(const void* address, std::uint64_t size, device_id by, bool writes);

  std::vector<double> bandwidths_;  // classes of its pairs, best first
  bool check_access_;
  std::vector<std::string> notes_;
  fault_plan faults_;
  memory_map memory_;
  sharing sharing_;
  block_map blocks_{memory_};
  multicast_table multicasts_;
  std::unique_ptr<order_watch> order_;  // null: nobody looks; outlives the work that it is told of
  transfers transfers_;
  scheduler scheduler_;
  std::vector<stream_handle> default_streams_;
};

}  // namespace weft::host
