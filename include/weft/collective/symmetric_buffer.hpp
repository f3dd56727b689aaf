// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/internals.hpp"
#include "weft/memory/span.hpp"

#include <cstddef>
#include <memory>
#include <source_location>
#include <utility>

namespace weft {

namespace detail {

class symmetric_block;

/// One rank's argument of a collective. Symmetric memory is known by its block.
struct collective_memory {
  memory_ref memory;
  const symmetric_block* symmetric = nullptr;
};

}  // namespace detail

/// Memory that every rank of a communicator has at the same place of its part, and that every rank reaches: what makes
/// a collective one pass over everybody's memory. Made by all ranks together; goes with its last user, ranks apart.
template <class T>
class symmetric_buffer {
 public:
  using value_type = T;

  symmetric_buffer() = default;

  /// This rank's own part; empty once it was moved from.
  [[nodiscard]] device_span<T> span() const { return block_ ? mine_ : device_span<T>{}; }
  [[nodiscard]] std::size_t size() const { return span().size(); }
  [[nodiscard]] T* data() const { return span().data(); }
  operator device_span<T>() const { return span(); }        // NOLINT(google-explicit-constructor)
  operator device_span<const T>() const { return span(); }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] symmetric_buffer subspan(std::size_t offset, std::size_t count,
                                         std::source_location where = std::source_location::current()) const {
    return {block_, span().subspan(offset, count, where)};
  }

 private:
  friend struct detail::internals;
  symmetric_buffer(std::shared_ptr<detail::symmetric_block> block, const device_span<T>& mine)
      : block_(std::move(block)), mine_(mine) {}
  [[nodiscard]] const detail::symmetric_block* block() const { return block_.get(); }

  std::shared_ptr<detail::symmetric_block> block_;
  device_span<T> mine_;
};

namespace detail {
template <class B>
collective_memory collective_memory_of(const B& given) {
  if constexpr (requires { internals::block(given); }) {
    return {untyped(given.span()), internals::block(given)};
  } else {
    return {untyped(borrow(given)), nullptr};
  }
}
}  // namespace detail

}  // namespace weft
