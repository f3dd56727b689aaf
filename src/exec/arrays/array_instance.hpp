// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exec/arrays/interval_set.hpp"
#include "weft/core/ids.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/runtime/event.hpp"

#include <cstddef>
#include <vector>

namespace weft::detail {

/// Work on a part of an instance.
struct array_use {
  interval range;
  bool writes = false;
  event done;
};

/// Elements of an array in one place.
struct array_instance {
  device_id device;        // none: host memory
  bool is_shared = false;  // every device may use it where it is
  bool is_home = false;    // borrowed from the caller, or the array's own place on the host: stays
  interval range;
  std::byte* address = nullptr;  // of range.begin
  memory_kind kind = memory_kind::device;
  bool is_foreign = false;  // plain host memory that weft did not allocate
  unique_handle<memory_traits> owned;
  interval_set valid;
  interval_set own;  // what the last divided launch worked at here: without halos and whole arguments
  std::vector<array_use> uses;
};

}  // namespace weft::detail
