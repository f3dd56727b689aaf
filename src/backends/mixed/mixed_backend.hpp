// SPDX-License-Identifier: Apache-2.0
// Several backends as one, so that nothing above has to know that there is more than one, and a machine of one backend
// pays nothing for it. Device ids are the machine's already. Handles of streams and blocks carry the number of their
// backend in their top bits; events stay those of the backend that made them.
//
// What one backend waits for of another takes a hop through the host: a gate of the one, opened when the event of the
// other has ended, with its cause. Memory that the host may follow (pinned, unified, adopted) is plain host memory for
// the other backends; device memory is moved by its own backend only, in a stream that stands in for the caller's.
#pragma once

#include "backend/calls/callback_thread.hpp"
#include "backends/mixed/mixed_handle.hpp"
#include "weft/backend/backend.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace weft::detail {

class mixed_backend final : public backend {
 public:
  /// `parts` were opened one after the other with the first device ids that follow, all of them with this epoch.
  mixed_backend(std::vector<std::unique_ptr<backend>> parts, topology layout,
                std::chrono::steady_clock::time_point epoch);
  ~mixed_backend() override;

  // discover
  [[nodiscard]] result<memory_use> do_memory(device_id device) override;
  [[nodiscard]] result<device_health> do_health(device_id device) override;
  [[nodiscard]] result<peer_description> do_peer(device_id from, device_id to) override;

  // allocate
  [[nodiscard]] result<void*> do_allocate(device_id device, bytes size, memory_kind kind) override;
  [[nodiscard]] result<void*> do_allocate_coherent(device_id device, bytes size) override;
  [[nodiscard]] std::string_view do_why_no_unified() const noexcept override {
    return "a mixed machine has none that the devices of all its backends see; open one backend alone";
  }
  [[nodiscard]] result<void> do_release(void* base) override;
  [[nodiscard]] result<memory_description> do_find(const void* address) override;
  [[nodiscard]] result<void> do_adopt(device_id device, void* base, bytes size) override;
  [[nodiscard]] result<event_ref> do_prefetch(stream_handle stream, void* base, bytes size) override;
  [[nodiscard]] result<void> do_advise(void* base, bytes size, memory_advice advice, device_id device) override;
  [[nodiscard]] result<std::shared_ptr<std::byte>> do_host_window(device_id by, void* address, bytes size) override;
  [[nodiscard]] result<std::shared_ptr<bus_window>> do_open_bus_window(void* address, bytes size) override;

  // share
  [[nodiscard]] bool do_can_access(device_id from, device_id to) noexcept override;
  [[nodiscard]] result<void> do_enable_peer(device_id from, device_id to) override;
  [[nodiscard]] result<void> do_disable_peer(device_id from, device_id to) override;
  [[nodiscard]] bool do_peer_enabled(device_id from, device_id to) noexcept override;
  [[nodiscard]] result<peer_delivery> do_verify_peer(device_id from, device_id to, peer_way way) override;
  [[nodiscard]] std::uint64_t do_peer_epoch() noexcept override;
  [[nodiscard]] result<void*> do_map_peer(device_id by, void* address, bytes size) override;
  [[nodiscard]] result<void> do_unmap_peer(device_id by, void* mapped) override;
  [[nodiscard]] result<atomic_support> do_peer_atomics(device_id from, device_id to,
                                                       atomic_operation operation) override;

  // share, blocks and mappings: those of the first backend that has them, but for blocks themselves
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

  // share, multicast: that of the first backend that has it
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
  [[nodiscard]] result<stream_handle> do_adopt_stream(device_id device, void* driver_queue) override;
  [[nodiscard]] result<std::unique_ptr<thread_place>> do_enter(device_id device) override;
  [[nodiscard]] result<void*> do_driver_queue(stream_handle stream) override;
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
  [[nodiscard]] std::chrono::nanoseconds do_now() noexcept override;

  // move
  [[nodiscard]] result<event_ref> do_copy(stream_handle stream, const copy_request& request) override;
  [[nodiscard]] result<event_ref> do_copy_batch(stream_handle stream, std::span<const copy_request> requests) override;
  [[nodiscard]] bool do_copies_through(device_id from, device_id to) noexcept override;
  [[nodiscard]] result<event_ref> do_copy_through(stream_handle stream, void* slot,
                                                  const copy_request& request) override;
  [[nodiscard]] result<event_ref> do_fill(stream_handle stream, const fill_request& request) override;

  // run
  [[nodiscard]] result<void> do_prepare(device_id device, const kernel_code& kernel) override;
  [[nodiscard]] result<event_ref> do_launch(stream_handle stream, launch_request request) override;
  [[nodiscard]] result<event_ref> do_call(stream_handle stream, std::function<result<void>()> function) override;

  // watch
  [[nodiscard]] link_traffic do_traffic() override;
  [[nodiscard]] std::uint64_t do_watch_traffic(const traffic_source& source) override;
  void do_unwatch_traffic(std::uint64_t id) override;
  void do_trace_to(std::shared_ptr<trace_sink> sink) override;
  [[nodiscard]] std::vector<order_violation> do_order_violations() override;
  void do_note_copy(stream_handle order, const copy_request& whole) override;
  void do_note_reuse(void* base) override;
  [[nodiscard]] std::shared_ptr<const error> do_lost(device_id device) override;
  [[nodiscard]] result<void> do_reset(device_id device) override;
  [[nodiscard]] bool do_on_worker() noexcept override;
  void do_end_work() noexcept override;
  void do_close() noexcept override;

