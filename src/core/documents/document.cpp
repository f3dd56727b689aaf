// SPDX-License-Identifier: Apache-2.0
#include "core/documents/document.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

namespace weft::detail {

const document* document::find(std::string_view name) const {
  const auto found = std::ranges::find(elements, name, &document::key);
  return found == elements.end() ? nullptr : &*found;
}

bool document_builder::refuse(int line, std::string why) {
  if (!refused()) {
    refusal_ = std::move(why);
    refusal_line_ = line;
  }
  return false;
}

document* document_builder::add(int line, document_kind kind) {
  if (refused()) return nullptr;
  if (++values_ > most_values) {
    refuse(line, "more than " + std::to_string(most_values) + " values");
    return nullptr;
  }
  document* place = &root_;
  if (!open_.empty()) place = &open_.back()->elements.emplace_back();
  place->kind = kind;
  place->line = line;
  place->key = std::exchange(key_, {});
  place->key_line = key_line_;
  return place;
}

bool document_builder::null(int line) { return add(line, document_kind::null) != nullptr; }

bool document_builder::boolean(int line, bool value) {
  document* const place = add(line, document_kind::boolean);
  if (place == nullptr) return false;
  place->boolean = value;
  return true;
}

bool document_builder::number(int line, double value, std::string text) {
  document* const place = add(line, document_kind::number);
  if (place == nullptr) return false;
  place->number = value;
  place->text = std::move(text);
  return true;
}

bool document_builder::string(int line, std::string text) {
  document* const place = add(line, document_kind::string);
  if (place == nullptr) return false;
  place->text = std::move(text);
  return true;
}

bool document_builder::key(int line, std::string name) {
  if (refused()) return false;
  const document& object = *open_.back();
  if (object.elements.size() >= most_keys)
    return refuse(line, "an object with more than " + std::to_string(most_keys) + " keys");
  if (const document* const first = object.find(name); first != nullptr) {
    return refuse(line, "the key \"" + name.substr(0, 40) + "\" stands twice in one object, first in line " +
                            std::to_string(first->key_line));
  }
  key_ = std::move(name);
  key_line_ = line;
  return true;
}

bool document_builder::begin(int line, document_kind array_or_object) {
  if (!refused() && open_.size() >= deepest)
    return refuse(line, "values nested deeper than " + std::to_string(deepest) + " levels");
  document* const place = add(line, array_or_object);
  if (place == nullptr) return false;
  open_.push_back(place);
  return true;
}

bool document_builder::end() {
  if (refused()) return false;
  open_.pop_back();
  return true;
}

document document_from(std::span<const document_event> events) {
  document_builder builder;
  for (const document_event& event : events) {
    switch (event.what) {
      case '{':
        builder.begin(0, document_kind::object);
        break;
      case '[':
        builder.begin(0, document_kind::array);
        break;
      case 'k':
        builder.key(0, std::string(event.text));
        break;
      case 's':
        builder.string(0, std::string(event.text));
        break;
      case 't':
        builder.boolean(0, true);
        break;
      case 'f':
        builder.boolean(0, false);
        break;
      case '0':
        builder.null(0);
        break;
      case 'n': {
        double value = 0;
        std::from_chars(event.text.data(), event.text.data() + event.text.size(), value);
        builder.number(0, value, std::string(event.text));
        break;
      }
      default:
        builder.end();
    }
  }
  return builder.take();
}

}  // namespace weft::detail
