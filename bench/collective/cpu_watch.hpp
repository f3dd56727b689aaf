// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace weft::bench {

/// How much of the processor went to others while something was measured: a figure taken beside a compiler is worth
/// little. Linux; elsewhere it knows nothing.
class cpu_watch {
 public:
  cpu_watch();
  /// Part of all cores' time since the last call, or the construction, that neither stood idle nor went to
  /// `own_seconds` of the processes that were measured: 0 … 1. Negative: not known.
  [[nodiscard]] double others_since(double own_seconds);

 private:
  struct times {
    double busy = -1, all = 0;
  };
  [[nodiscard]] static times read();

  times last_;
};

}  // namespace weft::bench
