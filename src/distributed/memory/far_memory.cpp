// SPDX-License-Identifier: Apache-2.0
#include "weft/distributed/far_memory.hpp"

#include "core/errors/called_from.hpp"
#include "distributed/memory/far_copier.hpp"
#include "weft/core/raise.hpp"

#include <utility>

namespace weft::detail {
namespace {

far_copier& reached(const world& w, const far_place& there) {
  const auto& by = internals::far_copies(w);
  static_cast<void>(w.member(rank{there.owner}));
  if (rank{there.owner} == w.self())
    raise(errc::invalid_argument, to_string(w.self()) + " is this process: its own memory needs no world to be copied");
  return *by;
}

}  // namespace

memory_offer::memory_offer(const world& w, const memory_ref& memory, bool may_write, std::source_location where)
    : by_((static_cast<void>(called_from{where}), internals::far_copies(w))), place_(by_->offer(memory, may_write)) {}

memory_offer::memory_offer(memory_offer&& other) noexcept = default;

memory_offer& memory_offer::operator=(memory_offer&& other) noexcept {
  memory_offer taken{std::move(other)};  // ends the offer that was here, when it goes
  std::swap(by_, taken.by_);
  std::swap(place_, taken.place_);
  return *this;
}

memory_offer::~memory_offer() {
  if (by_) by_->withdraw(place_.memory);
}

void copy_far(const world& w, const far_place& to, const memory_ref& from, const far_copy_options& options,
              std::source_location where) {
  const called_from here{where};
  value_or_raise(reached(w, to).write(to, from, options), where);
}

void copy_near(const world& w, const memory_ref& to, const far_place& from, const far_copy_options& options,
               std::source_location where) {
  const called_from here{where};
  value_or_raise(reached(w, from).read(to, from, options), where);
}

}  // namespace weft::detail
