// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer_checks.hpp"

#include "core/errors/make_error.hpp"
#include "runtime/peer_probe.hpp"
#include "weft/core/log.hpp"

#include <array>

namespace weft::detail {
namespace {

/// For a few small copies and kernels of two devices. Where they take longer, other work holds the devices, and the
/// program must not stand still for a check.
constexpr std::chrono::seconds first_use_limit{2};
constexpr std::chrono::seconds asked_for_limit{30};

constexpr std::array every_way{peer_way::commands, peer_way::allocations, peer_way::pools, peer_way::blocks};
static_assert(every_way.size() == peer_way_count);

/// Where data is lost, if not wherever it goes.
const char* place_of(peer_way way) {
  switch (way) {
    case peer_way::commands:
      break;
    case peer_way::allocations:
      return " by kernels";
    case peer_way::pools:
      return " in memory of pools";
    case peer_way::blocks:
      return " in mapped blocks";
  }
  return "";
}

}  // namespace

peer_checks::peer_checks(machine_state& machine)
    : machine_(machine), devices_(static_cast<std::size_t>(machine.device_count())), seen_(devices_ * devices_) {
  const auto mode = machine.options().verify_peers.value_or(peer_verification::first_use);
  if (mode == peer_verification::never) {
    for (auto& pair : seen_) pair.store(all_ways, std::memory_order_relaxed);
  } else if (mode == peer_verification::first_use) {
    believe_record();
  }
  // Memory that a check writes to goes with the machine: closing waits for a check, and none begins after it.
  machine_.before_close([this] { const std::lock_guard lock{mutex_}; });
}

/// The findings of other processes hold here too.
void peer_checks::believe_record() {
  for (int a = 0; a < machine_.device_count(); ++a) {
    const device_id from{a};
    if (machine_.description_of(from).driver.empty()) continue;
    for (int b = 0; b < machine_.device_count(); ++b) {
      const device_id to{b};
      peer_record* const kept = a == b ? nullptr : record(from, to);
      for (const peer_way way : every_way) {
        const auto known = kept != nullptr ? kept->find(machine_.description_of(from), machine_.description_of(to), way)
                                           : std::nullopt;
        if (!known) continue;
        if (known->arrived) {
          seen_[at(from, to)].fetch_or(bit(way), std::memory_order_relaxed);
        } else if (!failures_.contains(at(from, to))) {
          demote(from, to, way, known->why);
        }
      }
    }
  }
}

peer_checks::~peer_checks() = default;

std::shared_ptr<const std::string> peer_checks::look(device_id from, device_id to, peer_way way) {
  const std::lock_guard lock{mutex_};
  auto& seen = seen_[at(from, to)];
  if ((seen.load(std::memory_order_relaxed) & failed) != 0) return failures_.at(at(from, to));
  if ((seen.load(std::memory_order_relaxed) & bit(way)) != 0) return nullptr;
  auto found = find_out(from, to, way);
  if (!found) {
    if ((seen.fetch_or(warned, std::memory_order_relaxed) & warned) == 0) {
      note(log_level::warning, "data from " + to_string(from) + " to " + to_string(to) + " (" +
                                   std::string{to_string(way)} + ") is not verified: " + to_string(found.error()));
    }
    if (found.error().code == errc::not_ready) return nullptr;  // the next use tries
  } else if (!found->arrived) {
    demote(from, to, way, found->why);
    return failures_.at(at(from, to));
  }
  seen.fetch_or(bit(way), std::memory_order_release);
  return nullptr;
}

result<peer_delivery> peer_checks::find_out(device_id from, device_id to, peer_way way) {
  auto found = machine_.backend_of(from).verify_peer(from, to, way);
  if (!found && found.error().code == errc::unsupported) found = probe(from, to, way, first_use_limit);
  if (found) keep(from, to, way, *found);
  return found;
}

/// For the next process, if all of the way was tried.
void peer_checks::keep(device_id from, device_id to, peer_way way, const peer_delivery& found) {
  if (found.arrived && !found.why.empty()) return;
  if (peer_record* const kept = record(from, to))
    kept->add(machine_.description_of(from), machine_.description_of(to), way, found);
}

void peer_checks::note(log_level level, std::string text) {
  news_.emplace_back(level, std::move(text));
  has_news_.store(true, std::memory_order_release);
}

void peer_checks::tell_news() {
  std::vector<std::pair<log_level, std::string>> news;
  {
    const std::lock_guard lock{mutex_};
    news.swap(news_);
    has_news_.store(false, std::memory_order_relaxed);
  }
  for (const auto& [level, text] : news) log(level, text);
}

result<peer_delivery> peer_checks::probe(device_id from, device_id to, peer_way way, std::chrono::nanoseconds timeout) {
  machine_.require_open();
  backend& driver = machine_.backend_of(from);
  if (driver.on_worker()) return make_error(errc::not_ready, "a thread that runs the device's work cannot wait for it");
  if (!probe_) probe_ = std::make_unique<peer_probe>(driver);
  const bool lends = way == peer_way::allocations && !driver.peer_enabled(from, to);
  if (lends) {
    if (auto lent = lend(from, to); !lent) return std::move(lent).error();
  }
  auto found = probe_->run(from, to, way, timeout);
  if (lends) end_lending(from, to);
  return found;
}

bool peer_checks::enabled(device_id from, device_id to) {
  backend& driver = machine_.backend_of(from);
  if (!driver.peer_enabled(from, to)) return false;
  const std::lock_guard lock{rights_};
  return lent_to_ != at(from, to) && driver.peer_enabled(from, to);
}

result<void> peer_checks::enable(device_id from, device_id to) {
  const std::lock_guard lock{rights_};
  if (lent_to_ != at(from, to)) return machine_.backend_of(from).enable_peer(from, to);
  lent_to_ = nobody;  // it stays, for the program
  epoch_.fetch_add(1, std::memory_order_release);
  return {};
}

result<void> peer_checks::disable(device_id from, device_id to) {
  const std::lock_guard lock{rights_};
  if (lent_to_ != at(from, to)) return machine_.backend_of(from).disable_peer(from, to);
  return make_error(errc::not_enabled, to_string(from) + " has no access to " + to_string(to));
}

/// For the check that runs, of which there is one at a time.
result<void> peer_checks::lend(device_id from, device_id to) {
  const std::lock_guard lock{rights_};
  auto lent = machine_.backend_of(from).enable_peer(from, to);
  if (lent) lent_to_ = at(from, to);
  if (!lent && lent.error().code == errc::peer_unsupported) lent.error().code = errc::unsupported;
  return lent || lent.error().code == errc::already_enabled ? result<void>{} : lent;
}

void peer_checks::end_lending(device_id from, device_id to) {
  const std::lock_guard lock{rights_};
  if (lent_to_ != at(from, to)) return;
  static_cast<void>(machine_.backend_of(from).disable_peer(from, to));  // a reset has taken it, or it works
  lent_to_ = nobody;
}

void peer_checks::demote(device_id from, device_id to, peer_way way, const std::string& why) {
  failures_[at(from, to)] = std::make_shared<const std::string>(
      "data from " + to_string(from) + " to " + to_string(to) + " does not arrive" + place_of(way) + " (" + why + ")");
  seen_[at(from, to)].fetch_or(failed, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  note(log_level::error, *failures_[at(from, to)] +
                             ": copies between them go another way from now on, and kernels of " + to_string(from) +
                             " get no memory of " + to_string(to));
}

/// Null where nothing is kept of a pair.
peer_record* peer_checks::record(device_id from, device_id to) {
  if (!peer_record::is_kept(machine_.description_of(from), machine_.description_of(to))) return nullptr;
  if (!record_) record_.emplace();
  return &*record_;
}

void peer_checks::require(device_id from, device_id to, peer_way way, const std::string& what,
                          std::source_location where) {
  if (const auto why = refusal(from, to, way)) raise(errc::peer_unsupported, what + ": " + *why, where);
}

std::string peer_checks::failure(device_id from, device_id to) {
  if (from == to || (seen_[at(from, to)].load(std::memory_order_acquire) & failed) == 0) return {};
  const std::lock_guard lock{mutex_};
  const auto found = failures_.find(at(from, to));
  return found == failures_.end() ? std::string{} : *found->second;
}

peer_checks::finding peer_checks::try_all(device_id from, device_id to) {
  const std::lock_guard lock{mutex_};
  for (const device_id end : {from, to}) {
    if (const auto cause = machine_.backend_of(end).lost(end)) return {peer_outcome::not_tried, to_string(*cause)};
  }
  finding all;
  for (const peer_way way : every_way) {
    auto found = probe(from, to, way, asked_for_limit);
    if (!found) {
      const errc code = found.error().code;
      if (code == errc::unsupported) continue;
      finding none{peer_outcome::not_tried, std::string{to_string(way)} + ": " + to_string(found.error())};
      if (code == errc::out_of_memory || code == errc::resource_exhausted || code == errc::device_lost ||
          code == errc::cancelled)
        return none;
      if (code == errc::not_ready) {
        all = std::move(none);
        continue;
      }
      none.outcome = peer_outcome::failed;
      // A timeout may come from other work. Any other error speaks against the pair.
      if (code != errc::timed_out) demote(from, to, way, to_string(found.error()));
      return none;
    }
    keep(from, to, way, *found);
    if (!found->arrived) {
      demote(from, to, way, found->why);
      return {peer_outcome::wrong_data, std::move(found->why)};
    }
    seen_[at(from, to)].fetch_or(bit(way), std::memory_order_release);
    if (!found->why.empty() && all.outcome == peer_outcome::arrived) all.why = std::move(found->why);
  }
  if (all.outcome == peer_outcome::arrived && failures_.erase(at(from, to)) != 0) {
    seen_[at(from, to)].fetch_and(static_cast<std::uint8_t>(~failed), std::memory_order_release);
    epoch_.fetch_add(1, std::memory_order_release);
  }
  return all;
}

}  // namespace weft::detail
