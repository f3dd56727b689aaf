// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/machine_state.hpp"
#include "weft/memory/pool.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

namespace weft::detail {

/// The blocks of a memory_pool. Buffers made from it keep it alive.
class pool_body {
 public:
  pool_body(std::shared_ptr<machine_state> state, device_id on, const pool_options& options);
  ~pool_body();

  [[nodiscard]] void* take(std::size_t size);
  void give(void* block) noexcept;
  void trim(std::uint64_t kept) noexcept;
  [[nodiscard]] pool_statistics statistics() const;
  [[nodiscard]] device_id on() const { return on_; }
  [[nodiscard]] const std::shared_ptr<machine_state>& state() const { return state_; }

  void set_access(device_id by, access_right right);
  [[nodiscard]] access_right access(device_id by) const;
  /// True for memory that was handed out and has not come back, or is kept.
  [[nodiscard]] bool owns(const void* base) const;
  [[nodiscard]] bool is_shareable() const { return options_.shareable; }
  [[nodiscard]] pool_handle handle();
  [[nodiscard]] pool_memory_handle handle_of(const void* address, std::uint64_t size);

 private:
  void trim_locked(std::uint64_t kept) noexcept;
  void require_shareable() const;
  [[nodiscard]] result<void*> fresh(std::uint64_t size);
  [[nodiscard]] std::uint64_t idle() const { return numbers_.reserved.value() - numbers_.used.value(); }

  std::shared_ptr<machine_state> state_;
  device_id on_;
  pool_options options_;
  mutable std::mutex mutex_;
  struct free_block {
    void* block = nullptr;
    std::uint64_t freed = 0;  // a number that grows
  };
  using free_blocks = std::multimap<std::uint64_t, free_block>;
  free_blocks::iterator forget(free_blocks::iterator one) noexcept;
  void give_back(free_blocks::iterator one) noexcept;

  free_blocks free_;                                       // by size
  std::map<std::uint64_t, free_blocks::iterator> by_age_;  // the same
  std::uint64_t freed_ = 0;
  std::unordered_map<void*, std::uint64_t> sizes_;  // of every block
  pool_statistics numbers_;
  std::map<device_id, access_right> rights_;  // shareable: of devices other than its own
  std::set<void*> exported_;                  // blocks that others may have open: never handed out again
  std::uint64_t key_ = 0;                     // under which the pool is offered; 0 before
};

/// The shareable pool that an allocation came from; null when there is none.
[[nodiscard]] std::shared_ptr<pool_body> pool_of(machine_state& state, const void* base);

/// Errors: invalid_device, peer_unsupported.
void check_pool_right(machine_state& state, device_id on, const device& by, access_right right);

}  // namespace weft::detail
