// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/memory_handle.hpp"

#include "core/errors/called_from.hpp"
#include "processes/share_ticket.hpp"
#include "weft/core/raise.hpp"

namespace weft::detail {

shared_bytes checked_handle(std::span<const std::byte> bytes, shared_thing what, std::source_location where) {
  const called_from here{where};
  const share_ticket h = value_or_raise(decode(bytes));
  if (static_cast<std::uint8_t>(h.kind) != static_cast<std::uint8_t>(what)) {
    raise(errc::invalid_argument, "this is a handle of " + std::string{to_string(h.kind)} + ", not of " +
                                      std::string{to_string(static_cast<share_kind>(what))});
  }
  return encode(h);
}

shared_bytes handle_of_text(std::string_view text, shared_thing what, std::source_location where) {
  const called_from here{where};
  if (text.size() != 2 * shared_bytes_size) {
    raise(errc::corrupt, "the text of a handle has " + std::to_string(2 * shared_bytes_size) + " digits, this has " +
                             std::to_string(text.size()) + "; send all of it");
  }
  return checked_handle(bytes_of_text(text), what, where);
}

std::vector<std::byte> bytes_of_text(std::string_view text) {
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) {
      raise(errc::corrupt, "the text of a handle has the digits 0 to 9 and a to f only; place " +
                               std::to_string(i + (high < 0 ? 0 : 1)) + " has another");
    }
    bytes.push_back(static_cast<std::byte>(high * 16 + low));
  }
  return bytes;
}

std::string text_of_handle(std::span<const std::byte> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text += digits[std::to_integer<std::size_t>(b >> 4)];
    text += digits[std::to_integer<std::size_t>(b & std::byte{15})];
  }
  return text;
}

pid_t process_of_handle(const shared_bytes& bytes) {
  const auto h = decode(bytes);
  return h ? static_cast<pid_t>(h->process) : 0;
}

std::uint64_t size_of_handle(const shared_bytes& bytes) {
  const auto h = decode(bytes);
  return h ? h->size : 0;
}

}  // namespace weft::detail
