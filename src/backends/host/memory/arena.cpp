// SPDX-License-Identifier: Apache-2.0
#include "backends/host/memory/arena.hpp"

#include "backend/address.hpp"
#include "os/memory_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

namespace weft::host {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t small_segment = std::size_t{16} << 20;
constexpr std::size_t large_page = std::size_t{2} << 20;

constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

error system_error(const char* what, int code) {
  error cause;
  cause.code = code == ENOMEM ? errc::out_of_memory : errc::resource_exhausted;
  cause.native_code = code;
  cause.what = std::string{what} + " failed: " + std::strerror(code) +
               (code == ENOMEM ? "; the process has no address space or too many mappings (vm.max_map_count)"
                               : "; raise the limit of open files (ulimit -n)");
  cause.where = {};
  return cause;
}

}  // namespace

void window_traits::release(type& w) noexcept { ::munmap(w.base, w.size); }

result<window_handle> reserve(std::size_t size) noexcept {
  void* base = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return system_error("reserving address space", errno);
  return window_handle{window{static_cast<std::byte*>(base), size}};
}

result<window_handle> map_file(int file, std::size_t offset, std::size_t size, bool shared) noexcept {
  void* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_NORESERVE, file,
                      static_cast<off_t>(offset));
  if (base == MAP_FAILED) return system_error("mapping memory", errno);
  return window_handle{window{static_cast<std::byte*>(base), size}};
}

result<segment*> arena::add_segment(std::size_t size, bool own) {
  auto fresh = std::make_unique<segment>();
  fresh->size = size;
  fresh->own = own;
  auto file = detail::make_memory_file(own ? "weft-shared" : "weft", size, detail::memory_file_pages::any, "a device");
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
  fresh->free.emplace(0, size);
  segments_.push_back(std::move(fresh));
  return segments_.back().get();
}

/// An access past the end of a block with a segment of its own faults, instead of landing where nobody looks.
void arena::guard_end(const block& b) noexcept {
  const std::size_t rest = b.home->size - b.size;
  if (rest != 0) ::mprotect(b.device_side() + b.size, rest, PROT_NONE);
}

result<block> arena::take(std::size_t size) noexcept {
  try {
    if (size > std::size_t{1} << 62) return system_error("allocating", ENOMEM);
    const bool large = size >= small_segment / 4;
    const std::size_t need = round_up(std::max<std::size_t>(size, 1), large ? page_size() : alignment);
    const std::lock_guard lock{mutex_};
    const auto take_from = [&](segment& s) -> std::optional<block> {
      for (auto it = s.free.begin(); it != s.free.end(); ++it) {
        if (it->second < need) continue;
        const block b{&s, it->first, need};
        const std::size_t rest = it->second - need;
        const std::size_t next = it->first + need;
        s.free.erase(it);
        if (rest != 0) s.free.emplace(next, rest);
        return b;
      }
      return std::nullopt;
    };
    if (!large) {
      for (auto& s : segments_) {
        if (s->size != small_segment || s->own) continue;
        if (auto b = take_from(*s)) return *b;
      }
    }
    auto added = add_segment(large ? round_up(need, large_page) + large_page : small_segment);
    if (!added) return std::move(added).error();
    const block made = *take_from(**added);
    if (large) guard_end(made);
    return made;
  } catch (const std::bad_alloc&) {
    return system_error("allocating", ENOMEM);
  }
}

result<block> arena::take_own(std::size_t size) noexcept {
  try {
    if (size > std::size_t{1} << 62) return system_error("allocating", ENOMEM);
    const std::size_t need = round_up(std::max<std::size_t>(size, 1), page_size()) + page_size();
    const std::lock_guard lock{mutex_};
    auto added = add_segment(need, true);
    if (!added) return std::move(added).error();
    (*added)->free.clear();
    return block{*added, 0, need};
  } catch (const std::bad_alloc&) {
    return system_error("allocating", ENOMEM);
  }
}

void arena::give(const block& b) noexcept {
  const std::lock_guard lock{mutex_};
  segment& s = *b.home;
  auto after = s.free.lower_bound(b.offset);
  std::size_t offset = b.offset;
  std::size_t size = b.size;
  if (after != s.free.end() && offset + size == after->first) {
    size += after->second;
    after = s.free.erase(after);
  }
  if (after != s.free.begin()) {
    auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      s.free.erase(before);
    }
  }
  // Nothing of it is in use: the memory goes back to the system, but for one small segment, since a program that makes
  // and drops small buffers would pay for a mapping each time.
  const auto small_ones = std::count_if(segments_.begin(), segments_.end(),
                                        [](const auto& owned) { return owned->size == small_segment && !owned->own; });
  if (size == s.size && (s.own || s.size != small_segment || small_ones > 1)) {
    std::erase_if(segments_, [&](const auto& owned) { return owned.get() == &s; });
    return;
  }
  try {
    s.free.emplace(offset, size);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the block stays unused until the segment goes
  }
}

}  // namespace weft::host
