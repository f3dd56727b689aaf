// SPDX-License-Identifier: Apache-2.0
// Memory of a device, apart from addresses: what buffers cannot do – be seen by chosen devices only, grow in place, be
// given to another process – is done by mapping blocks. docs/reference/sharing.md has the whole of it.
#pragma once

#include "weft/core/block_description.hpp"
#include "weft/core/bytes.hpp"
#include "weft/core/descriptor.hpp"
#include "weft/core/internals.hpp"
#include "weft/runtime/device.hpp"
#include "weft/runtime/machine.hpp"

#include <memory>
#include <source_location>

namespace weft {

namespace detail {
struct block_body;
}

/// What blocks and mappings are multiples of, such that every device can take part. Errors: unsupported, with the
/// reason, on a backend without blocks.
[[nodiscard]] block_granularity granularity(const machine& m,
                                            std::source_location where = std::source_location::current());

/// Whether a block may be given to other processes: that cannot be asked for later.
enum class sharing : bool { alone, with_processes };

/// Memory of one device that has no address until it is mapped. Copies of this object share the block; its memory goes
/// back when the last of them and the last mapping have gone, in any order.
///
/// Thread: any for const functions.
class physical_block {
 public:
  physical_block() = default;
  /// At least `size`: rounded up to the granularity. Contents are unspecified.
  /// Errors: invalid_argument for 0; out_of_memory naming the device; unsupported; resource_exhausted.
  physical_block(const device& on, bytes size, sharing with = sharing::alone,
                 std::source_location where = std::source_location::current());

  /// The block that is mapped at an address of a mapping, also after all other objects that name it have gone.
  /// Errors: not_found.
  [[nodiscard]] static physical_block behind(const machine& m, const void* address,
                                             std::source_location where = std::source_location::current());

  /// A descriptor for another process, or for this one: send it, and let it close. Every call gives a new one.
  /// Errors: invalid_argument for a block that was made with sharing::alone.
  [[nodiscard]] descriptor share(std::source_location where = std::source_location::current()) const;
  /// The block of another process, or of this one. What comes from outside is checked: the descriptor may close
  /// afterwards. No rights come with it: map it and grant them. `size`: what its maker says; 0 is unknown. CUDA tells
  /// no size: without it weft tries which sizes can be mapped, in address space for the memory of a whole GPU. On CUDA
  /// and HIP weft takes a block of this process for another one: copies between the two that overlap are not refused.
  /// Errors: corrupt (not a block, damaged, smaller than was said, or memory that its owner could take away),
  ///   incompatible (another version; on CUDA also a block of another GPU than the one named), not_found (its device is
  ///   not of this machine: name one of this machine), invalid_argument (not open).
  [[nodiscard]] static physical_block open(const machine& m, const descriptor& offered, bytes size = {},
                                           std::source_location where = std::source_location::current());
  [[nodiscard]] static physical_block open(const device& taken_to_be_on, const descriptor& offered, bytes size = {},
                                           std::source_location where = std::source_location::current());

  [[nodiscard]] bytes size(std::source_location where = std::source_location::current()) const;
  [[nodiscard]] device on(std::source_location where = std::source_location::current()) const;
  [[nodiscard]] bool is_shareable(std::source_location where = std::source_location::current()) const;
  /// True for a block from a descriptor; the host backend knows its process's own again. Its memory counts where it was
  /// made.
  [[nodiscard]] bool is_imported(std::source_location where = std::source_location::current()) const;
  explicit operator bool() const { return body_ != nullptr; }
  /// True for two objects made from one, or from one mapping; on the host backend also for one memory opened twice.
  friend bool operator==(const physical_block& a, const physical_block& b);

 private:
  friend struct detail::internals;
  [[nodiscard]] const std::shared_ptr<detail::block_body>& body() const { return body_; }

  explicit physical_block(std::shared_ptr<detail::block_body> body) : body_(std::move(body)) {}

  std::shared_ptr<detail::block_body> body_;
};

}  // namespace weft
