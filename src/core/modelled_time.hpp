// SPDX-License-Identifier: Apache-2.0
// How long copies take by a topology: the rules of the virtual clock, which prices go by too.
#pragma once

#include "weft/core/topology.hpp"

#include <chrono>
#include <cstdint>

namespace weft::detail {

/// Rounded; what a wrong model asks for stays a number.
[[nodiscard]] std::chrono::nanoseconds modelled_time(double seconds) noexcept;
/// Of a copy in one step over the links of a way. A rate that is unknown takes no time.
[[nodiscard]] std::chrono::nanoseconds time_over(const link_path& way, std::uint64_t bytes) noexcept;
/// Of bytes that pass memory of that rate once. A rate of 0 takes no time.
[[nodiscard]] std::chrono::nanoseconds time_in_memory(double bytes_per_second, std::uint64_t bytes) noexcept;

/// From host memory near one device to another device: over the sockets and up.
[[nodiscard]] link_path way_from_host_near(const topology& machine, device_id near, device_id to);

}  // namespace weft::detail
