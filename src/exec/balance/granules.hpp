// SPDX-License-Identifier: Apache-2.0
// A range cut into granules: all decisions are made in granules, so that borders are right by construction.
#pragma once

#include "core/errors/make_error.hpp"
#include "exec/balance/split.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace weft::detail {

/// Errors: invalid_argument for a range or a granularity that cannot be.
[[nodiscard]] inline result<void> check_range(std::int64_t items, std::int64_t granularity) {
  if (items < 0) return make_error(errc::invalid_argument, "cannot split " + std::to_string(items) + " items");
  if (granularity < 1) {
    return make_error(errc::invalid_argument,
                      "a granularity of " + std::to_string(granularity) + ": borders need a step of at least 1");
  }
  return {};
}

class granules {
 public:
  granules(std::int64_t items, std::int64_t granularity)
      : items_(items), size_(std::max<std::int64_t>(1, std::min(items, granularity))) {}

  /// Of all; the last granule may be shorter than size().
  [[nodiscard]] std::int64_t count() const { return items_ / size_ + (items_ % size_ != 0 ? 1 : 0); }
  [[nodiscard]] std::int64_t items() const { return items_; }
  [[nodiscard]] std::int64_t size() const { return size_; }

  /// The item at which a granule begins; count() gives the end.
  [[nodiscard]] std::int64_t begin_of(std::int64_t granule) const {
    return granule >= count() ? items_ : granule * size_;
  }
  /// The granule that begins at an item, or the end.
  [[nodiscard]] std::int64_t at(std::int64_t item) const { return item >= items_ ? count() : item / size_; }
  [[nodiscard]] std::int64_t holding(std::int64_t cap) const { return cap == no_cap ? no_cap : cap / size_; }

 private:
  std::int64_t items_;
  std::int64_t size_;
};

/// Runs in the order of the devices. `counts` and `caps` are granules; a count above its cap is done in even pieces.
[[nodiscard]] std::vector<share> lay_out(const granules& grid, std::span<const device_id> ids,
                                         std::span<const std::int64_t> counts, std::span<const std::int64_t> caps);

/// "no device can hold 64 items: gpu0 holds 10, gpu1 none"
[[nodiscard]] error nobody_can_hold(const granules& grid, std::span<const device_id> ids,
                                    std::span<const std::int64_t> caps);

}  // namespace weft::detail
