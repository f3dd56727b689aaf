// SPDX-License-Identifier: Apache-2.0
// The host backend: each group of the interface is a few lines over memory_map (whose bytes, who may), scheduler (when,
// in what order) and transfers (over which links, how fast).
#pragma once

#include "backends/host/fault_plan.hpp"
#include "backends/host/memory_map.hpp"
#include "backends/host/scheduler.hpp"
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
  [[nodiscard]] std::uint64_t peer_epoch() noexcept override { return memory_.peer_epoch(); }
  [[nodiscard]] result<void*> map_peer(device_id by, void* address, bytes size) noexcept override;
  [[nodiscard]] result<void> unmap_peer(device_id by, void* mapped) noexcept override;

  // order
  [[nodiscard]] result<stream_handle> create_stream(device_id device, int priority, bool told) noexcept override;
  void destroy_stream(stream_handle stream) noexcept override;
  [[nodiscard]] result<stream_handle> default_stream(device_id device) noexcept override;
  [[nodiscard]] result<event_ref> record(stream_handle stream) noexcept override;
  [[nodiscard]] result<void> wait_event(stream_handle stream, const event_ref& event) noexcept override;
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
  [[nodiscard]] std::vector<stream_handle> streams_of(device_id device) noexcept override;
  [[nodiscard]] std::chrono::nanoseconds now() noexcept override { return scheduler_.now(); }

  // move
  [[nodiscard]] result<event_ref> copy(stream_handle stream, const copy_request& request) noexcept override;
  [[nodiscard]] result<event_ref> copy_batch(stream_handle stream,
                                             std::span<const copy_request> requests) noexcept override;
  [[nodiscard]] bool copies_through() noexcept override;
  [[nodiscard]] result<event_ref> copy_through(stream_handle stream, void* slot,
                                               const copy_request& request) noexcept override;
  [[nodiscard]] result<event_ref> fill(stream_handle stream, const fill_request& request) noexcept override;

  // run
  [[nodiscard]] result<event_ref> launch(stream_handle stream, const launch_request& request) noexcept override;
  [[nodiscard]] result<event_ref> call(stream_handle stream, std::function<result<void>()> function) noexcept override;

  // watch
  [[nodiscard]] std::uint64_t watch_traffic(const traffic_source& source) noexcept override;
  void unwatch_traffic(std::uint64_t id) noexcept override;
  [[nodiscard]] link_traffic traffic() noexcept override;
  [[nodiscard]] std::shared_ptr<const error> lost(device_id device) noexcept override;
  [[nodiscard]] result<void> reset(device_id device) noexcept override;
  [[nodiscard]] bool on_worker() noexcept override { return scheduler_.on_worker(); }
  void close() noexcept override;

 private:
  [[nodiscard]] bool known(device_id id) const noexcept;
  [[nodiscard]] std::optional<error> check_call(std::string_view function,
                                                std::initializer_list<device_id> ids) noexcept;
  [[nodiscard]] result<host_stream*> stream_of(std::string_view function, stream_handle handle) noexcept;
  [[nodiscard]] result<event_ref> submitted(event_ref event) const;

  topology machine_;
  device_id first_;
  bool check_access_;
  std::vector<device_description> descriptions_;
  fault_plan faults_;
  memory_map memory_;
  transfers transfers_;
  scheduler scheduler_;
  std::vector<stream_handle> default_streams_;
};

}  // namespace weft::host
