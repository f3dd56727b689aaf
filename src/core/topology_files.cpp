// SPDX-License-Identifier: Apache-2.0
// Where topologies come from: the table that is compiled in, files, and text.
#include "core/document.hpp"
#include "core/shipped.hpp"
#include "core/topology_reader.hpp"
#include "weft/core/nearest.hpp"
#include "weft/core/topology.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>
#ifdef WEFT_HAS_JSON
#include "core/json_reader.hpp"
#endif

namespace weft {
namespace {

#ifdef WEFT_HAS_JSON
constexpr std::size_t largest_file = std::size_t{16} << 20;

result<std::string> read_file(const std::string& file) {
  std::error_code problem;
  const std::filesystem::file_status status = std::filesystem::status(file, problem);
  if (status.type() == std::filesystem::file_type::not_found)
    return error{.code = errc::not_found, .what = file + ": no such file"};
  if (status.type() == std::filesystem::file_type::directory)
    return error{.code = errc::io_failed, .what = file + ": is a directory; name a topology file in it"};
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  std::string text;
  std::vector<char> chunk(std::size_t{64} << 10);
  while (stream && text.size() <= largest_file) {
    stream.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    text.append(chunk.data(), static_cast<std::size_t>(stream.gcount()));
  }
  if (text.size() > largest_file) {
    return error{.code = errc::invalid_topology, .what = file + ": expected a topology of at most 16 MiB, got more"};
  }
  if (stream.bad() || !stream.eof()) {
    const int cause = errno;
    return error{.code = errc::io_failed,
                 .native_code = cause,
                 .what = file + ": cannot be read: " + std::generic_category().message(cause == 0 ? EIO : cause)};
  }
  return text;
}
#endif

}  // namespace

result<topology> load_topology(std::string_view name_or_file) {
  for (const detail::shipped_topology& shipped : detail::shipped_table()) {
    if (shipped.name == name_or_file) return detail::read_topology(detail::document_from(shipped.events), shipped.name);
  }
  const std::string name(name_or_file);
  const bool is_file = name.find('/') != std::string::npos || name.ends_with(".json");
  if (is_file && name.find('\0') == std::string::npos) {
#ifdef WEFT_HAS_JSON
    result<std::string> text = read_file(name);
    if (!text) return std::move(text).error();
    return parse_topology(*text, name);
#else
    return parse_topology({}, name);
#endif
  }
  const std::vector<std::string_view> names = shipped_topologies();
  std::string what = "no topology is called \"" + name.substr(0, 60) + "\"";
  if (const auto nearest = nearest_name(name, names)) what += ", did you mean \"" + std::string(*nearest) + "\"?";
  what += " There are: ";
  for (const std::string_view each : names) what += (each == names.front() ? "" : ", ") + std::string(each);
  return error{.code = errc::not_found, .what = what + "; or name a file that ends in .json"};
}

result<topology> parse_topology(std::string_view json, std::string_view origin) {
#ifdef WEFT_HAS_JSON
  if (json.size() > largest_file) {
    return error{.code = errc::invalid_topology,
                 .what = std::string(origin) + ": expected a topology of at most 16 MiB, got more"};
  }
  result<detail::document> root = detail::read_json(json, origin);
  if (!root) return std::move(root).error();
  return detail::read_topology(*root, origin);
#else
  static_cast<void>(json);
  return error{
      .code = errc::unsupported,
      .what = std::string(origin) +
              ": this build reads no JSON; install nlohmann_json (apt install nlohmann-json3-dev) and configure "
              "again with WEFT_JSON=ON, or name a shipped topology"};
#endif
}

std::vector<std::string_view> shipped_topologies() {
  std::vector<std::string_view> names;
  for (const detail::shipped_topology& shipped : detail::shipped_table()) names.push_back(shipped.name);
  return names;
}

}  // namespace weft
