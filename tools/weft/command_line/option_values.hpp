// SPDX-License-Identifier: Apache-2.0
// What the words behind options mean: sizes, times, devices, lists of them. Errors: invalid_argument that quotes the
// word and says how to write it.
#pragma once

#include "weft/core/result.hpp"
#include "weft/exec/balance.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::tool {

/// An ordered pair as it was typed.
using pair_choice = std::pair<int, int>;

/// The parts between the separators; an empty text is one empty part.
[[nodiscard]] std::vector<std::string_view> split(std::string_view text, char by);

/// "64M", "64MiB", "64MB" and "67108864" are the same: all suffixes count in 1024.
[[nodiscard]] result<std::uint64_t> parse_size(std::string_view text);

/// "8..64M" goes in steps of four, "8..64M:2" in steps of two, always ending with the last; "1K,1M" is a list.
[[nodiscard]] result<std::vector<std::uint64_t>> parse_sizes(std::string_view text);

/// "0-1,2-3" or "gpu0-gpu1".
[[nodiscard]] result<std::vector<pair_choice>> parse_pairs(std::string_view text);

/// "1,64": messages of a call, from 1 to 1024.
[[nodiscard]] result<std::vector<std::size_t>> parse_batches(std::string_view text);

/// "1M", "2.5G": whole items, which count in 1000, unlike bytes.
[[nodiscard]] result<std::int64_t> parse_count(std::string_view text);

/// "guided,automatic".
[[nodiscard]] result<std::vector<balance>> parse_strategies(std::string_view text);

/// "A,D2,overhead"; each once, in the order of the table.
[[nodiscard]] result<std::vector<std::string>> parse_scenarios(std::string_view text);

/// Positions of the words of a list in `known`, each once and in its order. `what` names the kind of word.
[[nodiscard]] result<std::vector<std::size_t>> parse_words(std::string_view text,
                                                           const std::vector<std::string_view>& known,
                                                           std::string_view what);

/// "10s", "500ms", "2m".
[[nodiscard]] result<std::chrono::nanoseconds> parse_duration(std::string_view text);

/// "10%" or "0.1".
[[nodiscard]] result<double> parse_share(std::string_view text);

/// "2" or "gpu2".
[[nodiscard]] result<int> parse_device(std::string_view text);

}  // namespace weft::tool
