// SPDX-License-Identifier: Apache-2.0
// The check mode for order, seen from the host backend: what its operations touch, and which of its calls order them.
#pragma once

#include "backends/host/memory/memory_map.hpp"
#include "backends/host/race_check/order_check.hpp"

#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

namespace weft::host {

/// Thread: any.
class order_watch {
 public:
  using mark_ref = order_check::mark_ref;

  explicit order_watch(memory_map& memory) : memory_(memory) {}

  /// The library's own stream: what runs there is told of by the operation that it is a step of.
  void quiet(stream_handle stream);
  void stream_gone(stream_handle stream);

  // operations, before they are submitted
  [[nodiscard]] mark_ref copies(stream_handle stream, device_id on, std::span<const copy_request> requests);
  [[nodiscard]] mark_ref fill(stream_handle stream, device_id on, const fill_request& request);
  [[nodiscard]] mark_ref prefetch(stream_handle stream, device_id on, void* base, bytes size);
  [[nodiscard]] mark_ref launch(stream_handle stream, device_id on, const launch_request& request);
  [[nodiscard]] mark_ref recorded(stream_handle stream);

  /// Work that may talk to the host while it runs, a host function or a kernel with a ring: made before it is
  /// submitted, `begins` as it starts, gone when it has ended or will not run.
  class conversation {
   public:
    conversation(order_watch& owner, stream_handle stream);
    ~conversation();
    conversation(const conversation&) = delete;
    conversation& operator=(const conversation&) = delete;
    void begins();

   private:
    order_watch& owner_;
    mark_ref before_, after_;
  };
  [[nodiscard]] std::shared_ptr<conversation> talks(stream_handle stream);

  /// A wait for a value, whose writer nobody knows: made before it is submitted. What follows it in its stream comes
  /// after all that has been submitted by the time this goes.
  class word_wait {
   public:
    word_wait(order_watch& owner, stream_handle stream) : owner_(owner), after_(owner.check_.hold(stream)) {}
    ~word_wait() { owner_.check_.open_gate_after_all(after_); }
    word_wait(const word_wait&) = delete;
    word_wait& operator=(const word_wait&) = delete;

   private:
    order_watch& owner_;
    mark_ref after_;
  };
  [[nodiscard]] std::shared_ptr<word_wait> waits_for_word(stream_handle stream);

  // order
  void wait(stream_handle stream, const event_record& event, const backend* own);
  [[nodiscard]] mark_ref create_gate() { return check_.create_gate(); }
  void open_gate(const event_record& gate) { check_.open_gate(mark_of(gate)); }
  void host_waited(const event_record& event) { check_.host_waited(mark_of(event)); }
  void host_waited(const mark_ref& mark) { check_.host_waited(mark); }

  /// The memory is new, or gone.
  void renewed(const void* base, std::uint64_t size);

  [[nodiscard]] std::vector<order_violation> violations() const { return check_.violations(); }

 private:
  [[nodiscard]] static mark_ref mark_of(const event_record& event) {
    return std::static_pointer_cast<const order_check::mark>(event.order_mark);
  }
  [[nodiscard]] bool is_quiet(stream_handle stream);
  /// Adds the bytes of one range; none if they lie in no allocation.
  device_id add(std::vector<order_access>& to, const void* address, std::uint64_t size, bool writes,
                std::uint32_t argument);
  device_id add_rows(std::vector<order_access>& to, const void* address, const copy_shape& shape, std::uint64_t pitch,
                     std::uint64_t slice, bool writes);

  memory_map& memory_;
  order_check check_;
  std::mutex mutex_;
  std::set<stream_handle> quiet_;
};

}  // namespace weft::host
