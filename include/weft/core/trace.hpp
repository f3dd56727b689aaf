// SPDX-License-Identifier: Apache-2.0
// What happened when, as plain records: backends and layers add, the profile layer reads. Nothing is kept, and nothing
// is spelled out, while nobody listens.
#pragma once

#include "weft/core/ids.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

enum class trace_kind : std::uint8_t {
  kernel,     // items computed on a device
  copy,       // bytes moved between places
  fill,       // bytes written on a device
  host_call,  // a host function in a stream
  wait,       // a stream stood still for an event or for a value in memory
  span,       // something made of others: a launch over devices, a stage of a pipeline
  mark,       // an instant
};
[[nodiscard]] std::string_view to_string(trace_kind kind);

/// One thing that happened. Times are those of the clock of `device`'s backend.
struct trace_record {
  trace_kind kind = trace_kind::mark;
  device_id device;                       // whose stream it ran in; none: the host
  std::uint64_t stream = 0;               // its track on that device
  std::string name;                       // "saxpy", "gpu0 → gpu1"
  std::chrono::nanoseconds submitted{0};  // 0: unknown, except on a virtual clock
  std::chrono::nanoseconds started{0};
  std::chrono::nanoseconds ended{0};
  std::uint64_t bytes = 0;   // moved or filled
  std::int64_t items = 0;    // of a kernel
  device_id from, to;        // of a copy; none: the host
  std::uint64_t launch = 0;  // number of the launch over devices that it belongs to; 0: none
  bool failed = false;
};

/// One number for all that happened: of two runs on the virtual clock it is equal if, and all but certainly only if,
/// the same things happened at the same times. FNV-1a over kind, device, stream, name, started, ended, bytes, items,
/// failed.
[[nodiscard]] std::uint64_t trace_hash(std::span<const trace_record> records);

/// Collects records, up to a bound beyond which it counts what it dropped.
/// Thread: any.
class trace_sink {
 public:
  static constexpr std::size_t default_capacity = std::size_t{1} << 20;

  explicit trace_sink(std::size_t capacity = default_capacity) : capacity_(capacity) {}
  trace_sink(const trace_sink&) = delete;
  trace_sink& operator=(const trace_sink&) = delete;

  void add(trace_record record) noexcept;
  /// Everything so far, in the order in which it was added; the sink is empty afterwards.
  [[nodiscard]] std::vector<trace_record> take();
  [[nodiscard]] std::uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::vector<trace_record> records_;
  std::atomic<std::uint64_t> dropped_{0};
};

}  // namespace weft
