// SPDX-License-Identifier: Apache-2.0
#include "virtual_driver/driver/device_text.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <regex>

namespace weft::virtual_cuda {
namespace {

// Made of device_side.h and device_prelude.h by the build.
constexpr std::string_view prelude =
#include "virtual_driver/device_text.inc"
    ;

// The text of the program begins behind it.
constexpr std::string_view boundary = "struct weft_virtual_boundary_;";

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Literals and line markers as blanks, so that nothing in them is taken for code; but for the "C" of a linkage.
std::string blanked(std::string text) {
  const auto blank = [&](std::size_t from, std::size_t to) {
    for (std::size_t n = from; n < to && n < text.size(); ++n) {
      if (text[n] != '\n') text[n] = ' ';
    }
  };
  for (std::size_t n = 0; n < text.size(); ++n) {
    const bool begins_line = n == 0 || text[n - 1] == '\n';
    if (begins_line && text[n] == '#') blank(n, std::min(text.find('\n', n), text.size()));
    if (text.compare(n, 3, "\"C\"") == 0) n += 3;
    const char quote = text[n];
    if (quote != '"' && (quote != '\'' || (n != 0 && is_word(text[n - 1])))) continue;
    const std::size_t begin = n;
    for (++n; n < text.size() && text[n] != quote && text[n] != '\n'; ++n) {
      if (text[n] == '\\') ++n;
    }
    blank(begin, n + 1);
  }
  return text;
}

/// A `__global__` function that can be named as it is: no template.
struct found_kernel {
  std::string scope;  // "::a::b::"
  std::string name;
  std::string bound;      // the first argument of __launch_bounds__, or nothing
  std::size_t begin = 0;  // of its declaration
};

// Behind the bracket that closes the one at `open`.
std::size_t behind_brackets(std::string_view code, std::size_t open) {
  int depth = 0;
  for (std::size_t n = open; n < code.size(); ++n) {
    if (code[n] == '(') ++depth;
    if (code[n] == ')' && --depth == 0) return n + 1;
  }
  return code.size();
}

// Name and bound, of what stands behind __global__.
void read_head(std::string_view code, std::size_t at, found_kernel& kernel) {
  while (at < code.size() && code.find_first_of(";{}", at) != at) {
    if (!is_word(code[at])) {
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < code.size() && is_word(code[end])) ++end;
    const std::string_view word = code.substr(at, end - at);
    at = std::min(code.find_first_not_of(" \n\t", end), code.size());
    if (at == code.size() || code[at] != '(') continue;
    const std::size_t behind = behind_brackets(code, at);
    if (word == "__launch_bounds__") {
      const std::string_view all = code.substr(at + 1, behind - at - 2);
      std::size_t comma = 0;
      for (int depth = 0; comma < all.size() && (depth != 0 || all[comma] != ','); ++comma)
        depth += all[comma] == '(' ? 1 : all[comma] == ')' ? -1 : 0;
      kernel.bound = all.substr(0, comma);
    } else if (word != "__attribute__" && word != "alignas") {
      kernel.name = word;
      return;
    }
    at = behind;
  }
}

// One pass, which knows the namespaces that it is in.
std::vector<found_kernel> kernels_in(const std::string& code) {
  static const std::regex space{R"(\bnamespace\s+([\w:]*)\s*$)"};
  static const std::regex is_template{R"(\btemplate\b)"};
  std::vector<found_kernel> found;
  std::vector<std::string> scopes;  // of each brace that is open; "?" inside of anything that is no namespace
  std::size_t begin = code.find(boundary) + boundary.size();
  for (std::size_t at = begin; at < code.size(); ++at) {
    if (code[at] == '{') {
      const std::string before = code.substr(begin, at - begin);
      std::smatch match;
      const bool is_linkage = before.find("\"C\"") != std::string::npos && before.find('(') == std::string::npos;
      if (std::regex_search(before, match, space)) {
        scopes.push_back(match[1].length() == 0 ? "" : match[1].str() + "::");
      } else {
        scopes.emplace_back(is_linkage ? "" : "?");
      }
    } else if (code[at] == '}' && !scopes.empty()) {
      scopes.pop_back();
    }
    if (code[at] == '{' || code[at] == '}' || code[at] == ';') begin = at + 1;
    if (code.compare(at, 10, "__global__") != 0 || is_word(code[at - 1])) continue;
    found_kernel kernel;
    kernel.begin = begin;
    kernel.scope = "::";
    for (const std::string& one : scopes) kernel.scope += one;
    if (kernel.scope.find('?') != std::string::npos || std::regex_search(code.substr(begin, at - begin), is_template))
      continue;
    read_head(code, at + 10, kernel);
    if (!kernel.name.empty()) found.push_back(std::move(kernel));
  }
  return found;
}

std::string literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace

std::string text_to_preprocess(std::string_view text, std::string_view file) {
  std::string all{prelude};
  for (const char* const word : {"__global__", "__shared__", "__device__", "__constant__", "__managed__"})
    all += "#undef " + std::string{word} + "\n#define " + word + " " + word + "\n";
  all += "#undef __launch_bounds__\n#define __launch_bounds__(...) __launch_bounds__(__VA_ARGS__)\n";
  all += std::string{boundary} + "\n#line 1 " + literal(file) + "\n";
  return all.append(text) + "\n";
}

std::string unit_of(const std::string& preprocessed, const std::vector<std::string>& expressions) {
  const std::string code = blanked(preprocessed);
  const std::vector<found_kernel> kernels = kernels_in(code);
  std::string written = preprocessed;
  // Bounds are numbers where the kernel stands, whatever names they are made of: from the last one on, as this moves
  // what lies behind.
  for (std::size_t n = kernels.size(); n-- != 0;) {
    const std::string& bound = kernels[n].bound.empty() ? "0" : kernels[n].bound;
    written.insert(kernels[n].begin, "enum { weft_virtual_bound_" + std::to_string(n) + "_ = (" + bound + ") };");
  }
  static const std::regex dynamic{
      R"(extern\s+__shared__\s+((?:(?:alignas|__attribute__)\s*\([^;]*?\)\s*)?)([^;\[\]()]*?)(\w+)\s*\[\s*\]\s*;)"};
  written = std::regex_replace(written, dynamic, "$2* const $3 = static_cast<$2*>(weft_virtual_services_->shared());");
  static const std::regex meetings{R"(__syncthreads|__syncwarp|__shared__|__shfl_|__nanosleep)"};
  // An object or an array, rather than a function: no bracket before its end. More than there are does no harm.
  static const std::regex variables{R"((__device__|__constant__|__managed__)[^(){};]*[;={\[])"};
  const bool has_variables =
      std::regex_search(code.begin() + static_cast<std::ptrdiff_t>(code.find(boundary)), code.end(), variables);
  const bool barriers =
      std::regex_search(code.begin() + static_cast<std::ptrdiff_t>(code.find(boundary)), code.end(), meetings);
  std::string unit =
      "#define __global__\n#define __device__\n#define __constant__\n#define __managed__\n#define __shared__ static "
      "thread_local\n#define __launch_bounds__(...)\n" +
      written;
  unit += "#line 1 \"weft virtual table\"\nstatic const weft_virtual_entry weft_virtual_entries_[] = {\n";
  for (std::size_t n = 0; n < kernels.size(); ++n) {
    unit += "  weft_virtual_kernel_<&" + kernels[n].scope + kernels[n].name + ">::entry(nullptr, " + kernels[n].scope +
            "weft_virtual_bound_" + std::to_string(n) + "_),\n";
  }
  for (const std::string& expression : expressions) {
    const std::string plain = expression[0] == '&' ? expression.substr(1) : expression;
    unit += "  weft_virtual_kernel_<&" + plain + ">::entry(" + literal(expression) + ", 0),\n";
  }
  unit += "  {}\n};\n";
  unit += "static void weft_virtual_start_(const weft_virtual_services* s) { weft_virtual_services_ = s; }\n";
  unit += "static weft_virtual_thread* weft_virtual_where_() { return &weft_virtual_now_; }\n";
  unit += "extern \"C\" __attribute__((visibility(\"default\"))) const weft_virtual_table weft_virtual_module_ = {" +
          std::to_string(kernels.size() + expressions.size()) + ", weft_virtual_entries_, " +
          (barriers ? "1, " : "0, ") + (has_variables ? "1" : "0") + ", weft_virtual_start_, weft_virtual_where_};\n";
  return unit;
}

}  // namespace weft::virtual_cuda
