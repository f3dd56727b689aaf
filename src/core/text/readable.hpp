// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them, for messages and reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace weft::detail {

/// "120 us", "1.33 s", "0 s": three significant digits and the unit that fits. Never negative.
[[nodiscard]] std::string readable_time(double seconds);

/// "64 MiB", or "4001 B" where that would be rounded.
[[nodiscard]] std::string exact_size(std::uint64_t bytes);
/// As to_string(bytes), but exact where rounding would make the size look like `other`, which it is not.
[[nodiscard]] std::string size_beside(std::uint64_t bytes, std::uint64_t other);

/// "12.5 %", or "-" of nothing.
[[nodiscard]] std::string readable_part(double part, double whole);

/// The bytes of the control character that begins here, in UTF-8: U+0000 to U+001F, U+007F to U+009F; 0 of another one.
[[nodiscard]] std::size_t control_at(std::string_view text, std::size_t at) noexcept;
/// A name that the user gave, with a space for each control character: it must not break a table.
[[nodiscard]] std::string one_line(std::string text);

/// "1,000,000".
[[nodiscard]] std::string readable_count(std::int64_t count);

}  // namespace weft::detail
