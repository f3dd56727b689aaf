// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/memory_description.hpp"
#include "weft/core/unique_handle.hpp"
#include "weft/memory/span.hpp"
#include "weft/runtime/device.hpp"

#include <cstddef>
#include <limits>
#include <memory>
#include <source_location>
#include <span>
#include <type_traits>

namespace weft {

class memory_pool;

/// Asks for pinned host memory where a device has no unified memory.
struct fall_back_to_pinned_t {};
inline constexpr fall_back_to_pinned_t fall_back_to_pinned;

/// Asks for memory of a device in which a running kernel sees what others write meanwhile, and they what it writes:
/// other devices, copies, the host. AMD's GPUs keep other memory in their caches until a kernel ends; elsewhere all
/// memory of a device is such. It may be slower to read.
struct for_running_kernels_t {};
inline constexpr for_running_kernels_t for_running_kernels;

namespace detail {

class pool_body;

struct owned_memory {
  std::shared_ptr<machine_state> state;
  std::shared_ptr<pool_body> pool;  // where it goes back to; empty when it goes back to the device
  void* address = nullptr;
  bool operator==(const owned_memory& other) const { return address == other.address; }
};
struct memory_traits {
  using type = owned_memory;
  static type none() { return {}; }
  static void release(type& memory) noexcept;
};

/// Errors: out_of_memory naming device, asked, free and the largest holders; invalid_argument on overflow.
[[nodiscard]] owned_memory allocate(const device& on, std::size_t count, std::size_t element, memory_kind kind,
                                    std::source_location where);
[[nodiscard]] owned_memory allocate(const memory_pool& pool, std::size_t count, std::size_t element,
                                    std::source_location where);
[[nodiscard]] owned_memory allocate_coherent(const device& on, std::size_t count, std::size_t element,
                                             std::source_location where);
[[nodiscard]] owned_memory allocate_shareable(const device& on, std::size_t count, std::size_t element,
                                              std::source_location where);
[[nodiscard]] device_id device_of(const memory_pool& pool);

}  // namespace detail

/// Owns `count` elements of one kind of memory. Going out of scope returns the memory once the work that was
/// submitted with it has ended; nothing waits. Contents are unspecified (a pattern in debug builds).
///
/// A count of zero is legal and owns nothing. T must be trivially copyable.
/// Thread: any for const functions.
template <class T, memory_kind Kind>
class basic_buffer {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>, "device memory holds trivially copyable types");

 public:
  using value_type = T;
  static constexpr memory_kind kind = Kind;

  basic_buffer() = default;
  basic_buffer(const device& on, std::size_t count, std::source_location where = std::source_location::current())
      : memory_(detail::allocate(on, count, sizeof(T), Kind, where)), count_(count), device_(on.id()) {}
  /// Unified memory, or pinned memory on a device without it; fell_back() tells.
  basic_buffer(const device& on, std::size_t count, fall_back_to_pinned_t,
               std::source_location where = std::source_location::current())
    requires(Kind == memory_kind::unified)
      : basic_buffer(on, count, on.has(capability::unified_memory) ? memory_kind::unified : memory_kind::pinned,
                     where) {}
  basic_buffer(const device& on, std::size_t count, for_running_kernels_t,
               std::source_location where = std::source_location::current())
    requires(Kind == memory_kind::device)
      : memory_(detail::allocate_coherent(on, count, sizeof(T), where)), count_(count), device_(on.id()) {}
  /// Takes the memory from a pool and returns it there.
  basic_buffer(const memory_pool& pool, std::size_t count, std::source_location where = std::source_location::current())
    requires(Kind == memory_kind::device)
      : memory_(detail::allocate(pool, count, sizeof(T), where)), count_(count), device_(detail::device_of(pool)) {}

  [[nodiscard]] std::size_t size() const { return data() != nullptr ? count_ : 0; }
  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] bytes size_bytes() const { return bytes{size() * sizeof(T)}; }
  [[nodiscard]] T* data() const { return static_cast<T*>(memory_.get().address); }
  [[nodiscard]] device on() const { return detail::make<device>(memory_.get().state, device_); }

  [[nodiscard]] device_span<T> span() const {
    return detail::make<device_span<T>>(memory_.get().state.get(), device_, data(), size(), taken_);
  }
  operator device_span<T>() const { return span(); }        // NOLINT(google-explicit-constructor)
  operator device_span<const T>() const { return span(); }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] device_span<T> subspan(std::size_t offset, std::size_t count,
                                       std::source_location where = std::source_location::current()) const {
    return span().subspan(offset, count, where);
  }

  /// True when unified memory was not to be had and this is pinned memory.
  [[nodiscard]] bool fell_back() const
    requires(Kind == memory_kind::unified)
  {
    return taken_ != Kind;
  }

  /// The same elements as the host sees them.
  [[nodiscard]] std::span<T> host() const
    requires(Kind == memory_kind::pinned || Kind == memory_kind::unified)
  {
    return {data(), size()};
  }

 private:
  basic_buffer(const device& on, std::size_t count, memory_kind taken, std::source_location where)
      : memory_(detail::allocate(on, count, sizeof(T), taken, where)), count_(count), device_(on.id()), taken_(taken) {}

  unique_handle<detail::memory_traits> memory_;
  std::size_t count_ = 0;
  device_id device_;
  memory_kind taken_ = Kind;
};

/// Memory of one device.
template <class T>
using buffer = basic_buffer<T, memory_kind::device>;
/// Page-locked host memory near a device: the host reads and writes it, copies take it without a detour.
template <class T>
using pinned_buffer = basic_buffer<T, memory_kind::pinned>;
/// One memory that the host and every device see. Errors: unsupported on a device without it.
template <class T>
using unified_buffer = basic_buffer<T, memory_kind::unified>;

/// The allocation that an address lies in: base, size, kind and device. Errors: not_found for null, freed or unknown
/// addresses and one past the end. Memory of a pool is found as its block, also after its buffer has gone.
[[nodiscard]] memory_description address_range(const device& any_of_machine, const void* address,
                                               std::source_location where = std::source_location::current());

/// Moves unified memory towards a device ahead of use; ordered in the device's default stream.
/// Errors: unsupported on a device without unified memory; invalid_argument for other memory, if it is not empty.
void prefetch(const device& to, device_span<const std::byte> range,
              std::source_location where = std::source_location::current());
void advise(const device& on, device_span<const std::byte> range, memory_advice advice,
            std::source_location where = std::source_location::current());

/// Registers host memory of the caller's so that the device may use it; ends with the object, which frees nothing.
/// Errors: invalid_argument where a device of the machine, of any backend, has a byte of it already.
template <class T>
class adopted_memory {
 public:
  adopted_memory(const device& on, std::span<T> memory, std::source_location where = std::source_location::current());

  [[nodiscard]] device_span<T> span() const {
    return detail::make<device_span<T>>(memory_.get().state.get(), device_, static_cast<T*>(memory_.get().address),
                                        memory_ ? count_ : 0, memory_kind::adopted);
  }
  operator device_span<T>() const { return span(); }  // NOLINT(google-explicit-constructor)

 private:
  unique_handle<detail::memory_traits> memory_;
  std::size_t count_ = 0;
  device_id device_;
};

namespace detail {
[[nodiscard]] owned_memory adopt(const device& on, void* base, std::size_t size, std::source_location where);
}

template <class T>
adopted_memory<T>::adopted_memory(const device& on, std::span<T> memory, std::source_location where)
    : memory_(detail::adopt(on, memory.data(), memory.size_bytes(), where)), count_(memory.size()), device_(on.id()) {}

}  // namespace weft
