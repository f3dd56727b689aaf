// SPDX-License-Identifier: Apache-2.0
// The backend of GPUs, whatever vendor's: each group of the interface is a few lines over discovery and contexts (which
// GPUs), memory_map (whose bytes, who may), blocks and sharing (the driver's ways to share), queued::scheduler over
// stream_driver (in what order) and module_cache (what a kernel's text became).
#pragma once

#include "backends/gpu/kernels/module_cache.hpp"
#include "backends/gpu/memory/blocks.hpp"
#include "backends/gpu/memory/bus_windows.hpp"
#include "backends/gpu/memory/landing.hpp"
#include "backends/gpu/memory/memory_map.hpp"
#include "backends/gpu/memory/multicast.hpp"
#include "backends/gpu/memory/sharing.hpp"
#include "backends/gpu/order/stream_driver.hpp"
#include "backends/queued/queued_backend.hpp"
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
              management_library told, discovery found, topology machine);
  ~gpu_backend() override;

  // discover: gpu_backend.cpp
  [[nodiscard]] std::span<const std::string> do_notes() const noexcept override { return found_.notes; }
  [[nodiscard]] result<memory_use> do_memory(device_id device) override;
  [[nodiscard]] result<peer_description> do_peer(device_id from, device_id to) override;
  [[nodiscard]] result<device_health> do_health(device_id device) override;

  // allocate: gpu_backend.cpp
  [[nodiscard]] result<void*> do_allocate(device_id device, bytes size, memory_kind kind) override {
    return allocate_here(device, size, kind, false);
  }
  [[nodiscard]] result<void*> do_allocate_coherent(device_id device, bytes size) override {
    return allocate_here(device, size, memory_kind::device, true);
  }
  [[nodiscard]] std::string_view do_why_no_unified() const noexcept override {
    return "no managed memory that the host and every GPU of this machine use at the same time";
  }
  [[nodiscard]] result<void> do_release(void* base) override;
  [[nodiscard]] result<memory_description> do_find(const void* address) override { return memory_.describe(address); }
  [[nodiscard]] result<void> do_adopt(device_id device, void* base, bytes size) override;
  [[nodiscard]] result<event_ref> do_prefetch(stream_handle stream, void* base, bytes size) override;
  [[nodiscard]] result<void> do_advise(void* base, bytes size, memory_advice advice, device_id device) override;
  [[nodiscard]] result<std::shared_ptr<std::byte>> do_host_window(device_id by, void* address, bytes size) override;
  [[nodiscard]] result<std::shared_ptr<bus_window>> do_open_bus_window(void* address, bytes size) override;

  // share: share.cpp
  [[nodiscard]] bool do_can_access(device_id from, device_id to) noexcept override;
  [[nodiscard]] result<void> do_enable_peer(device_id from, device_id to) override;
  [[nodiscard]] result<void> do_disable_peer(device_id from, device_id to) override;
  [[nodiscard]] bool do_peer_enabled(device_id from, device_id to) noexcept override;
  [[nodiscard]] std::uint64_t do_peer_epoch() noexcept override { return memory_.epoch(); }
  [[nodiscard]] result<void*> do_map_peer(device_id by, void* address, bytes size) override;
  [[nodiscard]] result<void> do_unmap_peer(device_id by, void* mapped) override;
  [[nodiscard]] result<atomic_support> do_peer_atomics(device_id from, device_id to,
                                                       atomic_operation operation) override;

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

  [[nodiscard]] result<bytes> do_multicast_granularity(std::span<const device_id> team) override;
  [[nodiscard]] result<multicast_id> do_create_multicast(std::size_t devices, bytes size) override;
  void do_release_multicast(multicast_id group) override;
  [[nodiscard]] result<void> do_add_multicast_device(multicast_id group, device_id device) override;
  [[nodiscard]] result<void> do_bind_multicast(multicast_id group, block_id block) override;
  [[nodiscard]] result<void> do_unbind_multicast(multicast_id group, device_id device) override;
  // multicast_access.cpp
  [[nodiscard]] result<event_ref> do_multicast_store(stream_handle stream, multicast_id group, bytes offset,
                                                     const void* src, bytes size) override;
  [[nodiscard]] result<event_ref> do_multicast_load(stream_handle stream, void* dst, multicast_id group, bytes offset,
                                                    std::size_t count, element_type type,
                                                    multicast_reduction how) override;

  [[nodiscard]] result<void*> do_allocate_shareable(device_id device, bytes size, handle_family family) override;
  [[nodiscard]] result<shared_bytes> do_export_memory(const void* address, bytes size, handle_family family) override;
  [[nodiscard]] result<opened_memory_description> do_open_memory(std::optional<device_id> device,
                                                                 const shared_bytes& handle, handle_family family,
                                                                 std::chrono::nanoseconds timeout) override;
  [[nodiscard]] result<void> do_close_memory(void* address) override;
  [[nodiscard]] result<void> do_set_memory_access(void* address, std::span<const device_right> rights) override;
  [[nodiscard]] result<access_right> do_memory_access(device_id device, const void* address) override;

  // order: order.cpp, words.cpp, queued_backend
  [[nodiscard]] result<stream_handle> do_adopt_stream(device_id device, void* driver_queue) override;
  [[nodiscard]] result<std::unique_ptr<thread_place>> do_enter(device_id device) override;
  [[nodiscard]] result<void*> do_driver_queue(stream_handle stream) override;
  [[nodiscard]] result<event_ref> do_write_value(stream_handle stream, const word_request& request) override;
  [[nodiscard]] result<event_ref> do_wait_value(stream_handle stream, const word_request& request) override;

  // move: move.cpp, fill.cpp
  [[nodiscard]] result<stream_handle> do_create_stream(device_id device, int priority, bool told) override;
  [[nodiscard]] result<event_ref> do_copy(stream_handle stream, const copy_request& request) override;
  [[nodiscard]] result<event_ref> do_copy_batch(stream_handle stream, std::span<const copy_request> requests) override;
  [[nodiscard]] result<event_ref> do_fill(stream_handle stream, const fill_request& request) override;

  // run: run.cpp
  [[nodiscard]] result<void> do_prepare(device_id device, const kernel_code& kernel) override;
  [[nodiscard]] result<event_ref> do_launch(stream_handle stream, launch_request request) override;

  // watch: gpu_backend.cpp
  void do_trace_to(std::shared_ptr<trace_sink> sink) override {
    streams_->time(sink != nullptr);
    queued_backend::do_trace_to(std::move(sink));
  }
  [[nodiscard]] result<void> do_reset(device_id device) override;
  void do_close() noexcept override;

 private:
  struct prepared_copy;

  /// It loses the device where it is sticky.
  [[nodiscard]] error noticed(device_id device, error cause) override;
  void looked() override { part_peers(); }
  [[nodiscard]] result<void*> allocate_here(device_id device, bytes size, memory_kind kind, bool coherent);
  [[nodiscard]] error process_ended(device_id device, error cause) const;
  [[nodiscard]] result<void> serves(device_id device);
  [[nodiscard]] CUresult fault_of(device_id device) noexcept;
  void look_at(device_id device);
  void part_peers();

  // order, move and run
  [[nodiscard]] std::optional<error> without_word(device_id by, const word_request& request, bool waits) const;
  [[nodiscard]] result<event_ref> submit_word(stream_handle stream, const word_request& request, bool waits);
  [[nodiscard]] result<prepared_copy> prepare(const copy_request& request, device_id by);
  [[nodiscard]] std::shared_ptr<const error> check_access(const prepared_copy& copy) const;
  [[nodiscard]] result<event_ref> submit_copies(queued::queued_stream& to, std::vector<prepared_copy> copies,
                                                std::stop_token stop);
  [[nodiscard]] std::function<void()> land(std::vector<prepared_copy>& copies);
  [[nodiscard]] CUresult copy_many(const std::vector<prepared_copy>& copies, CUstream stream) const;
  [[nodiscard]] std::shared_ptr<const error> copy_here(const prepared_copy& copy) const;
  [[nodiscard]] std::shared_ptr<const loaded_kernel> fill_kernel(device_id device) noexcept;
  struct multicast_access;
  [[nodiscard]] result<event_ref> through_multicast(queued::queued_stream& order, multicast_access access);

  void account(const link_path& path, std::uint64_t count) noexcept { traffic_.add(path, count); }

  std::shared_ptr<const driver> cu_;
  management_library management_;
  discovery found_;
  std::shared_ptr<contexts> places_;
  memory_map memory_;
  landing_memory landing_;
  blocks blocks_;
  multicast_groups multicast_;
  bus_windows bus_;
  sharing sharing_;
  std::shared_ptr<stream_driver> streams_;
  module_cache modules_;
  std::atomic<bool> no_fill_kernel_{false};
};

}  // namespace weft::gpu
