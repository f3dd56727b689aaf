// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer_record.hpp"

#include "core/environment.hpp"
#include "processes/share_ticket.hpp"
#include "weft/core/descriptor.hpp"

#include <fcntl.h>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace weft::detail {
namespace {

constexpr std::string_view file_name = "/peers";
constexpr std::size_t largest = std::size_t{1} << 20;

/// What a file begins with that was written since the computer was started.
std::string header() { return "weft peers 1 " + std::to_string(this_boot()) + "\n"; }

/// One line of the file without what was found.
std::string key_of(const device_description& from, const device_description& to, peer_way way) {
  return from.driver + "\t" + from.pci_address + "\t" + to.pci_address + "\t" + std::string{to_string(way)};
}

/// A file that is a plain one and this user's; what it holds, or nothing.
std::string read_own(const std::string& path) {
  const descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
  struct stat about{};
  if (!file || ::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode) || about.st_uid != ::geteuid() ||
      about.st_size < 0 || static_cast<std::size_t>(about.st_size) > largest)
    return {};
  std::string text(static_cast<std::size_t>(about.st_size), '\0');
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

/// All of it with one write, so that lines of two processes do not mix.
bool append(const std::string& path, int how, const std::string& text) {
  const descriptor file{::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | how, 0600)};
  return file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  while (true) {
    const std::size_t end = line.find('\t');
    fields.push_back(line.substr(0, end));
    if (end == std::string_view::npos) return fields;
    line.remove_prefix(end + 1);
  }
}

}  // namespace

bool peer_record::is_kept(const device_description& from, const device_description& to) {
  return !from.simulated && !to.simulated && !from.driver.empty() && !from.pci_address.empty() &&
         !to.pci_address.empty();
}

std::string peer_record::user_folder() {
  for (const auto& [name, below] : {std::pair{"XDG_CACHE_HOME", "/weft"}, std::pair{"HOME", "/.cache/weft"}}) {
    const auto folder = environment(name);
    if (folder && folder->starts_with('/')) return *folder + below;
  }
  return {};
}

peer_record::peer_record(std::string folder) : folder_(std::move(folder)) {
  if (folder_.empty()) return;
  const std::string text = read_own(folder_ + std::string{file_name});
  std::string_view left{text};
  if (!left.starts_with(header())) return;
  left.remove_prefix(header().size());
  // a line without its end is one that somebody is writing
  for (std::size_t end = left.find('\n'); end != std::string_view::npos; end = left.find('\n')) {
    const auto fields = fields_of(left.substr(0, end));
    left.remove_prefix(end + 1);
    if (fields.size() != 6 || (fields[4] != "arrived" && fields[4] != "lost")) continue;
    std::string key{fields[0]};
    for (std::size_t i = 1; i < 4; ++i) key += "\t" + std::string{fields[i]};
    known_[key] = {fields[4] == "arrived", std::string{fields[5]}};
  }
}

std::optional<peer_delivery> peer_record::find(const device_description& from, const device_description& to,
                                               peer_way way) const {
  const auto found = known_.find(key_of(from, to, way));
  return found == known_.end() ? std::nullopt : std::optional{found->second};
}

void peer_record::add(const device_description& from, const device_description& to, peer_way way,
                      const peer_delivery& found) {
  if (folder_.empty()) return;
  const std::string key = key_of(from, to, way);
  known_[key] = found;
  std::string line = key + "\t" + (found.arrived ? "arrived" : "lost") + "\t";
  for (const char c : found.why) line += c == '\t' || c == '\n' ? ' ' : c;
  line += "\n";
  const std::string path = folder_ + std::string{file_name};
  if (read_own(path).starts_with(header())) {
    static_cast<void>(append(path, 0, line));
    return;
  }
  static_cast<void>(::mkdir(folder_.substr(0, folder_.rfind('/')).c_str(), 0700));
  static_cast<void>(::mkdir(folder_.c_str(), 0700));
  // a whole file takes the place of one of an earlier start
  const std::string fresh = path + "." + std::to_string(random_number());
  if (!append(fresh, O_CREAT | O_EXCL, header() + line) || ::rename(fresh.c_str(), path.c_str()) != 0)
    static_cast<void>(::unlink(fresh.c_str()));
}

}  // namespace weft::detail
