// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/trace.hpp"
#include "weft/profile/machine_profile.hpp"
#include "weft/runtime/machine.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

namespace weft {

struct profiler_options {
  std::size_t capacity = trace_sink::default_capacity;  // records; beyond it they are counted, see dropped()
  bool paused = false;                                  // record from resume() on
};

/// Records what a machine does, from here to the end of the object, and says where the time went.
///
/// What has not ended is in no record: synchronise first. While it records it is where the machine's records go; a sink
/// that was set with trace_to() gets none meanwhile, and is set again afterwards. Call no trace_to() while it records:
/// that sink would get the records in its place, and stay set.
/// Thread: any. Cost: nothing while paused; otherwise a copy of a record for each operation.
/// Example: profile/profiler_test.cpp, "splits_the_time_of_each_device_into_its_parts".
class profiler {
 public:
  /// Errors: already_enabled when another profiler of this machine lives; machine_closed.
  explicit profiler(const machine& of, const profiler_options& options = {},
                    std::source_location where = std::source_location::current());
  ~profiler();
  profiler(const profiler&) = delete;
  profiler& operator=(const profiler&) = delete;

  /// From here to resume() nothing is recorded, and the time is nobody's: neither work nor idle. Twice is once.
  void pause();
  void resume(std::source_location where = std::source_location::current());
  [[nodiscard]] bool is_recording() const;
  /// Forgets everything recorded so far.
  void reset();

  /// Where the time went so far.
  [[nodiscard]] machine_profile profile() const;
  /// Everything so far in one time, by start.
  [[nodiscard]] std::vector<trace_record> records() const;
  /// Records that did not fit.
  [[nodiscard]] std::uint64_t dropped() const;

  /// Everything so far as JSON for Perfetto or `weft trace view`.
  [[nodiscard]] std::string chrome_trace() const;
  /// Errors: io_failed, with the reason.
  void write_chrome_trace(const std::string& path, std::source_location where = std::source_location::current()) const;

 private:
  class body;
  std::unique_ptr<body> body_;
};

}  // namespace weft
