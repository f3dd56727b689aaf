// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/memory/span.hpp"

#include <array>
#include <cstddef>
#include <source_location>
#include <span>
#include <type_traits>

namespace weft::detail {

/// The memory of every rank, as it was handed in.
class rank_memory {
 public:
  static constexpr std::size_t capacity = 64;
  rank_memory() = default;
  template <class R>
  [[nodiscard]] static rank_memory of(const R& list, std::source_location where) {
    rank_memory made;
    for (const auto& one : list) made.push(untyped(borrow(one)), where);
    return made;
  }
  template <class B>
  [[nodiscard]] static rank_memory only(const B& one, std::source_location where) {
    rank_memory made;
    made.push(untyped(borrow(one)), where);
    return made;
  }
  [[nodiscard]] std::span<const memory_ref> all() const { return {list_.data(), size_}; }

 private:
  void push(const memory_ref& one, std::source_location where);  // errors: invalid_argument past the capacity

  std::array<memory_ref, capacity> list_;
  std::size_t size_ = 0;
};

/// The memory of one rank, of a list with an entry for each.
template <class R>
using of_one_rank = typename std::remove_cvref_t<R>::value_type;

template <class R>
using element_of_ranks = element_of_memory<of_one_rank<R>>;

}  // namespace weft::detail
