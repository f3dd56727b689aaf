// SPDX-License-Identifier: Apache-2.0
// What allocates nothing after its first time.
#include "collective/allocations.hpp"
#include "collective/rank_ranks.hpp"
#include "support/samples.hpp"
#include "weft/collective/communicator.hpp"
#include "weft/exec/pipeline.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

std::atomic<long> allocations::made{0};
thread_local long allocations::made_here = 0;
std::atomic<long> allocations::until_failure{-1};
thread_local int allocations::for_a_driver = 0;

// not inlined: the compiler would pair the malloc in one with the delete of the other
[[gnu::noinline]] void* operator new(std::size_t size) {
  allocations::made.fetch_add(1, std::memory_order_relaxed);
  ++allocations::made_here;
  auto& left = allocations::until_failure;
  if (allocations::for_a_driver == 0 && left.load(std::memory_order_relaxed) >= 0 &&
      left.fetch_sub(1, std::memory_order_relaxed) == 0)
    throw std::bad_alloc{};
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc{};
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

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
  const long before = allocations::made;
  for (int i = 0; i < 50; ++i) calls();
  EXPECT_EQ(allocations::made - before, 0);
}

/// So its destructor ends no process where there is no memory.
TEST(pipeline_allocation, a_wait_for_the_end_of_its_batches_allocates_nothing) {
  const weft::machine m = samples::play(samples::wired(1));
  samples::gate slow;
  auto line = weft::make_pipeline<float>(m, 1)
                  .stage<float>("held", [&](const weft::stream& order, weft::device_span<const float>,
                                            weft::device_span<float>) { static_cast<void>(slow.hold(order)); })
                  .build();
  std::vector<float> in(1), out(1);
  line.push(in, out);
  const long before = allocations::made_here;
  const auto held = line.drain_for(std::chrono::milliseconds{1});
  slow.open();
  const auto ended = line.drain_for(samples::soon);
  EXPECT_EQ(allocations::made_here, before);
  EXPECT_EQ(held, weft::wait_outcome::timed_out);
  EXPECT_EQ(ended, weft::wait_outcome::ok);
}

TEST(rank_communicator_allocation, calls_allocate_nothing_after_the_first_of_their_kind) {
  EXPECT_TRUE(ranks::run(ranks::kind::processes, 2, [](weft::rank_communicator& c, auto) -> std::string {
    const auto symmetric = c.allocate<float>(100'000);
    std::vector<float> host(100'000, 1);
    const weft::buffer<float> device{c.on(), 100'000};
    const auto calls = [&] {
      for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{100'000}}) {
        c.all_reduce(symmetric.subspan(0, count), weft::reduce_op::sum);
        c.broadcast(symmetric.subspan(0, count));
        c.all_reduce(std::span{host}.first(count), weft::reduce_op::max);
        c.all_reduce(device.subspan(0, count), weft::reduction_op::average());
      }
      c.barrier();
    };
    calls();
    calls();
    const long before = allocations::made;
    for (int i = 0; i < 20; ++i) calls();
    const long made = allocations::made - before;
    return made == 0 ? "" : std::to_string(made) + " allocations";
  }));
}

}  // namespace
