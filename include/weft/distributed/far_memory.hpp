// SPDX-License-Identifier: Apache-2.0
// Copies between the memory of two ranks of a world, which only one of the two calls.
#pragma once

#include "weft/core/internals.hpp"
#include "weft/distributed/world.hpp"
#include "weft/memory/span.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <stop_token>
#include <type_traits>
#include <utility>

namespace weft {

namespace detail {

class far_copier;

/// Bytes of memory that a rank offers; the same on every rank.
struct far_place {
  std::int32_t owner = -1;
  std::uint32_t reserved = 0;
  std::uint64_t memory = 0;  // its number at its owner
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

/// Goes with the offer.
class memory_offer {
 public:
  memory_offer(const world& w, const memory_ref& memory, bool may_write, std::source_location where);
  ~memory_offer();
  memory_offer(memory_offer&& other) noexcept;
  memory_offer& operator=(memory_offer&& other) noexcept;
  [[nodiscard]] const far_place& place() const noexcept { return place_; }

 private:
  std::shared_ptr<far_copier> by_;
  far_place place_;
};

}  // namespace detail

/// Elements in the memory of another rank. Plain bytes: ranks send it to each other as it is, by messages or queues.
template <class T>
class far_span {
 public:
  using element_type = T;

  constexpr far_span() = default;
  template <class U>
    requires std::is_convertible_v<U (*)[], T (*)[]>
  constexpr far_span(const far_span<U>& other)  // NOLINT(google-explicit-constructor): as std::span
      : at_(other.place()) {}

  [[nodiscard]] rank owner() const noexcept { return rank{at_.owner}; }
  [[nodiscard]] std::size_t size() const noexcept { return at_.size / sizeof(T); }
  /// Errors: throws out_of_range.
  [[nodiscard]] far_span subspan(std::size_t offset, std::size_t count,
                                 std::source_location where = std::source_location::current()) const {
    if (offset > size() || count > size() - offset) detail::raise_subspan(offset, count, size(), where);
    detail::far_place part = at_;
    part.offset += offset * sizeof(T);
    part.size = count * sizeof(T);
    return far_span{part};
  }
  [[nodiscard]] far_span first(std::size_t count, std::source_location where = std::source_location::current()) const {
    return subspan(0, count, where);
  }

 private:
  friend struct detail::internals;
  explicit constexpr far_span(const detail::far_place& at) : at_(at) {}
  [[nodiscard]] const detail::far_place& place() const noexcept { return at_; }

  detail::far_place at_;
};

/// Lets the ranks of a world read this memory, and write it unless T is const, for as long as this lives. It takes a
/// buffer, a device_span or host memory, which has to stay as long. A thread of the world's (weft-far-memory) does what
/// they ask for; a copy that is under way when this ends is waited for.
/// Errors: throws unsupported without an engine, or by MPI where a rank has begun without MPI_THREAD_MULTIPLE;
///   resource_exhausted (threads).
template <class T>
class offered_memory {
 public:
  template <class Memory>
  offered_memory(const world& w, Memory&& memory, std::source_location where = std::source_location::current())
      : offer_(w, detail::untyped(detail::borrow(memory)), !std::is_const_v<T>, where) {
    using element = typename detail::borrowed<Memory&>::element_type;
    static_assert(std::is_same_v<std::remove_cv_t<T>, std::remove_cv_t<element>>, "an offer keeps the element type");
    static_assert(std::is_const_v<T> || !std::is_const_v<element>,
                  "const memory is offered as offered_memory<const T>");
  }
  /// The offered elements, for the copies of other ranks.
  [[nodiscard]] far_span<T> span() const { return detail::make<far_span<T>>(offer_.place()); }

 private:
  detail::memory_offer offer_;
};

template <class M>
offered_memory(const world&, M&&) -> offered_memory<typename detail::borrowed<M&>::element_type>;

struct far_copy_options {
  bool verify = false;  // both sides read what they have, and compare checksums
  std::chrono::nanoseconds timeout = std::chrono::seconds{30};
  std::stop_token stop{};
};

namespace detail {
void copy_far(const world& w, const far_place& to, const memory_ref& from, const far_copy_options& options,
              std::source_location where);
void copy_near(const world& w, const memory_ref& to, const far_place& from, const far_copy_options& options,
               std::source_location where);

template <class To, class From>
void check_far_copy(std::size_t to, std::size_t from, std::source_location where) {
  static_assert(!std::is_const_v<To>, "the destination of a copy is const");
  static_assert(std::is_same_v<To, std::remove_cv_t<From>>, "a copy keeps the element type");
  static_assert(std::is_trivially_copyable_v<To>, "elements travel as their bytes");
  if (to != from) raise_copy_sizes(to, from, where);
}
}  // namespace detail

/// Copies memory of this process to that of another rank, or back; the other rank calls nothing. Returns when the data
/// is there. Path: through host memory of both, in pieces of 1 MiB, by the engine of the world; so that there is no
/// difference between one node and two. Order: after earlier work on the default stream of this side's device and of
/// the other side's; copies of one rank to another one's memory happen one after the other.
/// Errors: throws incompatible (sizes); invalid_argument (memory of this rank, or of none); out_of_range, not_found
///   (the offer has ended, or its memory), unsupported (it is for reading); corrupt (verification); peer_dead,
///   timed_out, cancelled. The last two end the connection with that rank, as an unfinished message does: its waits for
///   this one end with peer_dead. Cost: a message there and one back, and the bytes; a copy of no bytes asks nobody.
///   Thread: any.
template <class T, class From>
void copy(const world& w, const far_span<T>& to, const From& from, const far_copy_options& options = {},
          std::source_location where = std::source_location::current()) {
  const auto source = detail::borrow(from);
  detail::check_far_copy<T, typename decltype(source)::element_type>(to.size(), source.size(), where);
  detail::copy_far(w, detail::internals::place(to), detail::untyped(source), options, where);
}
template <class To, class T>
  requires requires(To& to) { detail::borrow(to); }
void copy(const world& w, To&& to, const far_span<T>& from, const far_copy_options& options = {},
          std::source_location where = std::source_location::current()) {
  const auto target = detail::borrow(to);
  detail::check_far_copy<typename decltype(target)::element_type, T>(target.size(), from.size(), where);
  detail::copy_near(w, detail::untyped(target), detail::internals::place(from), options, where);
}

}  // namespace weft
