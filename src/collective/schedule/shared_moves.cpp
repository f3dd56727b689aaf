// SPDX-License-Identifier: Apache-2.0
#include "collective/schedule/shared_moves.hpp"

namespace weft::detail {
namespace {

/// Whether two places have elements in common, where `in_place` is what the output begins at in front of the input.
bool meet(const schedule_place& a, std::int64_t a_count, const schedule_place& b, std::int64_t b_count,
          std::int64_t in_place) {
  if (a.rank != b.rank) return false;
  const bool is_scratch = a.where == schedule_place::memory::scratch;
  if (is_scratch != (b.where == schedule_place::memory::scratch)) return false;
  const auto at = [&](const schedule_place& p) {
    return p.where == schedule_place::memory::input ? p.at + in_place : p.at;
  };
  if (at(a) < at(b) + b_count && at(b) < at(a) + a_count) return true;
  return a.where == b.where && a.at < b.at + b_count && b.at < a.at + a_count;
}

}  // namespace

bool is_late(const collective_schedule& plan, std::size_t round, const schedule_move& m) {
  const std::int64_t offset = in_place_offset(plan.shape, m.from.rank).value_or(0);
  for (const schedule_fold& f : plan.rounds[round].folds) {
    if (f.at != m.from.rank) continue;
    for (const schedule_place& to : f.outputs)
      if (meet(m.from, m.count, to, f.count, offset)) return false;
  }
  return true;
}

bool is_folded(const collective_schedule& plan, std::size_t round, const schedule_move& m) {
  if (m.to.where != schedule_place::memory::scratch) return false;
  for (std::size_t i = round; i < plan.rounds.size(); ++i) {
    for (const schedule_move& other : plan.rounds[i].moves) {
      if (i != round && other.to == m.to && other.count >= m.count) return true;
      if (meet(other.from, other.count, m.to, m.count, 0)) return false;
    }
    for (const schedule_fold& f : plan.rounds[i].folds) {
      if (f.at != m.to.rank) continue;
      for (const schedule_place& in : f.inputs) {
        const bool is_it = i == round && in == m.to && f.count == m.count;
        if (!is_it && meet(in, f.count, m.to, m.count, 0)) return false;
      }
      for (const schedule_place& out : f.outputs)
        if (meet(out, f.count, m.to, m.count, 0)) return false;
    }
  }
  return true;
}

}  // namespace weft::detail
