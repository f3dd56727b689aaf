// SPDX-License-Identifier: Apache-2.0
#include "weft/backend/kernel_code.hpp"

#include "backend/kernels/word_character.hpp"
#include "core/fnv.hpp"

#include <algorithm>
#include <iterator>

namespace weft {
namespace {

constexpr std::string_view blanks = " \t\r\n\f\v";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

// Where the parenthesis at `open` is closed; npos if it is not.
std::size_t closing_of(std::string_view text, std::size_t open) {
  int depth = 0;
  for (std::size_t at = open; at < text.size(); ++at) {
    depth += text[at] == '(' ? 1 : text[at] == ')' ? -1 : 0;
    if (depth == 0) {
      return at;
    }
  }
  return std::string_view::npos;
}

std::vector<std::string_view> split_at_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (c == ',' && depth == 0) {
      parts.push_back(text.substr(begin, at - begin));
      begin = at + 1;
    }
  }
  parts.push_back(text.substr(begin));
  return parts;
}

// "const float scale" becomes type and name; a last word that is all there is, is the type.
std::pair<std::string_view, std::string_view> type_and_name(std::string_view text) {
  text = trimmed(text);
  std::size_t begin = text.size();
  while (begin > 0 && is_word_character(text[begin - 1])) {
    --begin;
  }
  if (begin == 0) {
    return {text, {}};
  }
  return {trimmed(text.substr(0, begin)), text.substr(begin)};
}

parameter_words parse_parameter(std::string_view text) {
  constexpr std::string_view prefix = "WEFT_";
  constexpr std::string_view ring_word = "WEFT_RING";
  text = trimmed(text);
  if (text.starts_with(ring_word) && text.size() > ring_word.size() && !is_word_character(text[ring_word.size()])) {
    return {"RING", "", "", std::string(trimmed(text.substr(ring_word.size())))};
  }
  const std::size_t open = text.find('(');
  const std::size_t close = open == std::string_view::npos ? open : closing_of(text, open);
  if (!text.starts_with(prefix) || close == std::string_view::npos) {
    const auto [type, name] = type_and_name(text);
    return {"", std::string(type), "", std::string(name)};
  }
  const std::string_view inner = text.substr(open + 1, close - open - 1);
  const std::size_t comma = std::min(inner.find(','), inner.size());
  const std::string_view access = inner.substr(std::min(comma + 1, inner.size()));
  return {std::string(trimmed(text.substr(prefix.size(), open - prefix.size()))),
          std::string(trimmed(inner.substr(0, comma))), std::string(trimmed(access)),
          std::string(trimmed(text.substr(close + 1)))};
}

// Every text is closed by its length, so that moving a letter over a border changes the hash.
struct text_hash {
  detail::fnv value;

  void add(std::string_view text) {
    value.add_text(text);
    add(static_cast<std::uint64_t>(text.size()));
  }
  void add(std::uint64_t number) { value.add_number(number); }
};

std::uint64_t hash_of(const kernel_code& code) {
  text_hash hash;
  hash.add(code.name);
  hash.add(static_cast<std::uint64_t>(code.dimensions));
  for (const kernel_parameter& parameter : code.parameters) {
    hash.add(parameter.name);
    hash.add(static_cast<std::uint64_t>(parameter.type));
    hash.add(static_cast<std::uint64_t>(parameter.direction));
    hash.add(static_cast<std::uint64_t>(parameter.access.kind));
    hash.add(static_cast<std::uint64_t>(parameter.access.amount));
    hash.add(static_cast<std::uint64_t>(parameter.access.op));
    hash.add(static_cast<std::uint64_t>(parameter.is_ring));
  }
  hash.add(code.parameter_text);
  hash.add(code.body_text);
  if (code.raw) {
    hash.add(code.raw->cuda_source);
    hash.add(code.raw->hip_source);
    hash.add(code.raw->opencl_source);
    hash.add(code.raw->entry);
    hash.add(code.raw->cuda_image);
    hash.add(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(code.raw->cuda_function)));
    hash.add(code.raw->hip_image);
    hash.add(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(code.raw->hip_function)));
    hash.add(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(code.raw->host)));
  }
  if (code.on_gpus) {
    hash.add(static_cast<std::uint64_t>(code.on_gpus->item_lanes));
    hash.add(code.on_gpus->functions);
    hash.add(code.on_gpus->body_text);
  }
  return hash.value.value();
}

std::string described(parameter_direction direction, element_type type) {
  std::string text;
  if (direction != parameter_direction::scalar) {
    text.append(name_of(direction)).append(" ");
  }
  return text.append(name_of(type));
}

bool is_accepted(parameter_direction wanted, parameter_direction given) {
  return wanted == given || (wanted == parameter_direction::in &&
                             (given == parameter_direction::out || given == parameter_direction::inout));
}

std::string item_text(int dimensions, const std::array<std::int64_t, 3>& item) {
  if (dimensions == 1) {
    return "item " + std::to_string(item[0]);
  }
  std::string text = "item (" + std::to_string(item[0]) + ", " + std::to_string(item[1]);
  return dimensions == 2 ? text + ")" : text + ", " + std::to_string(item[2]) + ")";
}

}  // namespace

std::vector<parameter_words> parse_parameters(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('(') && closing_of(text, 0) == text.size() - 1) {
    text = trimmed(text.substr(1, text.size() - 2));
  }
  std::vector<parameter_words> parameters;
  if (!text.empty()) {
    const std::vector<std::string_view> parts = split_at_commas(text);
    std::transform(parts.begin(), parts.end(), std::back_inserter(parameters), parse_parameter);
  }
  return parameters;
}

