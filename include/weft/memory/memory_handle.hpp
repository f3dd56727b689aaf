// SPDX-License-Identifier: Apache-2.0
// Names of what a process shares: 64 bytes for a message, a file or an argument. A handle opens nothing by itself,
// keeps nothing alive, and is worthless to other users.
#pragma once

#include "weft/core/shared_bytes.hpp"

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace weft {

/// What a handle names.
enum class shared_thing : std::uint8_t { memory = 1, event = 2, pool = 3, pool_memory = 4, block = 5 };

namespace detail {
[[nodiscard]] shared_bytes checked_handle(std::span<const std::byte> bytes, shared_thing what,
                                          std::source_location where);
[[nodiscard]] shared_bytes handle_of_text(std::string_view text, shared_thing what, std::source_location where);
/// Of an even number of digits. Errors: throws corrupt.
[[nodiscard]] std::vector<std::byte> bytes_of_text(std::string_view text);
[[nodiscard]] std::string text_of_handle(std::span<const std::byte> bytes);
[[nodiscard]] pid_t process_of_handle(const shared_bytes& bytes);
[[nodiscard]] std::uint64_t size_of_handle(const shared_bytes& bytes);
}  // namespace detail

/// The name of one shared thing. Equal handles name the same; what is made later never has an earlier name.
/// Thread: any for const functions.
template <shared_thing What>
class basic_handle {
 public:
  static constexpr std::size_t wire_size = shared_bytes_size;

  basic_handle() = default;  // names nothing; whoever opens it is told
  explicit basic_handle(const shared_bytes& checked) : bytes_(checked) {}
  /// What arrived. Errors: corrupt (truncated, damaged, no handle); incompatible (another version);
  ///   invalid_argument for a handle of something else.
  [[nodiscard]] static basic_handle from_bytes(std::span<const std::byte> bytes,
                                               std::source_location where = std::source_location::current()) {
    return basic_handle{detail::checked_handle(bytes, What, where)};
  }
  /// What text() gave. Errors: as from_bytes.
  [[nodiscard]] static basic_handle from_text(std::string_view text,
                                              std::source_location where = std::source_location::current()) {
    return basic_handle{detail::handle_of_text(text, What, where)};
  }

  [[nodiscard]] const shared_bytes& bytes() const { return bytes_; }
  /// 128 hexadecimal digits.
  [[nodiscard]] std::string text() const { return detail::text_of_handle(bytes_); }
  /// The exporter, as it sees itself; 0 for a handle that names nothing.
  [[nodiscard]] pid_t process() const { return detail::process_of_handle(bytes_); }
  /// Bytes that it names, of memory; without meaning for pools and events.
  [[nodiscard]] std::uint64_t size() const { return detail::size_of_handle(bytes_); }

  friend bool operator==(const basic_handle&, const basic_handle&) = default;

 private:
  shared_bytes bytes_{};
};

using memory_handle = basic_handle<shared_thing::memory>;
using event_handle = basic_handle<shared_thing::event>;
using pool_handle = basic_handle<shared_thing::pool>;
using pool_memory_handle = basic_handle<shared_thing::pool_memory>;

}  // namespace weft
