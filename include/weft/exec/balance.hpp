// SPDX-License-Identifier: Apache-2.0
// How one kernel is divided over devices, as a pure decision: what is known of the devices in, shares or a rule for
// chunks out. Nothing here knows a backend or a clock; a balancer carries the decision out.
#pragma once

#include "weft/core/ids.hpp"
#include "weft/core/result.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

enum class balance : std::uint8_t {
  automatic,      // by cost: how many devices, and shares or chunks
  static_equal,   // the same for each
  dynamic,        // in proportion to the measured speeds; guided while one of them is not known
  guided,         // decreasing chunks, each a part of what is left, in proportion to speeds refined on the way
  memory_aware,   // as dynamic, equal speeds for what is not known: made for caps, which all strategies keep to
  work_stealing,  // shares as memory_aware; who has none left takes from whoever would end last
  weighted,       // in proportion to weights that the caller names
};
[[nodiscard]] std::string_view to_string(balance strategy);

/// The cap of a device that holds whatever it is given.
inline constexpr std::int64_t no_cap = std::numeric_limits<std::int64_t>::max();

/// A run of indices for one device.
struct piece {
  device_id device;
  std::int64_t first = 0;
  std::int64_t count = 0;
  friend bool operator==(const piece&, const piece&) = default;
};

/// The part of one device, one run of indices; in several pieces, one after the other, when it does not fit at once.
struct share {
  device_id device;
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t at_once = 0;  // items that fit at once: no piece is longer

  [[nodiscard]] std::int64_t passes() const { return count == 0 ? 0 : (count - 1) / at_once + 1; }
  /// Piece `pass` of passes().
  [[nodiscard]] piece piece_of(std::int64_t pass) const;
};

/// What is known of one device for one kernel.
struct balance_device {
  device_id id;
  double items_per_second = 0;  // without what a chunk costs by itself; 0: not known
  double chunk_seconds = 0;     // what each chunk costs whatever its size; 0: not known
  double nominal_speed = 1;     // compute units × clock, or any such: stands in for a speed not known
  double weight = 1;            // weighted only
  std::int64_t cap = no_cap;    // items that fit; 0: none
  bool is_given = false;        // items_per_second is what the caller supposes, not what was measured
};

struct balance_request {
  std::int64_t items = 0;
  std::vector<balance_device> devices;
  balance strategy = balance::automatic;
  std::int64_t granularity = 1;  // every border is a multiple of it
  bool keeps_data = false;    // pieces stay on their devices until the launch ends: a cap limits a share, not a piece
  bool alike = false;         // the devices are of one model: equally fast until something else is measured
  double guided_divisor = 2;  // k: a guided chunk is 1/k of the device's proportion of what is left
  double moved_item_seconds = 0;  // what stealing an item adds, for moving its data
};

/// What runs, and what it is expected to come to.
struct balance_plan {
  balance strategy = balance::guided;  // never automatic
  std::vector<share> shares;           // in the order of the devices; guided: an expectation of counts, not of places
  bool in_passes = false;
  double predicted_seconds = 0;  // 0: a speed is not known
};

/// Chooses. Each index is in exactly one share.
/// Errors: as split(); invalid_argument – a speed, time or divisor that cannot be, the device named.
/// Cost: at most (devices)² steps, a few allocations.
[[nodiscard]] result<balance_plan> plan_balance(const balance_request& request);

/// One device of a plan in words.
struct balance_reason {
  device_id device;
  std::int64_t items = 0;
  double predicted_seconds = 0;  // 0: not known
  std::string why;
  bool is_capped = false;  // it got no more at once than its memory holds
};

struct balance_report {
  balance asked = balance::automatic;
  balance_plan plan;
  std::string why;  // why this strategy
  std::vector<balance_reason> devices;
  double ideal_seconds = 0;  // all devices busy to the end, nothing but items; 0: not known
};

/// Like plan_balance(), with the reason for each device.
[[nodiscard]] result<balance_report> explain_balance(const balance_request& request);

}  // namespace weft
