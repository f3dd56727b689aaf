// SPDX-License-Identifier: Apache-2.0
// What an allocation has besides, when another process uses it or made it.
#pragma once

#include "backends/common/sharing_checks.hpp"
#include "processes/share_server.hpp"
#include "weft/backend/backend.hpp"

#include <cstdint>
#include <memory>
#include <optional>

namespace weft::host {

using common::share_state;
using common::share_word;

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

  /// Why it must not be used any more, if it must not.
  [[nodiscard]] std::optional<error> broken(const void* address) const {
    return common::broken_share(*state, *exporter, address);
  }
};

}  // namespace weft::host
