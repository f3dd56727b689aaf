// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/memory/buffer.hpp"

#include <memory>

namespace weft {

struct pool_options {
  bytes max_size{~std::uint64_t{0}};  // allocations past it fail with out_of_memory
  bytes keep{~std::uint64_t{0}};      // what is free beyond this goes back to the device at once
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
/// Shape: a request is rounded up to one of four sizes per power of two, so at most 25 % is unused.
/// Thread: any.
class memory_pool {
 public:
  explicit memory_pool(const device& on, pool_options options = {});

  [[nodiscard]] device on() const;
  [[nodiscard]] pool_statistics statistics() const;
  /// Gives free blocks back to the device until at most `kept` bytes are reserved beyond those in use.
  void trim_to(bytes kept);

  [[nodiscard]] const std::shared_ptr<detail::pool_body>& body() const { return body_; }

 private:
  std::shared_ptr<detail::pool_body> body_;
};

}  // namespace weft
