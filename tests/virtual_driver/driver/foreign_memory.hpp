// SPDX-License-Identifier: Apache-2.0
// What one process says of its memory or of an event, so that another finds it: the bytes of an IPC handle.
#pragma once

#include <cstdint>
#include <string>
#include <sys/types.h>

namespace weft::virtual_cuda {

/// 64 bytes, as the driver's handles have.
struct foreign_record {
  enum class kind : std::uint32_t { memory = 1, event, pool_pointer };
  std::uint64_t magic;
  kind what;
  std::int32_t process;
  std::uint64_t started;  // the process's, so that a number that is used again is not mistaken
  std::uint64_t id;       // of the allocation
  std::uint64_t offset, size;
  std::int32_t file;
  std::int32_t physical_device;
  std::uint64_t check;
};
static_assert(sizeof(foreign_record) == 64);

/// Whether a process still runs.
[[nodiscard]] bool is_alive(int process);

/// A record of this process with everything else left to the caller.
[[nodiscard]] foreign_record record_here(foreign_record::kind what);
void seal(foreign_record& record);
/// Whether it is one of ours and whole.
[[nodiscard]] bool is_whole(const foreign_record& record, foreign_record::kind what);
[[nodiscard]] bool is_own(const foreign_record& record);
/// Names an object of the record's process, for as long as that lives.
[[nodiscard]] std::string origin_of(const foreign_record& record, std::uint64_t id);
/// The other process's file, or −1 when it is gone.
[[nodiscard]] int open_file_of(const foreign_record& record);

}  // namespace weft::virtual_cuda
