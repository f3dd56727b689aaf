// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/machine_state.hpp"
#include "weft/backend/kernel_code.hpp"

#include <functional>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>

namespace weft::detail {

/// The kernels of one machine.
struct kernel_table {
  explicit kernel_table(machine_state& /*machine*/) {}

  std::shared_mutex mutex;
  std::map<std::string, std::shared_ptr<const kernel_code>, std::less<>> by_name;
};

[[nodiscard]] inline kernel_table& kernels_of(machine_state& machine) {
  return machine.part_of<kernel_table>(part::kernels);
}

}  // namespace weft::detail
