// SPDX-License-Identifier: Apache-2.0
// Copies and fills: work of a stream, done by its thread.
#include "virtual_driver/driver/call.hpp"
#include "virtual_driver/driver/copy_places.hpp"

#include <algorithm>
#include <cstring>

namespace weft::virtual_cuda {

copy_counts& counted_copies() {
  static copy_counts counts;
  return counts;
}

CUresult find_place(std::uint64_t address, std::size_t extent, int by, bool writes, copy_place& place) {
  machine& m = the();
  if (extent > ~std::uint64_t{0} - address) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock{m.mutex};
  auto range = m.find(address);
  const bool device_side = m.space.holds(address);
  if (range == nullptr) {
    if (device_side) return CUDA_ERROR_INVALID_VALUE;
    place = {reinterpret_cast<std::byte*>(address), -1, true};
    return CUDA_SUCCESS;
  }
  if (range->kind == range_kind::multicast) return CUDA_ERROR_INVALID_VALUE;  // only kernels go there
  place = {m.space.at(device_side ? address_space::engine : address_space::program, address),
           device_side ? range->device : -1, false};
  // mappings that touch are one range to a copy
  for (std::uint64_t end = address + extent;;) {
    if (range->kind == range_kind::mapping) {
      const std::uint8_t right = m.right(by, *range);
      if (right == access_none || (writes && right != access_read_write)) return CUDA_ERROR_INVALID_VALUE;
    }
    if (end <= range->base + range->size) return CUDA_SUCCESS;
    range = range->kind == range_kind::mapping ? m.find(range->base + range->size) : nullptr;
    if (range == nullptr || range->kind != range_kind::mapping) return CUDA_ERROR_INVALID_VALUE;
  }
}

namespace {

struct box {
  std::size_t width = 0, height = 1, depth = 1;
  std::size_t dst_pitch = 0, dst_slice = 0, src_pitch = 0, src_slice = 0;
  [[nodiscard]] std::size_t extent(std::size_t pitch, std::size_t slice) const {
    return (depth - 1) * slice + (height - 1) * pitch + width;
  }
};

void copy_box(std::byte* dst, const std::byte* src, const box& b) {
  for (std::size_t z = 0; z < b.depth; ++z) {
    for (std::size_t y = 0; y < b.height; ++y) {
      std::memmove(dst + z * b.dst_slice + y * b.dst_pitch, src + z * b.src_slice + y * b.src_pitch, b.width);
    }
  }
}

void count_copy(const copy_place& dst, const copy_place& src) {
  if (dst.device < 0 || src.device < 0 || dst.device == src.device) return;
  machine& m = the();
  const auto reaches = [&](int from, int to) {
    return m.devices[static_cast<std::size_t>(from)].peers[static_cast<std::size_t>(to)];
  };
  auto& counts = counted_copies();
  (reaches(dst.device, src.device) || reaches(src.device, dst.device) ? counts.direct : counts.staged).fetch_add(1);
}

// Between two devices, in a null stream: work of either comes before it or after it. The null streams of both that are
// not the copy's own.
std::vector<stream_ref> other_null_streams(const stream_ref& s, const copy_place& dst, const copy_place& src) {
  std::vector<stream_ref> all;
  if (dst.device < 0 || src.device < 0 || dst.device == src.device || s != s->home()->null_stream()) return all;
  const std::lock_guard lock{the().mutex};
  for (const int device : {dst.device, src.device}) {
    const context_ref& c = the().devices[static_cast<std::size_t>(device)].primary;
    stream_ref null = c == nullptr || c == s->home() ? nullptr : c->null_stream();
    if (null != nullptr) all.push_back(std::move(null));
  }
  return all;
}

// Memory that the driver does not know is read before the call returns, and written before it returns.
CUresult submit_copy(const stream_ref& s, copy_place dst, copy_place src, box b) {
  constexpr std::size_t staged_at_once = std::size_t{64} << 10;
  count_copy(dst, src);
  const bool is_lost =
      dst.device >= 0 && src.device >= 0 && dst.device != src.device &&
      (the().lost_ways[static_cast<std::size_t>(src.device)][static_cast<std::size_t>(dst.device)] & 1U) != 0;
  const std::size_t read = b.extent(b.src_pitch, b.src_slice);
  std::shared_ptr<std::vector<std::byte>> kept;
  bool wait = dst.pageable;
  if (src.pageable && !dst.pageable) {
    if (read <= staged_at_once) {
      kept = std::make_shared<std::vector<std::byte>>(src.bytes, src.bytes + read);
    } else {
      wait = true;
    }
  }
  const auto nothing = [] { return CUDA_SUCCESS; };
  const std::vector<stream_ref> others = other_null_streams(s, dst, src);
  std::vector<mark_ref> before;
  for (const stream_ref& other : others) before.push_back(submit(other, {.run = nothing, .guarded = false}));
  const mark_ref done = submit(s, {.run =
                                       [dst, src, b, kept, is_lost] {
                                         if (!is_lost) copy_box(dst.bytes, kept ? kept->data() : src.bytes, b);
                                         return CUDA_SUCCESS;
                                       },
                                   .after = std::move(before),
                                   .copies = (dst.device < 0) != (src.device < 0)});
  for (const stream_ref& other : others) submit(other, {.run = nothing, .after = {done}, .guarded = false});
  if (!wait) return CUDA_SUCCESS;
  done->wait();
  return s->home()->lost.load();
}

std::uint64_t number(const void* p) { return reinterpret_cast<std::uint64_t>(p); }

}  // namespace

CUresult find_peers(CUcontext dst, CUcontext src, copy_sides& by) {
  const context_ref to = the().contexts.find(dst);
  const context_ref from = the().contexts.find(src);
  if (to == nullptr || from == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  by = {to->device, from->device};
  const int lost = to->lost.load();
  return lost != 0 ? lost : from->lost.load();
}

CUresult copy_flat(const stream_ref& s, std::uint64_t dst, std::uint64_t src, std::size_t size, copy_sides by) {
  if (size == 0) return CUDA_SUCCESS;
  copy_place to, from;
  if (const CUresult code = find_place(dst, size, by.dst, true, to); code != 0) return code;
  if (const CUresult code = find_place(src, size, by.src, false, from); code != 0) return code;
  box b;
  b.width = size;
  return submit_copy(s, to, from, b);
}

namespace {

// One side of a box: where its first byte is. False for what has no address, as arrays.
bool start_of(unsigned type, const void* host, CUdeviceptr dev, std::size_t x, std::size_t y, std::size_t z,
              std::size_t pitch, std::size_t height, std::uint64_t& at) {
  if (type != memory_type_host && type != memory_type_device && type != memory_type_unified) return false;
  at = (type == memory_type_host ? number(host) : dev) + x + y * pitch + z * pitch * height;
  return at != 0;
}

}  // namespace

template <class Description>
CUresult copy_cube(const stream_ref& s, const Description& c, copy_sides by) {
  if (c.width == 0 || c.height == 0 || c.depth == 0) return CUDA_SUCCESS;
  box b;
  b.width = c.width;
  b.height = c.height;
  b.depth = c.depth;
  b.src_pitch = c.src_pitch == 0 ? c.width + c.src_x : c.src_pitch;
  b.dst_pitch = c.dst_pitch == 0 ? c.width + c.dst_x : c.dst_pitch;
  const std::size_t src_rows = c.src_height == 0 ? c.height + c.src_y : c.src_height;
  const std::size_t dst_rows = c.dst_height == 0 ? c.height + c.dst_y : c.dst_height;
  b.src_slice = b.src_pitch * src_rows;
  b.dst_slice = b.dst_pitch * dst_rows;
  if (b.src_pitch < c.width + c.src_x || b.dst_pitch < c.width + c.dst_x) return CUDA_ERROR_INVALID_VALUE;
  if (src_rows < c.height + c.src_y || dst_rows < c.height + c.dst_y) return CUDA_ERROR_INVALID_VALUE;
  std::uint64_t src = 0;
  std::uint64_t dst = 0;
  if (!start_of(c.src_type, c.src_host, c.src_device, c.src_x, c.src_y, c.src_z, b.src_pitch, src_rows, src) ||
      !start_of(c.dst_type, c.dst_host, c.dst_device, c.dst_x, c.dst_y, c.dst_z, b.dst_pitch, dst_rows, dst)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  copy_place to, from;
  if (const auto code = find_place(dst, b.extent(b.dst_pitch, b.dst_slice), by.dst, true, to); code != 0) return code;
  if (const auto code = find_place(src, b.extent(b.src_pitch, b.src_slice), by.src, false, from); code != 0)
    return code;
  return submit_copy(s, to, from, b);
}
template CUresult copy_cube(const stream_ref&, const CUDA_MEMCPY3D&, copy_sides);
template CUresult copy_cube(const stream_ref&, const CUDA_MEMCPY3D_PEER&, copy_sides);

namespace {

template <class Pattern>
CUresult fill(const char* name, CUdeviceptr dst, Pattern value, std::size_t count, CUstream stream,
              bool waits_for_host = false) {
  return stream_call(name, stream, true, [&](const stream_ref& s) -> CUresult {
    if (count == 0) return CUDA_SUCCESS;
    if (dst == 0 || dst % sizeof(Pattern) != 0 || count > (~std::size_t{0}) / sizeof(Pattern)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    copy_place to;
    if (const auto code = find_place(dst, count * sizeof(Pattern), s->home()->device, true, to); code != 0) return code;
    if (to.pageable) return CUDA_ERROR_INVALID_VALUE;
    const mark_ref done = submit(s, {.run = [to, value, count] {
                                   std::fill_n(reinterpret_cast<Pattern*>(to.bytes), count, value);
                                   return CUDA_SUCCESS;
                                 }});
    if (!waits_for_host || to.device >= 0) return CUDA_SUCCESS;
    done->wait();
    return s->home()->lost.load();
  });
}

}  // namespace

WEFT_VIRTUAL_API CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, std::size_t size, CUstream stream) {
  return stream_call("cuMemcpyAsync", stream, size == 0 || (dst != 0 && src != 0),
                     [&](const stream_ref& s) { return copy_flat(s, dst, src, size, same(s)); });
}

WEFT_VIRTUAL_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, std::size_t size, CUstream stream) {
  return stream_call("cuMemcpyHtoDAsync", stream, size == 0 || (dst != 0 && src != nullptr),
                     [&](const stream_ref& s) { return copy_flat(s, dst, number(src), size, same(s)); });
}

WEFT_VIRTUAL_API CUresult cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, std::size_t size, CUstream stream) {
  return stream_call("cuMemcpyDtoHAsync", stream, size == 0 || (dst != nullptr && src != 0),
                     [&](const stream_ref& s) { return copy_flat(s, number(dst), src, size, same(s)); });
}

WEFT_VIRTUAL_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, std::size_t size, CUstream stream) {
  return stream_call("cuMemcpyDtoDAsync", stream, size == 0 || (dst != 0 && src != 0),
                     [&](const stream_ref& s) { return copy_flat(s, dst, src, size, same(s)); });
}