std::string_view name_of(element_type type) {
  switch (type) {
    case element_type::int8:
      return "int8_t";
    case element_type::int16:
      return "int16_t";
    case element_type::int32:
      return "int32_t";
    case element_type::int64:
      return "int64_t";
    case element_type::uint8:
      return "uint8_t";
    case element_type::uint16:
      return "uint16_t";
    case element_type::uint32:
      return "uint32_t";
    case element_type::uint64:
      return "uint64_t";
    case element_type::float32:
      return "float";
    case element_type::float64:
      return "double";
  }
  return "?";
}

std::string_view name_of(parameter_direction direction) {
  switch (direction) {
    case parameter_direction::in:
      return "in";
    case parameter_direction::out:
      return "out";
    case parameter_direction::inout:
      return "inout";
    case parameter_direction::scalar:
      return "scalar";
  }
  return "?";
}

std::string signature_of(const kernel_code& code) {
  std::string text = code.name + "(";
  for (std::size_t n = 0; n < code.parameters.size(); ++n) {
    const kernel_parameter& parameter = code.parameters[n];
    text.append(n == 0 ? "" : ", ");
    text.append(parameter.is_ring ? "ring" : described(parameter.direction, parameter.type));
    text.append(" ").append(parameter.name);
  }
  return text + ")";
}

bool has_ring(const kernel_code& code) {
  return std::any_of(code.parameters.begin(), code.parameters.end(),
                     [](const kernel_parameter& parameter) { return parameter.is_ring; });
}

std::string ring_mismatch(element_type given, std::int64_t count) {
  return "one end of a ring, memory of exactly " + std::to_string(ring_words) +
         " uint64_t in which a weft_ring lies; this is " + std::to_string(count) + " " + std::string(name_of(given));
}

std::optional<std::string> argument_mismatch(const kernel_code& code, std::span<const kernel_argument> arguments) {
  if (arguments.size() != code.parameters.size()) {
    return signature_of(code) + " takes " + std::to_string(code.parameters.size()) + " arguments, but " +
           std::to_string(arguments.size()) + " were given";
  }
  for (std::size_t n = 0; n < arguments.size(); ++n) {
    const kernel_parameter& parameter = code.parameters[n];
    const kernel_argument& argument = arguments[n];
    const bool is_memory = argument.direction != parameter_direction::scalar;
    if (parameter.is_ring && is_memory && (argument.type != parameter.type || argument.count != ring_words)) {
      return signature_of(code) + ": argument " + std::to_string(n + 1) + ", '" + parameter.name + "', must be " +
             ring_mismatch(argument.type, argument.count);
    }
    if (argument.type != parameter.type || !is_accepted(parameter.direction, argument.direction)) {
      return signature_of(code) + ": argument " + std::to_string(n + 1) + ", '" + parameter.name + "', must be " +
             described(parameter.direction, parameter.type) + ", but is " +
             described(argument.direction, argument.type);
    }
  }
  return std::nullopt;
}

std::string describe(const kernel_code& code, const access_violation& violation) {
  const kernel_parameter parameter =
      violation.parameter < code.parameters.size() ? code.parameters[violation.parameter] : kernel_parameter{};
  // of an element that may be read and written, nobody can tell which of them it was
  const std::string_view does = parameter.direction == parameter_direction::inout ? " accesses"
                                : violation.write                                 ? " writes"
                                                                                  : " reads";
  std::string text = code.name + ": " + item_text(code.dimensions, violation.item) + std::string{does} + " element " +
                     std::to_string(violation.index) + " of parameter " + std::to_string(violation.parameter + 1) +
                     ", '" + parameter.name + "', which ";
  text += violation.undeclared ? "declares for this item only elements " : "reaches only elements ";
  text += (violation.index < violation.limit ? "from " : "below ") + std::to_string(violation.limit);
  if (violation.undeclared) {
    text += "; declare what it needs with halo(r), wrap(r), rows(k) or whole";
  }
  return text;
}

std::int64_t slab_of(const access_rule& access, std::int64_t count, std::int64_t outer_extent) {
  const std::int64_t steps = access.kind == access_kind::rows ? outer_extent * access.amount : outer_extent;
  return steps > 0 && count % steps == 0 ? count / steps : 0;
}

namespace detail {

std::shared_ptr<const kernel_code> build_kernel_code(const kernel_about& about, std::span<const parameter_kind> kinds,
                                                     host_entry host, host_checked_entry host_checked,
                                                     std::int64_t brief_items) {
  auto code = std::make_shared<kernel_code>();
  code->name = about.name;
  code->dimensions = about.dimensions;
  code->parameter_text = about.parameter_text;
  code->body_text = about.body_text;
  code->file = about.file;
  code->line = about.line;
  code->host = host;
  code->host_checked = host_checked;
  code->brief_items = brief_items;
  const std::vector<parameter_words> words = parse_parameters(code->parameter_text);
  for (std::size_t n = 0; n < kinds.size(); ++n) {
    code->parameters.push_back({n < words.size() ? words[n].name : std::string(), kinds[n].type, kinds[n].direction,
                                kinds[n].access, kinds[n].is_ring});
  }
  code->hash = hash_of(*code);
  return code;
}

}  // namespace detail

std::shared_ptr<const kernel_code> with_form_for_gpus(const kernel_code& code, shared_item_form form) {
  auto made = std::make_shared<kernel_code>(code);
  made->on_gpus = std::move(form);
  made->hash = hash_of(*made);
  return made;
}

std::shared_ptr<const kernel_code> make_kernel_code(raw_kernel raw) {
  auto code = std::make_shared<kernel_code>();
  code->name = raw.name;
  code->dimensions = raw.dimensions;
  code->parameters = raw.parameters;
  code->host = raw.host;
  code->raw = std::move(raw);
  code->hash = hash_of(*code);
  return code;
}

}  // namespace weft
