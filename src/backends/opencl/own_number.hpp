// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <vector>

namespace weft::opencl {

/// The lowest number that nothing else in this process has. Thread: any.
class own_number {
 public:
  own_number() {
    const std::lock_guard lock{all().mutex};
    std::vector<bool>& taken = all().taken;
    value_ = static_cast<std::size_t>(std::ranges::find(taken, false) - taken.begin());
    if (value_ == taken.size()) taken.push_back(false);
    taken[value_] = true;
  }
  own_number(const own_number&) = delete;
  own_number& operator=(const own_number&) = delete;
  ~own_number() {
    const std::lock_guard lock{all().mutex};
    all().taken[value_] = false;
  }

  [[nodiscard]] std::size_t value() const noexcept { return value_; }

 private:
  struct numbers {
    std::mutex mutex;
    std::vector<bool> taken;
  };
  /// Never destroyed: a machine may go with the last of the process.
  [[nodiscard]] static numbers& all() {
    static auto* const made = new numbers;
    return *made;
  }
  std::size_t value_ = 0;
};

}  // namespace weft::opencl
