// SPDX-License-Identifier: Apache-2.0
// What an allocation has besides, when another process uses it or made it, and who may use it when that is not decided
// by peer access.
#pragma once

#include "backend/share_server.hpp"
#include "weft/backend/backend.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace weft::host {

/// What an exporter says of its memory, in the page after it.
enum class share_state : std::uint64_t { live = 0, freed = 1, closed = 2 };
using share_word = std::atomic<std::uint64_t>;
static_assert(share_word::is_always_lock_free);

/// Memory that other processes may open.
struct export_record {
  detail::share_server& server;
  std::uint64_t key;
  share_word* state;  // in the pages of the allocation

  /// Nobody opens it any more, and who has it open learns why.
  void end(share_state why) noexcept {
    server.withdraw(key);
    state->store(static_cast<std::uint64_t>(why), std::memory_order_release);  // pairs with acquire in broken
  }
};

/// Memory of another process.
struct import_record {
  std::uint64_t key = 0;
  std::uint64_t opens = 1;  // guarded by the table of what is open
  const share_word* state = nullptr;
  std::shared_ptr<detail::process_watch> exporter;

  /// Why it must not be used any more: freed, or its exporter is gone. The pages are there until it is closed.
  [[nodiscard]] std::optional<error> broken(const void* address) const;
};

/// Which devices may use an allocation, where peer access does not decide.
class access_list {
 public:
  explicit access_list(std::size_t devices) : rights_(devices) {}

  [[nodiscard]] access_right of(std::size_t device) const {
    return rights_[device].load(std::memory_order_seq_cst);  // with revoke: as for mappings
  }
  void set(std::size_t device, access_right right) { rights_[device].store(right, std::memory_order_seq_cst); }
  /// Why not, if not.
  [[nodiscard]] std::optional<std::string> denied(device_id by, std::size_t device, bool writes) const;

 private:
  std::vector<std::atomic<access_right>> rights_;
};

}  // namespace weft::host
