// SPDX-License-Identifier: Apache-2.0
#include "backends/host/memory/arena.hpp"

#include "backend/address.hpp"
#include "core/errors/make_error.hpp"
#include "os/memory_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <sys/mman.h>

namespace weft::host {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t small_segment = std::size_t{16} << 20;
constexpr std::size_t large_page = std::size_t{2} << 20;

constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

}  // namespace

error system_error(const std::string& doing, int number) {
  const bool memory = number == ENOMEM || number == ENOSPC;
  return make_error(memory ? errc::out_of_memory : errc::resource_exhausted,
                    doing + ": " + std::strerror(number) +
                        (number == ENOMEM ? "; the process has no address space or too many mappings (vm.max_map_count)"
                         : number == EMFILE ? "; raise the limit of open files (ulimit -n)"
                         : number == ENFILE ? "; raise the computer's limit of open files (sysctl fs.file-max)"
                                            : ""),
                    error_scope::call, number);
}

void window_traits::release(type& w) noexcept { ::munmap(w.base, w.size); }

result<window_handle> reserve(std::size_t size) noexcept {
  void* base = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return system_error("reserving address space failed", errno);
  return window_handle{window{static_cast<std::byte*>(base), size}};
}

result<window_handle> map_file(int file, std::size_t offset, std::size_t size, bool shared) noexcept {
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_NORESERVE, file,
                      static_cast<off_t>(offset));
  if (base == MAP_FAILED) return system_error("mapping memory failed", errno);
  return window_handle{window{static_cast<std::byte*>(base), size}};
}

result<segment*> arena::add_segment(std::size_t size, const char* name) {
  auto fresh = std::make_unique<segment>();
  fresh->size = size;
  auto file = detail::make_memory_file(name, size, detail::memory_file_pages::any, "a device");
  if (!file) return std::move(file).error();
  fresh->file = std::move(*file);
  auto mapped = map_file(fresh->file.get(), 0, size, true);
  if (!mapped) return std::move(mapped).error();
  ::madvise(mapped->get().base, size, MADV_HUGEPAGE);  // a wish; most systems keep small pages for shared memory
  if (strict_) {
    auto visible = reserve(size);
    if (!visible) return std::move(visible).error();
    fresh->user = std::move(*visible);
    fresh->alias = std::move(*mapped);
  } else {
    fresh->user = std::move(*mapped);
  }
  segment* const made = fresh.get();
  segments_.emplace(made, std::move(fresh));
  return made;
}

/// An access past the end of a block with a segment of its own faults, instead of landing where nobody looks.
void arena::guard_end(const block& b) noexcept {
  const std::size_t rest = b.home->size - b.size;
  if (rest != 0) ::mprotect(b.device_side() + b.size, rest, PROT_NONE);
}

void arena::add_free(segment& s, std::size_t offset, std::size_t size) {
  const auto known = s.free.emplace(offset, size).first;
  try {
    free_.insert({size, &s, offset});
  } catch (...) {
    s.free.erase(known);
    throw;
  }
}

void arena::remove_free(std::map<std::size_t, std::size_t>::iterator at, segment& s) noexcept {
  free_.erase({at->second, &s, at->first});
  s.free.erase(at);
}

/// Of the smallest free piece that has room, the first part.
result<block> arena::take_small(std::size_t need) {
  auto fits = free_.lower_bound({need, nullptr, 0});
  if (fits == free_.end()) {
    auto added = add_segment(small_segment, "weft");
    if (!added) return std::move(added).error();
    (*added)->is_divided = true;
    try {
      add_free(**added, 0, small_segment);
    } catch (...) {
      segments_.erase(*added);
      throw;
    }
    ++divided_;
    fits = free_.lower_bound({need, nullptr, 0});
  }
  const piece taken = *fits;
  segment& s = *taken.home;
  if (taken.size != need) add_free(s, taken.offset + need, taken.size - need);
  remove_free(s.free.find(taken.offset), s);
  return block{&s, taken.offset, need};
}

result<block> arena::take(std::size_t size) noexcept {
  try {
    if (size > std::size_t{1} << 62) return system_error("allocating failed", ENOMEM);
    const bool large = size >= small_segment / 4;
    const std::size_t need = round_up(std::max<std::size_t>(size, 1), large ? page_size() : alignment);
    const std::lock_guard lock{mutex_};
    if (!large) return take_small(need);
    auto added = add_segment(round_up(need, large_page) + large_page, "weft");
    if (!added) return std::move(added).error();
    const block made{*added, 0, need};
    guard_end(made);
    return made;
  } catch (const std::bad_alloc&) {
    return system_error("allocating failed", ENOMEM);
  }
}

result<block> arena::take_own(std::size_t size) noexcept {
  try {
    if (size > std::size_t{1} << 62) return system_error("allocating failed", ENOMEM);
    const std::size_t need = round_up(std::max<std::size_t>(size, 1), page_size()) + page_size();
    const std::lock_guard lock{mutex_};
    auto added = add_segment(need, "weft-shared");
    if (!added) return std::move(added).error();
    return block{*added, 0, need};
  } catch (const std::bad_alloc&) {
    return system_error("allocating failed", ENOMEM);
  }
}

void arena::give(const block& b) noexcept {
  const std::lock_guard lock{mutex_};
  segment& s = *b.home;
  if (!s.is_divided) {
    segments_.erase(&s);
    return;
  }
  std::size_t offset = b.offset, size = b.size;
  if (const auto after = s.free.find(offset + size); after != s.free.end()) {
    size += after->second;
    remove_free(after, s);
  }
  if (auto before = s.free.lower_bound(offset); before != s.free.begin()) {
    --before;
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      remove_free(before, s);
    }
  }
  // Nothing of it is in use: the memory goes back to the system, but for one segment, since a program that makes and
  // drops small buffers would pay for a mapping each time.
  if (size == s.size && divided_ > 1) {
    --divided_;
    segments_.erase(&s);
    return;
  }
  try {
    add_free(s, offset, size);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the block stays unused until the segment goes
  }
}

}  // namespace weft::host
