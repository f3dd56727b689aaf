// SPDX-License-Identifier: Apache-2.0
// Where a copy or a fill finds its bytes: what kind of memory an address names, and who has to be allowed to use it.
#pragma once

#include "virtual_driver/driver/machine.hpp"

namespace weft::virtual_cuda {

struct copy_place {
  std::byte* bytes = nullptr;  // as the engine sees them
  int device = -1;             // −1: the host
  bool pageable = false;       // host memory that the driver does not know
};

/// `by` is the device that has to have a right to memory that was mapped; every other kind is staged where it must be.
/// Answers INVALID_VALUE for what lies in no memory, or past its end.
[[nodiscard]] CUresult find_place(std::uint64_t address, std::size_t extent, int by, bool writes, copy_place& place);

/// The device that has to have a right to either side, where rights matter.
struct copy_sides {
  int dst, src;
};
[[nodiscard]] inline copy_sides same(const stream_ref& s) { return {s->home()->device, s->home()->device}; }

/// Those of a copy between two contexts; what the first that is lost says, and INVALID_CONTEXT where there is none.
[[nodiscard]] CUresult find_peers(CUcontext dst, CUcontext src, copy_sides& by);

[[nodiscard]] CUresult copy_flat(const stream_ref& s, std::uint64_t dst, std::uint64_t src, std::size_t size,
                                 copy_sides by);
/// Of the descriptions of CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER.
template <class Description>
[[nodiscard]] CUresult copy_cube(const stream_ref& s, const Description& c, copy_sides by);

/// Copies between devices so far: direct, and through the host because no access was enabled.
struct copy_counts {
  std::atomic<std::uint64_t> direct{0}, staged{0};
};
[[nodiscard]] copy_counts& counted_copies();

}  // namespace weft::virtual_cuda
