// SPDX-License-Identifier: Apache-2.0
// Ranks of different libraries, timed turn about in one run. Every library's ranks live from the first turn to the last
// and sleep in between, so that a turn costs no start of processes and whatever else the machine does hits all alike.
// Knows nothing of weft: programs of other libraries link it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <semaphore.h>
#include <string>
#include <sys/types.h>

namespace weft::bench {

inline constexpr std::size_t most_ranks = 16;

/// What the ranks of one group and the driver share, in a file that all of them map.
struct turn_block {
  // the driver's order, read after `go`
  std::uint64_t bytes = 0;       // of one rank's array; 0: go home
  std::uint64_t iterations = 0;  // calls that are timed together
  bool pinned = false;           // rank r on core r, modulo the number of cores
  int ranks = 0;
  pid_t driver = 0;

  // what each rank answers, written before `done`
  struct answer {
    double seconds = 0;      // of all timed calls
    double cpu_seconds = 0;  // of its process, for the whole turn
    std::uint64_t wrong = 0;
    std::uint64_t first_wrong = 0;  // with what was expected there, and what was found
    double expected = 0, got = 0;
    char failure[200] = {};
    char algorithm[24] = {};
  };
  answer answers[most_ranks];

  sem_t go[most_ranks];
  sem_t done;
  alignas(128) std::atomic<std::uint32_t> arrived{0};
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// The file's block, mapped for as long as the process lives. A new one is zero but for its semaphores.
/// Errors: std::runtime_error.
[[nodiscard]] turn_block& make_block(const std::string& path, int ranks);
[[nodiscard]] turn_block& open_block(const std::string& path);

/// One size, ready to run: a rank's array and a call that replaces it by the sum over all ranks.
struct prepared_call {
  float* memory = nullptr;
  std::function<void()> run;
  std::function<std::string()> algorithm{};  // of the last call, where the library tells
};

/// Plays one rank until the driver sends it home. `prepare` is called once for each size, by all ranks in one order.
/// Every turn first checks one call on fresh numbers, then times calls on zeros, whose sums never grow.
void serve_turns(turn_block& block, int rank, const std::function<prepared_call(std::uint64_t bytes)>& prepare);

/// Memory of a rank as a peer would like it best: on huge pages where they are to be had, touched, never given back.
[[nodiscard]] float* huge_array(std::uint64_t bytes);

}  // namespace weft::bench
