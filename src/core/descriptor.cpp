// SPDX-License-Identifier: Apache-2.0
#include "weft/core/descriptor.hpp"

#include <unistd.h>

namespace weft {

// Once: Linux has closed the descriptor even when close() reports EINTR, and a second close could hit another's.
void descriptor_traits::release(type& fd) noexcept { ::close(fd); }

}  // namespace weft
