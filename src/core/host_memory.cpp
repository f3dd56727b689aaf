// SPDX-License-Identifier: Apache-2.0
#include "core/host_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <unistd.h>
#include <vector>

namespace weft {
namespace detail {
namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

/// The first number of a file; "max" is no limit.
std::optional<std::uint64_t> number_in(const std::string& file) {
  std::ifstream in{file};
  std::string word;
  if (!(in >> word)) return std::nullopt;
  if (word == "max") return unlimited;
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(word.c_str(), &end, 10);
  return *end == '\0' ? std::optional{value} : std::nullopt;
}

/// The number behind a word at the start of a line.
std::uint64_t number_behind(const std::string& file, std::string_view wanted) {
  std::ifstream in{file};
  for (std::string line; std::getline(in, line);) {
    std::istringstream words{line};
    std::string name;
    std::uint64_t value = 0;
    if (words >> name >> value && name == wanted) return value;
  }
  return 0;
}

/// How a version of control groups names what it says of memory.
struct group_files {
  const char *type, *limit, *usage, *cache;
};
constexpr group_files version_2{"cgroup2", "/memory.max", "/memory.current", "inactive_file"};
constexpr group_files version_1{"cgroup", "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file"};

bool has_word(const std::string& list, std::string_view wanted) {
  return ("," + list + ",").find("," + std::string{wanted} + ",") != std::string::npos;
}

struct mount {
  std::string root, place;
};

/// Where control groups of this kind are mounted. A line: id, parent, device, root, place, options … - type, source,
/// options of the file system.
std::vector<mount> mounts_of(const std::string& root, const group_files& files) {
  std::vector<mount> made;
  std::ifstream in{root + "/proc/self/mountinfo"};
  for (std::string line; std::getline(in, line);) {
    const auto dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream first{line.substr(0, dash)}, second{line.substr(dash + 3)};
    std::string skipped, type, source, options;
    mount one;
    first >> skipped >> skipped >> skipped >> one.root >> one.place;
    second >> type >> source >> options;
    if (type != files.type || (type == version_1.type && !has_word(options, "memory"))) continue;
    made.push_back(std::move(one));
  }
  return made;
}

/// The path of this process's group. A line: number, controllers, path; of version 2 the controllers are empty.
std::optional<std::string> group_of(const std::string& root, const group_files& files) {
  std::ifstream in{root + "/proc/self/cgroup"};
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_it = files.type == version_2.type ? controllers.empty() : has_word(controllers, "memory");
    if (is_it) return line.substr(second + 1);
  }
  return std::nullopt;
}

void limit_by(host_memory& memory, const std::string& root, const group_files& files) {
  const std::uint64_t of_computer = memory.total.value();
  const auto group = group_of(root, files);
  if (!group) return;
  for (const mount& one : mounts_of(root, files)) {
    std::string path = *group;
    // in a container the mount begins at a group of its own
    if (one.root != "/" && path.starts_with(one.root)) path.erase(0, one.root.size());
    for (;;) {
      const std::string folder = root + one.place + (path == "/" ? "" : path);
      const auto limit = number_in(folder + files.limit);
      // "no limit" of version 1 is a number beyond all memory
      if (limit && *limit < of_computer) {
        const std::uint64_t cache = number_behind(folder + "/memory.stat", files.cache);
        const std::uint64_t usage = number_in(folder + files.usage).value_or(0);
        const std::uint64_t used = usage - std::min(usage, cache);
        memory.total = bytes{std::min(memory.total.value(), *limit)};
        memory.free = bytes{std::min(memory.free.value(), *limit - std::min(*limit, used))};
      }
      if (path.empty() || path == "/") break;
      path.erase(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
}

}  // namespace

host_memory memory_below(const std::string& root) {
  host_memory made;
  const std::string file = root + "/proc/meminfo";
  made.total = bytes{number_behind(file, "MemTotal:") * 1024};
  made.free = bytes{number_behind(file, "MemAvailable:") * 1024};
  limit_by(made, root, version_2);
  limit_by(made, root, version_1);
  return made;
}

}  // namespace detail

host_memory memory_of_host() {
  host_memory made = detail::memory_below("");
  if (made.total.value() != 0) return made;
  // without /proc the C library knows the total
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  made.total = bytes{pages > 0 && page > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page) : 1};
  made.free = made.total;
  return made;
}

}  // namespace weft
