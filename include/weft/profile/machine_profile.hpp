// SPDX-License-Identifier: Apache-2.0
// Where the time of each device went, worked out from records alone.
#pragma once

#include "weft/core/ids.hpp"
#include "weft/core/trace.hpp"
#include "weft/profile/time_range.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft {

/// One device's time. compute + transfer + synchronisation + idle is the wall time of the machine's profile, to the
/// nanosecond: each instant counts once, as the first of these that applies.
struct device_profile {
  device_id device;
  std::string name;
  std::chrono::nanoseconds compute{0};          // a kernel runs
  std::chrono::nanoseconds transfer{0};         // a copy from or to it, or a fill, and no kernel
  std::chrono::nanoseconds synchronisation{0};  // a stream waits for another or for a host function; nothing else runs
  std::chrono::nanoseconds idle{0};
  std::chrono::nanoseconds overlapped_transfer{0};  // hidden behind a kernel: within compute
  std::uint64_t bytes_in = 0;                       // from the host or another device
  std::uint64_t bytes_out = 0;
  std::uint64_t bytes_within = 0;  // copied on the device, or filled
  std::size_t kernels = 0;
  std::size_t copies = 0;  // each at both of its ends
  std::size_t fills = 0;
  std::size_t waits = 0;
};

/// All runs of the kernels of one name.
struct kernel_profile {
  std::string name;
  std::size_t count = 0;
  std::int64_t items = 0;
  std::chrono::nanoseconds total{0};
  std::chrono::nanoseconds shortest{0};
  std::chrono::nanoseconds median{0};  // the lower one of an even number
  std::chrono::nanoseconds longest{0};
};

/// What was copied from one place to another.
struct pair_profile {
  device_id from, to;  // none: the host
  std::uint64_t bytes = 0;
  std::size_t copies = 0;
  std::chrono::nanoseconds busy{0};  // at least one of the copies ran

  /// Bytes per second while any of the copies ran; 0 when they took no time.
  [[nodiscard]] double bytes_per_second() const;
};

/// Where a machine's time went, from its first record to its last.
struct machine_profile {
  std::chrono::nanoseconds wall{0};
  bool simulated = false;               // the times are those of a virtual clock: not a measurement
  std::uint64_t dropped = 0;            // records that did not fit, and are not in here
  std::size_t failed = 0;               // operations that ended with an error; their time counts
  std::vector<device_profile> devices;  // by id, those without work too
  std::vector<kernel_profile> kernels;  // the longest total first
  std::vector<pair_profile> pairs;      // the most bytes first

  // Sums over devices: together at most wall times the number of devices.
  [[nodiscard]] std::chrono::nanoseconds compute() const;
  [[nodiscard]] std::chrono::nanoseconds transfer() const;
  [[nodiscard]] std::chrono::nanoseconds synchronisation() const;
  [[nodiscard]] std::chrono::nanoseconds idle() const;
};

/// What records alone do not say.
struct profile_context {
  std::vector<std::string> device_names{};  // by id; each of these devices is in the profile
  bool simulated = false;
  std::uint64_t dropped = 0;
  std::vector<time_range> paused{};  // nobody recorded: neither work nor idle
};

/// The profile of these records, whose times are of one clock. Spans and marks are not work.
/// A record that ends before it starts counts, and took no time.
/// Cost: n log n in the number of records.
[[nodiscard]] machine_profile summarise(std::span<const trace_record> records, const profile_context& context = {});

/// Tables for people.
[[nodiscard]] std::string to_string(const machine_profile& profile);

}  // namespace weft
