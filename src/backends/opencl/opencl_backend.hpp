// SPDX-License-Identifier: Apache-2.0
// The OpenCL backend: each group of the interface is a few lines over memory_map (whose bytes, who may), the scheduler
// of src/backend/queued (in what order) and program_cache (what a kernel's text became).
#pragma once

#include "backend/fork_watch.hpp"
#include "backend/queued/scheduler.hpp"
#include "backend/traffic_account.hpp"
#include "backends/opencl/cl_queue_driver.hpp"
#include "backends/opencl/memory_map.hpp"
#include "backends/opencl/program_cache.hpp"
#include "weft/backend/registry.hpp"

#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace weft::opencl {

using driver_command = queued::driver_command<pin>;
using host_command = queued::host_command<pin>;

class opencl_backend final : public backend {
 public:
  opencl_backend(const backend_options& options, std::shared_ptr<const api> cl, discovery found, topology machine);
  ~opencl_backend() override;

  // discover
  [[nodiscard]] backend_kind kind() const noexcept override { return backend_kind::opencl; }
  [[nodiscard]] std::span<const device_description> devices() const noexcept override { return descriptions_; }
  [[nodiscard]] device_id first_device() const noexcept override { return first_; }
  [[nodiscard]] const topology& layout() const noexcept override { return machine_; }
  [[nodiscard]] std::span<const std::string> notes() const noexcept override { return found_.notes; }
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
  [[nodiscard]] std::uint64_t peer_epoch() noexcept override { return memory_.epoch(); }
  [[nodiscard]] result<void*> map_peer(device_id by, void* address, bytes size) noexcept override;
  [[nodiscard]] result<void> unmap_peer(device_id by, void* mapped) noexcept override;
  [[nodiscard]] result<atomic_support> peer_atomics(device_id from, device_id to,
                                                    atomic_operation operation) noexcept override;
  [[nodiscard]] result<access_right> memory_access(device_id device, const void* address) noexcept override;

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
  [[nodiscard]] result<event_ref> fill(stream_handle stream, const fill_request& request) noexcept override;

  // run
  [[nodiscard]] result<void> prepare(device_id device, const kernel_code& kernel) noexcept override;
  [[nodiscard]] result<event_ref> launch(stream_handle stream, launch_request request) noexcept override;
  [[nodiscard]] result<event_ref> call(stream_handle stream, std::function<result<void>()> function) noexcept override;

  // watch
  [[nodiscard]] link_traffic traffic() noexcept override { return traffic_.now(); }
  [[nodiscard]] std::uint64_t watch_traffic(const traffic_source& source) noexcept override {
    return traffic_.watch(source);
  }
  void unwatch_traffic(std::uint64_t id) noexcept override { traffic_.unwatch(id); }
  void trace_to(std::shared_ptr<trace_sink> sink) noexcept override { scheduler_.trace_to(std::move(sink)); }
  [[nodiscard]] std::shared_ptr<const error> lost(device_id device) noexcept override;
  [[nodiscard]] result<void> reset(device_id device) noexcept override;
  [[nodiscard]] bool on_worker() noexcept override { return scheduler_.on_worker(); }
  void end_work() noexcept override;
  void close() noexcept override;

 private:
  struct prepared_copy;

  [[nodiscard]] std::size_t local(device_id id) const { return static_cast<std::size_t>(id.value() - first_.value()); }
  [[nodiscard]] bool known(device_id id) const noexcept;
  [[nodiscard]] std::optional<error> check_call(std::initializer_list<device_id> ids) noexcept;
  [[nodiscard]] result<queued::queued_stream*> stream_of(stream_handle handle) noexcept;
  [[nodiscard]] result<event_ref> submitted(queued::queued_stream& to, std::unique_ptr<queued::command> made) noexcept;
  void look_at(device_id device) noexcept;
  [[nodiscard]] error without_path(device_id from, device_id to) noexcept;

  // move
  [[nodiscard]] result<prepared_copy> prepare(const copy_request& request) noexcept;
  [[nodiscard]] std::shared_ptr<const error> check_access(const prepared_copy& copy) const;
  [[nodiscard]] result<event_ref> submit_copies(queued::queued_stream& to, std::vector<prepared_copy> copies,
                                                std::stop_token stop);
  [[nodiscard]] result<void> enqueue(cl_command_queue queue, const prepared_copy& copy, cl_event* ended) const;
  /// A queue of `device` for work that the host waits for, as a stream of another context asks it.
  [[nodiscard]] result<cl_command_queue> aside(device_id device);
  [[nodiscard]] const link_path* path_of(const allocation* src, const allocation* dst) const;

  std::shared_ptr<const api> cl_;
  discovery found_;
  topology machine_;
  device_id first_;
  std::vector<device_description> descriptions_;
  detail::fork_watch here_;
  memory_map memory_;
  program_cache programs_;

  detail::traffic_account traffic_;

  std::mutex default_mutex_;
  std::vector<stream_handle> default_streams_;  // made when first asked for
  std::mutex aside_mutex_;
  std::vector<queue_handle> aside_;

  queued::scheduler scheduler_;
};

/// open_with() on functions that are found already.
[[nodiscard]] result<std::unique_ptr<backend>> open_on(std::shared_ptr<const api> cl, const backend_options& options,
                                                       const settings& wanted) noexcept;

}  // namespace weft::opencl
