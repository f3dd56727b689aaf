// SPDX-License-Identifier: Apache-2.0
// Partial results of the devices, made into one.
#include "exec/split_launch/launch_job.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

namespace weft::detail {
namespace {

template <class T>
void combine_as(reduce_op op, std::span<std::byte> into, std::span<const std::byte> more) {
  for (std::size_t at = 0; at + sizeof(T) <= into.size(); at += sizeof(T)) {
    T a{};
    T b{};
    std::memcpy(&a, into.data() + at, sizeof(T));
    std::memcpy(&b, more.data() + at, sizeof(T));
    // sums and products of small and of signed integers wrap around, as they do on a device
    using wide = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;
    switch (op) {
      case reduce_op::sum:
        a = static_cast<T>(static_cast<wide>(a) + static_cast<wide>(b));
        break;
      case reduce_op::product:
        a = static_cast<T>(static_cast<wide>(a) * static_cast<wide>(b));
        break;
      case reduce_op::min:
        a = std::min(a, b);
        break;
      case reduce_op::max:
        a = std::max(a, b);
        break;
    }
    std::memcpy(into.data() + at, &a, sizeof(T));
  }
}

template <class T>
T identity_as(reduce_op op) {
  using limits = std::numeric_limits<T>;
  switch (op) {
    case reduce_op::sum:
      return T{0};
    case reduce_op::product:
      return T{1};
    case reduce_op::min:
      return limits::has_infinity ? limits::infinity() : limits::max();
    case reduce_op::max:
      return limits::has_infinity ? -limits::infinity() : limits::lowest();
  }
  return T{0};
}

/// Calls `f` with a null pointer to the type.
template <class F>
void with_type(element_type type, F&& f) {
  switch (type) {
    case element_type::int8:
      return f(static_cast<std::int8_t*>(nullptr));
    case element_type::int16:
      return f(static_cast<std::int16_t*>(nullptr));
    case element_type::int32:
      return f(static_cast<std::int32_t*>(nullptr));
    case element_type::int64:
      return f(static_cast<std::int64_t*>(nullptr));
    case element_type::uint8:
      return f(static_cast<std::uint8_t*>(nullptr));
    case element_type::uint16:
      return f(static_cast<std::uint16_t*>(nullptr));
    case element_type::uint32:
      return f(static_cast<std::uint32_t*>(nullptr));
    case element_type::uint64:
      return f(static_cast<std::uint64_t*>(nullptr));
    case element_type::float32:
      return f(static_cast<float*>(nullptr));
    case element_type::float64:
      return f(static_cast<double*>(nullptr));
  }
}

}  // namespace

void combine_partials(element_type type, reduce_op op, std::span<std::byte> into, std::span<const std::byte> more) {
  with_type(type, [&]<class T>(T*) { combine_as<T>(op, into, more); });
}

fill_request identity_of(element_type type, reduce_op op) {
  fill_request made;
  with_type(type, [&]<class T>(T*) {
    const T value = identity_as<T>(op);
    made.pattern_size = sizeof(T);
    std::memcpy(made.pattern.data(), &value, sizeof(T));
  });
  return made;
}

}  // namespace weft::detail
