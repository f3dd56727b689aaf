// SPDX-License-Identifier: Apache-2.0
#include "weft/runtime/device_scope.hpp"

#include "core/errors/called_from.hpp"
#include "runtime/machine_state.hpp"
#include "weft/core/raise.hpp"

namespace weft {

device_scope::device_scope(const device& on, std::source_location where) : state_(detail::state_of(on)) {
  const called_from here{where};
  state_->require_open(where);
  place_ = value_or_raise(state_->backend_of(on.id()).enter(on.id()), where);
}

device_scope::~device_scope() = default;

}  // namespace weft
