// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/machine_state.hpp"
#include "weft/memory/pool.hpp"

#include <map>
#include <memory>
#include <mutex>
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

 private:
  void trim_locked(std::uint64_t kept) noexcept;
  [[nodiscard]] std::uint64_t idle() const { return numbers_.reserved.value() - numbers_.used.value(); }

  std::shared_ptr<machine_state> state_;
  device_id on_;
  pool_options options_;
  mutable std::mutex mutex_;
  std::multimap<std::uint64_t, void*> free_;        // by size
  std::unordered_map<void*, std::uint64_t> sizes_;  // of every block
  pool_statistics numbers_;
};

}  // namespace weft::detail
