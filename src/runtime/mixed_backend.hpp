// SPDX-License-Identifier: Apache-2.0
// Several backends as one, so that nothing above has to know that there is more than one, and a machine of one backend
// pays nothing for it. Device ids are the machine's already. Handles of streams and blocks carry the number of their
// backend in their top bits; events stay those of the backend that made them.
//
// What one backend waits for of another takes a hop through the host: a gate of the one, opened when the event of the
// other has ended, with its cause. Memory that the host may follow (pinned, unified, adopted) is plain host memory for
// the other backends; device memory is moved by its own backend only, in a stream that stands in for the caller's.
#pragma once

#include "runtime/callback_thread.hpp"
#include "weft/backend/backend.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace weft::detail {

class mixed_backend final : public backend {
 public:
  static constexpr std::size_t most = 15;  // backends that the top bits of a handle can tell apart

  /// `parts` were opened one after the other with the first device ids that follow, all of them with this epoch.
  mixed_backend(std::vector<std::unique_ptr<backend>> parts, topology layout,
                std::chrono::steady_clock::time_point epoch);
  ~mixed_backend() override;

  // discover
  [[nodiscard]] backend_kind kind() const noexcept override { return backend_kind::mixed; }
  [[nodiscard]] std::span<const device_description> devices() const noexcept override { return descriptions_; }
  [[nodiscard]] device_id first_device() const noexcept override { return device_id{0}; }
  [[nodiscard]] const topology& layout() const noexcept override { return layout_; }
  [[nodiscard]] result<memory_use> memory(device_id device) noexcept override;
  [[nodiscard]] result<device_health> health(device_id device) noexcept override;
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
  [[nodiscard]] std::uint64_t peer_epoch() noexcept override;
  [[nodiscard]] result<void*> map_peer(device_id by, void* address, bytes size) noexcept override;
  [[nodiscard]] result<void> unmap_peer(device_id by, void* mapped) noexcept override;
  [[nodiscard]] result<atomic_support> peer_atomics(device_id from, device_id to,
                                                    atomic_operation operation) noexcept override;

  // share, blocks and mappings: those of the first backend that has them, but for blocks themselves
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

  // share, multicast: that of the first backend that has it
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
  [[nodiscard]] result<stream_handle> adopt_stream(device_id device, void* driver_queue) noexcept override;
  [[nodiscard]] result<void*> driver_queue(stream_handle stream) noexcept override;
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
  [[nodiscard]] std::chrono::nanoseconds now() noexcept override;

  // move
  [[nodiscard]] result<event_ref> copy(stream_handle stream, const copy_request& request) noexcept override;
  [[nodiscard]] result<event_ref> copy_batch(stream_handle stream,
                                             std::span<const copy_request> requests) noexcept override;
  [[nodiscard]] bool copies_through(device_id from, device_id to) noexcept override;
  [[nodiscard]] result<event_ref> copy_through(stream_handle stream, void* slot,
                                               const copy_request& request) noexcept override;
  [[nodiscard]] result<event_ref> fill(stream_handle stream, const fill_request& request) noexcept override;

  // run
  [[nodiscard]] result<void> prepare(device_id device, const kernel_code& kernel) noexcept override;
  [[nodiscard]] result<event_ref> launch(stream_handle stream, launch_request request) noexcept override;
  [[nodiscard]] result<event_ref> call(stream_handle stream, std::function<result<void>()> function) noexcept override;

  // watch
  [[nodiscard]] link_traffic traffic() override;
  [[nodiscard]] std::uint64_t watch_traffic(const traffic_source& source) noexcept override;
  void unwatch_traffic(std::uint64_t id) noexcept override;
  void trace_to(std::shared_ptr<trace_sink> sink) noexcept override;
  [[nodiscard]] std::vector<order_violation> order_violations() override;
  void note_copy(stream_handle order, const copy_request& whole) noexcept override;
  void note_reuse(void* base) noexcept override;
  [[nodiscard]] std::shared_ptr<const error> lost(device_id device) noexcept override;
  [[nodiscard]] result<void> reset(device_id device) noexcept override;
  [[nodiscard]] bool on_worker() noexcept override;
  void close() noexcept override;

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

  [[nodiscard]] std::size_t part_of(device_id device) const noexcept;
  [[nodiscard]] backend* backend_of(device_id device) const noexcept;
  [[nodiscard]] backend* backend_of(stream_handle stream) const noexcept;
  [[nodiscard]] backend* backend_of(block_id block) const noexcept;
  [[nodiscard]] backend* backend_of(multicast_id group) const noexcept;
  [[nodiscard]] owner owner_of(const void* address) const noexcept;
  [[nodiscard]] error no_device(device_id device) const;
  [[nodiscard]] std::string apart(device_id from, device_id to) const;
  [[nodiscard]] error no_peers(device_id from, device_id to) const;
  [[nodiscard]] std::optional<error> rights_apart(std::size_t part, std::span<const device_right> rights) const;

  /// What came of a word, with its owner named where that is another backend's.
  [[nodiscard]] result<event_ref> word_apart(stream_handle stream, const word_request& request,
                                             result<event_ref> done) const;

  /// The answer of the first part that offers the thing and knows what it is asked about.
  template <class F>
  [[nodiscard]] auto first_that_knows(F&& ask) noexcept;

  // order
  [[nodiscard]] result<void> wait_in(backend& by, stream_handle own, const event_ref& event) noexcept;
  [[nodiscard]] result<event_ref> stand_in_for(stream_handle order, device_id on,
                                               const std::function<result<event_ref>(backend&, stream_handle)>& work);
  [[nodiscard]] result<stand_in> take_stand_in(backend& by, device_id on);

  // move
  [[nodiscard]] result<event_ref> copy_across(stream_handle stream, copy_request request, error unknown);
  void remember_use(const owner& memory, const event_ref& by);
  [[nodiscard]] event_ref tail_of(const event_record& event);
  /// Waits for what others do with host memory of a device, which goes now.
  void forget_uses(device_id device);
  enum class release_outcome : unsigned char { now, later, before };
  [[nodiscard]] release_outcome release_later(backend& from, void* base);

  std::vector<std::unique_ptr<backend>> parts_;
  topology layout_;
  std::vector<device_description> descriptions_;
  std::vector<std::size_t> part_of_;  // by device
  std::chrono::steady_clock::time_point epoch_;
  std::atomic<bool> closed_{false};

  std::mutex stand_ins_mutex_;
  std::vector<stand_in> stand_ins_;  // that nobody is submitting to

  // A copy that a stand-in makes, by the event that its caller got: that may end first, when the stream's device is
  // lost or its backend closes, and memory must stay until the copy has ended too.
  std::mutex tails_mutex_;
  std::vector<std::pair<event_ref, event_ref>> tails_;

  std::mutex uses_mutex_;
  struct host_memory_uses {
    std::vector<event_ref> by;
    std::uint64_t released = 0;  // by its owner, and kept until these have ended; a number of its own
  };
  std::map<const void*, host_memory_uses> uses_;  // of host memory of one backend by others, by its start
  std::uint64_t last_release_ = 0;

  std::mutex sources_mutex_;
  std::uint64_t last_source_ = 0;
  std::map<std::uint64_t, std::vector<std::pair<backend*, std::uint64_t>>> sources_;

  callback_thread hops_{{"weft-hops", true, nullptr}};  // opens gates; ends before what it works for
};

}  // namespace weft::detail
