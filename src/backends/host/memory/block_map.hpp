// SPDX-License-Identifier: Apache-2.0
// Blocks, reservations and mappings of the virtual devices: memory without an address, address space without memory,
// and what joins them. A block is one memory file, sealed, so that it can be given to another process and no holder can
// take pages away from another. Mappings stand in memory_map beside all other memory.
//
// In strict mode a reservation is three ranges of address space: the one that users see, which stays inaccessible, and
// two for devices, where a block is mapped writable for those that may write and read-only for those that may read. The
// page tables so hold what each device may do, in one process. With one address (memory_options::strict off) its
// protection is that of the device that may do most.
#pragma once

#include "backends/common/block_table.hpp"
#include "backends/host/memory/memory_map.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::host {

/// What a block's file says of itself, in the page behind the memory. Fixed width and order: other builds read it.
struct block_header {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t reserved = 0;
  std::uint64_t size = 0;
  std::int64_t creator = 0;       // process
  std::array<char, 40> device{};  // uuid of the device that it was made on
  std::uint64_t check = 0;        // of everything before

  static constexpr std::uint64_t the_magic = 0x314b434c42544657;  // "WFTBLCK1"
  static constexpr std::uint32_t the_version = 1;
  static constexpr std::size_t room = 4096;  // at the end of the file

  [[nodiscard]] std::uint64_t computed_check() const noexcept;
};
static_assert(sizeof(block_header) == 80);

/// What a header says, if it can be believed for a file of this size: pure, and never reads past `size` bytes.
/// Errors: corrupt (not a block's, damaged, impossible size); incompatible naming both versions.
[[nodiscard]] result<block_header> read_block_header(const std::byte* data, std::size_t size, std::uint64_t file_size);

struct block_memory : common::known_block {
  memory_map* home = nullptr;
  descriptor file;
  std::uintptr_t place = 0;                       // where its bytes are said to be, for whoever compares: no address
  std::pair<std::uint64_t, std::uint64_t> inode;  // the same for all who share it

  block_memory() = default;
  block_memory(const block_memory&) = delete;
  block_memory& operator=(const block_memory&) = delete;
  ~block_memory() {
    if (charged) home->uncharge(device, size);
  }
};

struct reserved_range : common::known_reservation {
  window_handle user_window, writable_window, readable_window;  // as the system gave them
  std::byte* writable = nullptr;                                // aligned parts of them, as `base` is
  std::byte* readable = nullptr;
};

/// A block at an address: the pages that its devices use. What an allocation of this kind has besides.
struct block_mapping {
  std::shared_ptr<block_memory> memory;
  std::shared_ptr<reserved_range> range;  // none until the mapping has its place
  std::size_t offset = 0;                 // in the range
  std::size_t size = 0;
  std::shared_ptr<common::access_list> rights;
  std::size_t devices = 0;
  std::mutex mutex;
  access_right shown = access_right::none;  // one address: what its pages allow
  bool writable_shown = false, readable_shown = false;

  block_mapping() = default;
  block_mapping(const block_mapping&) = delete;
  block_mapping& operator=(const block_mapping&) = delete;
  ~block_mapping();

  [[nodiscard]] bool one_address() const { return range->writable == range->base; }
  [[nodiscard]] std::byte* writable() const { return range->writable + offset; }
  [[nodiscard]] std::byte* readable() const { return range->readable + offset; }
  /// Makes the pages that a device with this right uses. Errors: out_of_memory.
  [[nodiscard]] result<void> show(access_right right);
  /// Takes away what no device has a right to any more.
  void settle() noexcept;
};

/// Thread: any.
class block_map : public common::block_table<memory_map, block_memory, reserved_range> {
 public:
  explicit block_map(memory_map& memory) : block_table(memory) {}

  [[nodiscard]] static constexpr std::size_t granule() { return std::size_t{2} << 20; }

  [[nodiscard]] result<block_id> create(device_id device, std::string_view uuid, std::size_t size, bool shareable);
  [[nodiscard]] result<void*> reserve(std::size_t size, std::size_t alignment, void* hint);
  [[nodiscard]] result<void> map(void* address, std::size_t size, block_id block);
  /// The rights' devices must be known. `refused(device, owner)` is why the pair cannot share, if it cannot.
  [[nodiscard]] result<void> set_access(void* address, std::size_t size, std::span<const device_right> rights,
                                        const std::function<std::optional<error>(device_id, device_id)>& refused);

  [[nodiscard]] result<int> give(block_id block);
  struct offered {
    descriptor file;
    block_header header;
    std::pair<std::uint64_t, std::uint64_t> inode;
  };
  /// Looks at a descriptor from outside; nothing is believed that was not checked.
  [[nodiscard]] static result<offered> inspect(int descriptor);
  [[nodiscard]] result<block_id> take(device_id device, offered what);

 private:
  /// Gives it a place, in which nothing else is said to be.
  [[nodiscard]] block_id added(std::shared_ptr<block_memory> made);

  std::vector<std::weak_ptr<block_memory>> shared_;                  // exported or imported, to be known again
  std::atomic<std::uintptr_t> next_place_{std::uintptr_t{1} << 63};  // no address of a program lies there
};

}  // namespace weft::host
