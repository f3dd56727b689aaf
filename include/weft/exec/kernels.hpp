// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/backend/kernel_code.hpp"
#include "weft/core/internals.hpp"
#include "weft/runtime/machine.hpp"

#include <memory>
#include <source_location>
#include <string_view>
#include <vector>

namespace weft {

/// The kernels of one machine by name. Registration is explicit: a static library would lose anything automatic.
/// Thread: any.
class kernel_registry {
 public:
  /// Registers kernels made by WEFT_KERNEL. The same definition again is no error.
  /// Errors: incompatible when a name is taken by another definition; invalid_argument for a null pointer.
  template <class... Kernels>
  kernel_registry& add(std::source_location where = std::source_location::current()) {
    (add(make_kernel_code<Kernels>(), where), ...);
    return *this;
  }
  kernel_registry& add(std::shared_ptr<const kernel_code> code,
                       std::source_location where = std::source_location::current());

  /// Errors: not_found, with the nearest names.
  [[nodiscard]] std::shared_ptr<const kernel_code> at(
      std::string_view name, std::source_location where = std::source_location::current()) const;
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  friend struct detail::internals;
  explicit kernel_registry(std::shared_ptr<detail::machine_state> state) : state_(std::move(state)) {}
  [[nodiscard]] detail::machine_state& owned() const;

  std::shared_ptr<detail::machine_state> state_;
};

/// The registry of a machine.
[[nodiscard]] kernel_registry kernels(const machine& m);

}  // namespace weft