WEFT_VIRTUAL_API CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
                                            CUcontext src_context, std::size_t size, CUstream stream) {
  return stream_call("cuMemcpyPeerAsync", stream, true, [&](const stream_ref& s) -> CUresult {
    copy_sides by = same(s);
    if (const CUresult code = find_peers(dst_context, src_context, by); code != CUDA_SUCCESS) return code;
    if (size != 0 && (dst == 0 || src == 0)) return CUDA_ERROR_INVALID_VALUE;
    return copy_flat(s, dst, src, size, by);
  });
}

WEFT_VIRTUAL_API CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
  return stream_call("cuMemcpy3DAsync", stream, copy != nullptr,
                     [&](const stream_ref& s) { return copy_cube(s, *copy, same(s)); });
}

WEFT_VIRTUAL_API CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* copy, CUstream stream) {
  return stream_call("cuMemcpy3DPeerAsync", stream, copy != nullptr, [&](const stream_ref& s) -> CUresult {
    copy_sides by = same(s);
    const auto side = [&](unsigned type, CUcontext handle, int& device) {
      if (type != memory_type_device) return true;
      const context_ref c = the().contexts.find(handle);
      if (c != nullptr) device = c->device;
      return c != nullptr;
    };
    if (!side(copy->dst_type, copy->dst_context, by.dst) || !side(copy->src_type, copy->src_context, by.src)) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    return copy_cube(s, *copy, by);
  });
}

