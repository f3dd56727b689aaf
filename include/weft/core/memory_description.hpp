// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/bytes.hpp"
#include "weft/core/ids.hpp"

#include <cstdint>
#include <string_view>

namespace weft {

enum class memory_kind : std::uint8_t { device, pinned, unified, adopted, mapped, block };
[[nodiscard]] std::string_view to_string(memory_kind kind);

/// The allocation that an address lies in.
struct memory_description {
  void* base = nullptr;
  bytes size;
  memory_kind kind = memory_kind::device;
  device_id device;           // owner; for mapped memory, the device that may use this address; for a block, its device
  std::uint64_t pending = 0;  // operations submitted with it that have not ended
  std::uint64_t serial = 0;   // what lies at this address later has another one; 0: not known
};

enum class memory_advice : std::uint8_t { read_mostly, preferred_location, accessed_by, none };

}  // namespace weft
