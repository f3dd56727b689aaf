// SPDX-License-Identifier: Apache-2.0
// A JSON text as values that know their line, so that whoever reads them can say where something is wrong. Filled
// from a JSON reader or from the tables of the machines that are compiled in: the rest cannot tell which.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::detail {

enum class document_kind : std::uint8_t { null, boolean, number, string, array, object };

struct document {
  document_kind kind = document_kind::null;
  bool boolean = false;
  int line = 0;  // 0 when it does not come from a file
  int key_line = 0;
  double number = 0;
  std::string key;                 // its name, in an object
  std::string text;                // of a string; of a number, as it was written
  std::vector<document> elements;  // of an array or object

  [[nodiscard]] const document* find(std::string_view name) const;
};

/// Builds a document from events in the order of the text. Every event answers false once the document is refused.
class document_builder {
 public:
  static constexpr std::size_t deepest = 32;
  static constexpr std::size_t most_keys = 64;  // of one object: keys are compared pairwise
  static constexpr std::size_t most_values = 1'000'000;

  bool null(int line);
  bool boolean(int line, bool value);
  bool number(int line, double value, std::string text);
  bool string(int line, std::string text);
  bool key(int line, std::string name);
  bool begin(int line, document_kind array_or_object);
  bool end();
  bool refuse(int line, std::string why);

  [[nodiscard]] bool refused() const { return !refusal_.empty(); }
  [[nodiscard]] const std::string& refusal() const { return refusal_; }
  [[nodiscard]] int refusal_line() const { return refusal_line_; }
  [[nodiscard]] document take() { return std::move(root_); }

 private:
  document* add(int line, document_kind kind);

  document root_;
  std::vector<document*> open_;  // an open container is the last element of its parent, so these do not move
  std::string key_;
  int key_line_ = 0;
  std::size_t values_ = 0;
  std::string refusal_;
  int refusal_line_ = 0;
};

/// One event of a document that is compiled in: { } [ ] k(ey) s(tring) n(umber) t(rue) f(alse) 0 (null).
struct document_event {
  char what;
  std::string_view text;
};

[[nodiscard]] document document_from(std::span<const document_event> events);

}  // namespace weft::detail
