// SPDX-License-Identifier: Apache-2.0
#include "weft/collective/reduction_op.hpp"

#include "collective/fold/fold.hpp"
#include "core/errors/called_from.hpp"
#include "weft/core/raise.hpp"

#include <utility>

namespace weft {
namespace {

data_type data_type_from(element_type type) {
  switch (type) {
    case element_type::int8:
      return data_type::int8;
    case element_type::int16:
      return data_type::int16;
    case element_type::int32:
      return data_type::int32;
    case element_type::int64:
      return data_type::int64;
    case element_type::uint8:
      return data_type::uint8;
    case element_type::uint16:
      return data_type::uint16;
    case element_type::uint32:
      return data_type::uint32;
    case element_type::uint64:
      return data_type::uint64;
    case element_type::float32:
      return data_type::float32;
    case element_type::float64:
      break;
  }
  return data_type::float64;
}

static_assert(static_cast<int>(reduce_op::sum) == static_cast<int>(reduction_op::kind::sum) &&
                  static_cast<int>(reduce_op::product) == static_cast<int>(reduction_op::kind::product) &&
                  static_cast<int>(reduce_op::min) == static_cast<int>(reduction_op::kind::min) &&
                  static_cast<int>(reduce_op::max) == static_cast<int>(reduction_op::kind::max),
              "one is made of the other by number");

}  // namespace

std::string_view detail::to_string(reduction_op::kind op) {
  switch (op) {
    case reduction_op::kind::sum:
      return "sum";
    case reduction_op::kind::product:
      return "product";
    case reduction_op::kind::min:
      return "min";
    case reduction_op::kind::max:
      return "max";
    case reduction_op::kind::average:
      return "average";
    case reduction_op::kind::user:
      break;
  }
  return "user";
}

std::string reduction_op::name() const { return kernel_ ? kernel_->name : std::string{detail::to_string(kind_)}; }

reduction_op reduction_op::of_kernel(std::shared_ptr<const kernel_code> kernel, std::source_location where) {
  const called_from here{where};
  const auto& p = kernel->parameters;
  const auto is_one_to_one = [](const kernel_parameter& parameter) {
    return !parameter.is_ring && parameter.access.kind == access_kind::one_to_one;
  };
  const bool fits = kernel->dimensions == 1 && p.size() == 2 && p[0].direction == parameter_direction::inout &&
                    p[1].direction == parameter_direction::in && p[0].type == p[1].type && is_one_to_one(p[0]) &&
                    is_one_to_one(p[1]);
  if (!fits) {
    raise(errc::incompatible,
          signature_of(*kernel) +
              " is no operation of a reduction: that is a one-dimensional kernel over (WEFT_INOUT(T) into, WEFT_IN(T) "
              "more), of one type and with no other access than to element i");
  }
  const data_type type = data_type_from(p[0].type);
  return {kind::user, std::move(kernel), type};
}

}  // namespace weft
