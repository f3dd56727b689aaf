// SPDX-License-Identifier: Apache-2.0
// A program of its own, since it counts every allocation of the process.
#include "support/samples.hpp"
#include "weft/collective/communicator.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<long> allocations{0};
}

void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* made = std::malloc(size == 0 ? 1 : size)) return made;
  std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

TEST(communicator_allocation, small_calls_allocate_nothing_after_the_first_of_their_kind) {
  weft::machine_options options;
  options.devices = 4;
  const weft::machine m{options};
  weft::communicator all{m};
  std::vector<weft::buffer<float>> a, b;
  for (int r = 0; r < 4; ++r) {
    a.emplace_back(m[r], 1000);
    b.emplace_back(m[r], 4000);
    weft::copy(a.back(), std::vector<float>(1000, static_cast<float>(r)));
  }
  const auto calls = [&] {
    all.all_reduce(a, weft::reduce_op::sum).wait();
    all.all_gather(a, b).wait();
    all.broadcast(b).wait();
  };
  calls();
  const long before = allocations;
  for (int i = 0; i < 50; ++i) calls();
  EXPECT_EQ(allocations - before, 0);
}

}  // namespace
