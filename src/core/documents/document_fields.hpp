// SPDX-License-Identifier: Apache-2.0
// Reading an object of a document key by key, with the first mistake kept as "origin:line: key: expected …, got …".
#pragma once

#include "core/documents/document.hpp"
#include "weft/core/error.hpp"

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace weft::detail {

/// Text of a stranger in quotes, cut short and printable.
[[nodiscard]] std::string in_quotes(std::string_view text);

/// What a value is, for a message.
[[nodiscard]] std::string found(const document& value);

/// "a", "b" or "c".
[[nodiscard]] std::string listed(std::span<const std::string_view> names);

/// The first thing that is wrong; whatever is read after it is of no consequence.
struct failure {
  std::string_view origin;
  std::optional<error> first{};

  void set(int line, const std::string& path, const std::string& text);
};

/// One object of the file. Each reader takes a key, checks it, and gives the fallback when it is absent or wrong.
class fields {
 public:
  fields(failure& wrong, const document& object, std::string path, std::initializer_list<std::string_view> known);

  [[nodiscard]] const document* find(std::string_view key) const { return object_.find(key); }
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }
  [[nodiscard]] std::string path(std::string_view key) const {
    return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] int line() const { return object_.line; }
  [[nodiscard]] failure& wrong() const { return wrong_; }

  void fail(std::string_view key, const std::string& text) const;
  void expected(std::string_view key, const std::string& what) const;

  [[nodiscard]] std::string text(std::string_view key, const std::string& what = "a string") const;

  [[nodiscard]] int integer(std::string_view key, int fallback, int least, int most) const;

  [[nodiscard]] bool boolean(std::string_view key, bool fallback) const;

  // A string with a unit, as `parse` understands it.
  template <class T>
  [[nodiscard]] T quantity(std::string_view key, T fallback, std::optional<T> (*parse)(std::string_view),
                           const char* what) const {
    const document* const value = find(key);
    if (value == nullptr) return fallback;
    std::optional<T> amount;
    if (value->kind == document_kind::string) amount = parse(value->text);
    if (!amount) expected(key, what);
    return amount.value_or(fallback);
  }
  [[nodiscard]] double rate(std::string_view key) const;

  // One of a set of words; its position.
  [[nodiscard]] std::size_t word(std::string_view key, std::span<const std::string_view> words,
                                 std::size_t fallback) const;

  [[nodiscard]] std::span<const document> array(std::string_view key) const;

 private:
  failure& wrong_;
  const document& object_;
  std::string path_;
};

}  // namespace weft::detail
