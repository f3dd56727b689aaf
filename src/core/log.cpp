// SPDX-License-Identifier: Apache-2.0
#include "weft/core/log.hpp"

#include <mutex>
#include <utility>

namespace weft {
namespace {

struct hook_slot {
  std::mutex mutex;
  log_hook hook;
};

// Never destroyed: a destructor of the user's may still log while the process ends.
hook_slot& slot() {
  static hook_slot& only = *new hook_slot;
  return only;
}

}  // namespace

log_hook set_log_hook(log_hook hook) {
  const std::lock_guard lock{slot().mutex};
  return std::exchange(slot().hook, std::move(hook));
}

void log(log_level level, std::string_view text) noexcept {
  try {
    const std::lock_guard lock{slot().mutex};
    if (slot().hook) slot().hook(level, text);
  } catch (...) {  // NOLINT(bugprone-empty-catch): there is nowhere left to report to
  }
}

}  // namespace weft
