// SPDX-License-Identifier: Apache-2.0
#include "os/parking.hpp"

#include <algorithm>
#include <linux/membarrier.h>
#include <sched.h>
#include <thread>

namespace weft::parking {
namespace {

// trivially destructible: no owner, no order of destruction
std::atomic<int> spinning{0};

// A yield gives the core to whoever is next, perhaps another program for its whole turn: then nobody yields for a
// while.
using clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds costly{200};
constexpr std::chrono::milliseconds forbearance{50};
std::atomic<clock::rep> yields_again_at{0};

alignas(128) std::atomic<int> at_work{0};  // read by every wait, and often the same

}  // namespace

int cores() noexcept {
  static const int count = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));  // more than a set has room for
  }();
  return count;
}

void count_at_work(int change) noexcept { at_work.fetch_add(change, std::memory_order_relaxed); }
bool is_crowded() noexcept { return at_work.load(std::memory_order_relaxed) > cores(); }

bool offers_heavy_fence(word_scope scope) noexcept {
  static const bool here =
      syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 && heavy_fence(word_scope::process);
  static const bool everywhere =
      syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0 && heavy_fence(word_scope::shared);
  return scope == word_scope::process ? here : everywhere;
}

bool heavy_fence(word_scope scope) noexcept {
  const int command = scope == word_scope::process ? MEMBARRIER_CMD_PRIVATE_EXPEDITED : MEMBARRIER_CMD_GLOBAL_EXPEDITED;
  return syscall(SYS_membarrier, command, 0, 0) == 0;
}

spinner::spinner(waiting policy, std::uint32_t turns) noexcept : limit_(turns), forever_(policy == waiting::spin) {
  alone_ = cores() == 1 ? 0 : forever_ ? ~std::uint32_t{0} : of_a_handover;  // who is to spin keeps its core
  const int before = spinning.fetch_add(1, std::memory_order_relaxed);
  if (!forever_ && before >= cores()) allowed_ = false;
}

bool spinner::give_way() noexcept {
  // Not while a core may be idle: two threads that give each other their core stay there, and the system moves only
  // those that go on.
  if (spinning.load(std::memory_order_relaxed) < cores()) return true;
  const auto begin = clock::now();
  if (begin.time_since_epoch().count() < yields_again_at.load(std::memory_order_relaxed)) return false;
  sched_yield();
  const auto end = clock::now();
  if (end - begin < costly) return true;
  yields_again_at.store((end + forbearance).time_since_epoch().count(), std::memory_order_relaxed);
  return false;
}

spinner::~spinner() { spinning.fetch_sub(1, std::memory_order_relaxed); }

}  // namespace weft::parking
