// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/access_right.hpp"
#include "weft/core/internals.hpp"
#include "weft/memory/memory_handle.hpp"
#include "weft/memory/shared_memory.hpp"
#include "weft/runtime/machine.hpp"

#include <chrono>
#include <memory>
#include <source_location>

namespace weft {

namespace detail {
class opened_pool_body;
}

/// A pool of another process: memory of it can be opened here, none can be allocated from it.
///
/// Rights are this process's own: at first the pool's device alone may use what is opened. Memory that two objects have
/// open has one list of rights: the last set_access() of either counts, and access() tells of its own object's. What
/// its owner frees is never handed out again while it was exported, so an importer that is late reads old data and is
/// told (closed), not the data of somebody else. Thread: any.
class opened_pool {
 public:
  static constexpr std::chrono::seconds default_timeout{5};

  /// Errors: as those of opened_memory; not_found for a pool of a device that this machine lacks.
  opened_pool(const machine& m, const pool_handle& handle, std::chrono::nanoseconds timeout = default_timeout,
              std::source_location where = std::source_location::current())
      : opened_pool(detail::state_of(m), handle, timeout, where) {}

  /// The device whose memory it is.
  [[nodiscard]] device on(std::source_location where = std::source_location::current()) const;
  /// Opens memory that the pool's owner exported; ends with what is returned. Errors: as those of opened_memory;
  /// invalid_argument for memory of another process's pool.
  template <class T>
  [[nodiscard]] opened_memory<T> open(const pool_memory_handle& handle,
                                      std::chrono::nanoseconds timeout = default_timeout,
                                      std::source_location where = std::source_location::current()) const {
    return detail::make<opened_memory<T>>(open_bytes(handle, timeout, sizeof(T), alignof(T), where));
  }
  /// What a device may do with all that is open and all that will be. Errors: as memory_pool::set_access.
  void set_access(const device& by, access_right right,
                  std::source_location where = std::source_location::current()) const;
  [[nodiscard]] access_right access(const device& by,
                                    std::source_location where = std::source_location::current()) const;

 private:
  friend struct detail::internals;
  opened_pool(const std::shared_ptr<detail::machine_state>& state, const pool_handle& handle,
              std::chrono::nanoseconds timeout, std::source_location where = std::source_location::current());
  [[nodiscard]] detail::opened_place open_bytes(const pool_memory_handle& handle, std::chrono::nanoseconds timeout,
                                                std::size_t element, std::size_t alignment,
                                                std::source_location where) const;

  std::shared_ptr<detail::opened_pool_body> body_;
};

}  // namespace weft
