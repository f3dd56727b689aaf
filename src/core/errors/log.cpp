// SPDX-License-Identifier: Apache-2.0
#include "weft/core/log.hpp"

#include "core/environment.hpp"
#include "core/errors/decision_log.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <unistd.h>
#include <unordered_set>
#include <utility>

namespace weft {
namespace {

constexpr std::array<std::string_view, 4> level_names{"debug", "info", "warning", "error"};
constexpr int silent = static_cast<int>(level_names.size());

/// Nothing here allocates: whether somebody listens is asked where memory has run out, too.
int level_in_environment() noexcept {
  const char* wanted = ::secure_getenv("WEFT_LOG");
  if (wanted == nullptr || *wanted == '\0') return silent;
  const auto found = std::find(level_names.begin(), level_names.end(), std::string_view{wanted});
  // a machine refuses another word; until then it means the usual
  return static_cast<int>(found == level_names.end() ? log_level::warning
                                                     : static_cast<log_level>(found - level_names.begin()));
}

/// "rank 3" as the launchers of several processes say it; the process where nobody does.
std::string own_name() {
  for (const char* variable : {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const auto rank = detail::environment(variable)) return "rank " + *rank;
  }
  return "process " + std::to_string(::getpid());
}

struct log_state {
  const int stderr_level = level_in_environment();
  std::atomic<int> hook_level{silent};
  std::recursive_mutex calling;  // held while the hook runs, which may replace itself and log
  std::shared_ptr<const log_hook> hook;
  bool is_calling = false;
  std::mutex mutex;
  std::unordered_set<std::string> decisions;  // that were told
};

// Never destroyed: a destructor of the user's may still log while the process ends.
log_state& state() noexcept {
  alignas(log_state) static std::array<std::byte, sizeof(log_state)> place;
  static log_state& only = *new (place.data()) log_state;
  return only;
}

/// One write, so that lines of several processes do not mix.
void write_line(log_level level, std::string_view text) {
  std::timespec now{};
  std::timespec_get(&now, TIME_UTC);
  std::tm parts{};
  ::gmtime_r(&now.tv_sec, &parts);
  std::array<char, 32> time{};
  std::snprintf(time.data(), time.size(), "%02d:%02d:%02d.%03ld", parts.tm_hour, parts.tm_min, parts.tm_sec,
                now.tv_nsec / 1'000'000);
  std::string line = "weft ";
  line.append(time.data()).append(" [").append(own_name()).append("] ").append(to_string(level)).append(": ");
  for (const char letter : text) line += static_cast<unsigned char>(letter) < 0x20 ? ' ' : letter;
  line += '\n';
  static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
}

}  // namespace

std::string_view to_string(log_level level) { return level_names[static_cast<std::size_t>(level)]; }

log_hook set_log_hook(log_hook hook, log_level least) {
  auto hooked = hook ? std::make_shared<const log_hook>(std::move(hook)) : nullptr;
  const std::lock_guard lock{state().calling};
  state().hook_level = hooked ? static_cast<int>(least) : silent;
  state().hook.swap(hooked);
  return hooked ? *hooked : log_hook{};
}

bool is_logged(log_level level) noexcept {
  const int asked = static_cast<int>(level);
  return asked >= state().stderr_level || asked >= state().hook_level.load(std::memory_order_relaxed);
}

void log(log_level level, std::string_view text) noexcept {
  try {
    log_state& all = state();
    const int told = static_cast<int>(level);
    if (told >= all.stderr_level) write_line(level, text);
    if (told < all.hook_level) return;
    const std::lock_guard lock{all.calling};
    if (all.is_calling || told < all.hook_level) return;  // it is the hook that logs; or another one came meanwhile
    all.is_calling = true;
    try {
      const auto hook = all.hook;  // it may replace itself
      (*hook)(level, text);
    } catch (...) {  // NOLINT(bugprone-empty-catch): there is nowhere left to report to
    }
    all.is_calling = false;
  } catch (...) {  // NOLINT(bugprone-empty-catch): as above
  }
}

namespace detail {

void log_decision(const std::string& text) noexcept {
  try {
    bool is_new = false;
    {
      constexpr std::size_t most = 65'536;
      const std::lock_guard lock{state().mutex};
      auto& told = state().decisions;
      if (told.size() >= most) told.clear();
      is_new = told.insert(text).second;
    }
    log(is_new ? log_level::info : log_level::debug, text);
  } catch (...) {  // NOLINT(bugprone-empty-catch): as above
  }
}

}  // namespace detail
}  // namespace weft
