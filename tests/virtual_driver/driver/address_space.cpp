// SPDX-License-Identifier: Apache-2.0
#include "virtual_driver/driver/address_space.hpp"

#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <iterator>
#include <sys/mman.h>
#include <unistd.h>

namespace weft::virtual_cuda {

address_space::address_space(std::size_t size, int devices) : size_(size) {
  const std::size_t whole = size * static_cast<std::size_t>(2 + devices);
  void* const got = ::mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  heap_ = ::memfd_create("weft-virtual-heap", MFD_CLOEXEC);
  if (got == MAP_FAILED || heap_ < 0 || ::ftruncate(heap_, static_cast<off_t>(size)) != 0) {
    std::fputs("weft virtual CUDA driver: no room for its windows; make WEFT_VIRTUAL_CUDA_WINDOW smaller\n", stderr);
    std::abort();
  }
  base_ = reinterpret_cast<std::uint64_t>(got);
  // Pointers to element 0 of a part may lie below the part: a margin keeps them inside the window.
  const std::size_t margin = size / 8;
  constexpr std::size_t large = std::size_t{2} << 20;
  const std::uint64_t first = up(base_ + margin, large);
  free_.emplace(first, base_ + size - margin - first);
}

std::optional<std::uint64_t> address_space::take(std::size_t size, std::size_t alignment, std::uint64_t hint) {
  if (size > size_) return std::nullopt;
  const std::size_t need = up(size, page) + page;
  const auto cut = [&](auto hole, std::uint64_t at) {
    const std::uint64_t begin = hole->first;
    const std::uint64_t end = begin + hole->second;
    free_.erase(hole);
    if (at != begin) free_.emplace(begin, at - begin);
    if (at + need != end) free_.emplace(at + need, end - at - need);
    return at;
  };
  if (hint != 0 && hint % alignment == 0) {
    auto hole = free_.upper_bound(hint);
    if (hole != free_.begin() && std::prev(hole)->first + std::prev(hole)->second >= hint + need) {
      return cut(std::prev(hole), hint);
    }
  }
  for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
    const std::uint64_t at = up(hole->first, alignment);
    if (at + need <= hole->first + hole->second) return cut(hole, at);
  }
  return std::nullopt;
}

void address_space::give(std::uint64_t address, std::size_t size) {
  std::uint64_t begin = address;
  std::uint64_t end = address + up(size, page) + page;
  auto after = free_.lower_bound(begin);
  if (after != free_.end() && after->first == end) {
    end += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin() && std::prev(after)->first + std::prev(after)->second == begin) {
    begin = std::prev(after)->first;
    free_.erase(std::prev(after));
  }
  free_.emplace(begin, end - begin);
}

bool address_space::show(int window, std::uint64_t address, std::size_t size, int file, std::uint64_t offset,
                         bool writable, bool is_lost) const {
  return ::mmap(at(window, address), up(size, page), PROT_READ | (writable ? PROT_WRITE : 0),
                (is_lost ? MAP_PRIVATE : MAP_SHARED) | MAP_FIXED | MAP_NORESERVE, file,
                static_cast<off_t>(offset)) != MAP_FAILED;
}

void address_space::hide(int window, std::uint64_t address, std::size_t size) const {
  ::mmap(at(window, address), up(size, page), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
         0);
}

void address_space::drop(std::uint64_t address, std::size_t size) const {
  ::fallocate(heap_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset_of(address)),
              static_cast<off_t>(up(size, page)));
}

}  // namespace weft::virtual_cuda
