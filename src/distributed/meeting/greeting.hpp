// SPDX-License-Identifier: Apache-2.0
// What ranks say to each other when they meet. Both sides prove that they know the token, and neither sends it.
#pragma once

#include "distributed/meeting/sha256.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::detail {

inline constexpr std::uint32_t greeting_protocol = 1;
inline constexpr std::size_t greeting_text_bytes = 2048;  // a refusal, or who is late
using greeting_text = std::array<std::byte, 96>;          // zeros behind its end
using greeting_nonce = std::array<std::byte, 32>;

/// Rank 0's first words. These two records keep their layout for ever: versions tell each other apart by them.
struct challenge_record {
  std::uint32_t protocol = greeting_protocol;
  greeting_text version{};
  greeting_nonce asked{};

  void set_version(std::string_view text) noexcept;
};

/// What another rank answers.
struct hello_record {
  std::uint32_t protocol = greeting_protocol;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  greeting_text version{};
  greeting_text who{};
  greeting_nonce asked{};
  sha256_digest proof{};

  void set_version(std::string_view text) noexcept;
  void set_who(std::string_view text) noexcept;
  /// What `proof` is if this was said by one who knows the token, in answer to that challenge.
  [[nodiscard]] sha256_digest proof_by(std::string_view token, const greeting_nonce& challenge) const noexcept;
};

/// What rank 0 proves to whom said hello.
[[nodiscard]] sha256_digest welcome_proof(std::string_view token, const hello_record& to) noexcept;

/// What each rank said, by rank, as one frame.
[[nodiscard]] std::vector<std::byte> table_of(std::span<const std::vector<std::byte>> said);
/// Nothing where it is not the table of so many ranks.
[[nodiscard]] std::optional<std::vector<std::vector<std::byte>>> parse_table(std::span<const std::byte> bytes,
                                                                             int size);

[[nodiscard]] std::span<const std::byte> text_bytes(const greeting_text& text) noexcept;
/// "rank 2, rank 5 and 9 more", of so many in all.
[[nodiscard]] std::string ranks_in_words(std::span<const int> named, int all);

}  // namespace weft::detail
