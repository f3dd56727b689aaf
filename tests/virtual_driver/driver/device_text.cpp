// SPDX-License-Identifier: Apache-2.0
#include "virtual_driver/driver/device_text.hpp"

#include <cctype>
#include <regex>

namespace weft::virtual_cuda {
namespace {

// Made of device_side.h and device_prelude.h by the build.
constexpr std::string_view prelude =
#include "virtual_driver/device_text.inc"
    ;

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Comments and literals as blanks, so that nothing in them is taken for code. Newlines stay.
std::string blanked(std::string_view text) {
  std::string out{text};
  enum { code, line, block, quote, letter } state = code;
  for (std::size_t n = 0; n < out.size(); ++n) {
    const char c = text[n];
    const char next = n + 1 < text.size() ? text[n + 1] : '\0';
    switch (state) {
      case code:
        if (c == '/' && (next == '/' || next == '*'))
          state = next == '/' ? line : block;
        else if (c == '"' && text.substr(n, 3) != "\"C\"")
          state = quote;
        else if (c == '\'' && (n == 0 || !is_word(text[n - 1])))
          state = letter;
        if (state == line || state == block) out[n] = ' ';
        break;
      case line:
        if (c == '\n')
          state = code;
        else
          out[n] = ' ';
        break;
      case block:
        if (c != '\n') out[n] = ' ';
        if (c == '*' && next == '/') {
          out[n + 1] = ' ';
          ++n;
          state = code;
        }
        break;
      case quote:
      case letter:
        if (c == '\\')
          ++n;
        else if (c == (state == quote ? '"' : '\'') || c == '\n')
          state = code;
        break;
    }
    if (state == code && c == '"' && text.substr(n, 3) == "\"C\"") n += 2;
  }
  return out;
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

std::vector<found_kernel> kernels_in(std::string_view text) {
  const std::string code = blanked(text);
  std::vector<found_kernel> found;
  for (std::size_t at = code.find("__global__"); at != std::string::npos; at = code.find("__global__", at + 1)) {
    // what stands before it, back to the end of what came before
    const std::size_t begin = code.find_last_of(";}{", at);
    const std::string before =
        code.substr(begin == std::string::npos ? 0 : begin + 1, at - (begin == std::string::npos ? 0 : begin + 1));
    if (std::regex_search(before, std::regex{"\\btemplate\\b"}) || before.find("#define") != std::string::npos)
      continue;
    static const std::regex head{R"(^__global__[^;{}]*?(\w+)\s*\()"};
    std::string rest = code.substr(at, 2000);
    static const std::regex bounds{R"(__launch_bounds__\s*\([^)]*\))"};
    rest = std::regex_replace(rest, bounds, " ");
    std::smatch match;
    if (!std::regex_search(rest, match, head)) continue;
    bool is_c = before.find("extern \"C\"") != std::string::npos;
    // in a block: extern "C" { … }
    if (!is_c && std::regex_search(code.substr(0, at), std::regex{R"(extern\s*"C"\s*\{)"})) is_c = true;
    found.push_back({match[1], is_c});
  }
  return found;
}

std::string unit_of(std::string_view text, std::string_view file, const std::vector<std::string>& expressions) {
  static const std::regex dynamic{
      R"(extern\s+__shared__\s+((?:__align__\s*\([^)]*\)\s*)?)([^;\[\]]*?)(\w+)\s*\[\s*\]\s*;)"};
  const std::string written = std::regex_replace(std::string{text}, dynamic,
                                                 "$2* const $3 = static_cast<$2*>(weft_virtual_services_->shared());");
  const std::string code = blanked(text);
  const bool barriers =
      std::regex_search(code, std::regex{R"(__syncthreads|__syncwarp|__shared__|__shfl_|__nanosleep)"});
  std::string unit{prelude};
  unit += "#line 1 " + literal(file) + "\n" + written + "\n#line 1 \"weft virtual table\"\n#undef assert\n";
  unit += "static const weft_virtual_entry weft_virtual_entries_[] = {\n";
  unsigned count = 0;
  for (const found_kernel& kernel : kernels_in(text)) {
    unit += "  weft_virtual_kernel_<&" + kernel.name + ">::entry(" + (kernel.is_c ? literal(kernel.name) : "nullptr") +
            "),\n";
    ++count;
  }
  for (const std::string& expression : expressions) {
    const std::string plain = expression[0] == '&' ? expression.substr(1) : expression;
    unit += "  weft_virtual_kernel_<&" + plain + ">::entry(" + literal(expression) + "),\n";
    ++count;
  }
  unit += "  {}\n};\n";
  unit += "static void weft_virtual_start_(const weft_virtual_services* s) { weft_virtual_services_ = s; }\n";
  unit += "static weft_virtual_thread* weft_virtual_where_() { return &weft_virtual_now_; }\n";
  unit += "extern \"C\" __attribute__((visibility(\"default\"))) const weft_virtual_table weft_virtual_module_ = {" +
          std::to_string(count) + ", weft_virtual_entries_, " + (barriers ? "1" : "0") +
          ", weft_virtual_start_, weft_virtual_where_};\n";
  return unit;
}

}  // namespace weft::virtual_cuda
