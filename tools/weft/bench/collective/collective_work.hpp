// SPDX-License-Identifier: Apache-2.0
// A collective over numbers whose result is known: made on every rank, run, and checked element by element.
#pragma once

#include "weft/collective/communicator.hpp"
#include "weft/collective/rank_communicator.hpp"
#include "weft/collective/schedule.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace weft::tool {

struct collective_task {
  collective_shape shape;
  data_type type = data_type::float32;
  reduction_op::kind operation = reduction_op::kind::sum;
  reduction_order order = reduction_order::any;
  collective_algorithm algorithm = collective_algorithm::automatic;
  bool in_place = false;
};

/// What is wrong with results: how many elements, and the first of them in words.
struct collective_finding {
  std::uint64_t wrong = 0;
  std::string first;
};

/// One task with its memory. Errors of each: those of the communicator, and of copies.
class collective_work {
 public:
  collective_work() = default;
  virtual ~collective_work() = default;
  collective_work(const collective_work&) = delete;
  collective_work& operator=(const collective_work&) = delete;

  /// New inputs, and nothing right where results go.
  virtual void load() = 0;
  /// Once, until the ranks that this process drives have their results.
  virtual void run() = 0;
  /// Every element of the results of these ranks.
  [[nodiscard]] virtual collective_finding check() const = 0;
  /// What run() took last.
  [[nodiscard]] virtual collective_algorithm algorithm() const = 0;
};

/// All ranks, by one caller. The communicator outlives it.
[[nodiscard]] std::unique_ptr<collective_work> work_of_all(communicator& all, const collective_task& task);
/// This process's rank; every rank makes it at the same time. Memory is symmetric.
[[nodiscard]] std::unique_ptr<collective_work> work_of_one(rank_communicator& mine, const collective_task& task);

}  // namespace weft::tool
