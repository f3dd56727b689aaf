// SPDX-License-Identifier: Apache-2.0
// What a launch over devices did, beside what was expected of it and why it was divided so: pure data and the reading
// of it.
#pragma once

#include "weft/exec/balance.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

/// One piece as it happened. Times on the machine's clock; what did not happen has begin = end.
struct piece_record {
  piece what;
  std::chrono::nanoseconds submitted{0};
  std::chrono::nanoseconds in_begin{0}, in_end{0};    // its data came
  std::chrono::nanoseconds run_begin{0}, run_end{0};  // it was computed
  std::chrono::nanoseconds out_begin{0}, out_end{0};  // its results went
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  bool failed = false;  // its items were not done by it
};

/// Everything that a report is made from.
struct launch_record {
  std::string kernel;
  std::int64_t items = 0;
  bool simulated = false;       // the clock was virtual: every time is a model's
  balance_report plan;          // what was decided before, with the reasons
  bool holds_borrowed = false;  // arguments came from host memory and went back there
  std::chrono::nanoseconds submitted{0};
  std::chrono::nanoseconds ended{0};
  std::vector<piece_record> pieces;  // in the order in which they were submitted
  std::vector<std::string> notes;    // "gpu2 was lost; its 40,000 items ran on gpu0 and gpu1"
};

/// Where the time of one device went. compute + transfer + synchronisation + idle_before + idle_after is the time of
/// the launch, to the nanosecond: each instant counts once, as the first of these that applies.
struct device_account {
  device_id device;
  std::int64_t planned_items = 0;
  std::int64_t items = 0;   // done
  std::int64_t pieces = 0;  // submitted, the failed ones too
  std::int64_t failed_pieces = 0;
  double predicted_seconds = 0;  // 0: not known
  std::chrono::nanoseconds compute{0};
  /// A piece's data moved, or waited while that of others moved.
  std::chrono::nanoseconds transfer{0};
  std::chrono::nanoseconds synchronisation{0};  // between its first work and its last, and none of the above
  std::chrono::nanoseconds idle_before{0};      // all of the launch, when it did nothing
  std::chrono::nanoseconds idle_after{0};
  std::chrono::nanoseconds failed{0};  // within compute: only pieces that failed ran
  bool is_lost = false;                // its last piece failed
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  std::string why;  // why it got this

  /// From its first work to its last.
  [[nodiscard]] std::chrono::nanoseconds took() const { return compute + transfer + synchronisation; }
};

/// What kept a launch from its ideal.
enum class launch_loss : std::uint8_t {
  none,
  imbalance,        // devices were done before the last one was
  transfer,         // data moved, and nothing was computed meanwhile
  synchronisation,  // devices waited between pieces
  idle,             // devices had not begun, or all were done and the launch was not
  failure,          // pieces ran in vain, and a lost device did no more
};
[[nodiscard]] std::string_view to_string(launch_loss loss);

/// A launch explained.
///
/// The ideal is all devices that took part computing to the end, each at the speed that it showed (its items by its
/// compute time). A device that was planned in and did nothing counts with the speed that was expected of it; one that
/// the plan left out does not count, since it was left out for a reason.
/// ideal + the losses = seconds: each is the mean over these devices, weighted by their speeds, because an idle fast
/// device is the greater loss.
struct launch_report {
  std::string kernel;
  balance strategy = balance::automatic;  // the one that ran
  std::string why;                        // why this strategy
  std::int64_t items = 0;
  bool simulated = false;
  double seconds = 0;  // from its submission to its end
  double ideal_seconds = 0;
  double predicted_seconds = 0;  // 0: a speed was not known
  std::vector<device_account> devices;
  double imbalance_seconds = 0;
  double transfer_seconds = 0;
  double sync_seconds = 0;
  double idle_seconds = 0;
  double failure_seconds = 0;
  launch_loss dominant = launch_loss::none;  // the largest of them, when it is above a twentieth of the time
  std::string advice;                        // which option or change would reduce it; empty for none
  std::vector<std::string> notes;

  /// Ideal time by time taken, 0 … 1.
  [[nodiscard]] double efficiency() const { return seconds > 0 ? ideal_seconds / seconds : 1; }
};

/// Times of a record outside of the launch count as its limits, and what ends before it begins did not happen.
/// Cost: n log n in the number of pieces.
[[nodiscard]] launch_report explain(const launch_record& record);

/// A few lines for people: the launch, one line for each device, the losses, what to do. Simulated: each line says so.
[[nodiscard]] std::string to_string(const launch_report& report);

}  // namespace weft
