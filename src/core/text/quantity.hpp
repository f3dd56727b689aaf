// SPDX-License-Identifier: Apache-2.0
// Amounts as people write them, with their unit: "80GiB", "25GB/s", "1.5us". Empty when it is not one.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

namespace weft::detail {

/// Units: B, K M G T with or without iB, all of 1024. A whole number of bytes, at most 1 PiB.
[[nodiscard]] std::optional<std::uint64_t> parse_size(std::string_view text);

/// Units: B/s, KB/s … TB/s of 1000; KiB/s … TiB/s of 1024. More than 0 and at most 1e15 bytes per second.
[[nodiscard]] std::optional<double> parse_rate(std::string_view text);

/// Units: ns, us, ms, s. From 0 to one hour.
[[nodiscard]] std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text);

}  // namespace weft::detail
