// SPDX-License-Identifier: Apache-2.0
// The best single pass over N arrays that we know how to write by hand: read each, add, write the sum to each. The
// limit of an all_reduce in place.
#pragma once

#include <cstddef>

namespace weft::bench {

inline constexpr int most_plain_arrays = 4;

/// Elements begin … end−1 of 2, 3 or 4 arrays; the widest vectors of the processor.
void fold_plain(float* const* arrays, int count, std::size_t begin, std::size_t end);

/// All elements of any number of arrays, in blocks that stay in the nearest cache; what the compiler makes of the
/// loops.
void fold_plain_blocks(float* const* arrays, int count, std::size_t elements);

/// All elements, by the calling thread and a second one that is kept between calls. It spins for a short time after a
/// call, then sleeps, so that it is there at once in a row of calls and in nobody's way otherwise.
void fold_plain_in_two(float* const* arrays, int count, std::size_t elements);

}  // namespace weft::bench
