// SPDX-License-Identifier: Apache-2.0
// The OpenCL backend: each group of the interface is a few lines over memory_map (whose bytes, who may), the scheduler
// of src/backends/queued (in what order) and program_cache (what a kernel's text became).
#pragma once

#include "backends/opencl/cl_queue_driver.hpp"
#include "backends/opencl/memory_map.hpp"
#include "backends/opencl/program_cache.hpp"
#include "backends/queued/queued_backend.hpp"
#include "weft/backend/registry.hpp"

#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace weft::opencl {

using driver_command = queued::driver_command<pin>;
using host_command = queued::host_command<pin>;

class opencl_backend final : public queued::queued_backend {
 public:
  opencl_backend(const backend_options& options, std::shared_ptr<const api> cl, discovery found, topology machine);
  ~opencl_backend() override;

  // discover
  [[nodiscard]] std::span<const std::string> do_notes() const noexcept override { return found_.notes; }
  [[nodiscard]] result<memory_use> do_memory(device_id device) override;
  [[nodiscard]] result<peer_description> do_peer(device_id from, device_id to) override;

  // allocate
  [[nodiscard]] result<void*> do_allocate(device_id device, bytes size, memory_kind kind) override;
  [[nodiscard]] std::string_view do_why_no_unified() const noexcept override {
    return "no fine-grained shared memory that the host and every device of this machine see";
  }
  [[nodiscard]] result<void> do_release(void* base) override;
  [[nodiscard]] result<memory_description> do_find(const void* address) override { return memory_.describe(address); }
  [[nodiscard]] result<void> do_adopt(device_id device, void* base, bytes size) override;
  [[nodiscard]] result<event_ref> do_prefetch(stream_handle stream, void* base, bytes size) override;
  [[nodiscard]] result<void> do_advise(void* base, bytes size, memory_advice advice, device_id device) override;
  [[nodiscard]] result<std::shared_ptr<std::byte>> do_host_window(device_id by, void* address, bytes size) override;

  // share
  [[nodiscard]] bool do_can_access(device_id from, device_id to) noexcept override;
  [[nodiscard]] result<void> do_enable_peer(device_id from, device_id to) override;
  [[nodiscard]] result<void> do_disable_peer(device_id from, device_id to) override;
  [[nodiscard]] bool do_peer_enabled(device_id from, device_id to) noexcept override;
  [[nodiscard]] std::uint64_t do_peer_epoch() noexcept override { return memory_.epoch(); }
  [[nodiscard]] result<void*> do_map_peer(device_id by, void* address, bytes size) override;
  [[nodiscard]] result<void> do_unmap_peer(device_id by, void* mapped) override;
  [[nodiscard]] result<atomic_support> do_peer_atomics(device_id from, device_id to,
                                                       atomic_operation operation) override;
  [[nodiscard]] result<access_right> do_memory_access(device_id device, const void* address) override;

  // order: words.cpp, queued_backend
  [[nodiscard]] result<event_ref> do_write_value(stream_handle stream, const word_request& request) override;
  [[nodiscard]] result<event_ref> do_wait_value(stream_handle stream, const word_request& request) override;

  // move
  [[nodiscard]] result<event_ref> do_copy(stream_handle stream, const copy_request& request) override;
  [[nodiscard]] result<event_ref> do_copy_batch(stream_handle stream, std::span<const copy_request> requests) override;
  [[nodiscard]] result<event_ref> do_fill(stream_handle stream, const fill_request& request) override;

  // run
  [[nodiscard]] result<void> do_prepare(device_id device, const kernel_code& kernel) override;
  [[nodiscard]] result<event_ref> do_launch(stream_handle stream, launch_request request) override;

  // watch
  [[nodiscard]] result<void> do_reset(device_id device) override;
  void do_close() noexcept override;

 private:
  struct prepared_copy;

  // order
  [[nodiscard]] result<event_ref> submit_word(stream_handle stream, const word_request& request, bool waits);

  // move
  [[nodiscard]] result<prepared_copy> prepare(const copy_request& request);
  [[nodiscard]] std::shared_ptr<const error> check_access(const prepared_copy& copy) const;
  [[nodiscard]] result<event_ref> submit_copies(queued::queued_stream& to, std::vector<prepared_copy> copies,
                                                std::stop_token stop);
  [[nodiscard]] result<void> enqueue(cl_command_queue queue, const prepared_copy& copy, cl_event* ended) const;
  /// A queue of `device` for work that the host waits for, as a stream of another context asks it.
  [[nodiscard]] result<cl_command_queue> aside(device_id device);

  std::shared_ptr<const api> cl_;
  discovery found_;
  memory_map memory_;
  program_cache programs_;

  std::mutex aside_mutex_;
  std::vector<queue_handle> aside_;
};

/// open_with() on functions that are found already.
[[nodiscard]] result<std::unique_ptr<backend>> open_on(std::shared_ptr<const api> cl, const backend_options& options,
                                                       const settings& wanted) noexcept;

}  // namespace weft::opencl
