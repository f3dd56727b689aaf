// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/bytes.hpp"
#include "weft/core/ids.hpp"
#include "weft/core/internals.hpp"
#include "weft/core/memory_description.hpp"
#include "weft/core/raise.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <span>
#include <type_traits>

namespace weft {

namespace detail {
class machine_state;

/// Where bytes are, without their type: what the templates hand to src/.
struct memory_ref {
  machine_state* state = nullptr;  // null for host memory
  void* address = nullptr;
  std::uint64_t size = 0;  // bytes
  device_id device;
  memory_kind kind = memory_kind::device;
};

[[noreturn]] void raise_subspan(std::size_t offset, std::size_t count, std::size_t size, std::source_location where);
[[noreturn]] void raise_as(const void* address, bytes size, std::size_t element, std::size_t alignment,
                           std::source_location where);
[[noreturn]] void raise_copy_sizes(std::size_t to, std::size_t from, std::source_location where);
}  // namespace detail

/// Borrows elements in device memory. The address belongs to the device: the host must not follow it.
/// Shape: contiguous, aligned for T. Thread: any.
template <class T>
class device_span {
 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;

  constexpr device_span() = default;
  template <class U>
    requires std::is_convertible_v<U (*)[], T (*)[]>
  constexpr device_span(const device_span<U>& other)  // NOLINT(google-explicit-constructor): as std::span
      : state_(detail::state_of(other)),
        data_(other.data()),
        count_(other.size()),
        device_(other.on()),
        kind_(other.kind()) {}

  [[nodiscard]] constexpr T* data() const { return data_; }
  [[nodiscard]] constexpr std::size_t size() const { return count_; }
  [[nodiscard]] constexpr bool empty() const { return count_ == 0; }
  [[nodiscard]] constexpr bytes size_bytes() const { return bytes{count_ * sizeof(T)}; }
  /// The device that owns the memory; for a peer mapping, the device that may use it.
  [[nodiscard]] constexpr device_id on() const { return device_; }
  [[nodiscard]] constexpr memory_kind kind() const { return kind_; }

  /// Errors: out_of_range when offset + count passes the end.
  [[nodiscard]] device_span subspan(std::size_t offset, std::size_t count,
                                    std::source_location where = std::source_location::current()) const {
    if (offset > count_ || count > count_ - offset) detail::raise_subspan(offset, count, count_, where);
    return {state_, device_, data_ + offset, count, kind_};
  }
  [[nodiscard]] device_span first(std::size_t count,
                                  std::source_location where = std::source_location::current()) const {
    return subspan(0, count, where);
  }
  [[nodiscard]] device_span last(std::size_t count,
                                 std::source_location where = std::source_location::current()) const {
    if (count > count_) detail::raise_subspan(0, count, count_, where);
    return subspan(count_ - count, count, where);
  }
  /// The same memory as elements of type U: copies and kernels take one type.
  /// Errors: invalid_argument where it is no whole number of them, or not aligned for them.
  template <class U>
    requires(std::is_trivially_copyable_v<U> && (std::is_const_v<U> || !std::is_const_v<T>))
  [[nodiscard]] device_span<U> as(std::source_location where = std::source_location::current()) const {
    const std::size_t size = count_ * sizeof(T);
    if (size % sizeof(U) != 0 || reinterpret_cast<std::uintptr_t>(data_) % alignof(U) != 0)
      detail::raise_as(data_, bytes{size}, sizeof(U), alignof(U), where);
    return detail::make<device_span<U>>(state_, device_, reinterpret_cast<U*>(data_), size / sizeof(U), kind_);
  }

 private:
  friend struct detail::internals;
  constexpr device_span(detail::machine_state* state, device_id on, T* data, std::size_t count,
                        memory_kind kind = memory_kind::device)
      : state_(state), data_(data), count_(count), device_(on), kind_(kind) {}
  [[nodiscard]] constexpr detail::machine_state* state() const { return state_; }

  detail::machine_state* state_ = nullptr;
  T* data_ = nullptr;
  std::size_t count_ = 0;
  device_id device_;
  memory_kind kind_ = memory_kind::device;
};

namespace detail {

template <class T>
struct is_device_span : std::false_type {};
template <class T>
struct is_device_span<device_span<T>> : std::true_type {};

/// Turns what a user hands in (buffer, device_span, vector, array, std::span) into a device_span or a std::span.
template <class R>
constexpr auto borrow(R&& range) {
  using plain = std::remove_cvref_t<R>;
  if constexpr (is_device_span<plain>::value) {
    return range;
  } else if constexpr (requires { range.span(); }) {
    return range.span();
  } else {
    return std::span{range};
  }
}

template <class R>
using borrowed = decltype(borrow(std::declval<R>()));

template <class B>
using element_of_memory = std::remove_cv_t<typename std::remove_cvref_t<borrowed<const B&>>::element_type>;

/// A span of const elements is for reading. Of a buffer or a container, what it holds is meant.
template <class B>
concept writable_memory = !requires { typename B::element_type; } || !std::is_const_v<typename B::element_type>;

template <class B>
concept memory_argument = is_device_span<std::remove_cvref_t<B>>::value || requires(const B& b) { b.span(); } ||
                          requires(const B& b) { std::span{b}; };

/// Elements of `In` go to `Out` as they are: float into int32 would be other numbers.
template <class In, class Out>
concept moves_into = memory_argument<In> && memory_argument<Out> &&
                     std::is_same_v<element_of_memory<In>, element_of_memory<Out>> && writable_memory<Out>;

template <class S>
memory_ref untyped(const S& span) {
  using element = std::remove_cv_t<typename S::element_type>;
  auto* address = const_cast<element*>(span.data());  // the direction of the copy decides what is written
  if constexpr (is_device_span<S>::value) {
    return {detail::state_of(span), address, span.size_bytes().value(), span.on(), span.kind()};
  } else {
    return {nullptr, address, span.size_bytes(), {}, memory_kind::pinned};
  }
}

}  // namespace detail
}  // namespace weft
