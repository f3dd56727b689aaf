// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: each group of the interface is a few lines over discovery and contexts (which GPUs), memory_map
// (whose bytes, who may), blocks and sharing (the driver's ways to share), queued::scheduler over stream_driver (in
// what order) and module_cache (what a kernel's text became).
#pragma once

#include "backend/queued/queued_backend.hpp"
#include "backends/gpu/blocks.hpp"
#include "backends/gpu/memory_map.hpp"
#include "backends/gpu/module_cache.hpp"
#include "backends/gpu/multicast.hpp"
#include "backends/gpu/sharing.hpp"
#include "backends/gpu/stream_driver.hpp"
#include "weft/backend/registry.hpp"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace weft::gpu {

class gpu_backend final : public queued::queued_backend {
 public:
  gpu_backend(const backend_options& options, const settings& wanted, std::shared_ptr<const driver> cu,
              management_library management, discovery found, topology machine);
  ~gpu_backend() override;

  // discover: gpu_backend.cpp
  [[nodiscard]] backend_kind kind() const noexcept override { return backend_kind::cuda; }
  [[nodiscard]] std::span<const std::string> notes() const noexcept override { return found_.notes; }
  [[nodiscard]] result<memory_use> memory(device_id device) noexcept override;
  [[nodiscard]] result<peer_description> peer(device_id from, device_id to) noexcept override;
  [[nodiscard]] result<device_health> health(device_id device) noexcept override;

  // allocate: gpu_backend.cpp
  [[nodiscard]] result<void*> allocate(device_id device, bytes size, memory_kind kind) noexcept override;
  [[nodiscard]] result<void> release(void* base) noexcept override;
  [[nodiscard]] result<memory_description> find(const void* address) noexcept override;
  [[nodiscard]] result<void> adopt(device_id device, void* base, bytes size) noexcept override;
  [[nodiscard]] result<event_ref> prefetch(stream_handle stream, void* base, bytes size) noexcept override;
  [[nodiscard]] result<void> advise(void* base, bytes size, memory_advice advice, device_id device) noexcept override;
  [[nodiscard]] result<std::shared_ptr<std::byte>> host_window(device_id by, void* address,
                                                               bytes size) noexcept override;

  // share: share.cpp
  [[nodiscard]] result<void> enable_peer(device_id from, device_id to) noexcept override;
  [[nodiscard]] result<void> disable_peer(device_id from, device_id to) noexcept override;
  [[nodiscard]] bool peer_enabled(device_id from, device_id to) noexcept override;
  [[nodiscard]] std::uint64_t peer_epoch() noexcept override { return memory_.epoch(); }
  [[nodiscard]] result<void*> map_peer(device_id by, void* address, bytes size) noexcept override;
  [[nodiscard]] result<void> unmap_peer(device_id by, void* mapped) noexcept override;
  [[nodiscard]] result<atomic_support> peer_atomics(device_id from, device_id to,
                                                    atomic_operation operation) noexcept override;

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

  [[nodiscard]] result<bytes> multicast_granularity(std::span<const device_id> team) noexcept override;
  [[nodiscard]] result<multicast_id> create_multicast(std::size_t devices, bytes size) noexcept override;
  void release_multicast(multicast_id group) noexcept override;
  [[nodiscard]] result<void> add_multicast_device(multicast_id group, device_id device) noexcept override;
  [[nodiscard]] result<void> bind_multicast(multicast_id group, block_id block) noexcept override;
  [[nodiscard]] result<void> unbind_multicast(multicast_id group, device_id device) noexcept override;
  // multicast_access.cpp
  [[nodiscard]] result<event_ref> multicast_store(stream_handle stream, multicast_id group, bytes offset,
                                                  const void* src, bytes size) noexcept override;
  [[nodiscard]] result<event_ref> multicast_load(stream_handle stream, void* dst, multicast_id group, bytes offset,
                                                 std::size_t count, element_type type,
                                                 multicast_reduction how) noexcept override;

  [[nodiscard]] result<void*> allocate_shareable(device_id device, bytes size, handle_family family) noexcept override;
  [[nodiscard]] result<shared_bytes> export_memory(const void* address, bytes size,
                                                   handle_family family) noexcept override;
  [[nodiscard]] result<opened_memory_description> open_memory(std::optional<device_id> device,
                                                              const shared_bytes& handle, handle_family family,
                                                              std::chrono::nanoseconds limit) noexcept override;
  [[nodiscard]] result<void> close_memory(void* address) noexcept override;
  [[nodiscard]] result<void> set_memory_access(void* address, std::span<const device_right> rights) noexcept override;
  [[nodiscard]] result<access_right> memory_access(device_id device, const void* address) noexcept override;

