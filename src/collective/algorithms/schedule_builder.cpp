// SPDX-License-Identifier: Apache-2.0
#include "collective/algorithms/schedule_builder.hpp"

#include <algorithm>

namespace weft::detail {

element_range part_of(std::int64_t count, std::int64_t parts, std::int64_t index) {
  const std::int64_t each = count / parts;
  const std::int64_t longer = count % parts;
  return {index * each + std::min(index, longer), each + (index < longer ? 1 : 0)};
}

std::vector<std::int64_t> starts_of(const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> starts;
  starts.reserve(counts.size() + 1);
  std::int64_t at = 0;
  for (const std::int64_t count : counts) {
    starts.push_back(at);
    at += count;
  }
  starts.push_back(at);
  return starts;
}

schedule_builder::schedule_builder(const collective_shape& shape, collective_algorithm algorithm, std::int64_t piece)
    : piece_(piece) {
  made_.shape = shape;
  made_.algorithm = algorithm;
  made_.scratch.assign(static_cast<std::size_t>(shape.ranks), 0);
}

std::int64_t schedule_builder::pieces_of(std::int64_t elements) const {
  if (piece_ == 0 || elements == 0) return 1;
  return elements / piece_ + (elements % piece_ != 0 ? 1 : 0);
}

schedule_round& schedule_builder::at(std::size_t round) {
  if (round >= made_.rounds.size()) made_.rounds.resize(round + 1);
  return made_.rounds[round];
}

void schedule_builder::reserve(const schedule_place& place, std::int64_t elements) {
  if (place.where != schedule_place::memory::scratch) return;
  std::int64_t& size = made_.scratch[static_cast<std::size_t>(place.rank)];
  size = std::max(size, place.at + elements);
}

void schedule_builder::move(std::size_t round, const schedule_place& from, const schedule_place& to,
                            std::int64_t elements) {
  if (elements == 0) return;
  reserve(from, elements);
  reserve(to, elements);
  at(round).moves.push_back({from, to, elements});
}

void schedule_builder::move_all(std::size_t round, const schedule_place& from, const schedule_place& to,
                                std::int64_t elements) {
  const std::int64_t pieces = pieces_of(elements);
  for (std::int64_t k = 0; k < pieces; ++k) {
    const element_range part = part_of(elements, pieces, k);
    schedule_place source = from;
    schedule_place target = to;
    source.at += part.at;
    target.at += part.at;
    move(round, source, target, part.count);
  }
}

void schedule_builder::fold(std::size_t round, int rank, std::vector<schedule_place> inputs,
                            std::vector<schedule_place> outputs, std::int64_t elements, bool is_last) {
  if (elements == 0) return;
  for (const schedule_place& place : inputs) reserve(place, elements);
  for (const schedule_place& place : outputs) reserve(place, elements);
  at(round).folds.push_back({rank, std::move(inputs), std::move(outputs), elements, is_last});
}

void schedule_builder::combine(std::size_t round, int rank, std::vector<schedule_place> inputs,
                               const schedule_place& result, std::int64_t elements, bool is_last) {
  schedule_place in_place = result;
  if (result.where == schedule_place::memory::output) {
    in_place.where = schedule_place::memory::input;
    in_place.at -= in_place_offset(made_.shape, rank).value_or(0);
  }
  const auto first =
      std::find_if(inputs.begin(), inputs.end(), [&](const schedule_place& p) { return p == result || p == in_place; });
  if (first != inputs.end()) std::rotate(inputs.begin(), first, first + 1);
  fold(round, rank, std::move(inputs), {result}, elements, is_last);
}

collective_schedule schedule_builder::take() {
  std::erase_if(made_.rounds, [](const schedule_round& r) { return r.moves.empty() && r.folds.empty(); });
  return std::move(made_);
}

}  // namespace weft::detail
