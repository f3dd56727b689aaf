// SPDX-License-Identifier: Apache-2.0
#include "virtual_driver/driver/settings.hpp"

#include "core/text/nearest.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <sstream>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace weft::virtual_cuda {
namespace {

std::string text_of(const char* name, const char* otherwise = "") {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): once, under the lock of a static
  return value != nullptr ? value : otherwise;
}

int number_of(const char* name, int otherwise) {
  const std::string text = text_of(name);
  return text.empty() ? otherwise : std::atoi(text.c_str());
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::stringstream stream{text};
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

// all | none | chain (neighbours, both ways) | one_way (lower numbers reach higher ones)
bool pair_can(const std::string& mode, int from, int to) {
  if (from == to || mode == "none") return false;
  if (mode == "chain") return std::abs(from - to) == 1;
  if (mode == "one_way") return from < to;
  return true;
}

topology plain_machine(std::string& problem) {
  const int count = number_of("WEFT_VIRTUAL_CUDA_DEVICES", 4);
  if (count < 0 || count > 16) problem = "WEFT_VIRTUAL_CUDA_DEVICES: expected 0 to 16";
  topology machine = host_topology(std::clamp(count, 1, 16), bytes{std::uint64_t{4} << 30});
  if (count == 0) {
    machine.devices.clear();
    machine.access.clear();
  }
  return machine;
}

void apply_peers(topology& machine, std::string& problem) {
  const std::string mode = text_of("WEFT_VIRTUAL_CUDA_P2P");
  if (mode.empty()) return;
  if (mode != "all" && mode != "none" && mode != "chain" && mode != "one_way") {
    problem = "WEFT_VIRTUAL_CUDA_P2P: expected all, none, chain or one_way, got '" + mode + "'";
    return;
  }
  const int count = machine.device_count();
  for (int from = 0; from < count; ++from) {
    for (int to = 0; to < count; ++to) {
      const auto row = static_cast<std::size_t>(from) * static_cast<std::size_t>(count);
      machine.access[row + static_cast<std::size_t>(to)] = pair_can(mode, from, to);
    }
  }
}

// As the driver reads it: numbers or the beginnings of identifiers, up to the first that names no device.
std::vector<int> visible_devices(int count) {
  std::vector<int> shown;
  const char* const list = std::getenv("CUDA_VISIBLE_DEVICES");  // NOLINT(concurrency-mt-unsafe)
  if (list == nullptr) {
    for (int n = 0; n < count; ++n) shown.push_back(n);
    return shown;
  }
  for (std::string part : split(list, ',')) {
    part.erase(std::remove(part.begin(), part.end(), ' '), part.end());
    int found = -1;
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string::npos) {
      found = part.size() < 6 ? std::atoi(part.c_str()) : -1;
    } else if (part.rfind("GPU-", 0) == 0) {
      for (int n = 0; n < count; ++n) {
        if (uuid_of(n).text().rfind(part, 0) != 0) continue;
        found = found == -1 ? n : -2;  // a beginning of two names neither
      }
    }
    if (found < 0 || found >= count) break;
    if (std::find(shown.begin(), shown.end(), found) != shown.end()) return {};  // a device twice: none at all
    shown.push_back(found);
  }
  return shown;
}

// "celsius=61,reasons=0x44,pcie_lanes=none": the others stay as they are; "none" alone is a machine without sensors.
played_health health_of(const std::string& text, std::string& problem) {
  played_health played;
  const bool without = text == "none";
  const auto take = [&](auto& field, const std::string& name) {
    if (without) field.reset();
    for (const std::string& part : split(text, ',')) {
      if (part.rfind(name + "=", 0) != 0) continue;
      const std::string value = part.substr(name.size() + 1);
      field.reset();
      if (value != "none") field = std::strtoull(value.c_str(), nullptr, 0);
      return 1;
    }
    return 0;
  };
  const int taken = take(played.celsius, "celsius") + take(played.watts, "watts") + take(played.busy, "busy") +
                    take(played.reasons, "reasons") + take(played.memory_errors, "memory_errors") +
                    take(played.link_errors, "link_errors") + take(played.pcie_generation, "pcie_generation") +
                    take(played.pcie_lanes, "pcie_lanes");
  if (!without && static_cast<std::size_t>(taken) != split(text, ',').size())
    problem = "WEFT_VIRTUAL_CUDA_HEALTH: expected none, or sensors as celsius=61,busy=none, got '" + text + "'";
  return played;
}

