// SPDX-License-Identifier: Apache-2.0
// How work ends when it does not end well, the same for every scheduler. A failed operation skips what follows it in
// its stream, until somebody was given the cause; each failure is reported once. A lost device runs nothing, and calls
// on it are given the root cause. A closed machine runs nothing, and opens its gates.
#pragma once

#include "weft/backend/backend.hpp"
#include "weft/backend/event_record.hpp"
#include "weft/core/error.hpp"
#include "weft/core/ids.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <stop_token>
#include <vector>

namespace weft::common {

using shared_cause = std::shared_ptr<const error>;

/// The cause of last resort, made before memory is short.
[[nodiscard]] const shared_cause& without_memory();

/// The error that `make` words; where there is no memory for it, one that says so.
template <class F>
[[nodiscard]] shared_cause cause_of(F make) noexcept {
  try {
    return std::make_shared<const error>(make());
  } catch (const std::bad_alloc&) {
    return without_memory();
  }
}

/// A function of the program's threw on the host; `words`: of its exception, or null.
[[nodiscard]] shared_cause host_function_threw(device_id of, const char* words) noexcept;

/// The outcome of `body`, or that it threw.
template <class F>
[[nodiscard]] shared_cause outcome_of_host_function(device_id of, F&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& thrown) {
    return host_function_threw(of, thrown.what());
  } catch (...) {
    return host_function_threw(of, nullptr);
  }
}

/// The failures of one stream. Operations are numbered from 1; `submitted` is the number of the last one.
/// Thread: any.
class failure_ledger {
 public:
  /// A stream begins. One that reports no errors has them reported by the operation that uses it (a staged copy).
  void open(bool reports_errors);
  [[nodiscard]] bool reports_errors() {
    const std::lock_guard lock{mutex_};
    return reports_errors_;
  }

  /// An operation failed, and skips what follows. An older failure that skips nothing any more makes way; so does a
  /// younger one that was seen before.
  void add(const shared_cause& cause, std::uint64_t sequence);
  /// The failure that skips this operation, or null.
  [[nodiscard]] shared_cause skips(std::uint64_t sequence);
  /// An operation ended, and with it all before it: a failure that skips none behind it is over.
  void ended(std::uint64_t sequence);
  /// Acquire: pairs with the release in add(), so that who sees it sees the failure.
  [[nodiscard]] bool is_clear() const noexcept { return !has_failed_.load(std::memory_order_acquire); }

  /// A wait gave this cause: what is submitted from now on runs.
  void reported(const shared_cause& cause, std::uint64_t submitted);
  /// For a synchronization with the stream: the cause that no wait was given yet, now reported; null if there is none.
  [[nodiscard]] shared_cause report(std::uint64_t submitted);
  /// The device was reset: nothing is left to report.
  void forgive(std::uint64_t submitted);

 private:
  static constexpr std::uint64_t no_end = ~std::uint64_t{0};

  std::mutex mutex_;
  std::atomic<bool> has_failed_{false};
  bool reports_errors_ = true;
  shared_cause failure_;
  std::uint64_t from_ = 0;   // it skips operations from here …
  std::uint64_t until_ = 0;  // … to here
  shared_cause unreported_;
};

/// The end of a machine and the loss of its devices.
/// Thread: any.
class failures {
 public:
  failures(device_id first, std::size_t devices, backend* face);

  // ---- the machine
  [[nodiscard]] bool closed() const noexcept { return closed_.load(std::memory_order_seq_cst); }
  /// True for the first call: then every gate opens, failed.
  [[nodiscard]] bool close();

  // ---- devices
  /// False when it was lost before. `cause` stays the root.
  [[nodiscard]] bool lose(device_id device, const shared_cause& cause);
  /// Acquire: pairs with the release in lose().
  [[nodiscard]] bool is_lost(device_id device) const noexcept {
    return at(device).lost.load(std::memory_order_acquire);
  }
  /// The error of a call on a lost device, or null.
  [[nodiscard]] shared_cause lost(device_id device) const;
  [[nodiscard]] shared_cause cause_of_loss(device_id device) const;
  void restore(device_id device);

  // ---- operations
  /// Whether what has not run on a device will not run any more, and why.
  [[nodiscard]] bool is_over(device_id device) const noexcept { return closed() || is_lost(device); }
  [[nodiscard]] shared_cause over(device_id device) const;
  /// Why an operation must not run, or null. The first of: the machine is closed, the device is lost, the dependency
  /// failed, an earlier operation of the stream failed, the caller stopped it.
  [[nodiscard]] shared_cause refusal(device_id device, failure_ledger& stream, std::uint64_t sequence,
                                     const event_ref& dependency, const std::stop_token& stop) const;

  // ---- gates: events that the host ends
  /// Null when the machine is closed.
  [[nodiscard]] event_ref create_gate();
  /// The gate is its caller's to end, with one reference. False when it is open already.
  [[nodiscard]] bool take_gate(event_record& gate);

 private:
  struct device_state {
    std::atomic<bool> lost{false};
    shared_cause root, reported;  // under mutex_
  };
  [[nodiscard]] device_state& at(device_id id) { return devices_[index_of(id)]; }
  [[nodiscard]] const device_state& at(device_id id) const { return devices_[index_of(id)]; }
  [[nodiscard]] std::size_t index_of(device_id id) const {
    return static_cast<std::size_t>(id.value() - first_.value());
  }

  device_id first_;
  backend* face_;
  const shared_cause at_the_end_;  // made before memory is short
  std::atomic<bool> closed_{false};

  mutable std::mutex mutex_;
  std::vector<device_state> devices_;

  std::mutex gates_mutex_;
  std::set<event_record*> gates_;  // closed gates hold one reference
};

/// The streams of a device by number, the smallest that is free: a trace calls them so. Thread: one at a time.
class track_numbers {
 public:
  [[nodiscard]] std::uint64_t take();
  void give_back(std::uint64_t number) { taken_[number] = false; }

 private:
  std::vector<bool> taken_;
};

}  // namespace weft::common
