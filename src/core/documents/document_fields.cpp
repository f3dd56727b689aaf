// SPDX-License-Identifier: Apache-2.0
#include "core/documents/document_fields.hpp"

#include "core/text/nearest.hpp"
#include "core/text/quantity.hpp"
#include "core/text/readable.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace weft::detail {

namespace {

bool has_control(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i)
    if (control_at(text, i) != 0) return true;
  return false;
}

}  // namespace

// Text of a stranger, short and printable.
std::string in_quotes(std::string_view text) {
  const auto is_inside = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; };  // a character of UTF-8
  std::size_t end = std::min<std::size_t>(text.size(), 40);
  while (end < text.size() && end > 37 && is_inside(text[end])) --end;
  std::string out = "\"";
  for (std::size_t i = 0; i < end; ++i) {
    const std::size_t length = control_at(text, i);
    out += length != 0 ? '?' : text[i];
    i += length == 2 ? 1 : 0;
  }
  return out + (end < text.size() ? "…\"" : "\"");
}

std::string found(const document& value) {
  switch (value.kind) {
    case document_kind::null:
      return "null";
    case document_kind::boolean:
      return value.boolean ? "true" : "false";
    case document_kind::number:
      return value.text.substr(0, 40);
    case document_kind::string:
      return in_quotes(value.text);
    case document_kind::array:
      return "an array";
    case document_kind::object:
      return "an object";
  }
  return "nothing";
}

std::string listed(std::span<const std::string_view> names) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    out += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + ('"' + std::string(names[i]) + '"');
  }
  return out;
}

void failure::set(int line, const std::string& path, const std::string& text) {
  if (first) return;
  std::string where(origin);
  if (line > 0) where += ":" + std::to_string(line);
  first = error{.code = errc::invalid_topology, .what = where + ": " + (path.empty() ? "" : path + ": ") + text};
}

fields::fields(failure& wrong, const document& object, std::string path, std::initializer_list<std::string_view> known)
    : wrong_(wrong), object_(object), path_(std::move(path)) {
  if (object.kind != document_kind::object) {
    wrong_.set(object.line, path_, "expected an object, got " + found(object));
    return;
  }
  for (const document& member : object.elements) {
    if (std::ranges::find(known, member.key) != known.end()) continue;
    const auto nearest = nearest_name(member.key, {known.begin(), known.size()});
    wrong_.set(member.key_line, path_,
               "unknown key " + in_quotes(member.key) +
                   (nearest ? ", did you mean \"" + std::string(*nearest) + "\"?"
                            : ", expected " + listed({known.begin(), known.size()})));
  }
}

void fields::fail(std::string_view key, const std::string& text) const {
  const document* const value = find(key);
  wrong_.set(value != nullptr ? value->line : object_.line, path(key), text);
}

void fields::expected(std::string_view key, const std::string& what) const {
  const document* const value = find(key);
  fail(key, "expected " + what + ", got " + (value != nullptr ? found(*value) : "nothing"));
}

std::string fields::text(std::string_view key, const std::string& what) const {
  const document* const value = find(key);
  if (value == nullptr) return {};
  if (value->kind != document_kind::string || value->text.empty()) {
    expected(key, what);
  } else if (has_control(value->text)) {
    // it is printed on terminals, which obey such characters
    fail(key, "has a control character in " + in_quotes(value->text));
  }
  return value->text;
}

int fields::integer(std::string_view key, int fallback, int least, int most) const {
  const document* const value = find(key);
  if (value == nullptr) return fallback;
  if (value->kind != document_kind::number || std::floor(value->number) != value->number || !(value->number >= least) ||
      !(value->number <= most)) {
    expected(key, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    return fallback;
  }
  return static_cast<int>(value->number);
}

bool fields::boolean(std::string_view key, bool fallback) const {
  const document* const value = find(key);
  if (value == nullptr) return fallback;
  if (value->kind != document_kind::boolean) expected(key, "true or false");
  return value->boolean;
}

double fields::rate(std::string_view key) const {
  return quantity<double>(key, 0.0, parse_rate, "a rate such as \"25GB/s\"");
}

std::size_t fields::word(std::string_view key, std::span<const std::string_view> words, std::size_t fallback) const {
  const document* const value = find(key);
  if (value == nullptr) return fallback;
  if (value->kind == document_kind::string) {
    const auto match = std::ranges::find(words, value->text);
    if (match != words.end()) return static_cast<std::size_t>(match - words.begin());
    if (const auto nearest = nearest_name(value->text, words)) {
      fail(key, "expected " + listed(words) + ", got " + found(*value) + ": did you mean \"" + std::string(*nearest) +
                    "\"?");
      return fallback;
    }
  }
  expected(key, listed(words));
  return fallback;
}

std::span<const document> fields::array(std::string_view key) const {
  const document* const value = find(key);
  if (value == nullptr) return {};
  if (value->kind != document_kind::array) {
    expected(key, "an array");
    return {};
  }
  return value->elements;
}

}  // namespace weft::detail
