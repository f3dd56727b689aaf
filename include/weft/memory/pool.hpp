// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/access_right.hpp"
#include "weft/core/internals.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/memory_handle.hpp"

#include <memory>
#include <source_location>

namespace weft {

struct pool_options {
  bytes max_size{~std::uint64_t{0}};  // allocations past it fail with out_of_memory
  /// Free memory beyond this goes back to the device at once, blocks used least lately first.
  bytes keep{~std::uint64_t{0}};
  /// Its memory can be opened by other processes, and set_access() says which devices may use it: peer access does not
  /// cover it. Each block has pages and a descriptor of its own.
  bool shareable = false;
};

struct pool_statistics {
  bytes reserved;  // taken from the device
  bytes used;      // handed out
  bytes reserved_high;
  bytes used_high;
  std::uint64_t hits = 0;  // allocations served from the pool
  std::uint64_t misses = 0;
};

/// Keeps freed blocks of one device for the next buffer of about that size. A block is handed out again only after
/// the work that was submitted with it has ended.
///
/// Shape: a request is rounded up to one of four sizes per power of two, and takes the smallest free block that is no
///   more than half as large again, or up to four times where a new one would exceed `keep`: from 256 bytes on, at most
///   a fifth of a new block is unused, and of one that is kept less than half, or four fifths. Where the rounded size
///   would exceed `max_size`, a request that fits is not rounded up.
/// Thread: any. Errors: invalid_argument for a pool that was moved from.
class memory_pool {
 public:
  explicit memory_pool(const device& on, pool_options options = {},
                       std::source_location where = std::source_location::current());

  [[nodiscard]] device on() const;
  [[nodiscard]] pool_statistics statistics() const;
  /// Gives free blocks back to the device until at most `kept` bytes are reserved beyond those in use.
  void trim_to(bytes kept);

  /// What a device may do with all memory of this pool, handed out before or after. At first its own device alone may
  /// use it, and cannot be kept out. Errors: invalid_argument for a pool that is not shareable, which follows peer
  /// access; invalid_device for its own device and another right than read_write; wrong_device for another machine's;
  /// peer_unsupported for one that cannot reach it.
  void set_access(const device& by, access_right right,
                  std::source_location where = std::source_location::current()) const;
  /// Errors: invalid_argument for a pool that is not shareable; wrong_device for another machine's device.
  [[nodiscard]] access_right access(const device& by,
                                    std::source_location where = std::source_location::current()) const;

  /// Names the pool for opened_pool. Errors: invalid_argument for a pool that is not shareable.
  [[nodiscard]] pool_handle handle(std::source_location where = std::source_location::current()) const;
  /// Names memory of a buffer from this pool. The buffer must stay until those who opened it have closed it; one that
  /// goes earlier is not handed out again, and whoever still uses it is told. Errors: invalid_argument for other
  /// memory; not_found for freed memory, and for an empty buffer.
  [[nodiscard]] pool_memory_handle handle_of(const device_span<const std::byte>& memory,
                                             std::source_location where = std::source_location::current()) const;
  template <class T>
  [[nodiscard]] pool_memory_handle handle_of(const buffer<T>& memory,
                                             std::source_location where = std::source_location::current()) const {
    return handle_of(memory.span().template as<const std::byte>(where), where);
  }

 private:
  friend struct detail::internals;
  [[nodiscard]] const std::shared_ptr<detail::pool_body>& body() const;

  std::shared_ptr<detail::pool_body> body_;
};

}  // namespace weft
