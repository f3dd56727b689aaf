// SPDX-License-Identifier: Apache-2.0
// Memory that each rank of a communicator has on its device and that all ranks reach.
#pragma once

#include "weft/memory/mapping.hpp"
#include "weft/memory/physical_block.hpp"
#include "weft/memory/span.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace weft::detail {

/// One rank's part of the memory, and its view of all other parts.
class symmetric_block : public std::enable_shared_from_this<symmetric_block> {
 public:
  /// `parts` in the order of the ranks; this rank's own is its own mapping.
  /// Errors: those of grants and windows; unsupported where the host does not reach a device's memory by itself.
  symmetric_block(std::uint64_t communicator, std::uint64_t number, std::uint64_t size, int self,
                  std::vector<mapping> parts);

  /// A block, mapped so that its own device may use it.
  [[nodiscard]] static mapping mapped(const physical_block& what);
  /// Where this host reaches a part. Errors: unsupported where it does not.
  [[nodiscard]] static std::shared_ptr<std::byte> window(const mapping& part, std::uint64_t size);

  [[nodiscard]] std::uint64_t communicator() const { return communicator_; }
  /// The same on all ranks; from 1.
  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// Where this rank's programs see its own part.
  [[nodiscard]] memory_ref own() const;
  /// Where this thread's loads and stores reach a rank's part.
  [[nodiscard]] std::byte* of(int rank) const { return windows_[static_cast<std::size_t>(rank)].get(); }

 private:
  std::uint64_t communicator_;
  std::uint64_t number_;
  std::uint64_t size_;
  int self_;
  std::vector<mapping> parts_;
  std::vector<std::shared_ptr<std::byte>> windows_;  // go before the mappings
};

}  // namespace weft::detail
