// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/fill_request.hpp"
#include "weft/memory/span.hpp"
#include "weft/runtime/event.hpp"
#include "weft/runtime/stream.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <source_location>

namespace weft {

namespace detail {
event fill_in(const stream& order, memory_ref dst, const fill_request& request, std::source_location where);
void fill_now(memory_ref dst, fill_request request, std::source_location where);

template <class T>
fill_request fill_pattern(std::size_t count, const T& value) {
  static_assert(sizeof(T) <= 16 && std::has_single_bit(sizeof(T)), "a fill value has 1, 2, 4, 8 or 16 bytes");
  fill_request request;
  request.count = count;
  request.pattern_size = sizeof(T);
  std::memcpy(request.pattern.data(), &value, sizeof(T));
  return request;
}
}  // namespace detail

/// Sets every element; returns when it is done. Order: in the default stream of the owning device.
template <class T>
void fill(device_span<T> range, const std::type_identity_t<T>& value,
          std::source_location where = std::source_location::current()) {
  detail::fill_now(detail::untyped(range), detail::fill_pattern<T>(range.size(), value), where);
}
template <class B>
  requires requires(const B& b) { b.span(); }
void fill(const B& buffer, const typename B::value_type& value,
          std::source_location where = std::source_location::current()) {
  fill(buffer.span(), value, where);
}

/// The same, ordered in a stream.
template <class T>
event fill(const stream& order, device_span<T> range, const std::type_identity_t<T>& value,
           std::source_location where = std::source_location::current()) {
  return detail::fill_in(order, detail::untyped(range), detail::fill_pattern<T>(range.size(), value), where);
}
template <class B>
  requires requires(const B& b) { b.span(); }
event fill(const stream& order, const B& buffer, const typename B::value_type& value,
           std::source_location where = std::source_location::current()) {
  return fill(order, buffer.span(), value, where);
}

}  // namespace weft
