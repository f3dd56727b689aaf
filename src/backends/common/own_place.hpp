// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/device_description.hpp"

#include <algorithm>
#include <string>

namespace weft::common {

/// The PCI address of a device; empty where devices share it, as MIG instances do: a layout has one at each.
template <class Places>
[[nodiscard]] std::string own_place(const Places& devices, const device_description& one) {
  const auto there = std::count_if(devices.begin(), devices.end(),
                                   [&](const auto& other) { return other.description.pci_address == one.pci_address; });
  return there == 1 ? one.pci_address : std::string{};
}

}  // namespace weft::common
