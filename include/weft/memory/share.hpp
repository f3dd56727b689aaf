// SPDX-License-Identifier: Apache-2.0
// One way to give memory to other processes, whatever kind of memory it is: share() there, open() here.
#pragma once

#include "weft/core/internals.hpp"
#include "weft/memory/mapping.hpp"
#include "weft/memory/memory_handle.hpp"
#include "weft/memory/physical_block.hpp"
#include "weft/memory/span.hpp"
#include "weft/runtime/device.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <type_traits>
#include <vector>

namespace weft {

/// How a process gets memory of another one, the best first: rights for each device and none implied; rights for each
/// device, its own always; the one device that it was opened on.
enum class sharing_way : std::uint8_t { block, pool, allocation };
[[nodiscard]] std::string_view to_string(sharing_way way);

/// Names shared memory in every way in which it can be had. A few hundred bytes for any byte channel, as memory_handle:
/// it opens nothing by itself, keeps nothing alive, carries no descriptor, and is worthless to other users.
/// Thread: any for const functions.
class share_handle {
 public:
  static constexpr std::size_t max_parts = 8;
  static constexpr std::size_t max_wire_size = 24 + max_parts * shared_bytes_size;

  share_handle() = default;  // names nothing; whoever opens it is told
  /// Handles that name one memory: its blocks in the order of their addresses, a pool and memory of it, an allocation.
  /// Errors: corrupt for what does not fit together; incompatible.
  explicit share_handle(std::span<const shared_bytes> parts,
                        std::source_location where = std::source_location::current());
  /// What arrived. Errors: corrupt (truncated, damaged, no handle); incompatible (another version).
  [[nodiscard]] static share_handle from_bytes(std::span<const std::byte> arrived,
                                               std::source_location where = std::source_location::current());
  /// What text() gave. Errors: as from_bytes.
  [[nodiscard]] static share_handle from_text(std::string_view text,
                                              std::source_location where = std::source_location::current());

  /// At most max_wire_size bytes.
  [[nodiscard]] std::vector<std::byte> to_bytes() const;
  /// Two hexadecimal digits for each byte.
  [[nodiscard]] std::string text() const;
  /// In which ways it can be had, the best first.
  [[nodiscard]] std::vector<sharing_way> ways(std::source_location where = std::source_location::current()) const;
  /// Bytes that it names.
  [[nodiscard]] std::uint64_t size(std::source_location where = std::source_location::current()) const;
  /// The exporter, as it sees itself; 0 for a handle that names nothing.
  [[nodiscard]] pid_t process() const;
  [[nodiscard]] std::span<const shared_bytes> parts() const { return parts_; }

  friend bool operator==(const share_handle&, const share_handle&) = default;

 private:
  std::vector<shared_bytes> parts_;
};

namespace detail {
[[nodiscard]] share_handle share_memory(const memory_ref& memory, std::source_location where);

class opened_share;
/// What open() made: the address, and what keeps it.
struct opened_view {
  std::shared_ptr<opened_share> body;
  machine_state* state = nullptr;
  void* address = nullptr;
  std::uint64_t size = 0;
  device_id by, owner;
  memory_kind kind = memory_kind::mapped;
  sharing_way way = sharing_way::allocation;
  std::string why;
};
[[nodiscard]] opened_view open_share(const device& on, const share_handle& handle, std::chrono::nanoseconds timeout,
                                     std::size_t element, std::size_t alignment, std::source_location where);
}  // namespace detail

/// Shares all that is mapped, as long as this mapping lives, or the block objects that it was made of. Its blocks are
/// served to who asks: one descriptor here for each, from the first call on. The same handle each time.
/// Errors: invalid_argument for blocks that were made for this process alone, and for more than share_handle::max_parts
///   blocks; resource_exhausted.
[[nodiscard]] share_handle share(const mapping& memory, std::source_location where = std::source_location::current());
/// The same for a block, mapped or not, as long as this object or a copy of it lives.
[[nodiscard]] share_handle share(const physical_block& memory,
                                 std::source_location where = std::source_location::current());
/// Shares a shareable_buffer, a buffer of a shareable pool, or a span of either, as long as the buffer lives.
/// Errors: invalid_argument for all other memory, with the type that can be shared; not_found for what was freed;
///   resource_exhausted.
template <class B>
[[nodiscard]] share_handle share(const B& memory, std::source_location where = std::source_location::current()) {
  return detail::share_memory(detail::untyped(detail::borrow(memory)), where);
}

/// Memory of another process, open here until the last copy of this object has gone.
/// Thread: any for const functions.
template <class T>
class opened {
  static_assert(std::is_trivially_copyable_v<T>, "device memory holds trivially copyable types");

 public:
  using value_type = T;

  opened() = default;

  [[nodiscard]] std::size_t size() const { return view_.body ? view_.size / sizeof(T) : 0; }
  [[nodiscard]] T* data() const { return view_.body ? static_cast<T*>(view_.address) : nullptr; }
  /// The device whose memory it is, as far as this machine has it.
  [[nodiscard]] device_id owner() const { return view_.owner; }
  /// Of memory of a pool the span is that of the pool's device; other memory's is that of the device it was opened on.
  [[nodiscard]] device_span<T> span() const {
    return detail::make<device_span<T>>(view_.body ? view_.state : nullptr, view_.by, data(), size(), view_.kind);
  }
  operator device_span<T>() const { return span(); }        // NOLINT(google-explicit-constructor)
  operator device_span<const T>() const { return span(); }  // NOLINT(google-explicit-constructor)

  /// Which way was taken.
  [[nodiscard]] sharing_way way() const { return view_.way; }
  /// What that way gives, and why no better one was taken.
  [[nodiscard]] const std::string& why() const { return view_.why; }

 private:
  friend struct detail::internals;
  explicit opened(detail::opened_view view) : view_(std::move(view)) {}
  [[nodiscard]] const detail::opened_view& view() const { return view_; }

  detail::opened_view view_;
};

inline constexpr std::chrono::seconds open_timeout{5};

/// Opens what another process shares, in the best way that this machine has, for a device that may then read and write
/// it; grant() lets others in. A way that the machine cannot go (unsupported, peer_unsupported, not_found for a device
/// that it lacks) is followed by the next; any other failure is that of the memory.
/// Errors: invalid_argument for a handle that names nothing and, native 201, for memory of this very process; corrupt,
///   incompatible (forged, of another boot, or no number of T); closed (freed); peer_dead; timed_out;
///   resource_exhausted; the best way's failure if no way is left.
template <class T>
[[nodiscard]] opened<T> open(const device& on, const share_handle& handle,
                             std::chrono::nanoseconds timeout = open_timeout,
                             std::source_location where = std::source_location::current()) {
  return detail::make<opened<T>>(detail::open_share(on, handle, timeout, sizeof(T), alignof(T), where));
}

}  // namespace weft
