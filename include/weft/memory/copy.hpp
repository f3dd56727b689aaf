// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/copy_shape.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/route.hpp"
#include "weft/memory/span.hpp"
#include "weft/runtime/event.hpp"
#include "weft/runtime/machine.hpp"
#include "weft/runtime/stream.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <source_location>
#include <span>
#include <stop_token>
#include <type_traits>
#include <vector>

namespace weft {

/// How much of a copy is read back from both sides and compared: nothing, its first, middle and last MiB, or all. Of a
/// box, `sampled` takes the rows that hold the first, middle and last byte, or a MiB of each.
enum class verification : std::uint8_t { none, sampled, full };

struct copy_options {
  route_wish route{};      // an explicit path is honoured or refused with the reason
  std::stop_token stop{};  // honoured before the copy starts and between chunks, which may end out of order
  /// Copies without a stream only, and not scatter, gather and replicate. Errors: corrupt, with the first bad offset,
  /// what was expected and what is there.
  verification verify = verification::none;
};

/// What a copy did.
struct copy_report {
  copy_path path = copy_path::host;
  device_id via;
  bytes size;
  std::chrono::nanoseconds duration{0};  // on the machine's clock
  bool simulated = false;                // that clock is virtual: the duration is a model's, not a measurement

  [[nodiscard]] double bytes_per_second() const {
    return duration.count() == 0 ? 0.0
                                 : static_cast<double>(size.value()) * 1e9 / static_cast<double>(duration.count());
  }
};

/// Copies and bytes by the path that was really taken, failures included, since the machine was opened. Copies between
/// two host memories are not counted.
struct copy_counters {
  struct one {
    std::uint64_t copies = 0;
    std::uint64_t bytes = 0;
    std::uint64_t failed = 0;
  };
  one host_to_device, device_to_host, same_device, direct, staged, relayed;
};
[[nodiscard]] copy_counters counters(const machine& m);

namespace detail {
copy_report copy_now(memory_ref dst, memory_ref src, const copy_shape& shape, const copy_options& options,
                     std::source_location where);
event copy_in(const stream& order, memory_ref dst, memory_ref src, const copy_shape& shape, const copy_options& options,
              std::source_location where);

template <class Dst, class Src>
copy_shape checked_shape(const Dst& dst, const Src& src, std::source_location where) {
  using to = typename Dst::element_type;
  using from = std::remove_cv_t<typename Src::element_type>;
  static_assert(!std::is_const_v<to>, "the destination of a copy is const");
  static_assert(std::is_same_v<to, from>, "a copy keeps the element type: convert the device span with as<T>()");
  static_assert(is_device_span<Dst>::value || is_device_span<Src>::value, "one side of a copy is device memory");
  if (dst.size() != src.size()) raise_copy_sizes(dst.size(), src.size(), where);
  copy_shape shape;
  shape.width = src.size() * sizeof(from);
  return shape;
}
}  // namespace detail

/// Copies src to dst, between any two of host, device and peer; returns when the data is visible at the destination.
/// Ranges are buffers, device_spans, or contiguous host ranges.
///
/// Order: after all earlier work on the default streams of both devices, whatever kind of their memory it is; of a peer
///   mapping, that of the device that may use it, not of the owner.
/// Errors: incompatible (sizes), not_found (freed or foreign memory), out_of_range, invalid_argument (overlap),
///   peer_unsupported (a wish that cannot be honoured), copy_failed, device_lost, cancelled; now.
/// Cost: 8 bytes to an idle device: no hand-over to another thread.
template <class Dst, class Src>
copy_report copy(Dst&& dst, const Src& src, const copy_options& options = {},
                 std::source_location where = std::source_location::current()) {
  const auto to = detail::borrow(dst);
  const auto from = detail::borrow(src);
  const copy_shape shape = detail::checked_shape(to, from, where);
  return detail::copy_now(detail::untyped(to), detail::untyped(from), shape, options, where);
}

/// The same, ordered in a stream; the event ends when the data is visible at the destination. Host memory must stay
/// until then. The stream may belong to any device of the machine.
/// Errors: misuse now; what happens later at wait.
template <class Dst, class Src>
event copy(const stream& order, Dst&& dst, const Src& src, const copy_options& options = {},
           std::source_location where = std::source_location::current()) {
  const auto to = detail::borrow(dst);
  const auto from = detail::borrow(src);
  const copy_shape shape = detail::checked_shape(to, from, where);
  return detail::copy_in(order, detail::untyped(to), detail::untyped(from), shape, options, where);
}

/// A rectangle or box of elements inside a larger memory: rows of `width` elements, `pitch` elements apart.
template <class T>
struct box {
  device_span<T> memory;  // or empty, with `host` set
  std::span<T> host;
  std::size_t offset = 0;  // of the first element
  std::size_t pitch = 0;   // elements from row to row
  std::size_t slice = 0;   // elements from slice to slice
};
struct box_extent {
  std::size_t width = 0, height = 1, depth = 1;  // elements, rows, slices
};

namespace detail {
memory_ref box_ref(memory_ref whole, std::size_t offset, std::size_t element, std::uint64_t extent_bytes,
                   std::source_location where);
copy_shape box_shape(std::size_t element, const box_extent& extent, std::size_t dst_pitch, std::size_t dst_slice,
                     std::size_t src_pitch, std::size_t src_slice, std::source_location where);

template <class T>
memory_ref whole_of(const box<T>& b) {
  return b.memory.data() != nullptr ? untyped(b.memory) : untyped(b.host);
}
}  // namespace detail

/// Copies a 2-D or 3-D box; what lies between the rows is not touched.
/// Errors: as copy, where boxes overlap if their extents do, from first to last byte; invalid_argument when a pitch is
///   smaller than a row, or a slice than its rows.
template <class T, class U>
copy_report copy_box(const box<T>& dst, const box<U>& src, const box_extent& extent, const copy_options& options = {},
                     std::source_location where = std::source_location::current()) {
  static_assert(std::is_same_v<T, std::remove_cv_t<U>>, "a copy keeps the element type");
  const copy_shape shape = detail::box_shape(sizeof(T), extent, dst.pitch, dst.slice, src.pitch, src.slice, where);
  return detail::copy_now(detail::box_ref(detail::whole_of(dst), dst.offset, sizeof(T),
                                          shape.extent(shape.dst_pitch, shape.dst_slice), where),
                          detail::box_ref(detail::whole_of(src), src.offset, sizeof(T),
                                          shape.extent(shape.src_pitch, shape.src_slice), where),
                          shape, options, where);
}

/// One part of a batch, without its type.
struct copy_part {
  detail::memory_ref dst;
  detail::memory_ref src;
};
template <class Dst, class Src>
copy_part part(Dst&& dst, const Src& src, std::source_location where = std::source_location::current()) {
  const auto to = detail::borrow(dst);
  const auto from = detail::borrow(src);
  static_cast<void>(detail::checked_shape(to, from, where));
  return {detail::untyped(to), detail::untyped(from)};
}

/// Many copies as one operation of the stream; neighbours in both memories become one. The parts are not ordered among
/// themselves and must not overlap.
event copy_batch(const stream& order, std::span<const copy_part> parts, const copy_options& options = {},
                 std::source_location where = std::source_location::current());

/// Raw form for addresses whose devices are known: copies `size` bytes from `src` on `from` to `dst` on `to`.
/// Errors: invalid_device before anything else; then a size of 0 does nothing, even with null addresses;
///   invalid_argument for null; not_found; out_of_range past the end of an allocation; wrong_device for memory that is
///   not on the device named; then as copy.
copy_report copy_peer(const machine& m, void* dst, device_id to, const void* src, device_id from, bytes size,
                      const copy_options& options = {}, std::source_location where = std::source_location::current());
event copy_peer(const stream& order, void* dst, device_id to, const void* src, device_id from, bytes size,
                const copy_options& options = {}, std::source_location where = std::source_location::current());

}  // namespace weft