 private:
  /// Whose memory an address is; `part` is `none` where nobody knows it.
  struct owner {
    static constexpr std::size_t none = ~std::size_t{0};
    std::size_t part = none;
    memory_description memory;
    [[nodiscard]] bool known() const { return part != none; }
    /// Memory that the host may follow, and with it every backend.
    [[nodiscard]] bool is_host_memory() const {
      return memory.kind == memory_kind::pinned || memory.kind == memory_kind::unified ||
             memory.kind == memory_kind::adopted;
    }
  };
  /// A stream of ours on a device, that does for a stream of another backend what only this backend can.
  struct stand_in {
    device_id on;
    stream_handle stream{};  // as its own backend names it
    event_ref last;
  };

  [[nodiscard]] std::size_t part_of(device_id device) const noexcept { return part_of_[device.index()]; }
  [[nodiscard]] backend& backend_of(device_id device) const noexcept { return *parts_[part_of(device)]; }
  /// The one whose number a handle has.
  template <class Handle>
  [[nodiscard]] backend& backend_of(Handle handle) const noexcept {
    return *parts_[std::min(part_in(handle), parts_.size() - 1)];
  }
  [[nodiscard]] owner owner_of(const void* address) const noexcept;
  [[nodiscard]] std::string apart(device_id from, device_id to) const;
  [[nodiscard]] error no_peers(device_id from, device_id to) const;
  [[nodiscard]] std::optional<error> not_followed(stream_handle stream, const void* address) const;
  [[nodiscard]] std::optional<error> rights_apart(std::size_t part, std::span<const device_right> rights) const;

  /// What came of a word, with its owner named where that is another backend's.
  [[nodiscard]] result<event_ref> word_apart(stream_handle stream, const word_request& request,
                                             result<event_ref> done) const;

  /// The answer of the first part that offers the thing and knows what it is asked about.
  template <class F>
  [[nodiscard]] auto first_that_knows(F&& ask);

  // order
  [[nodiscard]] result<void> wait_in(backend& by, stream_handle own, const event_ref& event);
  [[nodiscard]] result<event_ref> stand_in_for(stream_handle order, device_id on,
                                               const std::function<result<event_ref>(backend&, stream_handle)>& work);
  [[nodiscard]] result<stand_in> take_stand_in(backend& by, device_id on);

  // move
  /// A copy that was looked at: each end is plain memory of the host or known, and `mover` is who can follow them.
  struct crossing {
    copy_request request;
    owner dst, src;
    std::size_t mover;
    device_id on;  // of the mover
  };
  [[nodiscard]] result<crossing> crossing_of(stream_handle stream, const copy_request& request) const;
  [[nodiscard]] result<event_ref> copy_across(stream_handle stream, const crossing& one);
  void remember_use(const owner& memory, const event_ref& by);
  /// A copy that goes on, of those that the stream of an ended event got before the end; null: there is none.
  [[nodiscard]] event_ref tail_of(const event_record& event);
  /// Waits for the tails of events of a backend that have ended themselves.
  [[nodiscard]] wait_outcome wait_for_tails(const backend& of, wait_deadline deadline, const std::stop_token& stop);
  /// Waits for what others do with host memory of a device, which is being reset.
  void wait_for_uses(device_id device);
  enum class release_outcome : unsigned char { now, later, before };
  [[nodiscard]] release_outcome release_later(backend& from, void* base);

  std::vector<std::unique_ptr<backend>> parts_;
  std::vector<std::size_t> part_of_;  // by device
  std::chrono::steady_clock::time_point epoch_;

  std::mutex stand_ins_mutex_;
  std::list<stand_in> stand_ins_;  // that nobody is submitting to

  // Copies that stand-ins make. Events of the stream may end first, when its device is lost or its backend closes, and
  // memory must stay until the copies have ended too.
  struct tail {
    event_ref event;  // what the caller got
    event_ref moved;  // the copy itself
    std::chrono::nanoseconds submitted{0};
  };
  std::mutex tails_mutex_;
  std::list<tail> tails_;

  std::mutex uses_mutex_;
  struct host_memory_uses {
    device_id device;  // whose memory it is
    bool is_adopted = false;
    std::vector<event_ref> by;
    bool is_released = false;  // by its owner, and kept until these have ended
  };
  std::map<const void*, host_memory_uses> uses_;  // of host memory of one backend by others, by its start

  struct claim {
    device_id device;
    bytes size;
  };
  std::mutex adopted_mutex_;
  std::map<const void*, claim> adopted_;  // by where it starts

  std::mutex sources_mutex_;
  std::uint64_t last_source_ = 0;
  std::map<std::uint64_t, std::vector<std::pair<backend*, std::uint64_t>>> sources_;

  callback_thread hops_{{"weft-hops", true, nullptr}};  // opens gates; ends before what it works for
};

}  // namespace weft::detail
