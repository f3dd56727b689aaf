// SPDX-License-Identifier: Apache-2.0
#include "exec/split_launch/launch_state.hpp"

#include "exec/balance/launch_history.hpp"
#include "exec/split_launch/launch_job.hpp"
#include "weft/exec/launch_run.hpp"

#include <algorithm>

namespace weft {
namespace detail {

launch_state::launch_state(machine_state& machine) {
  machine.before_synchronize([this](wait_deadline deadline) { return finish(deadline); });
  // lanes and pools hold the machine: they go before it does
  machine.before_close([this] {
    lanes.clear();
    std::map<device_id, memory_pool> pools;
    {
      const std::lock_guard pools_lock{pools_mutex_};
      pools.swap(pools_);
    }
    std::deque<std::shared_ptr<launch_job>> running;
    std::vector<std::shared_ptr<launch_job>> untold;
    const std::lock_guard lock{mutex_};
    running.swap(running_);
    untold.swap(untold_);
  });
}

void launch_state::began(const std::shared_ptr<launch_job>& job) {
  // A few of the oldest: each launch leaves less behind than it clears away, at a cost that does not grow.
  constexpr std::size_t some = 4;
  std::vector<std::shared_ptr<launch_job>> over;
  {
    const std::lock_guard lock{mutex_};
    for (const auto& j : running_) {
      if (over.size() == some) break;
      if (j->has_submitted()) over.push_back(j);
    }
    running_.push_back(job);
  }
  for (const auto& j : over) {
    j->advance();
    if (!j->settled()) break;
  }
}

void launch_state::ended(const launch_job* job, bool failed) {
  std::shared_ptr<launch_job> gone;  // its end may be the end of memory: not under the lock
  const std::lock_guard lock{mutex_};
  const auto it = std::find_if(running_.begin(), running_.end(), [&](const auto& j) { return j.get() == job; });
  if (it == running_.end()) return;
  gone = std::move(*it);
  running_.erase(it);
  if (failed) untold_.push_back(gone);
}

void launch_state::told(const launch_job* job) {
  std::vector<std::shared_ptr<launch_job>> gone;
  const std::lock_guard lock{mutex_};
  const auto it = std::find_if(untold_.begin(), untold_.end(), [&](const auto& j) { return j.get() == job; });
  if (it == untold_.end()) return;
  gone.push_back(std::move(*it));
  untold_.erase(it);
}

memory_pool& launch_state::passing(const device& on) {
  const std::lock_guard lock{pools_mutex_};
  const auto found = pools_.find(on.id());
  if (found != pools_.end()) return found->second;
  pool_options options;
  options.keep = bytes{on.total_memory().value() / 4};
  return pools_.emplace(on.id(), memory_pool{on, options}).first->second;
}

void launch_state::trim(device_id device) {
  const std::lock_guard lock{pools_mutex_};
  const auto found = pools_.find(device);
  if (found != pools_.end()) found->second.trim_to(bytes{0});
}

result<wait_outcome> launch_state::finish(wait_deadline deadline) {
  std::deque<std::shared_ptr<launch_job>> running;
  {
    const std::lock_guard lock{mutex_};
    running = running_;
  }
  for (const auto& job : running) {
    if (job->wait_until(deadline) == wait_outcome::timed_out) return wait_outcome::timed_out;
  }
  std::vector<std::shared_ptr<launch_job>> untold;
  {
    const std::lock_guard lock{mutex_};
    untold = untold_;
  }
  // one is told now; a launch that failed with it, as for want of what it should have written, has nothing to add
  std::shared_ptr<const error> first;
  for (const auto& job : untold) {
    const auto cause = job->failure();
    if (cause && first && !is_same_failure(*cause, *first)) continue;
    told(job.get());
    if (!first) first = cause;
  }
  if (first) return error{*first};
  return wait_outcome::ok;
}

}  // namespace detail

launch_history& history_of(const machine& m) { return detail::launches_of(*detail::state_of(m)).history; }

}  // namespace weft
