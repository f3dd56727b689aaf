// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/bytes.hpp"
#include "weft/core/capability.hpp"
#include "weft/core/ids.hpp"
#include "weft/runtime/device.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft {

/// Which devices are wanted. Every condition must hold; what is left is ordered by `score`, highest first, when given.
struct device_query {
  std::vector<device_id> ids{};  // exactly these, in this order; empty is all
  capability needs = capability::none;
  int min_compute_units = 0;
  bytes min_memory{};  // free now
  std::vector<device_id> exclude{};
  std::optional<std::string> backend{};          // by its name
  bool backend_required = true;                  // false: when it has no device, use the others and say so
  std::function<double(const device&)> score{};  // NaN is the lowest
  std::size_t at_most = static_cast<std::size_t>(-1);
};

struct rejected_device {
  device_id id;
  std::string why;
};

/// The devices that a query found, the others with the reason, and remarks about fallbacks.
class device_list {
 public:
  device_list() = default;
  device_list(std::vector<device> chosen, std::vector<rejected_device> rejected, std::vector<std::string> notes)
      : chosen_(std::move(chosen)), rejected_(std::move(rejected)), notes_(std::move(notes)) {}

  [[nodiscard]] auto begin() const { return chosen_.begin(); }
  [[nodiscard]] auto end() const { return chosen_.end(); }
  [[nodiscard]] std::size_t size() const { return chosen_.size(); }
  [[nodiscard]] bool empty() const { return chosen_.empty(); }
  [[nodiscard]] const device& operator[](std::size_t i) const { return chosen_[i]; }
  [[nodiscard]] const std::vector<rejected_device>& rejected() const { return rejected_; }
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

 private:
  std::vector<device> chosen_;
  std::vector<rejected_device> rejected_;
  std::vector<std::string> notes_;
};

}  // namespace weft
