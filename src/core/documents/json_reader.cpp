// SPDX-License-Identifier: Apache-2.0
#include "core/documents/json_reader.hpp"

#ifdef WEFT_HAS_JSON

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

namespace weft::detail {
namespace {

// What has been read so far. The library's events carry no position, so the input that it reads from counts.
struct reading_position {
  int line = 1;
  bool at_line_end = false;  // the last character read ended a line
};

class counting_iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  counting_iterator(const char* at, reading_position* position) : at_(at), position_(position) {}

  reference operator*() const { return *at_; }
  counting_iterator& operator++() {
    position_->at_line_end = *at_ == '\n';
    if (position_->at_line_end) ++position_->line;
    ++at_;
    return *this;
  }
  friend bool operator==(const counting_iterator& a, const counting_iterator& b) { return a.at_ == b.at_; }

 private:
  const char* at_;
  reading_position* position_;
};

class document_events final : public nlohmann::json_sax<nlohmann::json> {
 public:
  document_events(document_builder& builder, const reading_position& position)
      : builder_(builder), position_(position) {}

  bool null() override { return builder_.null(position_.line); }
  bool boolean(bool value) override { return builder_.boolean(position_.line, value); }
  bool number_integer(number_integer_t value) override {
    return builder_.number(line_of_number(), static_cast<double>(value), std::to_string(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return builder_.number(line_of_number(), static_cast<double>(value), std::to_string(value));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    return builder_.number(line_of_number(), value, text);
  }
  bool string(string_t& text) override { return builder_.string(position_.line, std::move(text)); }
  bool binary(binary_t& /*value*/) override { return builder_.refuse(position_.line, "binary data"); }
  bool start_object(std::size_t /*count*/) override { return builder_.begin(position_.line, document_kind::object); }
  bool key(string_t& name) override { return builder_.key(position_.line, std::move(name)); }
  bool end_object() override { return builder_.end(); }
  bool start_array(std::size_t /*count*/) override { return builder_.begin(position_.line, document_kind::array); }
  bool end_array() override { return builder_.end(); }

  bool parse_error(std::size_t /*byte*/, const std::string& /*token*/, const nlohmann::json::exception& why) override {
    // "[json.exception…] parse error at line 3, column 5: syntax error while parsing value - unexpected end of input…"
    std::string text = why.what();
    if (const auto place = text.find("column "); place != std::string::npos) {
      if (const auto colon = text.find(": ", place); colon != std::string::npos) text.erase(0, colon + 2);
    }
    if (const auto dash = text.find(" - "); text.starts_with("syntax error") && dash != std::string::npos)
      text.erase(0, dash + 3);
    const bool in_next_line = position_.at_line_end && position_.line > 1;
    return builder_.refuse(in_next_line ? position_.line - 1 : position_.line, "not JSON: " + text.substr(0, 240));
  }

 private:
  // Only the character behind a number tells that it has ended, and that may be the end of the line.
  [[nodiscard]] int line_of_number() const { return position_.at_line_end ? position_.line - 1 : position_.line; }

  document_builder& builder_;
  const reading_position& position_;
};

}  // namespace

result<document> read_json(std::string_view text, std::string_view origin) {
  reading_position position;
  document_builder builder;
  document_events events(builder, position);
  const char* const first = text.data();
  const char* const last = first + text.size();
  const bool complete =
      nlohmann::json::sax_parse(counting_iterator(first, &position), counting_iterator(last, &position), &events);
  if (!complete || builder.refused()) {
    return error{.code = errc::invalid_topology,
                 .what = std::string(origin) + ":" + std::to_string(builder.refusal_line()) + ": " + builder.refusal()};
  }
  return builder.take();
}

}  // namespace weft::detail

#endif
