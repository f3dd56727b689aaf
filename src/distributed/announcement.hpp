// SPDX-License-Identifier: Apache-2.0
// The announcement that each rank sends when it joins a world.
#pragma once

#include "weft/core/result.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft::detail {

struct announcement {
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t local_rank = -1;  // as the launcher says; −1: it says nothing
  std::int32_t pid = 0;
  std::uint32_t wanted = 0;  // engine, as a number of world_engine
  std::uint32_t mpi_takes_any_thread = 0;
  std::uint64_t session = 0;  // rank 0's names the world
  std::uint64_t silence = 0;  // ns after which a rank that is waited for is lost; 0: it looks for none
  std::string version;
  std::string host;
  std::string place;  // equal for processes that can share memory
  std::string interface;
  std::string address;
  std::string engine;         // its name with its version; empty: none
  std::string engine_reason;  // why there is none
  std::vector<std::byte> engine_address;
};

[[nodiscard]] std::vector<std::byte> written(const announcement& a);
/// Errors: corrupt.
[[nodiscard]] result<announcement> read_announcement(std::span<const std::byte> bytes);

/// Of this process: version, host, place, pid, and a session by chance.
[[nodiscard]] announcement announcement_of_this_process();

}  // namespace weft::detail
