// SPDX-License-Identifier: Apache-2.0
#include "backends/queued/command.hpp"

#include "backends/queued/scheduler.hpp"

#include <algorithm>
#include <mutex>

namespace weft::queued {

command::~command() {
  if (const native_event event = native(); event != nullptr) driver_->release(device, event);
}

result<void> command::hand_over(native_queue, native_event*) { return {}; }

std::shared_ptr<const error> command::run_here() { return nullptr; }

event_record::span command::times() const noexcept {
  if (has_times_ || native() == nullptr) return {started, ended};
  static std::mutex asking;  // an answer is kept: the next one would be some microseconds off
  const std::lock_guard lock{asking};
  if (told_) return *told_;
  const auto ran = driver_->times(device, native());
  if (!ran) return *(told_ = span{started, ended});
  // It was noticed after it had ended; how the clocks compare is known to some microseconds only.
  const auto end = std::clamp(ran->ended - epoch_, submitted_, ended);
  const auto begin = ran->started ? *ran->started - epoch_ : end;
  told_ = span{std::clamp(begin, submitted_, end), end};
  return *told_;
}

void command::watched() noexcept { home_->owner().watch(*this); }

void command::keep(const std::shared_ptr<queue_driver>& driver, native_event made) noexcept {
  driver_ = driver;
  shown_.store(made, std::memory_order_release);  // pairs with acquire in native()
}

}  // namespace weft::queued
