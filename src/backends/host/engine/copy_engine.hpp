// SPDX-License-Identifier: Apache-2.0
// Moves bytes as fast as this machine can. Large copies bypass the cache (a plain store first reads the line it is
// about to overwrite: a third of the traffic) and are cut in two for a second thread: one core alone does not fill
// the memory's bandwidth. bench/memory/copy_bench shows both against memcpy.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>

namespace weft::host {

class copy_engine {
 public:
  copy_engine();
  ~copy_engine();
  copy_engine(const copy_engine&) = delete;
  copy_engine& operator=(const copy_engine&) = delete;

  /// Copies n bytes between ranges that do not overlap, into memory of `whole` bytes: a slot that is filled again and
  /// again belongs in the cache, a piece of a large buffer does not. Thread: any.
  void copy(void* dst, const void* src, std::size_t n, std::size_t whole) noexcept;
  void copy(void* dst, const void* src, std::size_t n) noexcept { copy(dst, src, n, n); }

 private:
  void help() noexcept;

  struct job {
    void* dst;
    const void* src;
    std::size_t size;
    void (*how)(std::byte*, const std::byte*, std::size_t) noexcept;
  };
  // One helper, one job at a time: whoever finds it busy copies alone.
  std::atomic<bool> taken_{false};
  std::atomic<std::uint32_t> word_{0};  // 0: idle; 1: a job waits or runs; bit 31: end
  job job_{nullptr, nullptr, 0, nullptr};
  std::once_flag started_;
  std::thread helper_;
};

}  // namespace weft::host
