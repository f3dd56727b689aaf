// SPDX-License-Identifier: Apache-2.0
// Where topologies come from: the table that is compiled in, files, and text.
#include "core/documents/document.hpp"
#include "core/documents/file_text.hpp"
#include "core/text/nearest.hpp"
#include "core/topology/shipped.hpp"
#include "core/topology/topology_reader.hpp"
#include "weft/core/topology.hpp"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>
#ifdef WEFT_HAS_JSON
#include "core/documents/json_reader.hpp"
#endif

namespace weft {
namespace {

#ifdef WEFT_HAS_JSON
constexpr std::size_t largest_file = std::size_t{16} << 20;
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
    result<std::string> text = detail::file_text(name, largest_file);
    if (!text) {
      error cause = std::move(text).error();
      if (cause.code == errc::out_of_range) cause.code = errc::invalid_topology;
      return cause;
    }
    return parse_topology(*text, name);
#else
    return parse_topology({}, name);
#endif
  }
  const std::vector<std::string_view> names = shipped_topologies();
  std::string what = "no topology is called \"" + name.substr(0, 60) + "\"";
  const auto nearest = nearest_name(name, names);
  what += nearest ? ", did you mean \"" + std::string(*nearest) + "\"? There are: " : ". There are: ";
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
