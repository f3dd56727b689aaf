// SPDX-License-Identifier: Apache-2.0
// What tests steer the driver by while it runs.
#include "virtual_driver/driver/call.hpp"
#include "virtual_driver/driver/copy_places.hpp"
#include "virtual_driver/driver/module.hpp"
#include "virtual_driver/virtual_driver.hpp"

namespace weft::virtual_cuda {

WEFT_VIRTUAL_API unsigned long long weft_virtual_calls(const char* name) { return calls_of(name); }
WEFT_VIRTUAL_API void weft_virtual_fail(const char* plan) { plan_faults(plan); }
WEFT_VIRTUAL_API void weft_virtual_count_from_zero() { count_from_zero(); }

WEFT_VIRTUAL_API unsigned long long weft_virtual_copies(int staged) {
  const copy_counts& counts = counted_copies();
  return staged != 0 ? counts.staged.load() : counts.direct.load();
}

WEFT_VIRTUAL_API void weft_virtual_lose(int ordinal, int code) {
  if (!is_open() || !the().valid(ordinal)) return;
  context_ref c;
  {
    const std::lock_guard lock{the().mutex};
    c = the().devices[static_cast<std::size_t>(ordinal)].primary;
  }
  if (c == nullptr) return;
  c->lose(code);
  std::vector<stream_ref> all;
  if (stream_ref null = c->null_stream()) all.push_back(std::move(null));
  {
    const std::lock_guard lock{c->submit_mutex};
    for (const auto& weak : c->streams) {
      if (auto s = weak.lock()) all.push_back(s);
    }
  }
  for (const stream_ref& s : all) s->worker().interrupt(code);  // a kernel that spins ends as well
}

WEFT_VIRTUAL_API void weft_virtual_register_kernel(const char* name, weft_virtual_kernel_function body, unsigned count,
                                                   const unsigned* sizes, const unsigned char* is_pointer) {
  register_kernel(name, body, {sizes, sizes + count}, {is_pointer, is_pointer + count});
}

WEFT_VIRTUAL_API void weft_virtual_limit_launches(unsigned threads_per_block, unsigned blocks_along_x) {
  const std::lock_guard lock{shapes().mutex};
  shapes().threads_per_block = threads_per_block;
  shapes().blocks_along_x = blocks_along_x;
}

WEFT_VIRTUAL_API weft_virtual_launch weft_virtual_last_launch() {
  const std::lock_guard lock{shapes().mutex};
  return shapes().last;
}

WEFT_VIRTUAL_API void weft_virtual_drop(int from, int to, unsigned ways) {
  if (open_machine() == CUDA_SUCCESS && the().valid(from) && the().valid(to))
    the().lost_ways[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)].store(ways);
}

WEFT_VIRTUAL_API void weft_virtual_listen_to_own_work(void (*listener)(int)) { own_work_listened_to_by() = listener; }

WEFT_VIRTUAL_API unsigned long long weft_virtual_streams() { return stream::alive(); }

WEFT_VIRTUAL_API int weft_virtual_priority(void* handle) {
  const auto found = is_open() ? the().streams.find(static_cast<CUstream>(handle)) : nullptr;
  return found ? found->priority() : 1;
}

WEFT_VIRTUAL_API unsigned long long weft_virtual_used(int ordinal) {
  if (!is_open() || !the().valid(ordinal)) return 0;
  const std::lock_guard lock{the().mutex};
  const device& d = the().devices[static_cast<std::size_t>(ordinal)];
  return __atomic_load_n(&d.used, __ATOMIC_RELAXED) - (d.primary ? d.primary->charged : 0);
}

}  // namespace weft::virtual_cuda
