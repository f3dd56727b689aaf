// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/access_right.hpp"
#include "weft/core/internals.hpp"
#include "weft/core/unique_handle.hpp"
#include "weft/memory/address_reservation.hpp"
#include "weft/memory/physical_block.hpp"
#include "weft/memory/span.hpp"

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <source_location>
#include <span>
#include <type_traits>
#include <vector>

namespace weft {

namespace detail {
struct mapping_end;
struct mapped_block {
  std::shared_ptr<block_body> block;  // both stay while they are mapped
  std::shared_ptr<reservation_body> range;
  void* address = nullptr;
  bytes size;
  std::shared_ptr<mapping_end> end;  // of the whole mapping
  bool operator==(const mapped_block& other) const { return address == other.address; }
};
struct mapped_block_traits {
  using type = mapped_block;
  static type none() { return {}; }
  static void release(type& mapped) noexcept;
};
[[noreturn]] void raise_empty_mapping();
}  // namespace detail

/// Blocks at addresses, one behind the other, and what each device may do there. A new mapping gives no device any
/// right, not even the one that owns the memory: grant what is needed. Peer access has no part in it.
///
/// It keeps its blocks and its reservation: no order of destruction is wrong. When it ends, it waits, 10 s at most for
/// all its blocks together, for work that was submitted with it. One block may be mapped at several addresses, of
/// several devices and processes.
/// Thread: any for const functions.
class mapping {
 public:
  mapping() = default;
  /// The block at addresses of its own. Errors: as below, and those of reservation.
  explicit mapping(const physical_block& what, std::source_location where = std::source_location::current());
  /// The first `size` bytes of a block, all of it by default, at an offset in a reservation.
  /// Shape: offset and size are multiples of the granularity.
  /// Errors: invalid_argument (misaligned, past the end of either, or something is mapped there), wrong_device for
  ///   objects of two machines, not_ready while work still uses what was mapped there before.
  mapping(const address_reservation& where, const physical_block& what, bytes offset = {}, bytes size = {},
          std::source_location caller = std::source_location::current());

  /// Maps one more block behind the last one; addresses and contents stay, rights extend to it.
  /// Errors: as the constructor; then nothing has changed.
  void grow(const physical_block& next, std::source_location where = std::source_location::current());

  /// What the device may do from now on, in place of what it could do before. Copies and launches that would do more
  /// are refused, copies and fills with invalid_argument, kernels with illegal_access, which loses the device; and page
  /// tables hold it too. Work that has begun keeps its pages, and the tables hold less once it has ended: on the host
  /// backend only from the next grant after that. Errors: invalid_device; invalid_argument for no device at all;
  /// peer_unsupported where the device cannot reach the block's.
  void grant(device_id by, access_right right, std::source_location where = std::source_location::current()) {
    grant({{by, right}}, where);
  }
  /// The same for several devices, all or nothing; who is not named keeps its right.
  void grant(std::initializer_list<device_right> rights, std::source_location where = std::source_location::current()) {
    grant(std::span{rights.begin(), rights.size()}, where);
  }
  void grant(std::span<const device_right> rights, std::source_location where = std::source_location::current());
  [[nodiscard]] access_right access_of(device_id by,
                                       std::source_location where = std::source_location::current()) const;

  [[nodiscard]] void* address() const;
  [[nodiscard]] bytes size() const;
  explicit operator bool() const { return !parts_.empty(); }
  /// The blocks, in the order of their addresses.
  [[nodiscard]] std::size_t block_count() const { return parts_.size(); }

  /// The memory as `by` uses it: what a copy or a launch does with this span, it does with the rights of that device.
  template <class T>
  [[nodiscard]] device_span<T> span(device_id by) const {
    static_assert(std::is_trivially_copyable_v<T>, "device memory holds trivially copyable types");
    return detail::make<device_span<T>>(state(), by, static_cast<T*>(address()), size().size() / sizeof(T),
                                        memory_kind::block);
  }
  /// The memory as the device of its first block uses it.
  template <class T>
  [[nodiscard]] device_span<T> span() const {
    return span<T>(home());
  }

  /// Ends it now.
  void end();

 private:
  friend struct detail::internals;
  /// For the library's own layers.
  [[nodiscard]] const std::vector<unique_handle<detail::mapped_block_traits>>& parts() const { return parts_; }

  [[nodiscard]] detail::machine_state* state() const;
  [[nodiscard]] device_id home() const;

  std::vector<unique_handle<detail::mapped_block_traits>> parts_;
  std::vector<device_right> rights_;  // what was granted, for what is mapped later
};

}  // namespace weft
