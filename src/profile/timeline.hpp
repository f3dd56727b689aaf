// SPDX-License-Identifier: Apache-2.0
// One time for all devices: each device's clock runs from a zero of its own and a little too fast or too slow.
#pragma once

#include "weft/core/ids.hpp"
#include "weft/core/trace.hpp"

#include <chrono>
#include <map>
#include <span>
#include <vector>

namespace weft {

/// Both clocks at one instant: the device's was read between two looks at the host's, of which `host` is the middle.
struct clock_sample {
  std::chrono::nanoseconds device{0};
  std::chrono::nanoseconds host{0};
  std::chrono::nanoseconds uncertainty{0};  // half of what passed between the two looks
};

/// How a device's clock maps to the host's: a line.
struct clock_fit {
  std::chrono::nanoseconds device_origin{0};
  std::chrono::nanoseconds host_origin{0};
  double drift = 0;  // nanoseconds of the host's clock, more than one, for each of the device's
  /// Instants between the first and the last sample that was kept are mapped to within this: it is the largest distance
  /// of a kept sample from the line, with that sample's uncertainty. (At each of them the true line is no further from
  /// the fitted one, and between two points two lines are no further apart than at those.)
  std::chrono::nanoseconds error{0};
  std::size_t outliers = 0;  // samples that were not kept

  [[nodiscard]] std::chrono::nanoseconds host_time(std::chrono::nanoseconds device_time) const;
};

/// The line through samples: least squares over those that agree with the median of all slopes. A quarter of the
/// samples may be wrong by any amount. Without samples it is the identity, with samples of one device time an offset.
/// Cost: quadratic in the number of samples, of which 256, evenly chosen, are looked at.
[[nodiscard]] clock_fit fit_clock(std::span<const clock_sample> samples);

/// Puts records of several clocks into one order. Devices without a fit have the host's clock.
class timeline {
 public:
  void set_clock(device_id device, const clock_fit& fit) { fits_[device] = fit; }
  [[nodiscard]] std::chrono::nanoseconds host_time(device_id device, std::chrono::nanoseconds time) const;

  /// What two devices' times may be wrong against each other: where one thing caused the other, on another device and
  /// at least this much later, it stands before it in merge().
  [[nodiscard]] std::chrono::nanoseconds error_between(device_id a, device_id b) const;

  /// The records in the host's time, by start and then by end; equal ones stay in order.
  [[nodiscard]] std::vector<trace_record> merge(std::vector<trace_record> records) const;

 private:
  [[nodiscard]] const clock_fit* fit_of(device_id device) const;
  std::map<device_id, clock_fit> fits_;
};

}  // namespace weft