/// A folder of this process, gone with it.
class own_folder {
 public:
  own_folder() {
    std::string path = text_of("TMPDIR", "/tmp") + "/weft_virtual_cuda_XXXXXX";
    if (::mkdtemp(path.data()) != nullptr) path_ = std::move(path);
  }
  own_folder(const own_folder&) = delete;
  own_folder& operator=(const own_folder&) = delete;
  ~own_folder() {
    std::error_code ignored;
    if (is_mine() && !path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  /// False in the child of a fork: the parent may end first.
  [[nodiscard]] bool is_mine() const { return ::getpid() == maker_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  pid_t maker_ = ::getpid();
  std::string path_;
};

settings read_settings() {
  settings s;
  static constexpr std::string_view known[] = {"ARCH",     "ATOMICS",      "CACHE",     "DEVICES",   "FAIL",   "GDR",
                                               "GREEN",    "HEALTH",       "MANAGED",   "MAX_PEERS", "MEMOPS", "MEMORY",
                                               "MISSING",  "MISSING_CODE", "MULTICAST", "P2P",       "SMS",    "STUB",
                                               "TOPOLOGY", "VERSION",      "WINDOW"};
  s.problem = unknown_setting("WEFT_VIRTUAL_CUDA_", known);
  const std::string file = text_of("WEFT_VIRTUAL_CUDA_TOPOLOGY");
  if (file.empty()) {
    s.machine = plain_machine(s.problem);
  } else if (auto loaded = load_topology(file)) {
    s.machine = std::move(*loaded);
  } else {
    s.problem = loaded.error().what;
  }
  apply_peers(s.machine, s.problem);
  if (const std::string limit = text_of("WEFT_VIRTUAL_CUDA_MEMORY"); !limit.empty()) {
    const std::size_t size = size_of_text(limit);
    if (size == 0) s.problem = "WEFT_VIRTUAL_CUDA_MEMORY: expected a size as 64MiB, got '" + limit + "'";
    for (topology_device& device : s.machine.devices) device.memory = bytes{size};
  }
  s.visible = visible_devices(s.machine.device_count());
  s.driver_version = number_of("WEFT_VIRTUAL_CUDA_VERSION", s.driver_version);
  s.stub_code = number_of("WEFT_VIRTUAL_CUDA_STUB", 0);
  s.missing = split(text_of("WEFT_VIRTUAL_CUDA_MISSING"), ',');
  s.missing_code = number_of("WEFT_VIRTUAL_CUDA_MISSING_CODE", 0);
  const int arch = number_of("WEFT_VIRTUAL_CUDA_ARCH", 90);
  s.capability_major = arch / 10;
  s.capability_minor = arch % 10;
  s.multiprocessors = number_of("WEFT_VIRTUAL_CUDA_SMS", s.multiprocessors);
  s.max_peers = number_of("WEFT_VIRTUAL_CUDA_MAX_PEERS", 0);
  s.native_atomics = number_of("WEFT_VIRTUAL_CUDA_ATOMICS", 1) != 0;
  s.green_contexts = number_of("WEFT_VIRTUAL_CUDA_GREEN", 1) != 0;
  s.gdr = text_of("WEFT_VIRTUAL_CUDA_GDR", "ordered");
  if (s.gdr != "ordered" && s.gdr != "unordered" && s.gdr != "none")
    s.problem = "WEFT_VIRTUAL_CUDA_GDR: expected ordered, unordered or none, got '" + s.gdr + "'";
  s.managed = number_of("WEFT_VIRTUAL_CUDA_MANAGED", 1) != 0;
  s.multicast = number_of("WEFT_VIRTUAL_CUDA_MULTICAST", 1) != 0 && s.capability_major >= 9;
  s.memory_operations = number_of("WEFT_VIRTUAL_CUDA_MEMOPS", 1) != 0;
  s.health = health_of(text_of("WEFT_VIRTUAL_CUDA_HEALTH"), s.problem);
  if (const std::size_t window = size_of_text(text_of("WEFT_VIRTUAL_CUDA_WINDOW")); window != 0) s.window = window;
  s.cache = text_of("WEFT_VIRTUAL_CUDA_CACHE");
  s.compiler = text_of("CXX", WEFT_VIRTUAL_CUDA_CXX);
  if (!s.problem.empty()) std::fprintf(stderr, "weft virtual CUDA driver: %s\n", s.problem.c_str());
  return s;
}

}  // namespace

std::string cache_folder() {
  if (!given().cache.empty()) {
    std::error_code ignored;
    std::filesystem::create_directories(given().cache, ignored);
    return given().cache;
  }
  static std::mutex mutex;
  static std::unique_ptr<own_folder> folder;
  const std::lock_guard lock{mutex};
  if (!folder || !folder->is_mine()) folder = std::make_unique<own_folder>();
  return folder->path();
}

std::size_t size_of_text(const std::string& text) {
  char* end = nullptr;
  const unsigned long long count = std::strtoull(text.c_str(), &end, 10);
  const std::string_view unit{end};
  if (end == text.c_str()) return 0;
  if (unit.empty()) return count;
  if (unit == "KiB") return count << 10;
  if (unit == "MiB") return count << 20;
  if (unit == "GiB") return count << 30;
  return 0;
}

std::string device_uuid::text() const {
  std::string text = "GPU-";
  for (int n = 0; n < 16; ++n) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(bytes[n]));
    text += two;
    if (n == 3 || n == 5 || n == 7 || n == 9) text += '-';
  }
  return text;
}

device_uuid uuid_of(int physical) {
  device_uuid id{};
  // the number comes first, so that a short beginning names one device
  id.bytes[0] = static_cast<unsigned char>(0xa0 + physical);
  std::memcpy(id.bytes + 1, "weft-virtual", 12);
  return id;
}

std::string unknown_setting(std::string_view prefix, std::span<const std::string_view> known) {
  for (const char* const* one = environ; *one != nullptr; ++one) {
    std::string_view name{*one};
    if (!name.starts_with(prefix)) continue;
    name = name.substr(prefix.size(), name.find('=') - prefix.size());
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const auto near = nearest_name(name, known);  // only the ends differ: the beginning would make anything near
    return std::string{prefix} + std::string{name} + " is no setting" +
           (near ? "; did you mean " + std::string{prefix} + std::string{*near} + "?"
                 : ": docs/porting/virtual_driver.md lists them");
  }
  return {};
}

const settings& given() {
  static const auto* const read = new settings(read_settings());
  return *read;
}

}  // namespace weft::virtual_cuda
