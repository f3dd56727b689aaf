// SPDX-License-Identifier: Apache-2.0
// Memory of one virtual device: sub-allocated from memfd segments, so that any part of it can be mapped a second time.
// In strict mode the address that users see is inaccessible and the device works through the second one, the alias:
// a host that follows a device pointer faults as it does on hardware.
#pragma once

#include "weft/core/descriptor.hpp"
#include "weft/core/result.hpp"
#include "weft/core/unique_handle.hpp"

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>

namespace weft::host {

struct window {
  std::byte* base = nullptr;
  std::size_t size = 0;
  bool operator==(const window& other) const { return base == other.base; }
};
struct window_traits {
  using type = window;
  static type none() { return {}; }
  static void release(type& w) noexcept;
};
/// A range of address space; unmapped when it ends.
using window_handle = unique_handle<window_traits>;

/// The error of a system call for memory that failed with `number`: out_of_memory for want of memory or address space,
/// else resource_exhausted.
[[nodiscard]] error system_error(const std::string& doing, int number);

/// Address space without memory behind it: touching it faults.
[[nodiscard]] result<window_handle> reserve(std::size_t size) noexcept;
/// A part of a file in memory, readable and writable. `shared` false keeps what is written private: it never arrives.
[[nodiscard]] result<window_handle> map_file(int file, std::size_t offset, std::size_t size, bool shared) noexcept;

struct segment {
  descriptor file;
  window_handle user;   // what users see
  window_handle alias;  // what devices use; empty when it is the same
  std::size_t size = 0;
  bool is_divided = false;                  // among small blocks; else it is of one block, and goes with it
  std::map<std::size_t, std::size_t> free;  // of a divided one: offset → size, coalesced

  [[nodiscard]] std::byte* device_side() const { return (alias ? alias : user).get().base; }
};

/// A piece of a segment.
struct block {
  segment* home = nullptr;
  std::size_t offset = 0;
  std::size_t size = 0;

  [[nodiscard]] std::byte* user() const { return home->user.get().base + offset; }
  [[nodiscard]] std::byte* device_side() const { return home->device_side() + offset; }
};

/// Thread: any. Cost: logarithmic in the free pieces; a large block takes a mapping.
class arena {
 public:
  explicit arena(bool strict) : strict_(strict) {}

  /// Aligned to 256 bytes, as device allocators do; large blocks, from 4 MiB on, to the page, with a page behind them
  /// that nobody can touch.
  [[nodiscard]] result<block> take(std::size_t size) noexcept;
  /// Pages that nothing else lies in, in a sealed file of their own, and one page more after them: what another process
  /// may map.
  [[nodiscard]] result<block> take_own(std::size_t size) noexcept;
  void give(const block& b) noexcept;

 private:
  /// A free piece of a divided segment, by its size first.
  struct piece {
    std::size_t size = 0;
    segment* home = nullptr;
    std::size_t offset = 0;
    friend bool operator<(const piece& a, const piece& b) {
      return std::tie(a.size, a.home, a.offset) < std::tie(b.size, b.home, b.offset);
    }
  };

  result<segment*> add_segment(std::size_t size, const char* name);
  static void guard_end(const block& b) noexcept;
  [[nodiscard]] result<block> take_small(std::size_t need);
  void add_free(segment& s, std::size_t offset, std::size_t size);
  void remove_free(std::map<std::size_t, std::size_t>::iterator at, segment& s) noexcept;

  bool strict_;
  std::mutex mutex_;
  std::unordered_map<segment*, std::unique_ptr<segment>> segments_;
  std::set<piece> free_;  // of all divided segments
  std::size_t divided_ = 0;
};

}  // namespace weft::host
