// SPDX-License-Identifier: Apache-2.0
// The checks of a copy, whatever moves its bytes. Both ends are looked up when it is submitted; the rights to them are
// looked at when it starts.
#pragma once

#include "backend/address.hpp"
#include "backends/common/allocation.hpp"
#include "core/errors/make_error.hpp"
#include "core/text/hex.hpp"
#include "weft/backend/backend.hpp"
#include "weft/core/bytes.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace weft::common {

template <class A>
[[nodiscard]] bool on_device(const A* memory) {
  return memory != nullptr && memory->on_device();
}
/// The device in whose own memory it lies; no device where that is the host's.
template <class A>
[[nodiscard]] device_id holder_of(const A* memory) {
  return on_device(memory) ? memory->owner : device_id{};
}
template <class A>
[[nodiscard]] bool is_block(const A* memory) {
  return memory != nullptr && memory->kind == memory_kind::block;
}

/// Calls `f(mapping, offset in its block, bytes)` for each mapping of a block that a range touches. Equal blocks and
/// offsets are equal bytes, whatever addresses show them.
template <class A, class F>
void for_each_piece(const A& memory, const void* address, std::uint64_t size, F&& f) {
  const auto* const begin = static_cast<const std::byte*>(address);
  const auto one = [&](const A& part) {
    const std::byte* from = std::max<const std::byte*>(begin, part.user);
    const std::byte* to = std::min<const std::byte*>(begin + size, part.user + part.size);
    if (from < to) f(part, static_cast<std::uint64_t>(from - part.user), static_cast<std::uint64_t>(to - from));
  };
  if (memory.parts.empty()) return one(memory);
  for (const auto& part : memory.parts) one(*part);
}

/// Whether two ranges of numbers share one.
[[nodiscard]] inline bool meet(std::uint64_t x, std::uint64_t n, std::uint64_t y, std::uint64_t m) {
  return x < y + m && y < x + n;
}

/// Whether two ranges share bytes, whatever addresses name them: a mapping and its source do. Null: the host's memory.
template <class A>
[[nodiscard]] bool overlap(const A* a, const void* at, std::uint64_t size, const A* b, const void* to,
                           std::uint64_t length) {
  if (a == nullptr || b == nullptr) return meet(number(at), size, number(to), length);
  if (is_block(a) && is_block(b)) {
    bool found = false;
    for_each_piece(*a, at, size, [&](const A& one, std::uint64_t x, std::uint64_t n) {
      for_each_piece(*b, to, length, [&](const A& other, std::uint64_t y, std::uint64_t m) {
        found = found || (one.mapped == other.mapped && meet(x, n, y, m));
      });
    });
    return found;
  }
  const auto [first, x] = root_of(*a, at);
  const auto [second, y] = root_of(*b, to);
  return first == second && meet(x, size, y, length);
}

/// The error of a copy that reads what it writes.
[[nodiscard]] inline error overlapping(const copy_request& request, std::uint64_t read) {
  return make_error(errc::invalid_argument, "source and destination of a copy overlap: " + to_string(bytes{read}) +
                                                " at " + hex(request.src) + " and at " + hex(request.dst));
}

/// Both ends of a copy; empty for plain memory of the host.
template <class A>
struct copy_ends {
  std::shared_ptr<A> dst, src;
};

/// Finds one end of a copy. Errors: not_found, out_of_range, naming the end.
template <class Model>
[[nodiscard]] std::optional<error> find_end(std::shared_ptr<typename Model::allocation_type>& end, const Model& memory,
                                            const void* address, std::uint64_t extent, bool is_host, const char* name) {
  end = memory.find(address, extent);
  if (end) return beyond_end(name, extent, address, end->user, end->size, end->owner);
  if (is_host) return std::nullopt;
  return not_allocated(std::string{name} + " " + hex(address));
}

/// Finds the memory of a copy. `Model` is a memory_model.
/// Errors: not_found, out_of_range, naming the end; invalid_argument where they overlap.
template <class Model>
[[nodiscard]] std::optional<error> find_ends(copy_ends<typename Model::allocation_type>& ends, const Model& memory,
                                             const copy_request& request) {
  const copy_shape& shape = request.shape;
  const std::uint64_t written = shape.extent(shape.dst_pitch, shape.dst_slice);
  const std::uint64_t read = shape.extent(shape.src_pitch, shape.src_slice);
  if (auto wrong = find_end(ends.dst, memory, request.dst, written, request.dst_is_host, "the destination"))
    return wrong;
  if (auto wrong = find_end(ends.src, memory, request.src, read, request.src_is_host, "the source")) return wrong;
  if (!overlap(ends.dst.get(), request.dst, written, ends.src.get(), request.src, read)) return std::nullopt;
  return overlapping(request, read);
}

