// SPDX-License-Identifier: Apache-2.0
#include "backends/host/transfers.hpp"

#include "backend/address.hpp"
#include "backends/host/block_map.hpp"
#include "core/hex.hpp"
#include "core/make_error.hpp"

#include <algorithm>
#include <cstdio>
#include <string>

namespace weft::host {
namespace {

bool overlaps(const std::byte* a, std::uint64_t n, const std::byte* b, std::uint64_t m) {
  return a < b + m && b < a + n;
}

/// In a device's own memory; what is not lies in the host's.
bool on_device(const allocation* a) {
  return a != nullptr && (a->kind == memory_kind::device || a->kind == memory_kind::mapped ||
                          a->kind == memory_kind::adopted || a->kind == memory_kind::block);
}

bool is_block(const allocation* a) { return a != nullptr && a->kind == memory_kind::block; }

/// Whether two ranges of blocks share bytes, whatever addresses name them.
bool blocks_overlap(const allocation& a, const void* at, std::uint64_t n, const allocation& b, const void* to,
                    std::uint64_t m) {
  bool found = false;
  for_each_piece(a, at, n, [&](const allocation&, std::uintptr_t x, std::uint64_t xs) {
    for_each_piece(b, to, m, [&](const allocation&, std::uintptr_t y, std::uint64_t ys) {
      found = found || (x < y + ys && y < x + xs);
    });
  });
  return found;
}

link_path joined(const link_path& first, const link_path& second) {
  link_path sum = first;
  sum.links.insert(sum.links.end(), second.links.begin(), second.links.end());
  sum.latency += second.latency;
  if (first.links.empty()) {
    sum.bytes_per_second = second.bytes_per_second;
  } else if (!second.links.empty()) {
    sum.bytes_per_second = std::min(first.bytes_per_second, second.bytes_per_second);
  }
  return sum;
}

}  // namespace

transfers::transfers(const topology& machine, device_id first, memory_map& memory, fault_plan& faults)
    : machine_(machine), first_(first), memory_(memory), faults_(faults), traffic_(machine.links.size()) {
  const std::size_t count = machine_.devices.size();
  through_host_.resize(count * count);
  for (std::size_t s = 0; s < count; ++s) {
    for (std::size_t d = 0; d < count; ++d) {
      through_host_[s * count + d] = joined(machine_.between_sockets[s * count + d], machine_.from_host[d]);
    }
  }
}

const link_path* transfers::path_of(const allocation* src, const allocation* dst) const {
  const std::size_t n = machine_.devices.size();
  if (on_device(src) && on_device(dst)) {
    if (src->owner == dst->owner) return nullptr;
    return &machine_.peer_paths[index(src->owner) * n + index(dst->owner)];
  }
  if (on_device(src)) return &machine_.to_host[index(src->owner)];
  if (on_device(dst)) {
    // pinned memory lies near the device it was made for; plain host memory is taken to lie near the destination
    const std::size_t near = src != nullptr ? index(src->owner) : index(dst->owner);
    return &through_host_[near * n + index(dst->owner)];
  }
  return nullptr;
}

void transfers::account(const link_path* path, std::uint64_t count) noexcept {
  if (path == nullptr) return;
  for (const int link : path->links)
    traffic_[static_cast<std::size_t>(link)].fetch_add(count, std::memory_order_relaxed);
}

result<device_id> transfers::engine_of(const prepared_copy& copy) const {
  std::string why;
  const auto may = [&](device_id by) {
    for (const pin* side : {&copy.dst, &copy.src}) {
      allocation* a = side->get();
      if (a == nullptr) continue;
      if (auto refused = memory_.denied(by, *a, side == &copy.dst)) {
        if (why.empty()) why = std::move(*refused);
        return false;
      }
    }
    return true;
  };
  if (may(copy.by)) return copy.by;
  // Between the memories of two devices either one's engine will do. A block's own device is one of them there, and
  // only there: else a stream would do what its device has no right to.
  const auto is_other_end = [](const allocation* a) { return on_device(a) && !is_block(a); };
  if (is_other_end(copy.dst.get()) || is_other_end(copy.src.get())) {
    for (const pin* side : {&copy.dst, &copy.src}) {
      const allocation* a = side->get();
      const device_id end = a->kind == memory_kind::mapped ? a->by : a->owner;
      if (may(end)) return end;
    }
  }
  return make_error(errc::invalid_argument, "a copy " + std::string{is_block(copy.dst.get()) ? "into" : "from"} +
                                                " a mapping of a block: " + why);
}

bool transfers::reaches(const allocation& dst, const allocation& src) const {
  if (!dst.only && !src.only) return memory_.enabled(src.owner, dst.owner) || memory_.enabled(dst.owner, src.owner);
  // one that may use both: from where opened memory was opened, otherwise its owner
  const auto seat = [](const allocation& a) { return a.kind == memory_kind::mapped ? a.by : a.owner; };
  const auto may = [&](device_id by) { return !memory_.denied(by, dst, true) && !memory_.denied(by, src); };
  return may(seat(dst)) || may(seat(src));
}

result<prepared_copy> transfers::prepare(const copy_request& request, device_id by) {
  prepared_copy made;
  made.request = request;
  made.by = by;
  const copy_shape& shape = request.shape;
  const std::uint64_t dst_extent = shape.extent(shape.dst_pitch, shape.dst_slice);
  const std::uint64_t src_extent = shape.extent(shape.src_pitch, shape.src_slice);
  if (request.dst == nullptr || request.src == nullptr)
    return make_error(errc::invalid_argument, "a copy from or to null");
  const auto side = [&](const void* address, std::uint64_t extent, bool is_host, const char* name) -> result<pin> {
    auto memory = memory_.find(address, extent);
    if (!memory) {
      if (is_host) return pin{};
      return memory_.absent(std::string{name} + " " + hex(address));
    }
    if (auto wrong = beyond_end(name, extent, address, memory->user, memory->size, memory->owner))
      return std::move(*wrong);
    return pin{std::move(memory)};
  };
  auto dst = side(request.dst, dst_extent, request.dst_is_host, "the destination");
  if (!dst) return std::move(dst).error();
  auto src = side(request.src, src_extent, request.src_is_host, "the source");
  if (!src) return std::move(src).error();
  // where the bytes are, whatever addresses name them: a mapping and its source overlap too
  const auto place = [](const pin& p, const void* address) {
    const auto* plain = static_cast<const std::byte*>(address);
    return p && p.get()->source ? p.get()->source->user + p.get()->source_offset + (plain - p.get()->user) : plain;
  };
  if (is_block(dst->get()) && is_block(src->get())
          ? blocks_overlap(*dst->get(), request.dst, dst_extent, *src->get(), request.src, src_extent)
          : overlaps(place(*dst, request.dst), dst_extent, place(*src, request.src), src_extent)) {
    return make_error(errc::invalid_argument,
                      "source and destination of a copy overlap: " + to_string(bytes{src_extent}) + " at " +
                          hex(request.src) + " and at " + hex(request.dst));
  }
  made.path = path_of(src->get(), dst->get());
  made.dst = std::move(*dst);
  made.src = std::move(*src);
  if (is_block(made.dst.get()) || is_block(made.src.get())) {
    if (auto engine = engine_of(made); !engine) return std::move(engine).error();
  }
  return made;
}

double transfers::memory_rate(const allocation& memory) const noexcept {
  if (memory.kind != memory_kind::device && memory.kind != memory_kind::block) return 0;
  return machine_.devices[static_cast<std::size_t>(memory.owner.value() - first_.value())].bytes_per_second;
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
  if (on_device(src.get())) note.from = src.get()->owner;
  if (on_device(dst.get())) note.to = dst.get()->owner;
  return note;
}

std::shared_ptr<const error> transfers::move(const prepared_copy& copy) {
  const copy_request& request = copy.request;
  allocation* dst = copy.dst.get();
  allocation* src = copy.src.get();
  // Access is looked at now, not at submission: a disable in between counts.
  const auto owner = [](const allocation* a) { return a == nullptr ? device_id{} : a->owner; };
  const bool between = on_device(dst) && on_device(src) && dst->owner != src->owner;
  bool dropped = false;
  const bool of_blocks = is_block(dst) || is_block(src);
  if (between) {
    const device_id to = owner(dst);
    const device_id from = owner(src);
    if (!of_blocks && !reaches(*dst, *src)) {
      return shared_error(make_error(errc::not_enabled, "a direct copy from " + to_string(from) + " to " +
                                                            to_string(to) +
                                                            " needs peer access, which was disabled before it ran"));
    }
    dropped = !faults_.empty() && faults_.drops(from, to);
  }
  for (const allocation* a : {dst, src}) {
    if (a == nullptr || a->kind != memory_kind::mapped) continue;
    if (a->imported) {
      if (auto cause = a->imported->broken(a->user)) return shared_error(std::move(*cause));
    }
    if (auto why = memory_.denied(a->by, *a))
      return shared_error(make_error(errc::not_enabled, "a copy through a peer mapping: " + *why));
  }
  auto* to = static_cast<std::byte*>(request.dst);
  const auto* from = static_cast<const std::byte*>(request.src);
  if (dst != nullptr) to = dst->device_side + (to - dst->user);
  if (src != nullptr) from = src->device_side + (from - src->user);
  if (of_blocks) {
    auto engine = engine_of(copy);
    if (!engine) {
      engine.error().code = errc::not_enabled;
      engine.error().what += "; the right was withdrawn before it ran";
      return shared_error(std::move(engine).error());
    }
    const auto found = [&](allocation* a, const void* address, bool writes) -> result<std::byte*> {
      if (!is_block(a)) return const_cast<std::byte*>(static_cast<const std::byte*>(address));
      return memory_.resolve(*engine, *a, address, writes);
    };
    auto at_dst = found(dst, is_block(dst) ? request.dst : to, true);
    if (!at_dst) return shared_error(std::move(at_dst).error());
    auto at_src = found(src, is_block(src) ? request.src : from, false);
    if (!at_src) return shared_error(std::move(at_src).error());
    to = *at_dst;
    from = *at_src;
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
  account(copy.path, request.shape.total());
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
  const link_path* path = path_between(from, to);
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

const link_path* transfers::path_between(device_id from, device_id to) const {
  const device_id host;
  if (from == to) return nullptr;
  if (from == host) return &machine_.from_host[index(to)];
  if (to == host) return &machine_.to_host[index(from)];
  return &machine_.peer_paths[index(from) * machine_.devices.size() + index(to)];
}

std::uint64_t transfers::watch(const traffic_source& source) {
  const std::lock_guard lock{sources_mutex_};
  sources_.emplace(++last_source_, source);
  return last_source_;
}

void transfers::unwatch(std::uint64_t id) noexcept {
  const std::lock_guard lock{sources_mutex_};
  const auto gone = sources_.find(id);
  if (gone == sources_.end()) return;
  const traffic_source& s = gone->second;
  account(path_between(s.from, s.to), __atomic_load_n(s.count, __ATOMIC_RELAXED) * s.bytes_each);
  sources_.erase(gone);
}

link_traffic transfers::traffic() {
  link_traffic seen;
  const std::lock_guard lock{sources_mutex_};
  for (const auto& count : traffic_) seen.bytes_on_link.push_back(count.load(std::memory_order_relaxed));
  for (const auto& [id, s] : sources_) {
    const link_path* path = path_between(s.from, s.to);
    if (path == nullptr) continue;
    const std::uint64_t moved = __atomic_load_n(s.count, __ATOMIC_RELAXED) * s.bytes_each;
    for (const int link : path->links) seen.bytes_on_link[static_cast<std::size_t>(link)] += moved;
  }
  return seen;
}

}  // namespace weft::host
