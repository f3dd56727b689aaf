// SPDX-License-Identifier: Apache-2.0
#include "collective/plain_ranks.hpp"

#include "collective/plain_fold.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <sched.h>
#include <stdexcept>
#include <sys/mman.h>
#include <vector>

namespace weft::bench {

namespace {

constexpr std::uint64_t small_bytes = 4096;  // up to here through slots, with one meeting instead of two

/// Lies in memory that all ranks map.
struct common {
  struct alignas(128) counter {
    std::atomic<std::uint32_t> value{0};
  };
  struct alignas(128) slot {
    std::atomic<std::uint32_t> turn{0};
    float first = 0;  // an array of one element lies in the line of its flag
    alignas(128) float values[small_bytes / sizeof(float)];
  };
  counter here[most_plain_arrays];
  slot slots[2][most_plain_arrays];
};

void wait_until(const std::atomic<std::uint32_t>& word, std::uint32_t wanted, int spins_before_yield) {
  for (int spins = 1; static_cast<std::int32_t>(word.load(std::memory_order_acquire) - wanted) < 0; ++spins) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    if (spins >= spins_before_yield) ::sched_yield();
  }
}

class plain_rank {
 public:
  plain_rank(common& all, float* const* arrays, int rank, int ranks, bool pinned)
      : all_(all), rank_(rank), ranks_(ranks), patience_(pinned ? 2000 : 1) {
    std::copy(arrays, arrays + ranks, arrays_);
  }
  [[nodiscard]] float* memory() const { return arrays_[rank_]; }

  void reduce(std::uint64_t bytes) {
    if (bytes <= small_bytes) {
      reduce_small(bytes / sizeof(float));
      return;
    }
    const std::size_t count = bytes / sizeof(float);
    const std::size_t part = (count / static_cast<std::size_t>(ranks_) + 1023) / 1024 * 1024;
    const std::size_t begin = std::min(count, part * static_cast<std::size_t>(rank_));
    meet();
    fold_plain(arrays_, ranks_, begin, rank_ + 1 == ranks_ ? count : std::min(count, begin + part));
    meet();
  }

 private:
  void meet() {
    const std::uint32_t turn = ++meetings_;
    all_.here[rank_].value.store(turn, std::memory_order_release);  // pairs with acquire in wait_until
    for (int r = 0; r < ranks_; ++r) wait_until(all_.here[r].value, turn, patience_);
  }

  // Two sets of slots: nobody can be two calls ahead of a rank that still reads.
  void reduce_small(std::size_t count) {
    const std::uint32_t turn = ++turns_;
    auto& slots = all_.slots[turn % 2];
    float* mine = memory();
    if (count == 1) {
      slots[rank_].first = *mine;
    } else {
      std::memcpy(slots[rank_].values, mine, count * sizeof(float));
    }
    slots[rank_].turn.store(turn, std::memory_order_release);  // pairs with acquire in wait_until
    for (int r = 0; r < ranks_; ++r) {
      wait_until(slots[r].turn, turn, patience_);
      const float* theirs = count == 1 ? &slots[r].first : slots[r].values;
      if (r == 0) {
        std::memcpy(mine, theirs, count * sizeof(float));
      } else {
        for (std::size_t i = 0; i < count; ++i) mine[i] += theirs[i];
      }
    }
  }

  common& all_;
  float* arrays_[most_plain_arrays] = {};
  int rank_, ranks_, patience_;
  std::uint32_t meetings_ = 0, turns_ = 0;
};

void* shared_pages(std::uint64_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::runtime_error("no memory to share between plain ranks");
  return at;
}

}  // namespace

group_plan plain_ranks(int ranks, bool pinned, std::uint64_t largest) {
  group_plan plan;
  plan.library = "by hand";
  plan.name = "one pass, processes";
  plan.pinned = pinned;
  if (ranks < 2 || ranks > most_plain_arrays) {
    plan.missing = "written for 2 to 4 ranks";
    return plan;
  }
  // mapped before the forks, so that every rank has everything at the same address
  auto* all = ::new (shared_pages(sizeof(common))) common{};
  std::vector<float*> arrays;
  arrays.reserve(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) arrays.push_back(static_cast<float*>(shared_pages(largest)));
  plan.play = [=](turn_block& block, int rank) {
    auto me = std::make_shared<plain_rank>(*all, arrays.data(), rank, ranks, pinned);
    serve_turns(block, rank,
                [me](std::uint64_t bytes) { return prepared_call{me->memory(), [me, bytes] { me->reduce(bytes); }}; });
  };
  return plan;
}

}  // namespace weft::bench
