// SPDX-License-Identifier: Apache-2.0
#include "collective/turn.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <fcntl.h>
#include <map>
#include <new>
#include <sched.h>
#include <stdexcept>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace weft::bench {

namespace {

constexpr double longest_meeting = 120;  // seconds; after that a rank is taken for lost

double seconds_on(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

turn_block& map_block(const std::string& path, int flags, bool is_new) {
  const int file = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  if (file < 0) throw std::runtime_error("cannot open " + path + ": " + std::strerror(errno));
  if (is_new && ::ftruncate(file, sizeof(turn_block)) != 0) {
    ::close(file);
    throw std::runtime_error("cannot size " + path + ": " + std::strerror(errno));
  }
  void* at = ::mmap(nullptr, sizeof(turn_block), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (at == MAP_FAILED) throw std::runtime_error("cannot map " + path + ": " + std::strerror(errno));
  return is_new ? *::new (at) turn_block{} : *static_cast<turn_block*>(at);
}

// Small whole numbers, different at every place and rank: their sums are exact in float, whatever the order.
float sample(int rank, std::uint64_t i) {
  return static_cast<float>((i * 7 + i / 1021 + static_cast<std::uint64_t>(rank) * 13) % 1021);
}

void fill(float* memory, std::uint64_t count, int rank) {
  for (std::uint64_t i = 0; i < count; ++i) memory[i] = sample(rank, i);
}

void check(const float* memory, std::uint64_t count, int ranks, turn_block::answer& mine) {
  for (std::uint64_t i = 0; i < count; ++i) {
    float expected = 0;
    for (int r = 0; r < ranks; ++r) expected += sample(r, i);
    if (memory[i] == expected) continue;
    if (mine.wrong++ == 0) {
      mine.first_wrong = i;
      mine.expected = expected;
      mine.got = memory[i];
    }
  }
}

// Every rank waits alike, whatever its library: a turn starts for all at once.
void meet(turn_block& block) {
  const auto ranks = static_cast<std::uint32_t>(block.ranks);
  const std::uint32_t ticket = block.arrived.fetch_add(1, std::memory_order_acq_rel);
  const std::uint32_t wanted = (ticket / ranks + 1) * ranks;
  const double start = seconds_on(CLOCK_MONOTONIC);
  for (std::uint32_t spins = 1; block.arrived.load(std::memory_order_acquire) < wanted; ++spins) {
    if (spins % 64 != 0) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
      continue;
    }
    ::sched_yield();
    if (spins % (1U << 16) == 0 && seconds_on(CLOCK_MONOTONIC) - start > longest_meeting)
      throw std::runtime_error("a rank did not come to the meeting");
  }
}

// False once the driver is gone: nobody is left who would send this rank home.
bool wait_for_turn(turn_block& block, int rank) {
  for (;;) {
    timespec until{};
    ::clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    if (::sem_timedwait(&block.go[rank], &until) == 0) return true;
    if (errno != ETIMEDOUT && errno != EINTR) return false;
    if (::kill(block.driver, 0) != 0) return false;
  }
}

class placement_of_rank {
 public:
  explicit placement_of_rank(int rank) : rank_(rank) {
    CPU_ZERO(&all_);
    ::sched_getaffinity(0, sizeof all_, &all_);
  }
  void set(bool pinned) {
    if (pinned == pinned_) return;
    pinned_ = pinned;
    if (!pinned) {
      ::sched_setaffinity(0, sizeof all_, &all_);
      return;
    }
    int skip = rank_ % std::max(1, CPU_COUNT(&all_));
    for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
      if (!CPU_ISSET(core, &all_) || skip-- != 0) continue;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(core, &one);
      ::sched_setaffinity(0, sizeof one, &one);
      return;
    }
  }

 private:
  int rank_;
  bool pinned_ = false;
  cpu_set_t all_;
};

void play_turn(turn_block& block, int rank, const prepared_call& call, turn_block::answer& mine) {
  const std::uint64_t count = block.bytes / sizeof(float);
  fill(call.memory, count, rank);
  meet(block);
  call.run();
  meet(block);  // some libraries let a rank go on while others still read its array
  check(call.memory, count, block.ranks, mine);
  std::memset(call.memory, 0, block.bytes);
  meet(block);
  for (std::uint64_t i = 0; i < block.iterations / 4; ++i) call.run();  // one was checked: it is not the first
  meet(block);
  const double start = seconds_on(CLOCK_MONOTONIC);
  for (std::uint64_t i = 0; i < block.iterations; ++i) call.run();
  mine.seconds = seconds_on(CLOCK_MONOTONIC) - start;
  meet(block);
}

}  // namespace

turn_block& make_block(const std::string& path, int ranks) {
  if (ranks < 1 || ranks > static_cast<int>(most_ranks)) throw std::runtime_error("too many ranks for one block");
  turn_block& made = map_block(path, O_RDWR | O_CREAT | O_EXCL, true);
  made.ranks = ranks;
  made.driver = ::getpid();
  for (sem_t& go : made.go) ::sem_init(&go, 1, 0);
  ::sem_init(&made.done, 1, 0);
  return made;
}

turn_block& open_block(const std::string& path) { return map_block(path, O_RDWR, false); }

void serve_turns(turn_block& block, int rank, const std::function<prepared_call(std::uint64_t bytes)>& prepare) {
  std::map<std::uint64_t, prepared_call> ready;
  placement_of_rank place{rank};
  turn_block::answer& mine = block.answers[rank];
  while (wait_for_turn(block, rank) && block.bytes != 0) {
    const double cpu = seconds_on(CLOCK_PROCESS_CPUTIME_ID);
    mine = {};
    try {
      place.set(block.pinned);
      auto found = ready.find(block.bytes);
      if (found == ready.end()) found = ready.emplace(block.bytes, prepare(block.bytes)).first;
      play_turn(block, rank, found->second, mine);
      if (found->second.algorithm)
        std::snprintf(mine.algorithm, sizeof mine.algorithm, "%s", found->second.algorithm().c_str());
    } catch (const std::exception& e) {
      std::snprintf(mine.failure, sizeof mine.failure, "rank %d: %s", rank, e.what());
    }
    mine.cpu_seconds = seconds_on(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    ::sem_post(&block.done);
  }
}

float* huge_array(std::uint64_t bytes) {
  constexpr std::uint64_t page = std::uint64_t{2} << 20;
  const std::uint64_t whole = (bytes + page - 1) / page * page;
  void* at = std::aligned_alloc(page, whole);
  if (at == nullptr) throw std::bad_alloc{};
  ::madvise(at, whole, MADV_HUGEPAGE);
  std::memset(at, 0, whole);
  return static_cast<float*>(at);
}

}  // namespace weft::bench
