// SPDX-License-Identifier: Apache-2.0
#include "distributed/meeting/greeting.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace weft::detail {
namespace {

static_assert(std::endian::native == std::endian::little, "greetings are little-endian");
static_assert(sizeof(hello_record) == 268 && sizeof(challenge_record) == 132, "the wire knows no padding");

void set(greeting_text& into, std::string_view text) noexcept {
  into = {};
  std::memcpy(into.data(), text.data(), std::min(text.size(), into.size()));
}

std::span<const std::byte> view(std::string_view text) { return std::as_bytes(std::span{text}); }

}  // namespace

void challenge_record::set_version(std::string_view text) noexcept { set(version, text); }
void hello_record::set_version(std::string_view text) noexcept { set(version, text); }
void hello_record::set_who(std::string_view text) noexcept { set(who, text); }

sha256_digest hello_record::proof_by(std::string_view token, const greeting_nonce& challenge) const noexcept {
  hello_record said = *this;
  said.proof = {};
  const std::span<const std::byte> parts[] = {view("weft hello"), challenge, std::as_bytes(std::span{&said, 1})};
  return hmac_sha256(token, parts);
}

sha256_digest welcome_proof(std::string_view token, const hello_record& to) noexcept {
  const std::span<const std::byte> parts[] = {view("weft welcome"), std::as_bytes(std::span{&to, 1})};
  return hmac_sha256(token, parts);
}

std::vector<std::byte> table_of(std::span<const std::vector<std::byte>> said) {
  std::vector<std::byte> made;
  for (const auto& one : said) {
    const auto length = static_cast<std::uint32_t>(one.size());
    const auto bytes = std::as_bytes(std::span{&length, 1});
    made.insert(made.end(), bytes.begin(), bytes.end());
    made.insert(made.end(), one.begin(), one.end());
  }
  return made;
}

std::optional<std::vector<std::vector<std::byte>>> parse_table(std::span<const std::byte> bytes, int size) {
  std::vector<std::vector<std::byte>> made;
  for (int r = 0; r < size; ++r) {
    std::uint32_t length = 0;
    if (bytes.size() < sizeof length) return std::nullopt;
    std::memcpy(&length, bytes.data(), sizeof length);
    bytes = bytes.subspan(sizeof length);
    if (bytes.size() < length) return std::nullopt;
    made.emplace_back(bytes.begin(), bytes.begin() + length);
    bytes = bytes.subspan(length);
  }
  if (!bytes.empty()) return std::nullopt;
  return made;
}

std::span<const std::byte> text_bytes(const greeting_text& text) noexcept {
  const auto end = std::ranges::find(text, std::byte{});
  return std::span{text}.first(static_cast<std::size_t>(end - text.begin()));
}

std::string ranks_in_words(std::span<const int> named, int all) {
  std::string text;
  for (const int r : named) text += (text.empty() ? "rank " : ", rank ") + std::to_string(r);
  const int rest = all - static_cast<int>(named.size());
  if (rest > 0) text += " and " + std::to_string(rest) + " more";
  return text;
}

}  // namespace weft::detail
