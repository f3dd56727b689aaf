// SPDX-License-Identifier: Apache-2.0
#include "json_parts.hpp"

#include <cerrno>
#include <fstream>
#include <iterator>
#include <limits>
#include <sys/stat.h>

namespace weft::tool {

namespace {

const json nothing;

}  // namespace

json read_json(const std::string& path) {
  constexpr std::int64_t largest = std::int64_t{64} << 20;
  struct stat about{};
  // a pipe would be waited for, and a device has no end
  if (::stat(path.c_str(), &about) == 0 && !S_ISREG(about.st_mode))
    throw failure{exit_code::usage, path + ": this is no plain file"};
  std::ifstream in{path, std::ios::binary};
  if (!in) throw failure{exit_code::usage, path + ": " + reason_of(errno)};
  if (about.st_size > largest) throw failure{exit_code::usage, path + ": this is larger than 64 MiB"};
  const std::string text{std::istreambuf_iterator<char>{in}, {}};
  json document = json::parse(text, nullptr, false);
  if (document.is_discarded()) throw failure{exit_code::usage, path + ": this is no JSON document"};
  return document;
}

const json& part_of(const json& object, const std::string& key) {
  if (!object.is_object()) return nothing;
  const auto found = object.find(key);
  return found == object.end() ? nothing : *found;
}

std::optional<std::string> string_in(const json& object, const std::string& key) {
  const json& value = part_of(object, key);
  if (!value.is_string()) return std::nullopt;
  return value.get<std::string>();
}

std::optional<std::int64_t> integer_in(const json& object, const std::string& key) {
  const json& value = part_of(object, key);
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return std::nullopt;
  if (!value.is_number_integer()) return std::nullopt;
  return value.get<std::int64_t>();
}

std::optional<double> number_in(const json& object, const std::string& key) {
  const json& value = part_of(object, key);
  if (!value.is_number()) return std::nullopt;
  return value.get<double>();
}

std::optional<bool> bool_in(const json& object, const std::string& key) {
  const json& value = part_of(object, key);
  if (!value.is_boolean()) return std::nullopt;
  return value.get<bool>();
}

}  // namespace weft::tool
