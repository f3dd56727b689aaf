// SPDX-License-Identifier: Apache-2.0
#include "measured_rates.hpp"

#include "command_line/json_parts.hpp"
#include "command_line/statistics.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/peer_access.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

namespace weft::tool {

namespace {

std::string cache_file() {
  for (const auto& [variable, below] : {std::pair{"XDG_CACHE_HOME", "/weft/"}, std::pair{"HOME", "/.cache/weft/"}}) {
    const char* folder = ::secure_getenv(variable);
    if (folder != nullptr && *folder == '/') return std::string{folder} + below + "rates.json";
  }
  return {};
}

std::string this_start() {
  std::ifstream in{"/proc/sys/kernel/random/boot_id"};
  std::string id;
  std::getline(in, id);
  return id;
}

/// How a file names a device; empty for one that another command could not find again.
std::string key_of(const device& d) {
  return d.simulated() || d.driver().empty() || d.pci_address().empty() || !d.part_of().empty()
             ? std::string{}
             : d.driver() + " " + d.pci_address();
}

constexpr std::string_view host_key = "host";

/// Latency by a copy of a few bytes, rate by what a large one takes beyond that.
template <class Copy>
lane_facts lane_of(const machine& m, std::uint64_t size, Copy&& copy) {
  const auto median = [&](std::uint64_t bytes) {
    copy(bytes);
    std::vector<double> samples;
    for (int i = 0; i < 5; ++i) {
      const auto start = m.now();
      copy(bytes);
      samples.push_back(seconds_of(m.now() - start));
    }
    return summarise(std::move(samples)).median;
  };
  const double latency = median(64);
  const double whole = median(size);
  return {whole > latency ? static_cast<double>(size) / (whole - latency) : 0, latency};
}

/// The contents of the file; null where it is of an earlier start of the computer, or is none.
json kept_document(const std::string& file) {
  std::error_code ignored;
  if (file.empty() || !std::filesystem::is_regular_file(file, ignored)) return nullptr;
  try {
    json document = read_json(file);
    if (string_in(document, "schema") == "weft.rates/1" && string_in(document, "start") == this_start())
      return document;
  } catch (const failure&) {  // NOLINT(bugprone-empty-catch): somebody else's; measuring again replaces it
  }
  return nullptr;
}

json kept_lanes(const json& document) {
  const json& lanes = part_of(document, "lanes");
  return lanes.is_array() ? lanes : json::array();
}

void keep(const machine& m, const measured_rates& rates) {
  const std::string file = cache_file();
  if (file.empty()) return;
  json lanes = json::array();
  const std::string time = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  const auto add = [&](const std::string& from, const std::string& to, const lane_facts& lane) {
    if (from.empty() || to.empty() || lane.bytes_per_second <= 0) return;
    lanes.push_back({{"from", from},
                     {"to", to},
                     {"bytes_per_second", lane.bytes_per_second},
                     {"latency_seconds", lane.latency_seconds},
                     {"time_utc", time}});
  };
  for (const auto& [ends, lane] : rates.pairs)
    add(key_of(m[device_id{ends.first}]), key_of(m[device_id{ends.second}]), lane);
  for (const device& d : m.devices()) {
    add(key_of(d), std::string{host_key}, rates.to_host[d.id().index()]);
    add(std::string{host_key}, key_of(d), rates.from_host[d.id().index()]);
  }
  if (lanes.empty()) return;
  // those of devices that this command does not see, or did not reach
  const json known = kept_document(file);
  std::set<std::pair<std::string, std::string>> fresh;
  const auto ends_of = [](const json& one) {
    return std::pair{string_in(one, "from").value_or(""), string_in(one, "to").value_or("")};
  };
  for (const json& one : lanes) fresh.insert(ends_of(one));
  for (const json& one : kept_lanes(known)) {
    if (!fresh.contains(ends_of(one))) lanes.push_back(one);
  }
  const json document{{"schema", "weft.rates/1"}, {"start", this_start()}, {"lanes", std::move(lanes)}};
  try {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path{file}.parent_path(), ignored);
    write_file(file, document.dump(1) + "\n");
  } catch (const failure&) {  // NOLINT(bugprone-empty-catch): the next command measures again
  }
}

}  // namespace

