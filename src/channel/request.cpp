// SPDX-License-Identifier: Apache-2.0
#include "weft/channel/request.hpp"

#include "weft/core/raise.hpp"

#include <string>

namespace weft::detail {
namespace {
constexpr std::size_t most_calls = std::size_t{1} << 20;
}

queue_options options_of_requests(const request_options& options, std::source_location where) {
  if (options.outstanding == 0 || options.outstanding > most_calls) {
    raise(errc::invalid_argument,
          "request_options::outstanding is " + std::to_string(options.outstanding) + "; it may be 1 to " +
              std::to_string(most_calls),
          where);
  }
  queue_options made;
  // As many as may be on their way, and the quarter of a ring whose space has not come back yet: neither is ever full.
  made.capacity = options.outstanding + options.outstanding / 3 + 1;
  made.mode = options.mode;
  made.timeout = options.timeout;
  made.validate = options.validate;
  made.wait_policy = options.wait_policy;
  return made;
}

call_table::call_table(std::size_t places) : places_(places) {
  free_.reserve(places);
  for (std::size_t at = places; at != 0; --at) free_.push_back(static_cast<std::uint32_t>(at - 1));
}

call_id call_table::open() noexcept {
  const std::uint32_t at = free_.back();
  free_.pop_back();
  place& opened = places_[at];
  if (++opened.generation == 0) opened.generation = 1;  // 0 is no call
  opened.now = state::waiting;
  return {at, opened.generation};
}

call_table::arrival call_table::arrive(call_id id) noexcept {
  if (is(id, state::waiting)) {
    places_[id.place].now = state::answered;
    return arrival::awaited;
  }
  if (is(id, state::abandoned)) {
    release(id.place);
    return arrival::late;
  }
  if (is(id, state::doubtful)) {
    release(id.place);
    --doubtful_;
    settle();
    return arrival::late;
  }
  return arrival::stray;
}

bool call_table::abandon(call_id id) noexcept {
  if (is(id, state::answered)) {
    release(id.place);
    return true;
  }
  if (!is(id, state::waiting)) return false;
  places_[id.place].now = state::abandoned;
  return true;
}

std::size_t call_table::give_up_unanswered() noexcept {
  std::size_t waiting = 0;
  for (place& each : places_) {
    if (each.now != state::waiting && each.now != state::abandoned) continue;
    if (each.now == state::waiting) ++waiting;
    each.now = state::doubtful;  // not free: more calls than places would fill the queue of the answers
    ++doubtful_;
  }
  ++missing_;
  settle();
  return waiting;
}

void call_table::settle() noexcept {
  if (doubtful_ > missing_) return;
  for (std::uint32_t at = 0; at < places_.size(); ++at)
    if (places_[at].now == state::doubtful) release(at);
  doubtful_ = missing_ = 0;
}

}  // namespace weft::detail
