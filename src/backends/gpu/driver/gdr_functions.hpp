// SPDX-License-Identifier: Apache-2.0
// GDRCopy's functions that this backend calls, declared by ourselves (include/gdrapi.h, API version 2).
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::gpu {

// NOLINTBEGIN(readability-identifier-naming): the names of the library

using gdr_library = struct gdr_library_object*;
struct gdr_memory {
  unsigned long handle = 0;
};
inline constexpr std::uint64_t gdr_page = 65536;

// clang-format off
#define WEFT_GPU_GDR_FUNCTIONS(F)                                                                                   \
  F(gdr_library, gdr_open, ())                                                                                      \
  F(int, gdr_close, (gdr_library library))                                                                          \
  F(int, gdr_pin_buffer, (gdr_library library, unsigned long address, std::size_t size, std::uint64_t token,        \
                          std::uint32_t space, gdr_memory* memory))                                                 \
  F(int, gdr_unpin_buffer, (gdr_library library, gdr_memory memory))                                                \
  F(int, gdr_map, (gdr_library library, gdr_memory memory, void** at, std::size_t size))                            \
  F(int, gdr_unmap, (gdr_library library, gdr_memory memory, void* at, std::size_t size))                           \
  F(int, gdr_copy_to_mapping, (gdr_memory memory, void* to, const void* from, std::size_t size))
// clang-format on

struct gdr_functions {
#define WEFT_GPU_MEMBER(type, name, parameters) type(*name) parameters = nullptr;
  WEFT_GPU_GDR_FUNCTIONS(WEFT_GPU_MEMBER)
#undef WEFT_GPU_MEMBER
};

// NOLINTEND(readability-identifier-naming)

}  // namespace weft::gpu