/// The error of an end that is memory of another process, if that has ended or freed it.
template <class A>
[[nodiscard]] std::optional<error> broken_end(const A* dst, const A* src) {
  for (const A* end : {dst, src}) {
    if (end == nullptr) continue;
    if (auto cause = end->broken()) return cause;
  }
  return std::nullopt;
}

/// Whose rights a copy from or to a block is made with: those of the stream's device, or of a device whose memory is
/// the other end. Errors: invalid_argument when none of them may; what is wrong with memory of another process.
template <class Model, class A>
[[nodiscard]] result<device_id> engine_of(const Model& memory, const A* dst, const A* src, device_id by) {
  if (auto cause = broken_end(dst, src)) return std::move(*cause);
  std::string why;
  const auto may = [&](device_id who) {
    for (const A* end : {dst, src}) {
      if (end == nullptr) continue;
      std::string refused = memory.denied(who, *end, end == dst);
      if (refused.empty()) continue;
      if (why.empty()) why = std::move(refused);
      return false;
    }
    return true;
  };
  if (may(by)) return by;
  // Between the memories of two devices either one's engine will do. A block's own device is one of them there, and
  // only there: else a stream would do what its device has no right to.
  const auto is_other_end = [](const A* one) { return on_device(one) && !is_block(one); };
  if (is_other_end(dst) || is_other_end(src)) {
    for (const A* end : {dst, src}) {
      const device_id there = end->kind == memory_kind::mapped ? end->by : end->owner;
      if (may(there)) return there;
    }
  }
  return make_error(errc::invalid_argument,
                    std::string{"a copy "} + (is_block(dst) ? "into" : "from") + " a mapping of a block: " + why);
}

/// Who makes a copy that starts now: of blocks as engine_of(), else the stream's device. A disable since it was
/// submitted counts. Errors: not_enabled; what is wrong with memory of another process.
template <class Model, class A>
[[nodiscard]] result<device_id> may_start(const Model& memory, const A* dst, const A* src, device_id by) {
  if (is_block(dst) || is_block(src)) {
    auto engine = engine_of(memory, dst, src, by);
    if (engine || engine.error().code != errc::invalid_argument) return engine;
    engine.error().code = errc::not_enabled;
    engine.error().what += "; the right was withdrawn before it ran";
    return engine;
  }
  if (auto cause = broken_end(dst, src)) return std::move(*cause);
  const auto reaches = [&] {
    if (!dst->only && !src->only && (memory.enabled(src->owner, dst->owner) || memory.enabled(dst->owner, src->owner)))
      return true;
    // one that may use both: for whom memory is mapped, from where opened memory was opened, otherwise its owner
    const auto may = [&](const A* end) {
      const device_id there = end->kind == memory_kind::mapped ? end->by : end->owner;
      return memory.denied(there, *dst, true).empty() && memory.denied(there, *src).empty();
    };
    return may(dst) || may(src);
  };
  if (on_device(dst) && on_device(src) && dst->owner != src->owner && !reaches() &&
      !memory.copies_without_access(src->owner, dst->owner)) {
    return make_error(errc::not_enabled, "a direct copy from " + to_string(src->owner) + " to " +
                                             to_string(dst->owner) +
                                             " needs peer access, which was disabled before it ran");
  }
  for (const A* end : {dst, src}) {
    if (end == nullptr || end->kind != memory_kind::mapped) continue;
    if (const std::string why = memory.denied(end->by, *end, end == dst); !why.empty())
      return make_error(errc::not_enabled, "a copy through a peer mapping: " + why);
  }
  return by;
}

/// Why a fill may not start now, if so: a disable since it was submitted counts, as for a copy. Errors: not_enabled.
template <class Model, class A>
[[nodiscard]] std::optional<error> refused_fill(const Model& memory, const A& dst) {
  if (dst.kind != memory_kind::mapped) return std::nullopt;
  const std::string why = memory.denied(dst.by, dst, true);
  if (why.empty()) return std::nullopt;
  return make_error(errc::not_enabled, "a fill through a peer mapping: " + why);
}

}  // namespace weft::common
