// SPDX-License-Identifier: Apache-2.0
// Records as the JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open.
#pragma once

#include "weft/core/trace.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft {

/// What records alone do not say.
struct chrome_trace_context {
  std::vector<std::string> device_names{};  // by id; others are called by their id
  bool simulated = false;                   // times are those of a virtual clock; the trace says so
  std::uint64_t dropped = 0;                // records that did not fit
};

/// One process for each device and one for the host, in it a track for each stream. Two events of one track never
/// overlap: where a stream's records do, as those of spans, it gets further tracks.
///
/// Times are those of one clock and count from the earliest record; a record that ends before it starts
/// took no time. Names may hold anything: what is not UTF-8 becomes U+FFFD.
/// Cost: n log n in the number of records; about 400 bytes for each.
[[nodiscard]] std::string chrome_trace(std::span<const trace_record> records, const chrome_trace_context& context = {});

}  // namespace weft
