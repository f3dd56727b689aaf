// SPDX-License-Identifier: Apache-2.0
// What has happened: traffic, records, losses; and the end.
#pragma once

#include "weft/backend/facets/run_facet.hpp"
#include "weft/backend/order_violation.hpp"
#include "weft/core/link_traffic.hpp"
#include "weft/core/trace.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace weft {

/// Messages that one thread counts in a word of its own: they need no command, and so pass no backend.
struct traffic_source {
  device_id from, to;                    // none: the host
  const std::uint64_t* count = nullptr;  // messages so far; read atomically
  std::uint64_t bytes_each = 0;
};

class watch_facet : public run_facet {
 protected:
  using run_facet::run_facet;
  ~watch_facet() = default;

  /// Called at any time, also after the end.
  [[nodiscard]] virtual link_traffic do_traffic() { return {}; }
  /// Adds what moves without commands to the account; `count` is read by do_traffic(). Its id, 0 where no account is
  /// kept.
  [[nodiscard]] virtual std::uint64_t do_watch_traffic(const traffic_source&) { return 0; }
  /// Reads `count` a last time and keeps the sum. Called at any time, also after the end.
  virtual void do_unwatch_traffic(std::uint64_t) {}
  /// Records go to the sink from now on, one for each operation that ends; null: nowhere.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): an override keeps it
  virtual void do_trace_to(std::shared_ptr<trace_sink>) {}
  /// Accesses that nothing orders; none where nobody looks (backend_options::check_order). Called at any time.
  [[nodiscard]] virtual std::vector<order_violation> do_order_violations() { return {}; }
  /// Says, for check modes, that a copy begins here in the order of a stream whose steps the caller makes in streams
  /// that are not told, and that its end will be waited for there.
  virtual void do_note_copy(stream_handle, const copy_request&) {}
  /// Says, for check modes, that memory serves anew, as that of a pool: what was done with it is over.
  virtual void do_note_reuse(void*) {}
  /// The cause if the device is lost. Called at any time.
  [[nodiscard]] virtual std::shared_ptr<const error> do_lost(device_id) { return nullptr; }
  /// Brings a lost device back: its allocations, peers and failures are gone. The device counts as lost first, so that
  /// what waits for it ends; then await_others(); then its memory goes.
  [[nodiscard]] virtual result<void> do_reset(device_id) { return not_offered("a reset"); }
  /// True on a thread that runs this backend's work, where nothing may wait for that work.
  [[nodiscard]] virtual bool do_on_worker() noexcept { return false; }
  /// Ends all work: what is pending completes as cancelled, so that every wait comes back. Calls may still be under
  /// way; none begins any more.
  virtual void do_end_work() noexcept {}
  /// After do_end_work(), and when the last call has come back: threads are joined, memory is returned.
  virtual void do_close() noexcept {}
};

}  // namespace weft