  // order: order.cpp, words.cpp, queued_backend
  [[nodiscard]] result<stream_handle> adopt_stream(device_id device, void* driver_queue) noexcept override;
  [[nodiscard]] result<void*> driver_queue(stream_handle stream) noexcept override;
  [[nodiscard]] result<event_ref> write_value(stream_handle stream, const word_request& request) noexcept override;
  [[nodiscard]] result<event_ref> wait_value(stream_handle stream, const word_request& request) noexcept override;

  // move: move.cpp, fill.cpp
  [[nodiscard]] result<event_ref> copy(stream_handle stream, const copy_request& request) noexcept override;
  [[nodiscard]] result<event_ref> copy_batch(stream_handle stream,
                                             std::span<const copy_request> requests) noexcept override;
  [[nodiscard]] result<event_ref> fill(stream_handle stream, const fill_request& request) noexcept override;

  // run: run.cpp
  [[nodiscard]] result<void> prepare(device_id device, const kernel_code& kernel) noexcept override;
  [[nodiscard]] result<event_ref> launch(stream_handle stream, launch_request request) noexcept override;
  [[nodiscard]] result<event_ref> call(stream_handle stream, std::function<result<void>()> function) noexcept override;

  // watch: gpu_backend.cpp
  void trace_to(std::shared_ptr<trace_sink> sink) noexcept override {
    streams_->time(sink != nullptr);
    queued_backend::trace_to(std::move(sink));
  }
  [[nodiscard]] result<void> reset(device_id device) noexcept override;
  void close() noexcept override;

 private:
  struct prepared_copy;

  /// It loses the device where it is sticky.
  [[nodiscard]] error noticed(device_id device, error cause) noexcept override;
  void looked() noexcept override { part_peers(); }
  [[nodiscard]] result<std::shared_ptr<allocation>> unified_at(void* base, bytes size, const char* what) noexcept;
  [[nodiscard]] result<void> serves(device_id device) noexcept;
  [[nodiscard]] bool is_context_lost(device_id device) noexcept;
  void look_at(device_id device) noexcept;
  void part_peers() noexcept;
  [[nodiscard]] error without_path(device_id from, device_id to) noexcept;

  // order, move and run
  [[nodiscard]] std::optional<error> without_word(device_id by, const word_request& request, bool waits) const;
  [[nodiscard]] result<event_ref> submit_word(stream_handle stream, const word_request& request, bool waits) noexcept;
  [[nodiscard]] result<prepared_copy> prepare(const copy_request& request, device_id by) noexcept;
  [[nodiscard]] std::shared_ptr<const error> check_access(const prepared_copy& copy) const;
  [[nodiscard]] result<event_ref> submit_copies(queued::queued_stream& to, std::vector<prepared_copy> copies,
                                                std::stop_token stop);
  [[nodiscard]] result<device_id> engine_of(const prepared_copy& copy, device_id by) const;
  [[nodiscard]] CUresult copy_many(const std::vector<prepared_copy>& copies, CUstream stream) const;
  [[nodiscard]] std::shared_ptr<const error> copy_here(const prepared_copy& copy) const;
  [[nodiscard]] const link_path* path_of(const allocation* src, const allocation* dst) const;
  [[nodiscard]] std::shared_ptr<const loaded_kernel> fill_kernel(device_id device) noexcept;
  struct multicast_access;
  [[nodiscard]] result<event_ref> through_multicast(queued::queued_stream& order, multicast_access access);

  [[nodiscard]] const link_path* path_between(device_id from, device_id to) const { return traffic_.between(from, to); }
  void account(const link_path& path, std::uint64_t count) noexcept { traffic_.add(path, count); }

  std::shared_ptr<const driver> cu_;
  management_library nvml_;
  discovery found_;
  std::shared_ptr<contexts> places_;
  memory_map memory_;
  blocks blocks_;
  multicast_groups multicast_;
  sharing sharing_;
  std::shared_ptr<stream_driver> streams_;
  module_cache modules_;
  std::atomic<bool> no_fill_kernel_{false};
};

}  // namespace weft::gpu
