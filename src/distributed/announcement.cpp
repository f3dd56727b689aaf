// SPDX-License-Identifier: Apache-2.0
#include "distributed/announcement.hpp"

#include "core/errors/make_error.hpp"
#include "weft/core/version.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

namespace weft::detail {
namespace {

constexpr std::uint32_t is_ours = 0x31746657;  // "Wft1"
constexpr std::size_t most_letters = 255;

struct numbers {
  std::uint32_t magic = is_ours;
  std::int32_t rank = 0, size = 0, local_rank = 0, pid = 0;
  std::uint32_t wanted = 0, mpi_takes_any_thread = 0, reserved = 0;
  std::uint64_t session = 0, silence = 0;
};

constexpr std::array texts{&announcement::version,      &announcement::host,    &announcement::place,
                           &announcement::interface,    &announcement::address, &announcement::engine,
                           &announcement::engine_reason};

}  // namespace

std::vector<std::byte> written(const announcement& a) {
  const numbers fixed{is_ours, a.rank,    a.size,   a.local_rank, a.pid, a.wanted, a.mpi_takes_any_thread,
                      0,       a.session, a.silence};
  const auto bytes = std::as_bytes(std::span{&fixed, 1});
  std::vector<std::byte> made{bytes.begin(), bytes.end()};
  for (const auto text : texts) {
    const auto letters = std::as_bytes(std::span{a.*text}).first(std::min((a.*text).size(), most_letters));
    made.push_back(static_cast<std::byte>(letters.size()));
    made.insert(made.end(), letters.begin(), letters.end());
  }
  made.insert(made.end(), a.engine_address.begin(), a.engine_address.end());
  return made;
}

result<announcement> read_announcement(std::span<const std::byte> bytes) {
  const auto wrong = [] { return make_error(errc::corrupt, "it is no announcement of weft's", error_scope::process); };
  numbers fixed;
  if (bytes.size() < sizeof fixed) return wrong();
  std::memcpy(&fixed, bytes.data(), sizeof fixed);
  if (fixed.magic != is_ours) return wrong();
  bytes = bytes.subspan(sizeof fixed);
  announcement made;
  made.rank = fixed.rank;
  made.size = fixed.size;
  made.local_rank = fixed.local_rank;
  made.pid = fixed.pid;
  made.wanted = fixed.wanted;
  made.mpi_takes_any_thread = fixed.mpi_takes_any_thread;
  made.session = fixed.session;
  made.silence = fixed.silence;
  for (const auto text : texts) {
    if (bytes.empty()) return wrong();
    const auto length = std::to_integer<std::size_t>(bytes.front());
    if (bytes.size() < 1 + length) return wrong();
    for (const std::byte b : bytes.subspan(1, length)) {
      const auto letter = std::to_integer<unsigned char>(b);
      if (letter < 0x20 || letter == 0x7f) return wrong();
      made.*text += static_cast<char>(letter);
    }
    bytes = bytes.subspan(1 + length);
  }
  made.engine_address.assign(bytes.begin(), bytes.end());
  return made;
}

announcement announcement_of_this_process() {
  announcement made;
  made.pid = ::getpid();
  static_cast<void>(::getrandom(&made.session, sizeof made.session, 0));
  made.version = library_version();
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) == 0) made.host = host.data();
  // The kernel's name of this boot, and the namespaces that a rendezvous does not reach out of.
  std::getline(std::ifstream{"/proc/sys/kernel/random/boot_id"}, made.place);
  if (made.place.empty()) made.place = made.host;
  for (const char* kind : {"/proc/self/ns/net", "/proc/self/ns/pid"}) {
    struct stat known{};
    if (::stat(kind, &known) == 0) made.place += "/" + std::to_string(known.st_ino);
  }
  return made;
}

}  // namespace weft::detail
