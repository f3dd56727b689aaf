// SPDX-License-Identifier: Apache-2.0
// A word of memory as streams write it and wait for it, where the host reaches it by loads and stores.
#pragma once

#include "weft/backend/backend.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace weft::detail {

/// Why a word can be neither written nor waited for, whatever memory it is in; none if it can.
[[nodiscard]] std::optional<error> refused_word(const word_request& request, bool waits);

/// Why it does not lie in the memory that was found for it, which begins at null where there is none.
[[nodiscard]] std::optional<error> misplaced_word(const word_request& request, const std::byte* begin,
                                                  std::uint64_t size);

/// Whether `word` compares as the request wants it to.
[[nodiscard]] bool compares(const word_request& request, std::uint64_t word) noexcept;
/// A word that compares, of a request that is not refused.
[[nodiscard]] std::uint64_t comparing_word(const word_request& request) noexcept;

/// Acquires what came before the store of the value that it gives.
[[nodiscard]] std::uint64_t load_word(const std::byte* at, std::uint32_t size) noexcept;
/// Releases what came before it.
void store_word(std::byte* at, std::uint32_t size, std::uint64_t value) noexcept;

}  // namespace weft::detail
