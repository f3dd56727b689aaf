// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/unique_handle.hpp"

namespace weft {

struct descriptor_traits {
  using type = int;
  static type none() noexcept { return -1; }
  static void release(type& fd) noexcept;
};

/// Owner of one file descriptor; closes it.
using descriptor = unique_handle<descriptor_traits>;

}  // namespace weft
