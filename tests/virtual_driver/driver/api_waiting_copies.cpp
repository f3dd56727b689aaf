// SPDX-License-Identifier: Apache-2.0
// Copies without a stream: work of the null stream. Whether the call waits for it, the page "API synchronization
// behavior" of the driver's reference says for each pair of memories.
#include "virtual_driver/driver/call.hpp"
#include "virtual_driver/driver/copy_places.hpp"

namespace weft::virtual_cuda {
namespace {

CUresult finish(const stream_ref& null) {
  if (const mark_ref last = null->last()) last->wait();
  return null->home()->lost.load();
}

// What is staged from pageable memory comes behind earlier work, and may still be on its way when the call returns;
// a copy within device memory is ordered in the null stream alone; every other one has ended.
CUresult copy_now(const stream_ref& null, CUdeviceptr dst, CUdeviceptr src, std::size_t size, copy_sides by) {
  if (size == 0) return CUDA_SUCCESS;
  copy_place to, from;
  if (const CUresult code = find_place(dst, size, by.dst, true, to); code != CUDA_SUCCESS) return code;
  if (const CUresult code = find_place(src, size, by.src, false, from); code != CUDA_SUCCESS) return code;
  if (from.pageable) {
    if (const CUresult lost = finish(null); lost != CUDA_SUCCESS) return lost;
  }
  if (const CUresult code = copy_flat(null, dst, src, size, by); code != CUDA_SUCCESS) return code;
  const bool has_ended = to.device < 0 || (from.device < 0 && !from.pageable);
  return has_ended ? finish(null) : CUDA_SUCCESS;
}

CUresult copy_now(const char* name, CUdeviceptr dst, CUdeviceptr src, std::size_t size) {
  return stream_call(name, nullptr, size == 0 || (dst != 0 && src != 0),
                     [&](const stream_ref& s) { return copy_now(s, dst, src, size, same(s)); });
}

template <class Description>
CUresult copy_cube_now(const stream_ref& null, const Description& copy, copy_sides by) {
  if (const CUresult code = copy_cube(null, copy, by); code != CUDA_SUCCESS) return code;
  const bool within_devices = copy.dst_type == memory_type_device && copy.src_type == memory_type_device;
  return within_devices ? CUDA_SUCCESS : finish(null);
}

constexpr std::size_t largest_pitch = 0x7fffffff;

CUDA_MEMCPY3D as_cube(const CUDA_MEMCPY2D& flat) {
  CUDA_MEMCPY3D cube;
  cube.src_x = flat.src_x;
  cube.src_y = flat.src_y;
  cube.src_type = flat.src_type;
  cube.src_host = flat.src_host;
  cube.src_device = flat.src_device;
  cube.src_pitch = flat.src_pitch;
  cube.dst_x = flat.dst_x;
  cube.dst_y = flat.dst_y;
  cube.dst_type = flat.dst_type;
  cube.dst_host = flat.dst_host;
  cube.dst_device = flat.dst_device;
  cube.dst_pitch = flat.dst_pitch;
  cube.width = flat.width;
  cube.height = flat.height;
  cube.depth = 1;
  return cube;
}

template <class Copy>
CUresult copy_rows(const char* name, const CUDA_MEMCPY2D* flat, CUstream stream, const Copy& copy) {
  return stream_call(name, stream, flat != nullptr, [&](const stream_ref& s) -> CUresult {
    if (flat->src_pitch > largest_pitch || flat->dst_pitch > largest_pitch) return CUDA_ERROR_INVALID_VALUE;
    return copy(s, as_cube(*flat), same(s));
  });
}

std::uint64_t address_of(const void* p) { return reinterpret_cast<std::uint64_t>(p); }

}  // namespace

WEFT_VIRTUAL_API CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, std::size_t size) {
  return copy_now("cuMemcpy", dst, src, size);
}
WEFT_VIRTUAL_API CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void* src, std::size_t size) {
  return copy_now("cuMemcpyHtoD", dst, address_of(src), size);
}
WEFT_VIRTUAL_API CUresult cuMemcpyDtoH_v2(void* dst, CUdeviceptr src, std::size_t size) {
  return copy_now("cuMemcpyDtoH", address_of(dst), src, size);
}
WEFT_VIRTUAL_API CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, std::size_t size) {
  return copy_now("cuMemcpyDtoD", dst, src, size);
}

WEFT_VIRTUAL_API CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
                                       std::size_t size) {
  return stream_call("cuMemcpyPeer", nullptr, true, [&](const stream_ref& s) -> CUresult {
    copy_sides by = same(s);
    if (const CUresult code = find_peers(dst_context, src_context, by); code != CUDA_SUCCESS) return code;
    if (size != 0 && (dst == 0 || src == 0)) return CUDA_ERROR_INVALID_VALUE;
    return copy_now(s, dst, src, size, by);
  });
}

WEFT_VIRTUAL_API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) {
  return copy_rows("cuMemcpy2D", copy, nullptr, copy_cube_now<CUDA_MEMCPY3D>);
}
WEFT_VIRTUAL_API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) {
  return copy_rows("cuMemcpy2DUnaligned", copy, nullptr, copy_cube_now<CUDA_MEMCPY3D>);
}
WEFT_VIRTUAL_API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  return copy_rows("cuMemcpy2DAsync", copy, stream, copy_cube<CUDA_MEMCPY3D>);
}
WEFT_VIRTUAL_API CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) {
  return stream_call("cuMemcpy3D", nullptr, copy != nullptr,
                     [&](const stream_ref& s) { return copy_cube_now(s, *copy, same(s)); });
}

}  // namespace weft::virtual_cuda
