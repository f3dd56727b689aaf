// SPDX-License-Identifier: Apache-2.0
// An event that several processes see: a page of shared memory with two counters.
#pragma once

#include <atomic>
#include <cstdint>

namespace weft::virtual_cuda {

struct shared_event {
  std::atomic<std::uint64_t> recorded;
  std::atomic<std::uint64_t> ended;
  std::atomic<int> recorder;  // the process that recorded it last
  int file;                   // in the process that made it
};

/// Waits until as many records have ended; false when the process that has to end them is gone.
[[nodiscard]] bool wait_for(const shared_event& event, std::uint64_t count, const std::atomic<bool>& given_up);

}  // namespace weft::virtual_cuda
