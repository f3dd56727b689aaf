// SPDX-License-Identifier: Apache-2.0
#include "backend/memory_shortage.hpp"

#include "core/errors/make_error.hpp"
#include "core/text/hex.hpp"
#include "core/text/readable.hpp"

#include <string>
#include <utility>

namespace weft::detail {

void memory_shortage::look(const void* base, std::size_t size) noexcept {
  holder next{base, size};
  for (holder& kept : largest_) {
    if (next.size > kept.size) std::swap(next, kept);
  }
}

error memory_shortage::cause() const {
  // what is asked for may pass what is free by a few bytes, and rounding would hide them
  const std::uint64_t free = now_.free.value();
  const std::uint64_t total = now_.total.value();
  std::string text =
      to_string(device_) + " has " + size_beside(free, asked_) + " free of " + size_beside(total, asked_) +
      ", asked for " +
      (size_beside(asked_, free) == to_string(bytes{asked_}) ? size_beside(asked_, total) : size_beside(asked_, free));
  const char* before = "; largest: ";
  for (const holder& one : largest_) {
    if (one.size == 0) break;
    text.append(before).append(to_string(bytes{one.size})).append(" at ").append(hex(one.base));
    before = ", ";
  }
  return make_error(errc::out_of_memory, std::move(text));
}

}  // namespace weft::detail
