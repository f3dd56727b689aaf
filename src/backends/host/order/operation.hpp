// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/host/order/work.hpp"
#include "weft/backend/event_record.hpp"
#include "weft/core/topology.hpp"
#include "weft/core/trace.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <stop_token>
#include <string_view>

namespace weft::host {

class host_stream;

/// What an operation needs on the virtual clock: the wires or the compute engine that it occupies, and for how long.
struct cost {
  const link_path* path = nullptr;  // null: no wires
  std::uint64_t bytes = 0;
  double local_rate = 0;  // bytes per second inside one device; 0 takes no time
  bool computes = false;  // a kernel: takes the engine of its device
  double seconds = 0;     // of a kernel, on that device, before latency and noise
};

/// What a trace says of an operation. `mark` says nothing: a marker in a stream.
struct operation_note {
  trace_kind kind = trace_kind::mark;
  device_id from, to;  // of a copy
  std::uint64_t bytes = 0;
  std::int64_t items = 0;
  std::uint64_t launch = 0;
  std::string_view name;  // of a kernel; lives as long as the body
};

struct operation final : event_record {
  /// Gives the memory back to the stream it came from: an operation is made on one thread and usually ends on another,
  /// which is where the general allocator is slowest (0.5 us instead of 0.2 us for an operation queued and run).
  static void operator delete(operation* op, std::destroying_delete_t);

  host_stream* home = nullptr;  // null for a gate
  operation* next = nullptr;
  std::uint64_t sequence = 0;   // in its stream
  std::uint64_t order = 0;      // in the machine: breaks ties on the virtual clock
  event_ref dependency;         // starts after this has ended, and fails with it
  std::function<bool()> until;  // … and once this holds, which is asked again and again; none: nothing to ask
  work body;
  cost price;
  operation_note note;
  std::stop_token stop;
  [[nodiscard]] bool stands_still() const noexcept { return dependency || until; }

  bool is_here = false;                                  // run by the thread that submitted it
  bool queued_for_slot = false;                          // counted among those that wait for a place on the device
  std::optional<std::chrono::nanoseconds> ready_at;      // virtual clock: when everything before it had ended
  std::optional<std::chrono::nanoseconds> submitted_at;  // while somebody traces
  // how long its stream stood still, for the dependency or for what has to hold; on the wall clock only while somebody
  // traces
  std::optional<std::chrono::nanoseconds> stood_from, stood_until;
};

}  // namespace weft::host
