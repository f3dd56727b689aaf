// SPDX-License-Identifier: Apache-2.0
// Memory files that processes hand to each other: made so that nobody can take the memory away, and checked for that
// before they are mapped, because what is missing when it is touched ends a process with SIGBUS.
#pragma once

#include "weft/core/descriptor.hpp"
#include "weft/core/result.hpp"

#include <cstdint>
#include <string_view>

namespace weft::detail {

/// Whether a file's pages come when they are touched, or are all there from the start.
enum class memory_file_pages : std::uint8_t { any, all_there };

/// Sealed and zero; `name` is seen in /proc. Errors, naming `what`: out_of_memory, resource_exhausted.
[[nodiscard]] result<descriptor> make_memory_file(const char* name, std::uint64_t size, memory_file_pages pages,
                                                  std::string_view what);

/// Errors, naming `what`: corrupt where a file that another process offers is no memory file, can be made shorter, has
/// huge pages (there may be none left at the first touch), is smaller than `size`, or where pages are missing that
/// should be there: this process would have to pay for them.
[[nodiscard]] result<void> check_memory_file(int file, std::uint64_t size, memory_file_pages pages,
                                             std::string_view what);

}  // namespace weft::detail
