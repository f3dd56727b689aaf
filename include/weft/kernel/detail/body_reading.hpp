#pragma once
// SPDX-License-Identifier: Apache-2.0
// What the text of a kernel's body says about its data flow, read while the program is compiled: check mode computes
// the indices of many items ahead where no result can change them. Where the text is unusual or long, no claim is made.

#include <array>
#include <cstddef>
#include <string_view>

namespace weft::detail {

struct body_reading {
  bool is_pure = true;   // calls the library's functions alone, which do nothing but give a value
  bool is_blind = true;  // values of written buffers go nowhere but into written buffers: no index, no condition
  bool has_loop = false;
  bool may_fault = false;  // it divides, throws or has an array of its own, where a value that no run reads may do harm
};

constexpr bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
constexpr std::size_t skip_spaces(std::string_view text, std::size_t at) {
  while (at < text.size() && (text[at] == ' ' || text[at] == '\n' || text[at] == '\t')) ++at;
  return at;
}
constexpr std::string_view word_at(std::string_view text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && is_word(text[end])) ++end;
  return text.substr(at, end - at);
}

/// Where what is assigned begins, if an assignment of any kind stands there; otherwise 0.
constexpr std::size_t past_assignment(std::string_view text, std::size_t at) {
  const std::string_view rest = text.substr(skip_spaces(text, at));
  const std::size_t start = text.size() - rest.size();
  if (rest.starts_with("<<=") || rest.starts_with(">>=")) return start + 3;
  if (rest.size() > 1 && rest[1] == '=' && std::string_view("+-*/%&|^").find(rest[0]) != std::string_view::npos) {
    return start + 2;
  }
  return rest.starts_with('=') && !rest.starts_with("==") ? start + 1 : 0;
}

/// Reads a body after the preprocessor; `written` says of each parameter whether it is a buffer that is written.
/// A written buffer may stand in two places: `to[…] = …;` as a statement, and to the right of that assignment, outside
/// brackets, where nothing decides what else is evaluated.
template <std::size_t N>
constexpr body_reading read_body(std::string_view parameters, std::string_view body,
                                 const std::array<bool, N>& written) {
  // clang gives up after a million steps (-fconstexpr-steps); measured with clang 19, this is half of that at most
  constexpr std::size_t most = 40'000;
  if (body.size() * (N + 8) > most) return {false, false, true, true};
  body_reading found;
  found.may_fault = body.find_first_of("/%") != std::string_view::npos;
  std::array<std::string_view, N + 1> names{};
  std::size_t count = 0;
  int depth = 0;
  for (std::size_t at = 0; at < parameters.size() && count < N;) {
    if (const auto word = word_at(parameters, at); !word.empty()) {
      names[count] = word;
      at += word.size();
      continue;
    }
    const char c = parameters[at++];
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if ((c == ',' && depth == 1) || (c == ')' && depth == 0)) ++count;
  }
  found.is_blind = count == N;

  int parens = 0, brackets = 0;
  bool starts = true;  // a statement may start here
  bool stores = false, is_target = false, reads = false, decides = false;
  std::array<bool, N + 1> is_seen{};
  for (std::size_t at = skip_spaces(body, 0); at < body.size(); at = skip_spaces(body, at)) {
    if (const auto word = word_at(body, at); !word.empty()) {
      at += word.size();
      const std::size_t next = skip_spaces(body, at);
      const char after = next < body.size() ? body[next] : '\0';
      const bool repeats = word == "for" || word == "while" || word == "goto";
      found.has_loop |= repeats;
      found.is_pure &= word != "static" && (after != '(' || repeats || word == "if" || word == "switch" ||
                                            word == "return" || word.starts_with("weft_"));
      decides |= stores && (word == "and" || word == "or");
      bool is_of_its_own = after == '[';
      for (std::size_t n = 0; n < N; ++n) {
        if (word != names[n]) continue;
        is_of_its_own = false;
        if (!written[n]) continue;
        is_seen[n] = true;
        if (starts) {
          stores = is_target = true;
        } else {
          reads = true;
          found.is_blind &= stores && brackets == 0;
        }
        found.is_blind &= after == '[';
      }
      found.may_fault |= is_of_its_own || word == "throw";
      starts = !stores && parens == 0 && (word == "else" || word == "do");
      continue;
    }
    const char c = body[at++];
    parens += c == '(' ? 1 : c == ')' ? -1 : 0;
    brackets += c == '[' ? 1 : c == ']' ? -1 : 0;
    decides |= stores && (c == '=' || c == '?' || c == '&' || c == '|' || c == '{');
    found.is_blind &= c != '"' && c != '\'';
    if (c == ']' && brackets == 0 && is_target) {
      is_target = false;
      at = past_assignment(body, at);
      if (at == 0) return {found.is_pure, false, true, true};
    }
    if (c == ';') {
      found.is_blind &= !(reads && decides);
      stores = reads = decides = false;
    }
    starts = !stores && parens == 0 && brackets == 0 && (c == ';' || c == '{' || c == '}' || c == ')');
  }
  // a name that never came may be another one: a macro made it
  for (std::size_t n = 0; n < N; ++n) found.is_blind &= !written[n] || is_seen[n];
  return found;
}

}  // namespace weft::detail
