// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/memory/landing.hpp"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

namespace weft::gpu {

std::shared_ptr<allocation> landing_memory::take(device_id device, std::size_t size) {
  const std::size_t whole = std::bit_ceil(std::max(size, smallest));
  const auto kind = static_cast<std::size_t>(std::countr_zero(whole) - std::countr_zero(smallest));
  const std::size_t at = memory_.local(device);
  std::shared_ptr<allocation> block;
  {
    const std::lock_guard lock{mutex_};
    place& here = of_[at];
    auto& free = here.free[kind];
    while (!free.empty() && block == nullptr) {
      block = std::move(free.back());
      free.pop_back();
      if (!memory_map::gone_with_reset(*block)) continue;
      here.made -= whole;
      block = nullptr;
    }
    if (block == nullptr) {
      if (here.made + whole > most) return nullptr;
      here.made += whole;
      try {
        free.reserve(here.made / whole);  // to give one back takes no memory
      } catch (const std::bad_alloc&) {
        here.made -= whole;
        return nullptr;
      }
    }
  }
  if (block == nullptr) {
    auto made = memory_.landing_block(device, whole);
    if (!made) {
      const std::lock_guard lock{mutex_};
      of_[at].made -= whole;
      return nullptr;
    }
    block = std::move(*made);
  }
  allocation* const shown = block.get();
  return {shown, [this, at, kind, block = std::move(block)](allocation*) mutable { give(at, kind, std::move(block)); }};
}

void landing_memory::give(std::size_t at, std::size_t kind, std::shared_ptr<allocation> block) noexcept {
  const std::lock_guard lock{mutex_};
  of_[at].free[kind].push_back(std::move(block));
}

void landing_memory::clear() noexcept {
  for (place& one : of_) {
    std::array<std::vector<std::shared_ptr<allocation>>, 9> gone;
    const std::lock_guard lock{mutex_};
    for (std::size_t kind = 0; kind < gone.size(); ++kind) {
      gone[kind].swap(one.free[kind]);
      one.made -= gone[kind].size() * (smallest << kind);
    }
  }
}

}  // namespace weft::gpu
