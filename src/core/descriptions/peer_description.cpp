// SPDX-License-Identifier: Apache-2.0
#include "weft/core/peer_description.hpp"

#include <array>

namespace weft {

std::string_view to_string(peer_way way) {
  switch (way) {
    case peer_way::commands:
      return "copies";
    case peer_way::allocations:
      return "allocations";
    case peer_way::pools:
      return "pools";
    case peer_way::blocks:
      return "blocks";
  }
  return "copies";
}

std::string_view to_string(peer_outcome outcome) {
  static constexpr std::array<std::string_view, 4> names{"not_tried", "arrived", "wrong_data", "failed"};
  const auto at = static_cast<std::size_t>(outcome);
  return at < names.size() ? names[at] : "unknown";
}

std::string_view to_string(atomic_operation operation) {
  static constexpr std::array<std::string_view, atomic_operation_count> names{
      "integer_add", "integer_min", "integer_max",      "integer_increment", "integer_decrement", "bit_and",  "bit_or",
      "bit_xor",     "exchange",    "compare_exchange", "float_add",         "float_min",         "float_max"};
  const auto at = static_cast<std::size_t>(operation);
  return at < names.size() ? names[at] : "unknown";
}

}  // namespace weft