WEFT_VIRTUAL_API CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, std::size_t* sizes,
                                                std::size_t count, CUmemcpyAttributes* attributes,
                                                std::size_t* attribute_of, std::size_t kinds, CUstream stream) {
  const bool arguments = dsts != nullptr && srcs != nullptr && sizes != nullptr && count != 0 &&
                         attributes != nullptr && attribute_of != nullptr && kinds != 0 && kinds <= count &&
                         reinterpret_cast<std::uint64_t>(stream) > 1;
  return stream_call("cuMemcpyBatchAsync", stream, arguments, [&](const stream_ref& s) -> CUresult {
    if (attribute_of[0] != 0) return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t k = 0; k < kinds; ++k) {
      const int order = attributes[k].source_access_order;
      const bool grows = k == 0 || attribute_of[k] > attribute_of[k - 1];
      if (order < source_order_stream || order > source_order_any || !grows || attribute_of[k] >= count) {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    for (std::size_t n = 0; n < count; ++n) {  // all or nothing
      copy_place place;
      if (sizes[n] == 0 || dsts[n] == 0 || srcs[n] == 0) return CUDA_ERROR_INVALID_VALUE;
      if (const auto code = find_place(dsts[n], sizes[n], s->home()->device, true, place); code != 0) return code;
      if (const auto code = find_place(srcs[n], sizes[n], s->home()->device, false, place); code != 0) return code;
    }
    for (std::size_t n = 0; n < count; ++n) {
      if (const auto code = copy_flat(s, dsts[n], srcs[n], sizes[n], same(s)); code != 0) return code;
    }
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, std::size_t count, CUstream stream) {
  return fill("cuMemsetD8Async", dst, value, count, stream);
}
WEFT_VIRTUAL_API CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, std::size_t count, CUstream stream) {
  return fill("cuMemsetD16Async", dst, value, count, stream);
}
WEFT_VIRTUAL_API CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, std::size_t count, CUstream stream) {
  return fill("cuMemsetD32Async", dst, value, count, stream);
}

WEFT_VIRTUAL_API CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, std::size_t count) {
  return fill("cuMemsetD8", dst, value, count, nullptr, true);
}
WEFT_VIRTUAL_API CUresult cuMemsetD16_v2(CUdeviceptr dst, unsigned short value, std::size_t count) {
  return fill("cuMemsetD16", dst, value, count, nullptr, true);
}
WEFT_VIRTUAL_API CUresult cuMemsetD32_v2(CUdeviceptr dst, unsigned value, std::size_t count) {
  return fill("cuMemsetD32", dst, value, count, nullptr, true);
}

}  // namespace weft::virtual_cuda
