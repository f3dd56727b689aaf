// SPDX-License-Identifier: Apache-2.0
#include "doctor/record.hpp"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <utility>

namespace weft::tool {

namespace {

void expect_texts(const json& document, const char* part, const std::string& source) {
  const json& object = part_of(document, part);
  if (object.is_null()) return;
  if (!object.is_object()) throw failure{exit_code::usage, fmt::format("{}: {} is not an object", source, part)};
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string())
      throw failure{exit_code::usage, fmt::format("{}: {} of {} is not a text", source, key, part)};
  }
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const auto begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  text = trimmed(text);
  const bool is_hex = text.starts_with("0x");
  if (is_hex) text.remove_prefix(2);
  std::int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value, is_hex ? 16 : 10);
  if (problem != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::set<int> number_list(std::string_view list) {
  constexpr std::int64_t most = 65536;
  std::set<int> numbers;
  for (const std::string_view part : split(trimmed(list), ',')) {
    const auto dash = part.find('-');
    const auto first = whole_number(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : whole_number(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= most) break;
    for (auto one = *first; one <= *last; ++one) numbers.insert(static_cast<int>(one));
  }
  return numbers;
}

system_record::system_record(json document, const std::string& source) : document_(std::move(document)) {
  if (string_in(document_, "schema") != "weft.machine/1") {
    throw failure{exit_code::usage,
                  fmt::format("{}: this is no weft.machine/1 document; weft doctor --collect writes one", source)};
  }
  for (const char* part : {"files", "unreadable", "links"}) expect_texts(document_, part, source);
}

std::optional<std::string> system_record::text(const std::string& file) const {
  auto found = string_in(part_of(document_, "files"), file);
  if (found) *found = std::string{trimmed(*found)};
  return found;
}

std::optional<std::int64_t> system_record::number(const std::string& file) const {
  const auto found = text(file);
  return found ? whole_number(*found) : std::nullopt;
}

std::string system_record::link(const std::string& path) const {
  return string_in(part_of(document_, "links"), path).value_or("");
}

std::vector<std::string> system_record::names(const std::string& folder) const {
  std::vector<std::string> list;
  const json& names = part_of(part_of(document_, "folders"), folder);
  if (!names.is_array()) return list;
  for (const json& name : names) {
    if (name.is_string()) list.push_back(name.get<std::string>());
  }
  return list;
}

bool system_record::has_folder(const std::string& folder) const {
  return part_of(part_of(document_, "folders"), folder).is_array();
}

const json& system_record::at(const std::string& pointer) const {
  const json* part = &document_;
  for (std::size_t begin = 1; begin <= pointer.size();) {
    const std::size_t end = std::min(pointer.find('/', begin), pointer.size());
    part = &part_of(*part, pointer.substr(begin, end - begin));
    begin = end + 1;
  }
  return *part;
}

}  // namespace weft::tool
