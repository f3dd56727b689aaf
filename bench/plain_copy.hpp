// SPDX-License-Identifier: Apache-2.0
// The best plain memory copies we know how to write by hand: what a copy between host devices is measured against.
#pragma once

#include <cstddef>
#include <string_view>

namespace weft::bench {

enum class plain { memcpy_one, memcpy_two, stream_one, stream_two };
inline constexpr plain all_plain[] = {plain::memcpy_one, plain::memcpy_two, plain::stream_one, plain::stream_two};
[[nodiscard]] std::string_view name_of(plain how);

/// Two-thread forms keep their second thread between calls, spinning: the cheapest hand-over there is.
void copy_plain(plain how, void* dst, const void* src, std::size_t n);

}  // namespace weft::bench
