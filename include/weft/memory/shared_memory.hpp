// SPDX-License-Identifier: Apache-2.0
// Memory of one process that others use: the exporter's side owns it, the importer's side has it open.
#pragma once

#include "weft/core/handle_family.hpp"
#include "weft/core/internals.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/memory_handle.hpp"

#include <chrono>
#include <mutex>
#include <source_location>

namespace weft {

namespace detail {

[[nodiscard]] shared_bytes export_memory(const memory_ref& memory, handle_family family, std::source_location where);

/// Of memory that a pool has opened: its rights are set, and it is closed, one after the other.
struct opened_mark {
  std::mutex mutex;
  bool is_open = true;
};
struct opened_place {
  std::shared_ptr<machine_state> state;
  void* address = nullptr;
  std::uint64_t size = 0;
  device_id by, owner;
  std::shared_ptr<opened_mark> mark{};  // null where no pool has opened it
  bool operator==(const opened_place& other) const { return address == other.address; }
};
struct opened_traits {
  using type = opened_place;
  static type none() { return {}; }
  static void release(type& place) noexcept;
};
[[nodiscard]] opened_place open_memory(const std::shared_ptr<machine_state>& state, device_id by,
                                       const shared_bytes& handle, handle_family family,
                                       std::chrono::nanoseconds timeout, std::size_t element, std::size_t alignment,
                                       std::source_location where);

}  // namespace detail

/// Owns `count` elements on one device, in pages of their own, so that other processes may open them. As buffer in all
/// else. Other buffers share their pages with neighbours, which an export would expose; exporting them is refused.
///
/// Whoever has opened it keeps its pages until it closes them, and is told at its next use that it was freed here.
/// Cost: whole pages, one descriptor and one mapping each: not for small things by the thousand.
template <class T>
class shareable_buffer {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>, "device memory holds trivially copyable types");

 public:
  using value_type = T;

  shareable_buffer() = default;
  shareable_buffer(const device& on, std::size_t count, std::source_location where = std::source_location::current())
      : memory_(detail::allocate_shareable(on, count, sizeof(T), where)), count_(count), device_(on.id()) {}

  [[nodiscard]] std::size_t size() const { return data() != nullptr ? count_ : 0; }
  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] bytes size_bytes() const { return bytes{size() * sizeof(T)}; }
  [[nodiscard]] T* data() const { return static_cast<T*>(memory_.get().address); }
  [[nodiscard]] device on() const { return detail::make<device>(memory_.get().state, device_); }
  [[nodiscard]] device_span<T> span() const {
    return detail::make<device_span<T>>(memory_.get().state.get(), device_, data(), size());
  }
  operator device_span<T>() const { return span(); }        // NOLINT(google-explicit-constructor)
  operator device_span<const T>() const { return span(); }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] device_span<T> subspan(std::size_t offset, std::size_t count,
                                       std::source_location where = std::source_location::current()) const {
    return span().subspan(offset, count, where);
  }

  /// The name of all of it; the same each time. Errors: invalid_argument for an empty one; resource_exhausted.
  [[nodiscard]] memory_handle handle(std::source_location where = std::source_location::current()) const {
    return memory_handle{detail::export_memory(detail::untyped(span()), handle_family::allocation, where)};
  }

 private:
  unique_handle<detail::memory_traits> memory_;
  std::size_t count_ = 0;
  device_id device_;
};

/// A handle of a part of a shareable buffer; it carries where the part begins. Errors: invalid_argument for memory with
/// neighbours, mappings, host memory and memory of pools; not_found for what was freed; out_of_range.
template <class T>
[[nodiscard]] memory_handle export_memory(const device_span<T>& memory,
                                          std::source_location where = std::source_location::current()) {
  return memory_handle{detail::export_memory(detail::untyped(memory), handle_family::allocation, where)};
}

/// Memory of another process, open on one device of this one; ends with the object.
///
/// Opened twice on a device it has one address. Copies and kernels of that device use it like a peer mapping; they fail
/// with closed once its owner has freed it, and with peer_dead once its owner has died, but never touch foreign memory:
/// the pages stay until this object goes. What was written before is there when both sides have agreed that it was,
/// by an ipc_event or a message.
/// Thread: any for const functions.
template <class T>
class opened_memory {
 public:
  using value_type = T;
  static constexpr std::chrono::seconds default_timeout{5};

  opened_memory() = default;
  /// Errors: corrupt, incompatible (damaged or foreign handles, and sizes that are no number of T); invalid_argument,
  ///   native 201, for a handle of this process; closed (freed); peer_dead; timed_out (its process is stopped);
  ///   peer_unsupported where `on` cannot reach the owner's device; resource_exhausted.
  opened_memory(const device& on, const memory_handle& handle, std::chrono::nanoseconds timeout = default_timeout,
                std::source_location where = std::source_location::current())
      : place_(detail::open_memory(detail::state_of(on), on.id(), handle.bytes(), handle_family::allocation, timeout,
                                   sizeof(T), alignof(T), where)) {}

  [[nodiscard]] std::size_t size() const { return place_.get().size / sizeof(T); }
  [[nodiscard]] T* data() const { return static_cast<T*>(place_.get().address); }
  /// The device whose memory it is.
  [[nodiscard]] device_id owner() const { return place_.get().owner; }
  [[nodiscard]] device_span<T> span() const {
    return detail::make<device_span<T>>(place_.get().state.get(), place_.get().by, data(), size(), memory_kind::mapped);
  }
  operator device_span<T>() const { return span(); }        // NOLINT(google-explicit-constructor)
  operator device_span<const T>() const { return span(); }  // NOLINT(google-explicit-constructor)

 private:
  friend struct detail::internals;
  explicit opened_memory(detail::opened_place place) : place_(std::move(place)) {}
  unique_handle<detail::opened_traits> place_;
};

}  // namespace weft
