// SPDX-License-Identifier: Apache-2.0
#include "backends/host/engine/transfers.hpp"

#include "backends/common/copy_checks.hpp"
#include "backends/host/memory/block_map.hpp"
#include "core/errors/make_error.hpp"
#include "core/modelled_time.hpp"

#include <algorithm>
#include <string>

namespace weft::host {

using common::holder_of;
using common::is_block;
using common::on_device;

transfers::transfers(const topology& machine, device_id first, memory_map& memory, fault_plan& faults)
    : machine_(machine), first_(first), memory_(memory), faults_(faults), traffic_(machine, first) {
  const std::size_t count = machine_.devices.size();
  through_host_.resize(count * count);
  for (std::size_t s = 0; s < count; ++s) {
    for (std::size_t d = 0; d < count; ++d) {
      through_host_[s * count + d] =
          detail::way_from_host_near(machine_, device_id{static_cast<int>(s)}, device_id{static_cast<int>(d)});
    }
  }
}

const link_path* transfers::path_of(const allocation* src, const allocation* dst) const {
  if (on_device(src)) return traffic_.between(src->owner, holder_of(dst));
  if (on_device(dst)) {
    // pinned memory lies near the device it was made for; plain host memory is taken to lie near the destination
    const std::size_t near = src != nullptr ? index(src->owner) : index(dst->owner);
    return &through_host_[near * machine_.devices.size() + index(dst->owner)];
  }
  return nullptr;
}

result<prepared_copy> transfers::prepare(const copy_request& request, device_id by) {
  prepared_copy made;
  made.request = request;
  made.by = by;
  common::copy_ends<allocation> ends;
  if (auto wrong = common::find_ends(ends, memory_, request)) return std::move(*wrong);
  made.path = path_of(ends.src.get(), ends.dst.get());
  made.dst = pin{std::move(ends.dst)};
  made.src = pin{std::move(ends.src)};
  if (is_block(made.dst.get()) || is_block(made.src.get())) {
    if (auto engine = common::engine_of(memory_, made.dst.get(), made.src.get(), by); !engine)
      return std::move(engine).error();
  }
  return made;
}

double transfers::memory_rate(const allocation& memory) const noexcept {
  if (memory.kind != memory_kind::device && memory.kind != memory_kind::block) return 0;
  return machine_.devices[index(memory.owner)].bytes_per_second;
}

cost transfers::cost_of(const prepared_copy& copy) const noexcept {
  // a copy inside a device reads and writes: half of its memory's rate
  const double inside = copy.path == nullptr && copy.dst ? memory_rate(*copy.dst.get()) / 2 : 0;
  return {copy.path, copy.request.shape.total(), inside};
}

operation_note transfers::note_of(const pin& src, const pin& dst, std::uint64_t count) noexcept {
  operation_note note;
  note.kind = trace_kind::copy;
  note.bytes = count;
  note.from = holder_of(src.get());
  note.to = holder_of(dst.get());
  return note;
}

std::shared_ptr<const error> transfers::move(const prepared_copy& copy) {
  const copy_request& request = copy.request;
  allocation* dst = copy.dst.get();
  allocation* src = copy.src.get();
  const auto engine = common::may_start(memory_, dst, src, copy.by);
  if (!engine) return shared_error(engine.error());
  const auto owner = [](const allocation* a) { return a == nullptr ? device_id{} : a->owner; };
  const bool dropped = on_device(dst) && on_device(src) && dst->owner != src->owner && !faults_.empty() &&
                       faults_.drops(src->owner, dst->owner);
  const auto plain = [](const allocation* a, const void* address) {
    auto* const at = const_cast<std::byte*>(static_cast<const std::byte*>(address));
    return a == nullptr ? at : a->device_side + (at - a->user);
  };
  std::byte* to = plain(dst, request.dst);
  std::byte* from = plain(src, request.src);
  if (is_block(dst)) {
    auto seen = memory_.resolve(*engine, *dst, request.dst, true);
    if (!seen) return shared_error(std::move(seen).error());
    to = *seen;
  }
  if (is_block(src)) {
    auto seen = memory_.resolve(*engine, *src, request.src, false);
    if (!seen) return shared_error(std::move(seen).error());
    from = *seen;
  }

  bool corrupts = false;
  if (!faults_.empty()) {
    const std::span<const int> links =
        copy.path != nullptr ? std::span<const int>{copy.path->links} : std::span<const int>{};
    const bool through_host = !on_device(dst) || !on_device(src);
    const auto verdict = faults_.on_copy(links, owner(src), owner(dst), through_host);
    if (verdict.fails) {
      std::string text = "injected fault: the copy of " + to_string(bytes{request.shape.total()}) + " from " +
                         (src != nullptr ? to_string(owner(src)) : "the host") + " to " +
                         (dst != nullptr ? to_string(owner(dst)) : "the host") + " failed";
      if (verdict.link >= 0) text += " on link " + std::to_string(verdict.link);
      return shared_error(make_error(errc::copy_failed, std::move(text), error_scope::endpoint));
    }
    corrupts = verdict.corrupts;
  }
  if (!dropped) {
    if (auto cause = carry(to, from, request, dst == nullptr ? request.shape.width : dst->size, corrupts)) return cause;
  }
  if (copy.path != nullptr) traffic_.add(*copy.path, request.shape.total());
  return nullptr;
}

/// Moves the bytes, slice by slice and row by row; `whole` is the size of the memory that they go into.
std::shared_ptr<const error> transfers::carry(std::byte* to, const std::byte* from, const copy_request& request,
                                              std::size_t whole, bool corrupts) {
  const copy_shape& shape = request.shape;
  for (std::uint64_t z = 0; z < shape.depth; ++z) {
    if (request.stop.stop_requested() && z != 0) {
      return shared_error(make_error(errc::cancelled, "a copy was cancelled after " + std::to_string(z) + " of " +
                                                          std::to_string(shape.depth) + " slices"));
    }
    for (std::uint64_t y = 0; y < shape.height; ++y) {
      engine_.copy(to + z * shape.dst_slice + y * shape.dst_pitch, from + z * shape.src_slice + y * shape.src_pitch,
                   shape.width, whole);
    }
  }
  if (corrupts && shape.total() != 0) {
    std::byte& victim = to[shape.width / 2];
    victim ^= std::byte{0x10};
  }
  return nullptr;
}

void transfers::try_copy(device_id from, device_id to, std::byte* into, std::span<const std::byte> bytes) {
  if (faults_.drops(from, to)) return;
  copy_request request;
  request.shape.width = bytes.size();
  const link_path* path = traffic_.between(from, to);
  const std::span<const int> links = path != nullptr ? std::span<const int>{path->links} : std::span<const int>{};
  static_cast<void>(carry(into, bytes.data(), request, bytes.size(), faults_.always_corrupts(links, from, to)));
}

std::shared_ptr<const error> transfers::move_through(prepared_copy& in, prepared_copy& out) {
  // Well inside a second-level cache: what the second step reads is still there (64 MiB through 256 KiB: 3.1 ms; in
  // two threads, where each line of the slot crosses to the other core: 5.4 ms).
  constexpr std::uint64_t cached = std::uint64_t{256} << 10;
  const copy_shape& shape = in.request.shape;
  const std::uint64_t whole = shape.width;
  if (shape.height != 1 || shape.depth != 1) {
    if (auto cause = move(in)) return cause;
    return move(out);
  }
  for (std::uint64_t done = 0; done < whole; done += cached) {
    if (in.request.stop.stop_requested()) {
      return shared_error(make_error(
          errc::cancelled, "a copy was cancelled after " + to_string(bytes{done}) + " of " + to_string(bytes{whole})));
    }
    const std::uint64_t size = std::min(cached, whole - done);
    in.request.shape.width = out.request.shape.width = size;
    if (auto cause = move(in)) return cause;
    if (auto cause = move(out)) return cause;
    in.request.src = static_cast<const std::byte*>(in.request.src) + size;
    out.request.dst = static_cast<std::byte*>(out.request.dst) + size;
  }
  return nullptr;
}

}  // namespace weft::host
