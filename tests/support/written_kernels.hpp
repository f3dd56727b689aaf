// SPDX-License-Identifier: Apache-2.0
// The kernels of programs, read from their source files: what a program defines for itself no test can name.
#pragma once

#include "weft/backend/kernel_code.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace samples {

inline std::string without_comments(std::string text) {
  for (std::size_t at = 0; (at = text.find("//", at)) != std::string::npos;) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    text.replace(at, end - at, end - at, ' ');
  }
  return text;
}

/// Where the bracket at `open` is closed.
inline std::size_t closing_of(std::string_view text, std::size_t open) {
  int depth = 0;
  for (std::size_t at = open; at < text.size(); ++at) {
    depth += text[at] == '(' ? 1 : text[at] == ')' ? -1 : 0;
    if (depth == 0) return at;
  }
  return text.size();
}

inline weft::kernel_parameter parameter_of(const weft::parameter_words& words) {
  weft::kernel_parameter made;
  made.name = words.name;
  if (words.word == "RING") {
    made.type = weft::element_type::uint64;
    made.direction = weft::parameter_direction::inout;
    made.access = weft::access::whole();
    made.is_ring = true;
    return made;
  }
  for (int type = 0; type <= static_cast<int>(weft::element_type::float64); ++type) {
    if (words.type == weft::name_of(static_cast<weft::element_type>(type)))
      made.type = static_cast<weft::element_type>(type);
  }
  if (words.word == "IN") made.direction = weft::parameter_direction::in;
  if (words.word == "OUT") made.direction = weft::parameter_direction::out;
  if (words.word == "INOUT") made.direction = weft::parameter_direction::inout;
  using weft::reduce_op;
  if (words.access == "reduce(sum)") made.access = weft::access::reduce(reduce_op::sum);
  if (words.access == "reduce(product)") made.access = weft::access::reduce(reduce_op::product);
  if (words.access == "reduce(min)") made.access = weft::access::reduce(reduce_op::min);
  if (words.access == "reduce(max)") made.access = weft::access::reduce(reduce_op::max);
  return made;  // the other words change nothing in the text
}

/// Every WEFT_KERNEL of a file, in its order, as far as the texts for devices go; each has a hash of its own.
inline std::vector<std::shared_ptr<const weft::kernel_code>> written_kernels(const std::filesystem::path& file) {
  std::ifstream stream{file, std::ios::binary};
  const std::string text = without_comments({std::istreambuf_iterator<char>{stream}, {}});
  constexpr std::string_view word = "WEFT_KERNEL";
  std::vector<std::shared_ptr<const weft::kernel_code>> found;
  for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += word.size()) {
    const std::size_t open = text.find('(', at);
    const std::size_t close = closing_of(text, open);
    const std::size_t comma = text.find(',', open);
    const std::size_t parameters = text.find('(', comma);
    const std::size_t parameters_end = closing_of(text, parameters);
    const std::size_t body = text.find(',', parameters_end);
    if (close >= text.size() || body > close) continue;
    auto made = std::make_shared<weft::kernel_code>();
    made->name = text.substr(open + 1, comma - open - 1);
    made->dimensions = text[at + word.size()] == '_' ? text[at + word.size() + 1] - '0' : 1;
    made->parameter_text = text.substr(parameters, parameters_end + 1 - parameters);
    made->body_text = text.substr(body + 1, close - body - 1);
    made->file = file.string();
    made->line = static_cast<int>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(body), '\n')) + 1;
    for (const weft::parameter_words& words : weft::parse_parameters(made->parameter_text))
      made->parameters.push_back(parameter_of(words));
    made->hash = std::hash<std::string>{}(made->file) + at;
    found.push_back(std::move(made));
  }
  return found;
}

/// The same of all C++ files below a folder.
inline std::vector<std::shared_ptr<const weft::kernel_code>> written_kernels_below(
    const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& one : std::filesystem::recursive_directory_iterator{folder}) {
    if (one.path().extension() == ".cpp" || one.path().extension() == ".hpp") files.push_back(one.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::shared_ptr<const weft::kernel_code>> found;
  for (const auto& file : files) {
    auto some = written_kernels(file);
    found.insert(found.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  }
  return found;
}

}  // namespace samples
