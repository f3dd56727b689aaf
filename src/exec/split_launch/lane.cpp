// SPDX-License-Identifier: Apache-2.0
#include "exec/split_launch/lane.hpp"

#include "runtime/machine_state.hpp"

#include <algorithm>

namespace weft::detail {
namespace {

stream_identity untold_stream(const device& on) {
  state_of(on)->require_open();
  const stream_handle made = value_or_raise(state_of(on)->backend_of(on.id()).create_stream(on.id(), 0, false));
  return {state_of(on), made, on.id(), true};
}

}  // namespace

own_stream::own_stream(const device& on) : owned_(untold_stream(on)), face_(stream::adopt(on, owned_.get().handle)) {}

std::shared_ptr<lane> lane_pool::take(const device& on) {
  const std::lock_guard lock{mutex_};
  std::vector<std::shared_ptr<lane>>& mine = lanes_[on.id()];
  for (const auto& one : mine) {
    if (one.use_count() == 1 && one->idle()) return one;
  }
  if (mine.size() >= per_device) return mine[next_++ % mine.size()];
  mine.push_back(std::make_shared<lane>(on));
  return mine.back();
}

void lane_pool::drop(const std::shared_ptr<lane>& spoiled) noexcept {
  const device& on = spoiled->on();
  if (state_of(on)->backend_of(on.id()).lost(on.id())) return;
  spoiled->spoil();
  const std::lock_guard lock{mutex_};
  std::erase(lanes_[on.id()], spoiled);
}

void lane_pool::clear() noexcept {
  decltype(lanes_) gone;
  const std::lock_guard lock{mutex_};
  gone.swap(lanes_);
}

}  // namespace weft::detail
