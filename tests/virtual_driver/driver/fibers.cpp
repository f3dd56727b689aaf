// SPDX-License-Identifier: Apache-2.0
#include "virtual_driver/driver/fibers.hpp"

#include "virtual_driver/driver/guard.hpp"
#include "virtual_driver/driver/module.hpp"
#include "virtual_driver/driver/multicast.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <sched.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

namespace weft::virtual_cuda {
namespace {

constexpr std::size_t stack_size = std::size_t{64} << 10;
// below all stacks: what runs over its own by so much faults, whatever else lies there
constexpr std::size_t out_of_bounds = std::size_t{4} << 20;

struct gathering {
  std::size_t members = 0;  // that have not ended
  std::size_t arrived = 0;
  std::uint64_t round = 0;
};

struct block_of_threads {
  std::size_t threads = 0;
  gathering whole;
  std::vector<gathering> warps;
  std::vector<std::byte> shared;
  std::vector<std::byte> variables;  // while another block runs
};

struct fiber {
  ucontext_t place{};
  weft_virtual_thread self{};
  block_of_threads* home = nullptr;
  std::size_t warp = 0, lane = 0;
  gathering* waits_for = nullptr;
  std::uint64_t waits_round = 0;
  unsigned long long offered = 0;
  bool ended = false;
};

struct crew {
  std::vector<fiber> fibers;
  std::vector<std::unique_ptr<block_of_threads>> blocks;
  ucontext_t keeper{};
  fiber* running = nullptr;
  weft_virtual_thread* now = nullptr;
  std::span<std::byte> variables;      // of the block that runs
  block_of_threads* inside = nullptr;  // which that is
  const std::function<void()>* body = nullptr;
  std::byte* stacks = nullptr;
  std::size_t bytes = 0;
};

// Left by a fault that jumps out of it: taken down by the next launch of this thread.
thread_local std::unique_ptr<crew> current_crew;
thread_local void* lent_shared = nullptr;

void drop_crew() {
  if (current_crew && current_crew->stacks != nullptr)
    ::munmap(current_crew->stacks - out_of_bounds, out_of_bounds + current_crew->bytes);
  current_crew.reset();
}

void complete(gathering& g) {
  if (g.members != 0 && g.arrived == g.members) {
    g.arrived = 0;
    ++g.round;
  }
}

void switch_away() {
  crew& c = *current_crew;
  fiber* const self = c.running;
  ::swapcontext(&self->place, &c.keeper);
}

void gather(gathering& g) {
  fiber* const self = current_crew->running;
  self->waits_for = &g;
  self->waits_round = g.round;
  ++g.arrived;
  complete(g);
  switch_away();
}

void barrier(int of_warp) {
  if (!current_crew) return;
  fiber& self = *current_crew->running;
  gather(of_warp != 0 ? self.home->warps[self.warp] : self.home->whole);
}

unsigned long long exchange(unsigned long long value, int from) {
  if (!current_crew) return value;
  fiber& self = *current_crew->running;
  self.offered = value;
  barrier(1);
  // fibers of a block lie side by side
  const fiber* const first_of_warp = &self - self.lane;
  const auto lane = static_cast<std::size_t>(from);
  const bool is_there = from >= 0 && lane < self.home->threads - 32 * self.warp && lane < 32;
  const unsigned long long got = is_there ? first_of_warp[lane].offered : value;
  barrier(1);
  return got;
}

void* shared() { return current_crew ? current_crew->running->home->shared.data() : lent_shared; }

void yield() {
  if (current_crew) {
    switch_away();
  } else {
    ::sched_yield();
  }
}

void fail(int code) { end_guarded(code); }

unsigned long long clock_now() {
  return static_cast<unsigned long long>(std::chrono::steady_clock::now().time_since_epoch().count());
}

void leave(gathering& g) {
  --g.members;
  complete(g);
}

void run_one() {
  crew& c = *current_crew;
  fiber& self = *c.running;
  (*c.body)();
  self.ended = true;
  leave(self.home->whole);
  leave(self.home->warps[self.warp]);
  ::swapcontext(&self.place, &c.keeper);
}

void prepare(crew& c, const weft_virtual_launch& shape, std::uint64_t first_block, std::uint64_t blocks) {
  const std::size_t threads = std::size_t{shape.block.x} * shape.block.y * shape.block.z;
  const std::size_t count = threads * blocks;
  c.bytes = count * stack_size;
  void* const memory = ::mmap(nullptr, out_of_bounds + c.bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) end_guarded(gpu::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  ::mprotect(memory, out_of_bounds, PROT_NONE);
  c.stacks = static_cast<std::byte*>(memory) + out_of_bounds;
  c.fibers = std::vector<fiber>(count);
  for (std::uint64_t b = 0; b < blocks; ++b) {
    auto home = std::make_unique<block_of_threads>();
    home->threads = home->whole.members = threads;
    home->warps.resize((threads + 31) / 32);
    home->shared.resize(shape.shared_bytes + 16);
    if (blocks > 1) home->variables.assign(c.variables.begin(), c.variables.end());
    const std::uint64_t number = first_block + b;
    for (std::size_t t = 0; t < threads; ++t) {
      fiber& f = c.fibers[b * threads + t];
      f.home = home.get();
      f.warp = t / 32;
      f.lane = t % 32;
      ++home->warps[f.warp].members;
      f.self.block_size = shape.block;
      f.self.grid_size = shape.grid;
      f.self.thread = {static_cast<unsigned>(t % shape.block.x),
                       static_cast<unsigned>(t / shape.block.x % shape.block.y),
                       static_cast<unsigned>(t / (std::size_t{shape.block.x} * shape.block.y))};
      f.self.block = {static_cast<unsigned>(number % shape.grid.x),
                      static_cast<unsigned>(number / shape.grid.x % shape.grid.y),
                      static_cast<unsigned>(number / (std::uint64_t{shape.grid.x} * shape.grid.y))};
      ::getcontext(&f.place);
      f.place.uc_stack.ss_sp = c.stacks + (b * threads + t) * stack_size;
      f.place.uc_stack.ss_size = stack_size;
      f.place.uc_link = nullptr;
      ::makecontext(&f.place, &run_one, 0);
    }
    c.blocks.push_back(std::move(home));
  }
}

void enter(crew& c, block_of_threads& block) {
  if (c.inside == &block) return;
  if (c.inside != nullptr) std::copy(c.variables.begin(), c.variables.end(), c.inside->variables.begin());
  std::copy(block.variables.begin(), block.variables.end(), c.variables.begin());
  c.inside = &block;
}

void turn_until_ended(crew& c) {
  for (std::size_t left = c.fibers.size(); left != 0;) {
    bool moved = false;
    for (fiber& f : c.fibers) {
      if (f.ended || (f.waits_for != nullptr && f.waits_for->round == f.waits_round)) continue;
      f.waits_for = nullptr;
      c.running = &f;
      enter(c, *f.home);
      *c.now = f.self;
      ::swapcontext(&c.keeper, &f.place);
      moved = true;
      if (f.ended) --left;
    }
    if (!moved) end_guarded(gpu::CUDA_ERROR_LAUNCH_TIMEOUT);  // all wait for a barrier that nobody completes
  }
}

}  // namespace

void run_fibers(const weft_virtual_launch& shape, bool all_blocks, weft_virtual_thread* now,
                std::span<std::byte> shared, const std::function<void()>& body) {
  const std::uint64_t blocks = std::uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z;
  const std::uint64_t at_once = all_blocks ? blocks : 1;
  for (std::uint64_t first = 0; first < blocks; first += at_once) {
    {
      const undisturbed making;
      drop_crew();
      current_crew = std::make_unique<crew>();
      current_crew->now = now;
      current_crew->variables = shared;
      current_crew->body = &body;
      prepare(*current_crew, shape, first, at_once);
    }
    turn_until_ended(*current_crew);
  }
  const undisturbed dropping;
  drop_crew();
}

const weft_virtual_services& services() {
  static constexpr weft_virtual_services table{&barrier, &exchange,  &shared,   &yield,
                                               &fail,    &clock_now, &replicas, &multiprocessor};
  return table;
}

void lend_shared(void* memory) {
  const undisturbed dropping;
  drop_crew();
  lent_shared = memory;
}

}  // namespace weft::virtual_cuda
