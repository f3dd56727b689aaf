// SPDX-License-Identifier: Apache-2.0
#include "backend/memory_word.hpp"

#include "backend/address.hpp"
#include "core/errors/make_error.hpp"
#include "core/text/hex.hpp"

#include <string>

namespace weft::detail {
namespace {

bool is_short(const word_request& request) { return request.size == sizeof(std::uint32_t); }

/// The bits of a number that a word of the request's size has.
std::uint64_t cut(const word_request& request, std::uint64_t number) {
  return is_short(request) ? number & 0xffffffffU : number;
}

}  // namespace

std::optional<error> refused_word(const word_request& request, bool waits) {
  const std::string what = waits ? "a wait for a value" : "a write of a value";
  if (!is_short(request) && request.size != sizeof(std::uint64_t)) {
    return make_error(errc::invalid_argument,
                      what + " of " + std::to_string(request.size) + " bytes: a word has 4 or 8");
  }
  if (request.address == nullptr) return make_error(errc::invalid_argument, what + " at null");
  if (reinterpret_cast<std::uintptr_t>(request.address) % request.size != 0) {
    return make_error(errc::invalid_argument, what + " at " + hex(request.address) + ": the address of a word of " +
                                                  std::to_string(request.size) + " bytes is a multiple of that");
  }
  if (cut(request, request.value) != request.value) {
    return make_error(errc::invalid_argument,
                      what + ": " + std::to_string(request.value) + " is more than a word of 4 bytes has");
  }
  if (waits && !compares(request, comparing_word(request))) {
    return make_error(errc::invalid_argument, what + " by " + std::string{to_string(request.comparison)} + " with " +
                                                  std::to_string(request.value) + ", which no word ever passes");
  }
  return std::nullopt;
}

std::optional<error> misplaced_word(const word_request& request, const std::byte* begin, std::uint64_t size) {
  if (begin == nullptr) {
    return not_allocated("the word at " + hex(request.address));
  }
  return beyond_end("a word", request.size, request.address, begin, size);
}

bool compares(const word_request& request, std::uint64_t word) noexcept {
  switch (request.comparison) {
    case word_comparison::greater_equal: {
      const std::uint64_t ahead = word - request.value;
      return is_short(request) ? static_cast<std::int32_t>(ahead) >= 0 : static_cast<std::int64_t>(ahead) >= 0;
    }
    case word_comparison::equal:
      return word == request.value;
    case word_comparison::bits_any:
      return (word & request.value) != 0;
    case word_comparison::nor:
      return cut(request, ~(word | request.value)) != 0;
  }
  return false;
}

std::uint64_t comparing_word(const word_request& request) noexcept {
  return request.comparison == word_comparison::nor ? 0 : request.value;
}

// Sequentially consistent, both: who writes then looks for sleepers, and who is about to sleep looks once more.
std::uint64_t load_word(const std::byte* at, std::uint32_t size) noexcept {
  if (size == sizeof(std::uint32_t))
    return __atomic_load_n(reinterpret_cast<const std::uint32_t*>(at), __ATOMIC_SEQ_CST);
  return __atomic_load_n(reinterpret_cast<const std::uint64_t*>(at), __ATOMIC_SEQ_CST);
}

void store_word(std::byte* at, std::uint32_t size, std::uint64_t value) noexcept {
  if (size == sizeof(std::uint32_t)) {
    __atomic_store_n(reinterpret_cast<std::uint32_t*>(at), static_cast<std::uint32_t>(value), __ATOMIC_SEQ_CST);
  } else {
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(at), value, __ATOMIC_SEQ_CST);
  }
}

}  // namespace weft::detail
