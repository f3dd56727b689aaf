// SPDX-License-Identifier: Apache-2.0
// Waits of streams for words of memory, as long as the driver has them. It takes none back: where the value will not
// come any more, one that compares is written into the word, again and again until the stream has seen it.
#pragma once

#include "backends/gpu/devices/contexts.hpp"
#include "backends/gpu/memory/memory_map.hpp"
#include "weft/backend/backend.hpp"

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace weft::gpu {

/// Thread: any. Devices are counted from 0 here.
class word_waits {
 public:
  struct wait {
    std::size_t device = 0;
    CUdeviceptr at = 0;
    std::byte* host = nullptr;  // where the host reaches the word; null: nowhere
    word_request request;
    CUevent behind = nullptr;  // ends with the wait; this object's from add() on
  };

  word_waits(std::shared_ptr<contexts> places, std::size_t devices);
  ~word_waits();
  word_waits(const word_waits&) = delete;
  word_waits& operator=(const word_waits&) = delete;

  /// Before the driver has it. The memory stays until remove(). Errors: resource_exhausted without a thread.
  [[nodiscard]] result<std::uint64_t> add(const wait& made);
  /// It has ended. True if the value was not waited for to the end: then the memory stays while a write is under way.
  bool remove(std::uint64_t id, pin memory) noexcept;
  /// It counts as failed, but may be in its stream yet: a driver may have lost the device, or only have said so.
  void abandon(std::uint64_t id, pin memory) noexcept;

  /// This one is to end; its event tells when it has, if it was recorded.
  void give_up_one(std::uint64_t id, bool tells) noexcept;
  /// All of a device are, those too that come until wait_again().
  void give_up(std::size_t device) noexcept;
  void wait_again(std::size_t device) noexcept;
  /// Waits until what was given up on a device has ended, and what was written for it: ten seconds at most. False when
  /// it has not.
  [[nodiscard]] bool settle(std::size_t device) noexcept;
  /// The context of a device's GPU is about to go, and what is in it. Waits for a write that is being made.
  void forget(std::size_t device) noexcept;
  /// No more will come. Waits for those that were abandoned.
  void end() noexcept;

 private:
  struct entry {
    wait about;
    bool given_up = false;
    bool has_ended = false;
    bool is_written = false;        // now, without the mutex
    int rounds_left = -1;           // where no event tells the end: until it is taken for ended
    int refusals = 0;               // in a row, to let us into the context because the device is lost
    std::vector<CUstream> writers;  // whose writes may be under way
    pin memory;                     // of one that is abandoned, or has ended before its writers
  };
  using table = std::map<std::uint64_t, entry>;

  // under the mutex
  [[nodiscard]] bool is_due() const noexcept;
  void take_round(std::unique_lock<std::mutex>& lock);
  void look_at(entry& one) noexcept;
  [[nodiscard]] std::vector<std::uint64_t> chosen();

  [[nodiscard]] CUstream write(const wait& given, bool by_copy) noexcept;
  void destroy(entry& one) noexcept;
  void serve(const std::stop_token& shutdown);

  std::shared_ptr<contexts> places_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  table waits_;
  std::uint64_t last_ = 0;
  std::uint64_t round_ = 0;
  std::vector<bool> given_up_;  // by device
  std::jthread thread_;         // started with the first wait
};

}  // namespace weft::gpu
