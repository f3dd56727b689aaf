// SPDX-License-Identifier: Apache-2.0
#include "virtual_driver/driver/foreign_memory.hpp"

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <unistd.h>

namespace weft::virtual_cuda {
namespace {

constexpr std::uint64_t magic = 0x7457'6566'7443'5544ULL;

struct process_state {
  char letter = 'X';          // as ps shows it; X: there is none
  std::uint64_t started = 0;  // clock ticks since boot
};

// Of the line "pid (name) state …", in which the 22nd word is the start; names may hold anything.
process_state state_of(int process) {
  const std::string path = "/proc/" + std::to_string(process) + "/stat";
  std::FILE* const file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return {};
  char text[1024] = {};
  const std::size_t got = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  const char* at = got == 0 ? nullptr : std::strrchr(text, ')');
  if (at == nullptr || std::strlen(at) < 3) return {};
  process_state state;
  state.letter = at[2];
  for (int field = 2; at != nullptr && field < 22; ++field) at = std::strchr(at + 1, ' ');
  state.started = at == nullptr ? 0 : std::strtoull(at + 1, nullptr, 10);
  return state;
}

std::uint64_t check_of(const foreign_record& record) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  unsigned char raw[sizeof record];
  std::memcpy(raw, &record, sizeof record);
  for (std::size_t n = 0; n < offsetof(foreign_record, check); ++n) hash = (hash ^ raw[n]) * 0x100000001b3ULL;
  return hash;
}

}  // namespace

bool is_alive(int process) {
  const char letter = state_of(process).letter;
  return letter != 'X' && letter != 'Z';  // nobody has to have asked how it ended
}

foreign_record record_here(foreign_record::kind what) {
  foreign_record record{};
  record.magic = magic;
  record.what = what;
  record.process = ::getpid();
  record.started = state_of(record.process).started;
  return record;
}

void seal(foreign_record& record) { record.check = check_of(record); }

bool is_whole(const foreign_record& record, foreign_record::kind what) {
  return record.magic == magic && record.what == what && record.check == check_of(record);
}

bool is_own(const foreign_record& record) { return record.process == ::getpid(); }

std::string origin_of(const foreign_record& record, std::uint64_t id) {
  return std::to_string(record.process) + "/" + std::to_string(record.started) + "/" + std::to_string(id);
}

int open_file_of(const foreign_record& record) {
  if (!is_alive(record.process) || state_of(record.process).started != record.started) return -1;
  const std::string path = "/proc/" + std::to_string(record.process) + "/fd/" + std::to_string(record.file);
  return ::open(path.c_str(), O_RDWR | O_CLOEXEC);
}

}  // namespace weft::virtual_cuda
