// SPDX-License-Identifier: Apache-2.0
#include "weft/collective/rank_communicator.hpp"

#include "collective/ranks/rank_communicator_body.hpp"
#include "core/errors/called_from.hpp"
#include "weft/core/raise.hpp"

#include <algorithm>

namespace weft {

rank_communicator::rank_communicator(std::unique_ptr<detail::rank_communicator_body> made) : body_(std::move(made)) {}
rank_communicator::rank_communicator(rank_communicator&&) noexcept = default;
rank_communicator& rank_communicator::operator=(rank_communicator&&) noexcept = default;
rank_communicator::~rank_communicator() = default;

rank_communicator rank_communicator::join(std::shared_ptr<process_group> group, const device& mine,
                                          const rank_communicator_options& options, std::source_location where) {
  const called_from here{where};
  if (!group) raise(errc::invalid_argument, "a communicator without a group");
  std::vector<rank> members;
  members.reserve(static_cast<std::size_t>(group->size()));
  for (int r = 0; r < group->size(); ++r) members.emplace_back(r);
  return rank_communicator{detail::rank_communicator_body::meet(
      std::move(group), std::move(members), detail::collective_tag(0, 0), mine, options, options.timeout)};
}

detail::rank_communicator_body& rank_communicator::owned() const {
  return *detail::not_moved_from(body_, "rank communicator");
}

rank rank_communicator::self() const { return rank{owned().meeting.self()}; }
int rank_communicator::size() const { return owned().meeting.size(); }
device rank_communicator::on() const { return owned().on; }

rank rank_communicator::member(rank of, std::source_location where) const {
  const called_from here{where};
  if (of.value() < 0 || of.value() >= size()) {
    raise(errc::invalid_argument, to_string(of) + " of " + std::to_string(size()) + " ranks");
  }
  return owned().member(of.value());
}

event rank_communicator::barrier(const collective_options& o, std::source_location where) {
  const called_from here{where};
  return owned().barrier(o);
}

rank_communicator rank_communicator::split(int colour, int key, std::source_location where) {
  const called_from here{where};
  return rank_communicator{owned().split(colour, key)};
}

void rank_communicator::abort(std::string_view why, std::source_location where) {
  const called_from here{where};
  detail::rank_meeting& m = owned().meeting;
  m.end(errc::cancelled, m.name_of(m.self()) + " aborts: " + std::string{why});
}

rank_communicator rank_communicator::shrink(std::chrono::nanoseconds timeout, std::source_location where) {
  const called_from here{where};
  return rank_communicator{owned().shrink(timeout)};
}

std::optional<error> rank_communicator::failure() const { return owned().meeting.failure(); }

std::vector<rank_state> rank_communicator::states() const {
  const detail::rank_meeting& m = owned().meeting;
  std::vector<rank_state> made;
  made.reserve(static_cast<std::size_t>(size()));
  for (int r = 0; r < size(); ++r) {
    const detail::rank_area& area = m.area(r);
    rank_state one;
    one.of = rank{r};
    one.operation = std::max(area.entrances[0].number.load(std::memory_order_acquire),
                             area.entrances[1].number.load(std::memory_order_acquire));
    if (one.operation != 0) one.call = detail::text_of(area.calls[one.operation & 1]);
    one.is_inside = area.finished.load(std::memory_order_acquire) < one.operation;
    one.is_alive = m.is_here(r);
    made.push_back(std::move(one));
  }
  return made;
}

collective_algorithm rank_communicator::last_algorithm() const {
  return owned().last_algorithm.load(std::memory_order_relaxed);
}

bytes rank_communicator::footprint() const { return bytes{owned().meeting.block().shape().size()}; }

rank_communicator::allocated rank_communicator::allocate_bytes(std::size_t count, std::size_t element,
                                                               std::source_location where) {
  const called_from here{where};
  auto block = owned().allocate(count, element);
  const detail::memory_ref memory = block->own();
  return {std::move(block), memory};
}

event rank_communicator::run_bytes(collective what, data_type type, const detail::collective_memory& in,
                                   const detail::collective_memory& out, const reduction_op* op,
                                   const collective_options& o, std::source_location where) {
  const called_from here{where};
  return owned().run(what, type, in, out, op, o);
}

void rank_communicator::run_exchange(const exchange& what, const collective_options& o, std::source_location where) {
  const called_from here{where};
  owned().exchange(what.parts(), o);
}

}  // namespace weft
