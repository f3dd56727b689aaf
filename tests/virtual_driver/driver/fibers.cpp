// SPDX-License-Identifier: Apache-2.0
#include "virtual_driver/driver/fibers.hpp"

#include "virtual_driver/driver/guard.hpp"
#include "virtual_driver/driver/module.hpp"
#include "virtual_driver/driver/multicast.hpp"
#include "virtual_driver/driver/stacks.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <sched.h>
#include <span>
#include <vector>

namespace weft::virtual_cuda {
namespace {

struct fiber;

struct fiber_queue {
  fiber* first = nullptr;
  fiber* last = nullptr;
  void push(fiber& one);
  void push_all(fiber_queue& others);
  [[nodiscard]] fiber* pop();
};

struct gathering {
  std::size_t members = 0;  // that have not ended
  std::size_t arrived = 0;
  fiber_queue waiting{};
};

struct block_of_threads {
  gathering whole;
  std::vector<gathering> warps;
  std::vector<std::byte> shared;
  std::vector<std::byte> variables;  // while another block runs
};

struct fiber {
  left_stack place{};
  block_of_threads* home = nullptr;
  std::size_t number = 0;  // in its block
  fiber* next = nullptr;   // of the queue that it is in
  unsigned long long offered = 0;
};

// A thread has no stack of its own before it waits: the next one to begin runs on the stack of one that ended.
struct crew {
  std::vector<fiber> fibers;
  std::vector<block_of_threads> blocks;
  std::size_t threads = 0;  // of a block
  std::size_t begun = 0, ended = 0, stacks_taken = 0;
  weft_virtual_thread next{};  // to begin
  block_of_threads* next_home = nullptr;
  std::size_t next_number = 0;
  fiber_queue ready;
  left_stack keeper{};
  fiber* running = nullptr;
  weft_virtual_thread* now = nullptr;
  std::span<std::byte> variables;      // of the block that runs
  block_of_threads* inside = nullptr;  // which that is
  void (*body)(void**) = nullptr;
  void** arguments = nullptr;
  stacks pool;
};

// Kept for the next launch of this thread, which begins anew: a fault jumps out of it anywhere.
thread_local crew kept_crew;
constinit thread_local crew* current_crew = nullptr;
constinit thread_local void* lent_shared = nullptr;

void fiber_queue::push(fiber& one) {
  one.next = nullptr;
  (first == nullptr ? first : last->next) = &one;
  last = &one;
}

void fiber_queue::push_all(fiber_queue& others) {
  if (others.first == nullptr) return;
  (first == nullptr ? first : last->next) = others.first;
  last = others.last;
  others.first = nullptr;
}

fiber* fiber_queue::pop() {
  fiber* const one = first;
  if (one != nullptr) first = one->next;
  return one;
}

void complete(crew& c, gathering& g) {
  if (g.arrived != g.members) return;
  g.arrived = 0;
  c.ready.push_all(g.waiting);
}

void leave(crew& c, gathering& g) {
  --g.members;
  complete(c, g);
}

// The next place in a block or a grid; false: that was the last one.
bool advance(weft_virtual_dim& place, const weft_virtual_dim& size) {
  if (++place.x != size.x) return true;
  place.x = 0;
  if (++place.y != size.y) return true;
  place.y = 0;
  if (++place.z != size.z) return true;
  place.z = 0;
  return false;
}

void enter(crew& c, block_of_threads& block) {
  if (c.inside == &block) return;
  if (c.inside != nullptr) std::copy(c.variables.begin(), c.variables.end(), c.inside->variables.begin());
  std::copy(block.variables.begin(), block.variables.end(), c.variables.begin());
  c.inside = &block;
}

void begin_thread(crew& c) {
  fiber& one = c.fibers[c.begun++];
  one.home = c.next_home;
  one.number = c.next_number++;
  one.offered = 0;
  c.running = &one;
  enter(c, *one.home);
  *c.now = c.next;
  if (advance(c.next.thread, c.next.block_size)) return;
  c.next_number = 0;
  ++c.next_home;
  advance(c.next.block, c.next.grid_size);
}

void run_threads() noexcept {
  crew& c = *current_crew;
  left_stack nowhere{};
  while (c.begun != c.fibers.size()) {
    begin_thread(c);
    c.body(c.arguments);
    const fiber& self = *c.running;
    leave(c, self.home->whole);
    leave(c, self.home->warps[self.number / 32]);
    ++c.ended;
  }
  c.running = c.ready.pop();
  if (c.running != nullptr) switch_stack(nowhere, c.running->place);
  if (c.ended != c.begun) end_guarded(gpu::CUDA_ERROR_LAUNCH_TIMEOUT);  // all wait for a barrier that nobody completes
  switch_stack(nowhere, c.keeper);
}

// Runs others until it is the running fiber's turn again.
void switch_away(crew& c) {
  fiber& self = *c.running;
  if (c.begun != c.fibers.size()) {
    left_stack fresh{};
    c.pool.begin(c.stacks_taken++, &run_threads, fresh);
    switch_stack(self.place, fresh);
  } else {
    c.running = c.ready.pop();
    if (c.running == nullptr) end_guarded(gpu::CUDA_ERROR_LAUNCH_TIMEOUT);
    if (c.running != &self) switch_stack(self.place, c.running->place);
  }
  enter(c, *self.home);
}

void barrier(int of_warp) {
  if (current_crew == nullptr) return;
  crew& c = *current_crew;
  fiber& self = *c.running;
  gathering& g = of_warp != 0 ? self.home->warps[self.number / 32] : self.home->whole;
  g.waiting.push(self);
  ++g.arrived;
  complete(c, g);
  switch_away(c);
}

unsigned long long exchange(unsigned long long value, int from) {
  if (current_crew == nullptr) return value;
  const crew& c = *current_crew;
  fiber& self = *c.running;
  self.offered = value;
  barrier(1);
  // fibers of a block lie side by side
  const fiber* const first_of_warp = &self - self.number % 32;
  const auto lane = static_cast<std::size_t>(from);
  const bool is_there = from >= 0 && lane < c.threads - self.number / 32 * 32 && lane < 32;
  const unsigned long long got = is_there ? first_of_warp[lane].offered : value;
  barrier(1);
  return got;
}

void* shared() { return current_crew != nullptr ? current_crew->running->home->shared.data() : lent_shared; }

void yield() {
  crew* const c = current_crew;
  if (c == nullptr || (c->begun == c->fibers.size() && c->ready.first == nullptr)) {
    ::sched_yield();
    return;
  }
  c->ready.push(*c->running);
  switch_away(*c);
}

void fail(int code) { end_guarded(code); }

unsigned long long clock_now() {
  return static_cast<unsigned long long>(std::chrono::steady_clock::now().time_since_epoch().count());
}

void prepare(crew& c, const weft_virtual_launch& shape, std::size_t blocks) {
  c.begun = c.ended = c.stacks_taken = 0;
  c.inside = nullptr;
  c.next_number = 0;
  c.ready = {};
  c.fibers.resize(c.threads * blocks);
  c.blocks.resize(blocks);
  for (block_of_threads& home : c.blocks) {
    home.whole = {c.threads};
    home.warps.assign((c.threads + 31) / 32, {32});
    if (c.threads % 32 != 0) home.warps.back().members = c.threads % 32;
    home.shared.assign(std::size_t{shape.shared_bytes} + 16, std::byte{});
    home.variables.clear();
    if (blocks > 1) home.variables.assign(c.variables.begin(), c.variables.end());
  }
  c.next_home = c.blocks.data();
  if (!c.pool.reserve(c.fibers.size())) end_guarded(gpu::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
}

}  // namespace

void run_fibers(const weft_virtual_launch& shape, bool all_blocks, weft_virtual_thread* now,
                std::span<std::byte> shared, void (*body)(void**), void** arguments) {
  const std::uint64_t blocks = std::uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z;
  const std::uint64_t at_once = all_blocks ? blocks : 1;
  crew& c = kept_crew;
  current_crew = &c;
  c.threads = std::size_t{shape.block.x} * shape.block.y * shape.block.z;
  c.next = {{}, {}, shape.block, shape.grid};
  c.now = now;
  c.variables = shared;
  c.body = body;
  c.arguments = arguments;
  for (std::uint64_t done = 0; done != blocks; done += at_once) {
    {
      const undisturbed making;
      prepare(c, shape, at_once);
    }
    left_stack first{};
    c.pool.begin(c.stacks_taken++, &run_threads, first);
    switch_stack(c.keeper, first);
  }
  const undisturbed dropping;
  current_crew = nullptr;
  c.pool.trim();
}

const weft_virtual_services& services() {
  static constexpr weft_virtual_services table{&barrier, &exchange,  &shared,   &yield,
                                               &fail,    &clock_now, &replicas, &multiprocessor};
  return table;
}

void lend_shared(void* memory) {
  current_crew = nullptr;
  lent_shared = memory;
}

}  // namespace weft::virtual_cuda
