// SPDX-License-Identifier: Apache-2.0
// What a collective costs on a machine, by the model that the virtual clock goes by, and which algorithm is the
// cheapest. Pure.
#pragma once

#include "weft/collective/schedule.hpp"
#include "weft/core/bytes.hpp"
#include "weft/core/ids.hpp"
#include "weft/core/result.hpp"
#include "weft/core/topology.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft {

/// Bits and speed: `rank` combines in the order of ranks, so that the bits of the result depend on nothing but the
/// data; `any` takes the fastest algorithm. See docs/reference/collectives.md for the order of each.
enum class reduction_order : std::uint8_t { any, rank };
[[nodiscard]] std::string_view to_string(reduction_order order);

/// The price of one schedule. Bytes are exact: the counters of the host backend show the same.
struct collective_cost {
  int rounds = 0;
  std::vector<std::uint64_t> bytes_between;  // [from * ranks + to], from != to
  std::vector<std::uint64_t> bytes_on_link;  // by link of the topology
  std::uint64_t scratch_bytes = 0;           // of the rank that needs most
  double seconds = 0;                        // predicted; 0 when the rate of a link on the way is unknown
};

/// What the start of a kernel is taken to take where nobody says: the default of simulation::launch_latency. A figure
/// of the model, and of the order of what kernels that follow each other in a stream of a GPU take; none was measured.
inline constexpr std::chrono::nanoseconds usual_launch_latency{5000};

/// Prices a schedule for ranks that live on `devices`, in order: how long it takes on the virtual clock of the machine
/// when nothing else is under way, with an operation of the library's. Copies and kernels go in the
/// streams and in the order in which a communicator submits them; a wire carries one copy at a time, a device runs one
/// kernel at a time, and each start of a kernel takes `launch_latency`. A move takes the way that route() gives with
/// peer access on wherever it is offered; folds take the memory bandwidth of their device, and those over memory of
/// other ranks that of the busiest link. `in_place` has a bit for each of the first 64 ranks whose input lies in its
/// output, or the other way round, where in_place_offset() says: it copies less within itself. Cost: by the number of
/// moves and folds; about a microsecond for each.
[[nodiscard]] collective_cost cost_of(const collective_schedule& schedule, std::size_t element_size,
                                      const topology& machine, std::span<const device_id> devices,
                                      std::chrono::nanoseconds launch_latency = usual_launch_latency,
                                      std::uint64_t in_place = 0);

/// One row of the table that a choice is made from.
struct collective_candidate {
  collective_algorithm algorithm = collective_algorithm::naive;
  bool possible = false;
  collective_cost cost;            // when possible
  double algorithm_bandwidth = 0;  // algbw: bytes per second; 0 when the time is unknown
  double bus_bandwidth = 0;        // busbw, as nccl-tests count it: comparable with a link's rate for any N
  std::string why;                 // why it is not possible, or lost; what decided for the one that won
};

/// What was chosen, and every other algorithm with the reason why not; the chosen one first, then by time.
struct collective_choice {
  collective_algorithm algorithm = collective_algorithm::naive;
  bool is_forced = false;
  std::vector<collective_candidate> candidates;
};

/// The computers of devices, for a shape's `nodes`; empty where all are in one.
[[nodiscard]] std::vector<int> nodes_of(const topology& machine, std::span<const device_id> devices);

/// Chooses an algorithm; the ranks are on the computers of their devices. `wanted` other than automatic is taken if it
/// is possible. `launch_latency` and `in_place`: as for cost_of(). Errors: invalid_argument (shape); unsupported when
/// `wanted` is not possible, with the reason.
[[nodiscard]] result<collective_choice> choose_collective(
    const collective_shape& shape, std::size_t element_size, const topology& machine,
    std::span<const device_id> devices, reduction_order order,
    collective_algorithm wanted = collective_algorithm::automatic,
    std::chrono::nanoseconds launch_latency = usual_launch_latency, std::uint64_t in_place = 0);

/// Bytes of a collective as algbw and busbw count them: of the whole array for those that scatter or gather.
[[nodiscard]] std::uint64_t collective_bytes(const collective_shape& shape, std::size_t element_size);
/// What algbw is multiplied with to get busbw (nccl-tests, doc/PERFORMANCE.md): 2(n-1)/n, (n-1)/n or 1.
[[nodiscard]] double bus_factor(collective what, int ranks);

/// Largest piece that the library moves at once, and so what bounds its scratch.
inline constexpr std::uint64_t collective_piece_bytes = std::uint64_t{16} << 20;

/// Elements of a piece for a schedule: collective_piece_bytes, or fewer for what is pipelined (a tree; broadcast and
/// reduce by ring), where short pieces fill the links sooner and long ones pay fewer latencies. With k pieces and r
/// rounds for one, (k + r - 1) rounds of latency + S / (k * rate) each are least for k = sqrt((r - 1) S / (rate *
/// latency)). Where pieces are folded, half of `launch_latency` counts as latency too.
/// Shape: one that make_schedule() takes, and a device for each rank.
[[nodiscard]] std::int64_t best_piece(const collective_shape& shape, std::size_t element_size,
                                      collective_algorithm algorithm, const topology& machine,
                                      std::span<const device_id> devices,
                                      std::chrono::nanoseconds launch_latency = usual_launch_latency);

/// The devices in an order in which neighbours have the best links: fastest first, then closest; exact up to 8 devices,
/// nearest neighbour first beyond.
[[nodiscard]] std::vector<device_id> neighbour_order(const topology& machine, std::span<const device_id> devices);

}  // namespace weft
