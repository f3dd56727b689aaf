// SPDX-License-Identifier: Apache-2.0
// An event that several processes record and wait for. Each record has a number, so that nobody passes a wait because
// the other side has not recorded yet: drivers let that pass.
#pragma once

#include "weft/memory/memory_handle.hpp"
#include "weft/runtime/machine.hpp"
#include "weft/runtime/stream.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <stop_token>

namespace weft {

namespace detail {
class ipc_event_body;
}

/// Says to other processes that work of a stream has ended.
///
/// Records are numbered from 1, over all processes. A wait names the number: for one that nobody has recorded yet it
/// waits until somebody does. It carries no time. The process that made it owns it: once that has gone, what was not
/// recorded never will be, and waits say so.
/// Errors of waits: the code of work that failed in another process (kernel_failed where that lost its device), without
///   its text; peer_dead, within 100 ms, when the process that recorded or owns it has died; closed when its owner let
///   it go before the record. Of a record that failed more than 64 records ago only that is known: kernel_failed.
/// Thread: any.
class ipc_event {
 public:
  /// Records that are under way at a time.
  static constexpr std::uint64_t max_outstanding = 64;
  static constexpr std::chrono::seconds default_timeout{5};

  /// Errors: resource_exhausted.
  explicit ipc_event(const machine& m, std::source_location where = std::source_location::current());
  /// One of another process. Errors: as those of opened_memory.
  ipc_event(const machine& m, const event_handle& handle, std::chrono::nanoseconds timeout = default_timeout,
            std::source_location where = std::source_location::current());

  /// The same each time. Errors: invalid_argument where it was opened: pass on the handle it was opened with.
  [[nodiscard]] event_handle handle(std::source_location where = std::source_location::current()) const;

  /// The number of this record, which ends when all work submitted to the stream so far has. In the virtual time of a
  /// simulation it ends when that machine is waited for. Errors: resource_exhausted while the record max_outstanding
  /// before it has not ended.
  std::uint64_t record(const stream& order, std::source_location where = std::source_location::current()) const;
  /// Records begun so far, by anybody.
  [[nodiscard]] std::uint64_t recorded(std::source_location where = std::source_location::current()) const;

  /// True once that record has ended, well or not, or can never be made, as its owner has gone; else false.
  /// Errors: invalid_argument for 0.
  [[nodiscard]] bool ready(std::uint64_t number, std::source_location where = std::source_location::current()) const;
  /// Blocks the caller. timed_out when `timeout` has passed, cancelled when `stop` was requested.
  wait_outcome wait(std::uint64_t number, std::chrono::nanoseconds timeout, const std::stop_token& stop = {},
                    std::source_location where = std::source_location::current()) const;
  /// Work submitted to the stream from here on starts after that record has ended; nobody is blocked. After `timeout`
  /// the work fails with timed_out. The event says when the wait is over.
  event wait(const stream& order, std::uint64_t number, std::chrono::nanoseconds timeout,
             std::source_location where = std::source_location::current()) const;

 private:
  std::shared_ptr<detail::ipc_event_body> body_;
};

}  // namespace weft
