// SPDX-License-Identifier: Apache-2.0
// Collectives, timed and verified: by one caller for all ranks, or with a process for each.
#pragma once

#include "bench/bench_row.hpp"
#include "collective_work.hpp"
#include "weft/distributed/world.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::tool {

struct collective_row {
  std::string name;
  collective_task task;
  std::uint64_t size = 0;                                            // bytes as algbw counts them
  std::int64_t count = 0;                                            // elements of that
  collective_algorithm algorithm = collective_algorithm::automatic;  // that was taken
  row_state state = row_state::done;
  std::optional<statistics> seconds;
  std::optional<std::uint64_t> wrong;  // elements, in both checks together
  std::optional<bool> verified;
  std::string why;

  [[nodiscard]] std::optional<double> algorithm_bandwidth() const;
  [[nodiscard]] std::optional<double> bus_bandwidth() const;
};

struct collective_plan {
  std::vector<collective> collectives;
  std::vector<collective_algorithm> algorithms;
  std::vector<std::uint64_t> sizes;
  int ranks = 1;
  int processes = 0;  // 0: one caller
  data_type type = data_type::float32;
  reduction_op::kind operation = reduction_op::kind::sum;
  reduction_order order = reduction_order::any;
  bool in_place = false;
  int samples = 15;
  std::chrono::nanoseconds budget = std::chrono::seconds{30};
};

/// The rows of a plan, nothing measured. A size is taken down to whole elements; sizes of as many elements have one
/// row. Errors: failure (usage) for a size that holds none.
[[nodiscard]] std::vector<collective_row> rows_of(const collective_plan& plan);

/// Why a row would use more than a quarter of the free memory of a device or of this host; empty when it fits. Memory:
/// the inputs and results of all ranks.
[[nodiscard]] std::optional<std::string> does_not_fit(const machine& m, std::span<const device_id> devices,
                                                      const collective_task& task);

/// One caller drives a rank on each of `devices`. Stops at an interrupt; what does not fit into the budget or the
/// memory is there as a row that says so.
[[nodiscard]] std::vector<collective_row> run_collectives(session& run, const machine& m,
                                                          std::span<const device_id> devices,
                                                          const collective_plan& plan);

/// The same with a process for each rank: the first is this one. There must be no machine yet; `named` are the devices
/// of the ranks, or empty for all in turn. Times are those of the rank that is last.
struct collective_processes_report {
  std::vector<collective_row> rows;
  std::vector<device_id> devices;
};
[[nodiscard]] collective_processes_report run_collective_processes(session& run, const std::vector<int>& named,
                                                                   const collective_plan& plan);

/// The same by the ranks of a world, of which this process is one: each calls it.
[[nodiscard]] collective_processes_report run_collective_world(session& run, world& of, const std::vector<int>& named,
                                                               const collective_plan& plan);

/// results[] of weft.bench.collective/1.
[[nodiscard]] json rows_json(const std::vector<collective_row>& rows);

}  // namespace weft::tool
