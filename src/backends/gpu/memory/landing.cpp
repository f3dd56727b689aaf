// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/memory/landing.hpp"

#include <utility>

namespace weft::gpu {

void landing_memory::prepare(device_id device) {
  place& here = of_[memory_.local(device)];
  {
    const std::lock_guard lock{mutex_};
    if (here.memory != nullptr) return;
  }
  auto made = memory_.landing_block(device, block * blocks);
  if (!made) return;
  const std::lock_guard lock{mutex_};
  if (here.memory == nullptr) here.memory = std::move(*made);  // else another thread was here first
}

landing_place landing_memory::take(device_id device, std::size_t size) {
  const std::size_t count = (size + block - 1) / block;
  const std::size_t of = memory_.local(device);
  std::shared_ptr<allocation> memory;
  std::uint64_t these = (std::uint64_t{1} << count) - 1;
  std::size_t first = 0;
  {
    const std::lock_guard lock{mutex_};
    place& here = of_[of];
    if (here.memory == nullptr) return {};
    while (first + count <= blocks && (here.taken & (these << first)) != 0) ++first;
    if (first + count > blocks) return {};
    these <<= first;
    here.taken |= these;
    memory = here.memory;
  }
  allocation* const shown = memory.get();
  std::byte* const at = memory->host + first * block;
  // without the lock: where there is no memory for the reference, it is given back here
  return {{shown,
           [this, of, these, memory = std::move(memory)](allocation*) {
             const std::lock_guard lock{mutex_};
             if (of_[of].memory == memory) of_[of].taken &= ~these;
           }},
          at};
}

bool landing_memory::end(place& one) noexcept {
  std::shared_ptr<allocation> gone;  // not under the lock; what is on its way in it keeps it
  const std::lock_guard lock{mutex_};
  gone.swap(one.memory);
  one.taken = 0;
  return gone != nullptr;
}

bool landing_memory::end(device_id device) noexcept { return end(of_[memory_.local(device)]); }

void landing_memory::clear() noexcept {
  for (place& one : of_) end(one);
}

}  // namespace weft::gpu
