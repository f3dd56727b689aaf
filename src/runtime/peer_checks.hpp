// SPDX-License-Identifier: Apache-2.0
// Whether data arrives over the pairs of a machine. A way of an ordered pair is tried when it is used for the first
// time. A pair that has lost data is not used any more: copies take another route, and kernels get no memory over it.
#pragma once

#include "runtime/machine_state.hpp"
#include "runtime/peer_record.hpp"
#include "weft/core/log.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft::detail {

class peer_probe;

/// Thread: any.
class peer_checks {
 public:
  explicit peer_checks(machine_state& machine);
  ~peer_checks();

  /// Why data of `from` must not go into memory of `to`; null where it may. The first time this tries the way.
  /// Cost: one load once it was tried.
  [[nodiscard]] std::shared_ptr<const std::string> refusal(device_id from, device_id to, peer_way way) {
    // acquire: pairs with the release of who tried
    const std::uint8_t seen = seen_[at(from, to)].load(std::memory_order_acquire);
    if ((seen & (bit(way) | failed)) == bit(way) || from == to) return nullptr;
    auto why = look(from, to, way);
    report();
    return why;
  }
  /// Gives the log hook what was found since the last time. Under no lock, since the hook may ask the library.
  void report() {
    if (has_news_.load(std::memory_order_acquire)) tell_news();
  }
  /// Errors: peer_unsupported, with `what` must not be done and why.
  void require(device_id from, device_id to, peer_way way, const std::string& what, std::source_location where = {});

  /// The failure found so far; empty where nothing speaks against the pair.
  [[nodiscard]] std::string failure(device_id from, device_id to);
  /// Changes whenever failure() of some pair may have changed, or enabled() without a call of the driver.
  [[nodiscard]] std::uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }

  /// Access as the program has it: what a check lends itself while it tries a pair is not seen. Errors: the backend's.
  [[nodiscard]] bool enabled(device_id from, device_id to);
  [[nodiscard]] result<void> enable(device_id from, device_id to);
  [[nodiscard]] result<void> disable(device_id from, device_id to);

  struct finding {
    peer_outcome outcome = peer_outcome::arrived;
    std::string why;
  };
  /// Tries all ways of a pair that the driver offers by real commands, whatever was found before. An earlier finding
  /// stands where something other than the pair was in the way.
  [[nodiscard]] finding try_all(device_id from, device_id to);

 private:
  static constexpr std::uint8_t failed = 0x80, warned = 0x40, all_ways = (1U << peer_way_count) - 1;
  static constexpr std::uint8_t bit(peer_way way) {
    return static_cast<std::uint8_t>(1U << static_cast<unsigned>(way));
  }
  [[nodiscard]] std::size_t at(device_id from, device_id to) const { return from.index() * devices_ + to.index(); }

  void believe_record();
  [[nodiscard]] std::shared_ptr<const std::string> look(device_id from, device_id to, peer_way way);
  [[nodiscard]] result<peer_delivery> find_out(device_id from, device_id to, peer_way way);
  [[nodiscard]] result<peer_delivery> probe(device_id from, device_id to, peer_way way,
                                            std::chrono::nanoseconds timeout);
  [[nodiscard]] result<void> lend(device_id from, device_id to);
  void end_lending(device_id from, device_id to);
  void demote(device_id from, device_id to, peer_way way, const std::string& why);
  void keep(device_id from, device_id to, peer_way way, const peer_delivery& found);
  [[nodiscard]] peer_record* record(device_id from, device_id to);
  void note(log_level level, std::string text);
  void tell_news();

  machine_state& machine_;
  std::size_t devices_;
  std::vector<std::atomic<std::uint8_t>> seen_;
  std::atomic<std::uint64_t> epoch_{0};
  std::mutex mutex_;
  std::map<std::size_t, std::shared_ptr<const std::string>> failures_;
  static constexpr std::size_t nobody = SIZE_MAX;
  std::mutex rights_;             // held for a call of the driver, never while a check works
  std::size_t lent_to_ = nobody;  // the pair that has access for a check alone; under rights_
  std::optional<peer_record> record_;
  std::vector<std::pair<log_level, std::string>> news_;  // for the log hook
  std::atomic<bool> has_news_{false};
  std::unique_ptr<peer_probe> probe_;
};

[[nodiscard]] inline peer_checks& peers_of(machine_state& machine) { return machine.part_of<peer_checks>(part::peers); }

}  // namespace weft::detail
