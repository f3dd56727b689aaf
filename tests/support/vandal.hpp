// SPDX-License-Identifier: Apache-2.0
// A process that owns memory shared with another one, and writes into it what it likes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace vandal {

/// What this process has mapped of a memory file of this name: no interface leads there.
inline std::span<std::byte> mapping_of(const std::string& name) {
  std::ifstream maps{"/proc/self/maps"};
  for (std::string line; std::getline(maps, line);) {
    if (line.find(name) == std::string::npos) continue;
    char* end = nullptr;
    const auto from = std::strtoull(line.c_str(), &end, 16);
    const auto to = std::strtoull(end + 1, nullptr, 16);
    return {reinterpret_cast<std::byte*>(from), static_cast<std::size_t>(to - from)};  // NOLINT: an address as text
  }
  return {};
}

/// Words of a structure, each as likely as any other to be written.
class fields {
 public:
  template <class T>
  void add(T& field) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    all_.emplace_back(reinterpret_cast<std::byte*>(&field), sizeof(T));
  }
  void add_words(std::byte* from, std::size_t size) {
    for (std::size_t at = 0; at + 8 <= size; at += 8) all_.emplace_back(from + at, 8);
  }
  /// Writes one of them: small, huge, near what it is, or anything.
  void damage(std::mt19937_64& random) const {
    const auto [at, size] = all_[random() % all_.size()];
    std::uint64_t now = 0;
    std::memcpy(&now, at, size);
    const std::array<std::uint64_t, 8> values{0,
                                              ~std::uint64_t{0},
                                              random() % 20,
                                              random(),
                                              now + 1,
                                              now - 1,
                                              now ^ std::uint64_t{1} << random() % 64,
                                              random() % 3 << 8};
    std::memcpy(at, &values[random() % values.size()], size);
  }

 private:
  std::vector<std::pair<std::byte*, std::size_t>> all_;
};

}  // namespace vandal
