// SPDX-License-Identifier: Apache-2.0
// The host backend: each group of the interface is a few lines over memory_map (whose bytes, who may), scheduler (when,
// in what order) and transfers (over which links, how fast).
#pragma once

#include "backend/fork_watch.hpp"
#include "backends/host/block_map.hpp"
#include "backends/host/fault_plan.hpp"
#include "backends/host/memory_map.hpp"
#include "backends/host/multicast.hpp"
#include "backends/host/order_watch.hpp"
#include "backends/host/scheduler.hpp"
#include "backends/host/sharing.hpp"
#include "backends/host/transfers.hpp"
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
  [[nodiscard]] backend_kind kind() const noexcept override { return backend_kind::host; }
  [[nodiscard]] std::span<const device_description> devices() const noexcept override { return descriptions_; }
  [[nodiscard]] device_id first_device() const noexcept override { return first_; }
  [[nodiscard]] const topology& layout() const noexcept override { return machine_; }
  [[nodiscard]] std::span<const std::string> notes() const noexcept override { return notes_; }
  [[nodiscard]] result<memory_use> memory(device_id device) noexcept override;
  [[nodiscard]] result<peer_description> peer(device_id from, device_id to) noexcept override;

  // allocate
  [[nodiscard]] result<void*> allocate(device_id device, bytes size, memory_kind kind) noexcept override;
  [[nodiscard]] result<void> release(void* base) noexcept override;
  [[nodiscard]] result<memory_description> find(const void* address) noexcept override;
  [[nodiscard]] result<void> adopt(device_id device, void* base, bytes size) noexcept override;
  [[nodiscard]] result<event_ref> prefetch(stream_handle stream, void* base, bytes size) noexcept override;
  [[nodiscard]] result<void> advise(void* base, bytes size, memory_advice advice, device_id device) noexcept override;
  [[nodiscard]] result<std::shared_ptr<std::byte>> host_window(device_id by, void* address,
                                                               bytes size) noexcept override;

  // share
  [[nodiscard]] result<void> enable_peer(device_id from, device_id to) noexcept override;
  [[nodiscard]] result<void> disable_peer(device_id from, device_id to) noexcept override;
  [[nodiscard]] bool peer_enabled(device_id from, device_id to) noexcept override;
  [[nodiscard]] result<peer_delivery> verify_peer(device_id from, device_id to, peer_way way) noexcept override;
  [[nodiscard]] std::uint64_t peer_epoch() noexcept override { return memory_.peer_epoch(); }
  [[nodiscard]] result<void*> map_peer(device_id by, void* address, bytes size) noexcept override;
  [[nodiscard]] result<void> unmap_peer(device_id by, void* mapped) noexcept override;
  [[nodiscard]] result<atomic_support> peer_atomics(device_id from, device_id to,
                                                    atomic_operation operation) noexcept override;

  // share, blocks and mappings
  [[nodiscard]] result<block_granularity> granularity(device_id device) noexcept override;
  [[nodiscard]] result<block_id> create_block(device_id device, bytes size, bool shareable) noexcept override;
  [[nodiscard]] result<void> retain_block(block_id block) noexcept override;
  [[nodiscard]] result<void> release_block(block_id block) noexcept override;
  [[nodiscard]] result<block_description> describe_block(block_id block) noexcept override;
  [[nodiscard]] result<void*> reserve(bytes size, bytes alignment, void* hint) noexcept override;
  [[nodiscard]] result<void> free_reservation(void* base, bytes size) noexcept override;
  [[nodiscard]] result<void> map_block(void* address, bytes size, block_id block) noexcept override;
  [[nodiscard]] result<void> unmap_block(void* address, bytes size) noexcept override;
  [[nodiscard]] result<void> set_access(void* address, bytes size,
                                        std::span<const device_right> rights) noexcept override;
  [[nodiscard]] result<access_right> access_of(device_id device, const void* address) noexcept override;
  [[nodiscard]] result<block_id> block_of(const void* address) noexcept override;
  [[nodiscard]] result<int> export_block(block_id block) noexcept override;
  [[nodiscard]] result<block_id> import_block(device_id device, int descriptor) noexcept override;

  // share, multicast
  [[nodiscard]] result<bytes> multicast_granularity(std::span<const device_id> team) noexcept override;
  [[nodiscard]] result<multicast_id> create_multicast(std::size_t devices, bytes size) noexcept override;
  void release_multicast(multicast_id group) noexcept override;
  [[nodiscard]] result<void> add_multicast_device(multicast_id group, device_id device) noexcept override;
  [[nodiscard]] result<void> bind_multicast(multicast_id group, block_id block) noexcept override;
  [[nodiscard]] result<void> unbind_multicast(multicast_id group, device_id device) noexcept override;
  [[nodiscard]] result<event_ref> multicast_store(stream_handle stream, multicast_id group, bytes offset,
                                                  const void* src, bytes size) noexcept override;
  [[nodiscard]] result<event_ref> multicast_load(stream_handle stream, void* dst, multicast_id group, bytes offset,
                                                 std::size_t count, element_type type,
                                                 multicast_reduction how) noexcept override;

  // share, handles of memory
  [[nodiscard]] result<void*> allocate_shareable(device_id device, bytes size, handle_family family) noexcept override;
  [[nodiscard]] result<shared_bytes> export_memory(const void* address, bytes size,
                                                   handle_family family) noexcept override;
  [[nodiscard]] result<opened_memory_description> open_memory(std::optional<device_id> device,
                                                              const shared_bytes& handle, handle_family family,
                                                              std::chrono::nanoseconds limit) noexcept override;
  [[nodiscard]] result<void> close_memory(void* address) noexcept override;
  [[nodiscard]] result<void> set_memory_access(void* address, std::span<const device_right> rights) noexcept override;
  [[nodiscard]] result<access_right> memory_access(device_id device, const void* address) noexcept override;

  // order
  [[nodiscard]] result<stream_handle> create_stream(device_id device, int priority, bool told) noexcept override;
  void destroy_stream(stream_handle stream) noexcept override;
  [[nodiscard]] result<stream_handle> default_stream(device_id device) noexcept override;
  [[nodiscard]] result<event_ref> record(stream_handle stream) noexcept override;
  [[nodiscard]] result<void> wait_event(stream_handle stream, const event_ref& event) noexcept override;
  [[nodiscard]] result<event_ref> write_value(stream_handle stream, const word_request& request) noexcept override;
  [[nodiscard]] result<event_ref> wait_value(stream_handle stream, const word_request& request) noexcept override;
  [[nodiscard]] result<event_ref> create_gate() noexcept override;
  void open_gate(const event_ref& gate, std::shared_ptr<const error> cause) noexcept override;
  [[nodiscard]] wait_outcome wait(event_record& event, wait_deadline deadline,
                                  const std::stop_token& stop) noexcept override;
  [[nodiscard]] bool ready(event_record& event) noexcept override;
  [[nodiscard]] bool idle(stream_handle stream) noexcept override;
  [[nodiscard]] bool settled(stream_handle stream) noexcept override;
  [[nodiscard]] result<wait_outcome> synchronize(stream_handle stream, wait_deadline deadline,
                                                 const std::stop_token& stop) noexcept override;
  [[nodiscard]] bool drain(device_id device, wait_deadline deadline) noexcept override;
  [[nodiscard]] std::vector<stream_handle> streams_of(device_id device) override;
  [[nodiscard]] std::chrono::nanoseconds now() noexcept override { return scheduler_.now(); }

  // move
  [[nodiscard]] result<event_ref> copy(stream_handle stream, const copy_request& request) noexcept override;
  [[nodiscard]] result<event_ref> copy_batch(stream_handle stream,
                                             std::span<const copy_request> requests) noexcept override;
  [[nodiscard]] bool copies_through(device_id from, device_id to) noexcept override;
  [[nodiscard]] result<event_ref> copy_through(stream_handle stream, void* slot,
                                               const copy_request& request) noexcept override;
  [[nodiscard]] result<event_ref> fill(stream_handle stream, const fill_request& request) noexcept override;

  // run
  [[nodiscard]] result<event_ref> launch(stream_handle stream, launch_request request) noexcept override;
  [[nodiscard]] result<event_ref> call(stream_handle stream, std::function<result<void>()> function) noexcept override;

  // watch
  [[nodiscard]] std::uint64_t watch_traffic(const traffic_source& source) noexcept override;
  void unwatch_traffic(std::uint64_t id) noexcept override;
  [[nodiscard]] link_traffic traffic() override;
  void trace_to(std::shared_ptr<trace_sink> sink) noexcept override { scheduler_.trace_to(std::move(sink)); }
  [[nodiscard]] std::vector<order_violation> order_violations() override;
  void note_copy(stream_handle order, const copy_request& whole) noexcept override;
  void note_reuse(void* base) noexcept override;
  [[nodiscard]] std::shared_ptr<const error> lost(device_id device) noexcept override;
  [[nodiscard]] result<void> reset(device_id device) noexcept override;
  [[nodiscard]] bool on_worker() noexcept override { return scheduler_.on_worker(); }
  void end_work() noexcept override;
  void close() noexcept override;

 private:
  [[nodiscard]] bool known(device_id id) const noexcept;
  /// Without a look at the faults of the topology.
  [[nodiscard]] std::optional<error> check_devices(std::initializer_list<device_id> ids) noexcept;
  [[nodiscard]] std::optional<error> check_call(std::string_view function,
                                                std::initializer_list<device_id> ids) noexcept;
  [[nodiscard]] result<host_stream*> stream_of(std::string_view function, stream_handle handle) noexcept;
  [[nodiscard]] result<event_ref> submitted(event_ref event, order_watch::mark_ref mark = {}) const;
  [[nodiscard]] cost cost_of(const launch_request& request, device_id by) const noexcept;

  struct word;
  /// Finds the memory of a word for work in a stream.
  [[nodiscard]] result<std::shared_ptr<const word>> word_of(device_id by, const word_request& request, bool waits);

  struct end_of_multicast {
    pin memory;  // empty for plain host memory
    void* address = nullptr;
  };
  [[nodiscard]] result<std::shared_ptr<multicast_group>> multicast_of(multicast_id group) noexcept;
  [[nodiscard]] result<end_of_multicast> other_end(const void* address, std::uint64_t size, device_id by,
                                                   bool writes) noexcept;

  topology machine_;
  device_id first_;
  std::vector<double> bandwidths_;  // classes of its pairs, best first
  bool check_access_;
  std::vector<device_description> descriptions_;
  std::vector<std::string> notes_;
  fault_plan faults_;
  memory_map memory_;
  sharing sharing_;
  detail::fork_watch here_;
  block_map blocks_{memory_};
  multicast_table multicasts_;
  std::unique_ptr<order_watch> order_;  // null: nobody looks; outlives the work that it is told of
  transfers transfers_;
  scheduler scheduler_;
  std::vector<stream_handle> default_streams_;
};

}  // namespace weft::host
