// SPDX-License-Identifier: Apache-2.0
// Reading JSON documents that others may have written: what is of another type than asked for is absent.
#pragma once

#include "output.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace weft::tool {

/// A file as a document. Errors: failure (usage) that names it, for what is absent, no plain file, larger than 64 MiB,
/// or no JSON.
[[nodiscard]] json read_json(const std::string& path);

/// A value of a document where it has that type. Numbers from elsewhere may be of any size: what does not fit is
/// absent.
[[nodiscard]] std::optional<std::string> string_in(const json& object, const std::string& key);
[[nodiscard]] std::optional<std::int64_t> integer_in(const json& object, const std::string& key);
[[nodiscard]] std::optional<double> number_in(const json& object, const std::string& key);
[[nodiscard]] std::optional<bool> bool_in(const json& object, const std::string& key);
/// A part of an object; null where there is none.
[[nodiscard]] const json& part_of(const json& object, const std::string& key);

}  // namespace weft::tool
