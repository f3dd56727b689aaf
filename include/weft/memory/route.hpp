// SPDX-License-Identifier: Apache-2.0
// Which way a copy takes, as a pure function of facts: testable on machines that nobody here owns.
// Costs follow the alpha-beta model: a step of n bytes takes latency + n / rate (R. Hockney, 1994). A chunked pipeline
// over two stages takes first + last + (chunks - 1) * slower.
#pragma once

#include "weft/core/bytes.hpp"
#include "weft/core/ids.hpp"
#include "weft/core/result.hpp"
#include "weft/core/topology.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

enum class copy_path : std::uint8_t {
  automatic,  // only as a wish
  host,       // host memory to host memory
  host_to_device,
  device_to_host,
  same_device,
  direct,   // device to device in one step over their link
  staged,   // through pinned host memory, in overlapping chunks
  relayed,  // through the memory of a third device, in overlapping chunks
};
[[nodiscard]] std::string_view to_string(copy_path path);

/// A rate and a latency; a rate of 0 is unknown.
struct lane_facts {
  double bytes_per_second = 0;
  double latency_seconds = 0;
};

struct pair_facts {
  lane_facts lane;
  bool can_access = false;  // the hardware offers it in this direction
  bool usable = false;      // access is enabled or the driver copies without it, and the pair is not vetoed
  bool measured = false;
  bool can_copy = false;  // the driver copies in one command, access or not
};

/// What route() looks at. Made from a topology by route_facts_of(), refined by what was enabled, vetoed and measured.
struct route_facts {
  std::size_t devices = 0;
  std::vector<pair_facts> pairs;      // [from * devices + to]: data flows from → to
  std::vector<lane_facts> to_host;    // device → pinned memory of its socket
  std::vector<lane_facts> from_host;  // [src * devices + dst]: pinned memory of src's socket → dst
  std::vector<lane_facts> local;      // within one device

  [[nodiscard]] const pair_facts& pair(device_id from, device_id to) const {
    return pairs[from.index() * devices + to.index()];
  }
};

/// Facts with every offered pair enabled: what the hardware could do.
[[nodiscard]] route_facts route_facts_of(const topology& machine);

/// The chosen way of one copy.
struct route_choice {
  copy_path path = copy_path::host;
  device_id via;                 // relayed: the device in the middle
  std::uint64_t chunk = 0;       // staged and relayed: bytes per step
  int depth = 0;                 // staged and relayed: chunks under way at most
  double predicted_seconds = 0;  // 0 when a rate on the way is unknown
};

/// What the caller insists on; automatic leaves the choice to the cost.
struct route_wish {
  copy_path path = copy_path::automatic;
  device_id via{};                          // of a relayed copy only
  double min_bytes_per_second = 0;          // a peer link known to be slower is not used
  std::chrono::nanoseconds max_latency{0};  // nor one known to take longer; 0 is no limit
};

/// Chooses the cheapest way between two devices. Cost: no allocation; under a microsecond for 8 devices.
/// Errors: peer_unsupported when a wish cannot be honoured, with the reason.
[[nodiscard]] result<route_choice> route(const route_facts& facts, device_id from, device_id to, bytes size,
                                         const route_wish& wish = {});

struct route_alternative {
  copy_path path = copy_path::direct;
  device_id via;
  std::optional<double> predicted_seconds;  // empty when it is not possible or a rate is unknown
  std::string why;                          // why it lost or is not possible
};

struct route_report {
  route_choice chosen;
  std::vector<route_alternative> rejected;
};

/// Like route(), with the reason why each other way lost.
[[nodiscard]] result<route_report> explain_route(const route_facts& facts, device_id from, device_id to, bytes size,
                                                 const route_wish& wish = {});

/// The size of a chunk that makes a pipeline over two lanes fastest, and the time it takes.
/// Source: minimising (size / c + 1) * (latency + c / rate) over c gives c = sqrt(size * latency * rate).
struct pipeline_plan {
  std::uint64_t chunk = 0;
  int depth = 0;
  double seconds = 0;  // 0 when a rate is unknown
};
[[nodiscard]] pipeline_plan plan_pipeline(const lane_facts& first, const lane_facts& second, bytes size);

}  // namespace weft
