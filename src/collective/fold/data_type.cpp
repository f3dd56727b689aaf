// SPDX-License-Identifier: Apache-2.0
#include "weft/collective/data_type.hpp"

namespace weft {

std::string_view to_string(data_type type) {
  switch (type) {
    case data_type::int8:
      return "int8";
    case data_type::int16:
      return "int16";
    case data_type::int32:
      return "int32";
    case data_type::int64:
      return "int64";
    case data_type::uint8:
      return "uint8";
    case data_type::uint16:
      return "uint16";
    case data_type::uint32:
      return "uint32";
    case data_type::uint64:
      return "uint64";
    case data_type::float16:
      return "float16";
    case data_type::bfloat16:
      return "bfloat16";
    case data_type::float32:
      return "float32";
    case data_type::float64:
      return "float64";
  }
  return "?";
}

}  // namespace weft
