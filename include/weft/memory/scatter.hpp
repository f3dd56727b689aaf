// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/memory/copy.hpp"

#include <source_location>
#include <span>
#include <vector>

namespace weft {

/// Sizes of `parts` shares of `count` elements: equal, with the remainder spread over the first ones.
[[nodiscard]] std::vector<std::size_t> even_split(std::size_t count, std::size_t parts,
                                                  std::source_location where = std::source_location::current());

namespace detail {
void spread(std::span<const copy_part> parts, const copy_options& options, std::source_location where);
[[noreturn]] void raise_share(std::string_view what, std::size_t shares, std::size_t whole, std::source_location where);
}  // namespace detail

/// Copies consecutive shares of `whole` into the parts, each on its device, in parallel; every element once.
/// Returns when all is visible. Errors: incompatible when the sizes do not add up; as copy.
template <class Part, class Whole>
void scatter(std::span<Part> parts, const Whole& whole, const copy_options& options = {},
             std::source_location where = std::source_location::current()) {
  const auto from = detail::borrow(whole);
  std::size_t offset = 0;
  for (const auto& p : parts) offset += p.size();
  if (offset != from.size()) detail::raise_share("scatter", offset, from.size(), where);
  std::vector<copy_part> copies;
  offset = 0;
  for (const auto& p : parts) {
    if (p.size() != 0) copies.push_back(part(p, from.subspan(offset, p.size()), where));
    offset += p.size();
  }
  detail::spread(copies, options, where);
}

/// Copies the parts one after the other into `whole`, in parallel; every element once.
template <class Whole, class Part>
void gather(Whole&& whole, std::span<Part> parts, const copy_options& options = {},
            std::source_location where = std::source_location::current()) {
  const auto to = detail::borrow(whole);
  std::size_t offset = 0;
  for (const auto& p : parts) offset += p.size();
  if (offset != to.size()) detail::raise_share("gather", offset, to.size(), where);
  std::vector<copy_part> copies;
  offset = 0;
  for (const auto& p : parts) {
    if (p.size() != 0) copies.push_back(part(to.subspan(offset, p.size()), detail::borrow(p), where));
    offset += p.size();
  }
  detail::spread(copies, options, where);
}

/// Copies `whole` into each part.
template <class Part, class Whole>
void replicate(std::span<Part> parts, const Whole& whole, const copy_options& options = {},
               std::source_location where = std::source_location::current()) {
  std::vector<copy_part> copies;
  for (const auto& p : parts) copies.push_back(part(p, whole, where));
  detail::spread(copies, options, where);
}

}  // namespace weft
