// SPDX-License-Identifier: Apache-2.0
#include "os/fork_watch.hpp"

#include "os/pages.hpp"

#include <atomic>
#include <new>
#include <sys/mman.h>
#include <unistd.h>

namespace weft::detail {
namespace {

using word = std::atomic<std::uint64_t>;

/// One page that is zero again in a child; null where the kernel does not offer it.
word* wiped_page() noexcept {
  const auto size = page_size();
  void* page = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (::madvise(page, size, MADV_WIPEONFORK) != 0) {
    ::munmap(page, size);
    return nullptr;
  }
  return ::new (page) word{0};
}

word made{0};  // a child inherits it: its own number is another one

}  // namespace

std::uint64_t process_generation() noexcept {
  static word* const page = wiped_page();
  if (page == nullptr) return static_cast<std::uint64_t>(::getpid());
  std::uint64_t now = page->load(std::memory_order_relaxed);
  if (now != 0) return now;
  const std::uint64_t fresh = made.fetch_add(1, std::memory_order_relaxed) + 1;
  // of two threads one wins, and both say the same
  return page->compare_exchange_strong(now, fresh, std::memory_order_relaxed) ? fresh : now;
}

}  // namespace weft::detail
