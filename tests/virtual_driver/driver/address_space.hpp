// SPDX-License-Identifier: Apache-2.0
// The addresses of device memory: one window that the program sees and may not touch, and behind it one window for
// the engine and one for each device, all of one size. An address of a device is that of the program plus a constant,
// and each device's window shows only what that device may use: a page table of its own. A kernel that follows a
// pointer to anything else faults, whatever the pointer was computed from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace weft::virtual_cuda {

class address_space {
 public:
  /// Windows of `size` bytes for `devices` devices. Aborts when the process has no room: nothing works then.
  address_space(std::size_t size, int devices);
  address_space(const address_space&) = delete;
  address_space& operator=(const address_space&) = delete;

  static constexpr int program = 0;  // the window of addresses that are handed out
  static constexpr int engine = 1;   // everything that exists, always
  [[nodiscard]] static constexpr int device(int ordinal) { return 2 + ordinal; }

  [[nodiscard]] bool holds(std::uint64_t address) const { return address - base_ < size_; }
  /// The same place in another window.
  [[nodiscard]] std::byte* at(int window, std::uint64_t address) const {
    return reinterpret_cast<std::byte*>(address + static_cast<std::uint64_t>(window) * size_);
  }

  /// Addresses that nobody else has; a page more than asked stays free behind them. Empty when there are no more.
  [[nodiscard]] std::optional<std::uint64_t> take(std::size_t size, std::size_t alignment, std::uint64_t hint = 0);
  void give(std::uint64_t address, std::size_t size);

  /// Shows a part of a file in one window. What is written there is seen in no other window where it `is_lost`. False
  /// when the system refuses.
  bool show(int window, std::uint64_t address, std::size_t size, int file, std::uint64_t offset, bool writable,
            bool is_lost = false) const;
  void hide(int window, std::uint64_t address, std::size_t size) const;

  /// The file in which memory lies that has the same place in it as in the window.
  [[nodiscard]] int heap() const { return heap_; }
  [[nodiscard]] std::uint64_t offset_of(std::uint64_t address) const { return address - base_; }
  /// Gives pages of the heap back to the system.
  void drop(std::uint64_t address, std::size_t size) const;

 private:
  std::uint64_t base_ = 0;
  std::size_t size_;
  int heap_ = -1;
  std::map<std::uint64_t, std::size_t> free_;  // address → bytes
};

inline constexpr std::size_t page = 4096;
[[nodiscard]] constexpr std::size_t up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

}  // namespace weft::virtual_cuda
