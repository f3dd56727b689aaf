// SPDX-License-Identifier: Apache-2.0
// What the check mode for order finds: two operations on the same bytes, at least one of which writes, that nothing
// orders. docs/reference/memory.md says what counts as an order.
#pragma once

#include "weft/core/bytes.hpp"
#include "weft/core/ids.hpp"

#include <cstdint>
#include <source_location>
#include <string>

namespace weft {

/// One of the two operations of an order_violation.
struct unordered_operation {
  std::string what;              // "kernel 'saxpy' on gpu0, argument 2 (y)", "copy of 4 KiB from gpu1 to gpu0"
  std::source_location where{};  // of the call that submitted it; line 0 where the caller gave none
  device_id device;              // of its stream
  std::uint64_t stream = 0;      // the backend's name of its stream
  bool writes = false;
};

/// Two accesses to overlapping bytes that no stream, event or wait of the host orders.
struct order_violation {
  unordered_operation first, second;  // as they were submitted
  const void* base = nullptr;         // of the allocation; an address that the host must not follow
  bytes offset;                       // of the overlap in the allocation
  bytes size;
  std::string what;  // the whole of it in a sentence, with what is missing
};

}  // namespace weft
