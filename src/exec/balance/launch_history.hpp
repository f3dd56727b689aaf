// SPDX-License-Identifier: Apache-2.0
// What kernels took where, so that the next launch is split by what was measured. Built so that one bad sample – a
// compilation, another process, a stalled clock – does not move work away from a device for good.
#pragma once

#include "exec/balance/affine_cost.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

namespace weft {

class machine;

/// What a sample is a sample of. `device` is a lasting identity (uuid), not a position.
struct work_key {
  std::string_view kernel;
  std::string_view device;
  bool resident = false;   // its data was on the device already
  bool simulated = false;  // on a virtual clock: never mixed with measured time
  friend bool operator==(const work_key&, const work_key&) = default;
};

struct history_limits {
  std::size_t series = 1024;  // keys kept; the one longest unused goes first
  /// A key that was asked about this often and not sampled since is unknown again: a device that was once found slow is
  /// tried anew.
  std::uint64_t forget_after = 256;
};

/// Times of past launches per kernel, device and size class (powers of two).
/// The first sample of a key is dropped. A class keeps its last five and answers with their median in seconds per item;
/// of an even number the faster of the middle two, because disturbances lengthen. So one bad sample among two or more
/// changes nothing, and a lasting change is taken over with the third sample.
/// Thread: any.
class launch_history {
 public:
  explicit launch_history(const history_limits& limits = {});
  ~launch_history();
  launch_history(const launch_history&) = delete;
  launch_history& operator=(const launch_history&) = delete;

  /// A launch of `items` took `seconds`. Times and counts of 0 or less are no samples.
  void record(const work_key& key, std::int64_t items, double seconds);

  /// Rate of the size class of `items`, or of the nearest class known.
  /// Units: items/s; empty: never sampled, or forgotten.
  [[nodiscard]] std::optional<double> items_per_second(const work_key& key, std::int64_t items) const;

  /// A line through the medians of the classes, by least relative squares, start and slope not negative. From four
  /// classes on the one that fits worst is left out. One class: a line through 0.
  [[nodiscard]] std::optional<affine_cost> cost(const work_key& key) const;

  [[nodiscard]] std::size_t size() const;
  void clear();

 private:
  struct body;
  std::unique_ptr<body> body_;
};

/// The speeds of kernels that launches on this machine have measured.
[[nodiscard]] launch_history& history_of(const machine& m);

}  // namespace weft
