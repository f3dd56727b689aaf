// SPDX-License-Identifier: Apache-2.0
// What physical_block, reservation and mapping share: handles of a driver that go back when the last user has gone.
#pragma once

#include "runtime/machine_state.hpp"
#include "weft/core/unique_handle.hpp"

#include <cstdint>
#include <memory>
#include <mutex>

namespace weft::detail {

struct held_block {
  std::shared_ptr<machine_state> state;
  backend* driver = nullptr;
  block_id id = block_id::none;
  bool operator==(const held_block& other) const { return id == other.id; }
};
struct held_block_traits {
  using type = held_block;
  static type none() { return {}; }
  static void release(type& held) noexcept;
};

/// One reference to a block.
struct block_body {
  unique_handle<held_block_traits> handle;
  block_description about;
  std::mutex mutex;
  std::uint64_t key = 0;  // under which other processes get it; 0 before

  block_body() = default;
  block_body(const block_body&) = delete;
  block_body& operator=(const block_body&) = delete;
  ~block_body();
};

struct held_range {
  std::shared_ptr<machine_state> state;
  backend* driver = nullptr;
  void* base = nullptr;
  bytes size;
  bool operator==(const held_range& other) const { return base == other.base; }
};
struct held_range_traits {
  using type = held_range;
  static type none() { return {}; }
  static void release(type& held) noexcept;
};

struct reservation_body {
  unique_handle<held_range_traits> handle;
};

/// The backend that has blocks.
[[nodiscard]] inline backend& block_driver(machine_state& state) { return *state.backends().front(); }

/// The least number of granules that hold so much. Errors: invalid_argument when that is more than 64 bits hold.
[[nodiscard]] bytes in_granules(machine_state& state, bytes size);

/// Errors: peer_unsupported where what the device writes into mapped blocks of `owner` does not arrive.
void require_block_arrival(machine_state& state, const device_right& wanted, device_id owner);

}  // namespace weft::detail
