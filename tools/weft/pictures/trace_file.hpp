// SPDX-License-Identifier: Apache-2.0
// What a Chrome trace says, as values: our own traces, and those of other programs as far as they say the same.
#pragma once

#include "weft/core/result.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tool {

/// A complete event ("ph": "X"). Units: microseconds, those of the format.
struct traced_event {
  std::string name;
  std::string category;
  double start = 0;
  double duration = 0;
  bool failed = false;
};

/// One thread of one process.
struct trace_track {
  std::string process;               // "gpu0"
  std::string name;                  // "stream 1"
  std::vector<traced_event> events;  // by start
};

struct trace_file {
  std::vector<trace_track> tracks;  // by process and then thread, as the trace sorts them
  std::string clock;                // as the trace calls it; empty when it does not
  bool simulated = false;
  std::uint64_t dropped = 0;  // records that were lost before the trace was written
  std::size_t not_drawn = 0;  // events of other kinds: counters, flows, begin and end in two
  std::size_t events = 0;     // of all tracks
  double start = 0;           // of the first event
  double end = 0;             // of the last one
};

/// Most bytes and events of a trace that is read: an event takes some 100 bytes in memory.
constexpr std::uint64_t most_trace_bytes = std::uint64_t{256} << 20;
constexpr std::size_t most_trace_events = 4'000'000;

/// Errors: invalid_argument, with the place in the document and what was expected there.
[[nodiscard]] result<trace_file> read_trace(std::string_view text);

}  // namespace weft::tool
