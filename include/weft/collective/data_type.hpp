// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/half.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace weft {

/// The elements that collectives know.
enum class data_type : std::uint8_t {
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  float16,
  bfloat16,
  float32,
  float64,
};
inline constexpr int data_type_count = 12;

/// "float32", "bfloat16".
[[nodiscard]] std::string_view to_string(data_type type);

[[nodiscard]] constexpr std::size_t size_of(data_type type) {
  switch (type) {
    case data_type::int8:
    case data_type::uint8:
      return 1;
    case data_type::int16:
    case data_type::uint16:
    case data_type::float16:
    case data_type::bfloat16:
      return 2;
    case data_type::int32:
    case data_type::uint32:
    case data_type::float32:
      return 4;
    case data_type::int64:
    case data_type::uint64:
    case data_type::float64:
      return 8;
  }
  return 0;
}

namespace detail {
template <class T>
struct data_type_of_t;
// clang-format off
template <> struct data_type_of_t<std::int8_t>   { static constexpr auto value = data_type::int8; };
template <> struct data_type_of_t<std::int16_t>  { static constexpr auto value = data_type::int16; };
template <> struct data_type_of_t<std::int32_t>  { static constexpr auto value = data_type::int32; };
template <> struct data_type_of_t<std::int64_t>  { static constexpr auto value = data_type::int64; };
template <> struct data_type_of_t<std::uint8_t>  { static constexpr auto value = data_type::uint8; };
template <> struct data_type_of_t<std::uint16_t> { static constexpr auto value = data_type::uint16; };
template <> struct data_type_of_t<std::uint32_t> { static constexpr auto value = data_type::uint32; };
template <> struct data_type_of_t<std::uint64_t> { static constexpr auto value = data_type::uint64; };
template <> struct data_type_of_t<half>          { static constexpr auto value = data_type::float16; };
template <> struct data_type_of_t<bfloat16>      { static constexpr auto value = data_type::bfloat16; };
template <> struct data_type_of_t<float>         { static constexpr auto value = data_type::float32; };
template <> struct data_type_of_t<double>        { static constexpr auto value = data_type::float64; };
// clang-format on
}  // namespace detail

/// Types that a collective takes: std::int8_t … std::int64_t, std::uint8_t … std::uint64_t (not char, nor on Linux
/// long long), half, bfloat16, float, double.
template <class T>
concept collective_element = requires { detail::data_type_of_t<std::remove_cv_t<T>>::value; };

template <collective_element T>
inline constexpr data_type data_type_of = detail::data_type_of_t<std::remove_cv_t<T>>::value;

}  // namespace weft
