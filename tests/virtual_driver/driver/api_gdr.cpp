// SPDX-License-Identifier: Apache-2.0
// GDRCopy: a window of the host into memory of a device, which the program may otherwise not touch.
#include "backends/gpu/driver/gdr_functions.hpp"
#include "virtual_driver/driver/call.hpp"

#include <cerrno>
#include <cstring>
#include <sys/mman.h>

namespace weft::virtual_cuda {
namespace {

/// Pages of the heap that are pinned.
struct pinned_pages {
  int file = -1;
  std::uint64_t offset = 0;
  std::size_t size = 0;
};
handle_table<unsigned long, pinned_pages>& table() {
  static auto& all = *new handle_table<unsigned long, pinned_pages>;
  return all;
}

}  // namespace

WEFT_VIRTUAL_API gdr_library gdr_open() {
  if (begin_call("gdr_open") != 0 || given().gdr == "none") return nullptr;
  return reinterpret_cast<gdr_library>(&table());
}

WEFT_VIRTUAL_API int gdr_close(gdr_library library) {
  if (const CUresult code = begin_call("gdr_close"); code != 0) return code;
  return library == nullptr ? EINVAL : 0;
}

WEFT_VIRTUAL_API int gdr_pin_buffer(gdr_library library, unsigned long address, std::size_t size, std::uint64_t,
                                    std::uint32_t, gdr_memory* memory) {
  if (const CUresult code = begin_call("gdr_pin_buffer"); code != 0) return code;
  if (library == nullptr || memory == nullptr || size == 0 || !is_open()) return EINVAL;
  const std::lock_guard lock{the().mutex};
  // whole pages of the GPU, of which any may belong to an allocation of the program
  std::shared_ptr<memory_range> range;
  for (std::uint64_t at = address; range == nullptr && at < address + size; at += page) range = the().find(at);
  if (range == nullptr || range->kind != range_kind::device || address % gdr_page != 0) return EINVAL;
  auto pages = std::make_shared<pinned_pages>();
  pages->file = range->memory->file;
  pages->offset = the().space.offset_of(address);
  pages->size = size;
  memory->handle = table().add(std::move(pages));
  return 0;
}

WEFT_VIRTUAL_API int gdr_unpin_buffer(gdr_library library, gdr_memory memory) {
  if (const CUresult code = begin_call("gdr_unpin_buffer"); code != 0) return code;
  return library != nullptr && table().take(memory.handle) ? 0 : EINVAL;
}

WEFT_VIRTUAL_API int gdr_map(gdr_library library, gdr_memory memory, void** at, std::size_t size) {
  if (const CUresult code = begin_call("gdr_map"); code != 0) return code;
  const auto pages = table().find(memory.handle);
  if (library == nullptr || pages == nullptr || at == nullptr || size > pages->size) return EINVAL;
  void* const mapped =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, pages->file, static_cast<off_t>(pages->offset));
  if (mapped == MAP_FAILED) return errno;
  *at = mapped;
  return 0;
}

WEFT_VIRTUAL_API int gdr_unmap(gdr_library library, gdr_memory memory, void* at, std::size_t size) {
  if (const CUresult code = begin_call("gdr_unmap"); code != 0) return code;
  return library != nullptr && table().find(memory.handle) != nullptr && ::munmap(at, size) == 0 ? 0 : EINVAL;
}

WEFT_VIRTUAL_API int gdr_copy_to_mapping(gdr_memory memory, void* to, const void* from, std::size_t size) {
  if (const CUresult code = begin_call("gdr_copy_to_mapping"); code != 0) return code;
  if (table().find(memory.handle) == nullptr) return EINVAL;
  std::memcpy(to, from, size);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return 0;
}

}  // namespace weft::virtual_cuda