void measured_rates::apply(route_facts& facts) const {
  if (source.empty()) return;
  const auto fill = [](lane_facts& known, const lane_facts& found) {
    if (known.bytes_per_second <= 0 && found.bytes_per_second > 0) known = found;
  };
  for (const auto& [ends, lane] : pairs) {
    pair_facts& pair =
        facts.pairs[static_cast<std::size_t>(ends.first) * facts.devices + static_cast<std::size_t>(ends.second)];
    if (pair.lane.bytes_per_second > 0) continue;
    fill(pair.lane, lane);
    pair.measured = true;
  }
  for (std::size_t d = 0; d < facts.devices; ++d) {
    fill(facts.to_host[d], to_host[d]);
    for (std::size_t src = 0; src < facts.devices; ++src) fill(facts.from_host[src * facts.devices + d], from_host[d]);
  }
}

void measured_rates::apply(topology& machine) const {
  if (source.empty()) return;
  std::vector<lane_facts> found(machine.links.size());
  const auto cross = [&](const link_path& way, const lane_facts& lane) {
    for (const int link : way.links) {
      lane_facts& best = found[static_cast<std::size_t>(link)];
      if (lane.bytes_per_second <= best.bytes_per_second) continue;
      best = {lane.bytes_per_second, lane.latency_seconds / static_cast<double>(way.links.size())};
    }
  };
  for (const auto& [ends, lane] : pairs)
    cross(machine.peer_paths[machine.pair(device_id{ends.first}, device_id{ends.second})], lane);
  for (std::size_t d = 0; d < machine.devices.size(); ++d) {
    cross(machine.to_host[d], to_host[d]);
    cross(machine.from_host[d], from_host[d]);
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (machine.links[i].bytes_per_second > 0 || found[i].bytes_per_second <= 0) continue;
    machine.links[i].bytes_per_second = found[i].bytes_per_second;
    machine.links[i].latency = std::chrono::nanoseconds{std::llround(found[i].latency_seconds * 1e9)};
  }
  if (auto complete = complete_topology(machine)) machine = *std::move(complete);
}

measured_rates measure_rates(const machine& m) {
  constexpr std::uint64_t size = std::uint64_t{16} << 20;
  measure_peers(m, bytes{size}, interruption());
  measured_rates made;
  const auto count = static_cast<std::size_t>(m.device_count());
  made.to_host.resize(count);
  made.from_host.resize(count);
  made.source = "measured now";
  for (const device& from : m.devices()) {
    for (const device& to : m.devices()) {
      const auto known = capability_between(m, from.id(), to.id());
      if (!known || !known->measured || !known->bytes_per_second) continue;
      const double latency = known->latency ? seconds_of(*known->latency) : 0;
      made.pairs[{from.id().value(), to.id().value()}] = {*known->bytes_per_second, latency};
    }
    if (interrupted()) return made;
    const pinned_buffer<std::byte> here{from, size};
    const buffer<std::byte> there{from, size};
    made.to_host[from.id().index()] =
        lane_of(m, size, [&](std::uint64_t n) { copy(here.subspan(0, n), there.subspan(0, n)); });
    made.from_host[from.id().index()] =
        lane_of(m, size, [&](std::uint64_t n) { copy(there.subspan(0, n), here.subspan(0, n)); });
  }
  keep(m, made);
  return made;
}

measured_rates kept_rates(const machine& m) {
  measured_rates found;
  const json document = kept_document(cache_file());
  if (document.is_null()) return found;
  const auto count = static_cast<std::size_t>(m.device_count());
  found.to_host.resize(count);
  found.from_host.resize(count);
  std::map<std::string, int> devices;
  for (const device& d : m.devices()) {
    if (const std::string key = key_of(d); !key.empty()) devices[key] = d.id().value();
  }
  std::set<std::string> times;
  for (const json& one : kept_lanes(document)) {
    const lane_facts lane{number_in(one, "bytes_per_second").value_or(0),
                          number_in(one, "latency_seconds").value_or(0)};
    const std::string from = string_in(one, "from").value_or("");
    const std::string to = string_in(one, "to").value_or("");
    const bool is_sound = std::isfinite(lane.bytes_per_second) && lane.bytes_per_second > 0 &&
                          std::isfinite(lane.latency_seconds) && lane.latency_seconds >= 0;
    const auto a = devices.find(from);
    const auto b = devices.find(to);
    if (!is_sound || (a == devices.end() && from != host_key) || (b == devices.end() && to != host_key)) continue;
    if (a != devices.end() && b != devices.end()) {
      found.pairs[{a->second, b->second}] = lane;
    } else if (a != devices.end()) {
      found.to_host[static_cast<std::size_t>(a->second)] = lane;
    } else if (b != devices.end()) {
      found.from_host[static_cast<std::size_t>(b->second)] = lane;
    }
    times.insert(string_in(one, "time_utc").value_or("a time that is not known"));
  }
  if (!times.empty()) found.source = "measured at " + *times.begin() + (times.size() > 1 ? " and later" : "");
  return found;
}

}  // namespace weft::tool
