// SPDX-License-Identifier: Apache-2.0
// The right of each device to an allocation, where peer access does not decide: to memory of shareable pools, of other
// processes, and to mapped blocks.
#pragma once

#include "weft/core/access_right.hpp"

#include <atomic>
#include <cstddef>
#include <vector>

namespace weft::common {

/// Thread: any. Its loads and stores are sequentially consistent, as those of `revoked` and `pending` are: either an
/// operation sees that a right was withdrawn, or who withdraws it sees the operation pending.
class access_list {
 public:
  explicit access_list(std::size_t devices) : rights_(devices) {}

  [[nodiscard]] access_right of(std::size_t device) const { return rights_[device].load(); }
  void set(std::size_t device, access_right right) { rights_[device].store(right); }
  void copy(const access_list& from) {
    for (std::size_t d = 0; d < rights_.size(); ++d) set(d, from.of(d));
  }

 private:
  std::vector<std::atomic<access_right>> rights_;
};

}  // namespace weft::common
