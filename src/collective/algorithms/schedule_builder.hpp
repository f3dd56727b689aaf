// SPDX-License-Identifier: Apache-2.0
// What every algorithm writes its schedule with. The counts are checked and there are at least two ranks when one of
// the functions at the end is called; what one round may hold is said in schedule.hpp.
#pragma once

#include "weft/collective/schedule.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace weft::detail {

/// Consecutive elements.
struct element_range {
  std::int64_t at = 0;
  std::int64_t count = 0;
};

/// Part `index` of `parts` nearly equal ones; the first ones have one element more where it does not divide.
[[nodiscard]] element_range part_of(std::int64_t count, std::int64_t parts, std::int64_t index);

/// Where each block begins when they lie without gaps, and the end.
[[nodiscard]] std::vector<std::int64_t> starts_of(const std::vector<std::int64_t>& counts);

class schedule_builder {
 public:
  schedule_builder(const collective_shape& shape, collective_algorithm algorithm, std::int64_t piece);

  [[nodiscard]] const collective_shape& shape() const { return made_.shape; }
  [[nodiscard]] int ranks() const { return made_.shape.ranks; }
  [[nodiscard]] int root() const { return made_.shape.root; }
  [[nodiscard]] std::int64_t piece() const { return piece_; }
  /// The one count of all_reduce, reduce and broadcast; a rank's count of those with blocks.
  [[nodiscard]] std::int64_t count() const { return made_.shape.counts.front(); }
  [[nodiscard]] std::int64_t count(int rank) const { return made_.shape.counts[static_cast<std::size_t>(rank)]; }
  /// A rank, round the ring.
  [[nodiscard]] int wrapped(int rank) const { return (rank % ranks() + ranks()) % ranks(); }
  /// How many pieces so many elements are moved in; 1 for none, so that sizes can be divided by it.
  [[nodiscard]] std::int64_t pieces_of(std::int64_t elements) const;

  [[nodiscard]] static schedule_place input(int rank, std::int64_t at) {
    return {schedule_place::memory::input, rank, at};
  }
  [[nodiscard]] static schedule_place output(int rank, std::int64_t at) {
    return {schedule_place::memory::output, rank, at};
  }
  [[nodiscard]] static schedule_place scratch(int rank, std::int64_t at) {
    return {schedule_place::memory::scratch, rank, at};
  }

  /// At most a piece; nothing for no elements.
  void move(std::size_t round, const schedule_place& from, const schedule_place& to, std::int64_t elements);
  /// Any number of elements, in moves of one round: within a rank, or where nothing limits a round.
  void move_all(std::size_t round, const schedule_place& from, const schedule_place& to, std::int64_t elements);
  /// In the order of `inputs`.
  void fold(std::size_t round, int at, std::vector<schedule_place> inputs, std::vector<schedule_place> outputs,
            std::int64_t elements, bool is_last);
  /// In any order: the input that is the result's place, or is it in place, comes first, since a user's operation grows
  /// its result in its first operand and would need memory of its own otherwise.
  void combine(std::size_t round, int at, std::vector<schedule_place> inputs, const schedule_place& result,
               std::int64_t elements, bool is_last);

  /// The schedule, without rounds in which nothing happens.
  [[nodiscard]] collective_schedule take();

 private:
  schedule_round& at(std::size_t round);
  void reserve(const schedule_place& place, std::int64_t elements);

  collective_schedule made_;
  std::int64_t piece_;
};

void schedule_naive(schedule_builder& to);
void schedule_tree(schedule_builder& to);
void schedule_ring(schedule_builder& to);
void schedule_halving_doubling(schedule_builder& to);
void schedule_direct(schedule_builder& to);
void schedule_hierarchical(schedule_builder& to);

}  // namespace weft::detail
