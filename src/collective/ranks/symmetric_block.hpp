// SPDX-License-Identifier: Apache-2.0
// Memory that each rank of a communicator has on its device and that all ranks reach.
#pragma once

#include "weft/core/device_description.hpp"
#include "weft/core/unique_handle.hpp"
#include "weft/memory/mapping.hpp"
#include "weft/memory/physical_block.hpp"
#include "weft/memory/shared_memory.hpp"
#include "weft/memory/span.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace weft::detail {

/// How a rank's part reaches the others: a block by its descriptor, an allocation by its handle, or a memory file that
/// each process maps and whose owner's device adopts it, where devices and host have one memory.
enum class symmetric_way : std::uint8_t { block, handle, file };

/// What a rank tells the others of its part; the descriptor travels beside it.
struct symmetric_offer {
  symmetric_way way = symmetric_way::block;
  backend_kind kind = backend_kind::host;
  bool by_host = false;      // its own host reaches it
  std::uint64_t device = 0;  // identity of its device
  shared_bytes handle{};     // where it is by handle
};

/// A memory file at an address; its owner's device has adopted it.
struct mapped_file {
  std::shared_ptr<machine_state> state;  // of the device, else null
  device_id device;
  std::byte* base = nullptr;
  std::uint64_t size = 0;
  bool operator==(const mapped_file& other) const { return base == other.base; }
};
struct mapped_file_traits {
  using type = mapped_file;
  static type none() { return {}; }
  static void release(type& file) noexcept;
};

/// A rank's memory as this rank has it.
class symmetric_part {
 public:
  symmetric_part() = default;
  /// This rank's own, by the first way that its device has.
  /// Errors: out_of_memory, resource_exhausted; unsupported, with what each way lacks.
  [[nodiscard]] static symmetric_part make(const device& on, std::uint64_t size);
  /// Another rank's, for the device `on`. `by_host`: this rank's own part is reached by its host.
  /// Errors: unsupported, naming both devices, where one cannot reach the other; those of blocks and handles.
  [[nodiscard]] static symmetric_part open(const device& on, const symmetric_offer& offer, const descriptor& file,
                                           std::uint64_t size, bool by_host);

  [[nodiscard]] symmetric_offer offer(const device& on) const;
  /// For the others; empty where the handle says all, and once they have it.
  [[nodiscard]] const descriptor& file() const { return file_; }
  void close_file() { file_ = {}; }

  /// As this rank's device uses it.
  [[nodiscard]] const memory_ref& memory() const { return memory_; }
  /// Where this thread's loads and stores reach it; null where only devices do.
  [[nodiscard]] std::byte* window() const { return window_.get(); }

 private:
  void take_block(physical_block block, device_id by);
  void take_window(const device& on, std::uint64_t size);
  void take_file(const device& on, const descriptor& file, std::uint64_t size, bool is_own);

  symmetric_way way_ = symmetric_way::block;
  descriptor file_;
  physical_block block_;
  mapping mapping_;
  shareable_buffer<std::byte> buffer_;
  opened_memory<std::byte> opened_;
  unique_handle<mapped_file_traits> mapped_;
  memory_ref memory_;
  std::shared_ptr<std::byte> window_;  // goes first
};

/// One rank's part of the memory, and its view of all other parts.
class symmetric_block : public std::enable_shared_from_this<symmetric_block> {
 public:
  /// `parts` in the order of the ranks.
  symmetric_block(std::uint64_t communicator, std::uint64_t number, std::uint64_t size, int self,
                  std::vector<symmetric_part> parts);

  [[nodiscard]] std::uint64_t communicator() const { return communicator_; }
  /// The same on all ranks; from 1.
  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// Where this rank's programs see its own part.
  [[nodiscard]] memory_ref own() const { return part(self_, 0, size_); }
  /// False: only devices reach the parts.
  [[nodiscard]] bool is_of_host() const { return is_of_host_; }
  /// A rank's part: where this thread's loads and stores reach it, or, where they do not, this rank's device.
  [[nodiscard]] std::byte* of(int rank) const { return starts_[static_cast<std::size_t>(rank)]; }
  /// Some bytes of a rank's part, as this rank's device uses them.
  [[nodiscard]] memory_ref part(int rank, std::uint64_t offset, std::uint64_t size) const;

 private:
  std::uint64_t communicator_;
  std::uint64_t number_;
  std::uint64_t size_;
  int self_;
  bool is_of_host_ = true;
  std::vector<symmetric_part> parts_;
  std::vector<std::byte*> starts_;
};

}  // namespace weft::detail
