// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/collective/data_type.hpp"
#include "weft/exec/launch.hpp"

#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <utility>

namespace weft {

/// How a collective makes one element of several.
///
/// Integers are exact modulo 2^bits; their average is the sum, modulo 2^bits, divided and rounded towards zero. min and
/// max pass over what is not a number unless nothing else is there. half and bfloat16 are combined in float and rounded
/// when they are stored.
class reduction_op {
 public:
  enum class kind : std::uint8_t { sum, product, min, max, average, user };

  reduction_op(reduce_op op)  // NOLINT(google-explicit-constructor): reduce_op::sum is a reduction_op
      : kind_(static_cast<kind>(op)) {}
  /// The sum divided by the number of ranks.
  [[nodiscard]] static reduction_op average() { return reduction_op{kind::average, {}, {}}; }
  /// A kernel over (WEFT_INOUT(T) into, WEFT_IN(T) more): into[i] becomes what the two make. It must be associative,
  /// and commutative unless order::rank is asked for. Not for half and bfloat16, which no kernel takes.
  /// Errors of the collective, at once or at a wait: kernel_failed – it threw on the host; illegal_access – check mode.
  /// Part of the result may be written then.
  template <class Kernel>
  [[nodiscard]] static reduction_op by(std::source_location where = std::source_location::current()) {
    const auto& code = detail::code_of<Kernel>();
    return of_kernel(code, where);
  }

  [[nodiscard]] kind what() const { return kind_; }
  /// The user's kernel, else null.
  [[nodiscard]] const std::shared_ptr<const kernel_code>& kernel() const { return kernel_; }
  /// What the user's kernel takes; int8 when there is none.
  [[nodiscard]] data_type type() const { return type_; }
  /// "sum", "average", the name of the user's kernel.
  [[nodiscard]] std::string name() const;

 private:
  reduction_op(kind what, std::shared_ptr<const kernel_code> kernel, data_type type)
      : kind_(what), kernel_(std::move(kernel)), type_(type) {}
  /// Errors: incompatible when the parameters are not those.
  [[nodiscard]] static reduction_op of_kernel(std::shared_ptr<const kernel_code> kernel, std::source_location where);

  kind kind_;
  std::shared_ptr<const kernel_code> kernel_;
  data_type type_ = data_type::int8;  // of the kernel's parameters
};

}  // namespace weft
