// SPDX-License-Identifier: Apache-2.0
#include "commands/joined_world.hpp"

#include "weft/core/raise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace weft::tool {

namespace {

constexpr std::size_t most_said = process_group::max_payload;

/// Of each rank what it says, at most `most_said` bytes.
std::vector<std::vector<std::byte>> gather_piece(world& of, std::span<const std::byte> mine) {
  constexpr std::uint32_t tag = 1;
  const int size = of.size();
  if (of.nodes() == 1) return value_or_raise(of.node_group()->all_gather(mine, world_timeout));
  const auto receive = [&](rank from) {
    std::vector<std::byte> room(most_said);
    room.resize(value_or_raise(of.receive(from, tag, room, world_timeout)));
    return room;
  };
  const auto send = [&](rank to, std::span<const std::byte> what) {
    static_cast<void>(value_or_raise(of.send(to, tag, what, world_timeout)));
  };
  std::vector<std::vector<std::byte>> all(static_cast<std::size_t>(size));
  if (of.self() == rank{0}) {
    all.front().assign(mine.begin(), mine.end());
    for (int r = 1; r < size; ++r) all[static_cast<std::size_t>(r)] = receive(rank{r});
    for (int r = 1; r < size; ++r) {
      for (const auto& one : all) send(rank{r}, one);
    }
    return all;
  }
  send(rank{0}, mine);
  for (auto& one : all) one = receive(rank{0});
  return all;
}

}  // namespace

world joined_world(session& run, std::chrono::nanoseconds timeout) {
  world_place place;
  try {
    place = world_place::from_environment();
  } catch (const error_exception& e) {
    throw failure{exit_code::usage, e.cause().what};
  }
  if (place.self == rank{0} && place.size > 1) run.note(fmt::format("waiting for {} ranks", place.size));
  world_options how;
  how.timeout = timeout;
  auto joined = world::join(place, how);
  if (!joined) throw failure{exit_code_of(joined.error()), to_string(joined.error())};
  return std::move(*joined);
}

std::optional<rank> partner(rank self, int size, int round) {
  const int seats = size + size % 2;
  const int fixed = seats - 1;
  const auto other = [&](int r) {
    if (r == fixed) {
      for (int x = 0; x < fixed; ++x)
        if ((2 * x) % fixed == round % fixed) return x;
    }
    const int x = (round - r % fixed + fixed) % fixed;
    return x == r ? fixed : x;
  }(self.value());
  if (other >= size || other == self.value()) return std::nullopt;
  return rank{other};
}

std::vector<std::vector<std::byte>> gather_in(world& of, std::span<const std::byte> mine) {
  const std::uint64_t size = mine.size();
  std::uint64_t most = 0;
  for (const auto& said : gather_piece(of, std::as_bytes(std::span{&size, 1}))) {
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, said.data(), std::min(sizeof theirs, said.size()));
    most = std::max(most, theirs);
  }
  std::vector<std::vector<std::byte>> all(static_cast<std::size_t>(of.size()));
  for (std::uint64_t at = 0; at < most; at += most_said) {
    const auto pieces = gather_piece(
        of, mine.subspan(std::min(at, size)).first(std::min<std::uint64_t>(most_said, size - std::min(at, size))));
    for (std::size_t r = 0; r < all.size(); ++r) all[r].insert(all[r].end(), pieces[r].begin(), pieces[r].end());
  }
  return all;
}

void require_place_at_first(world& of, const std::string& path) {
  std::string wrong;
  try {
    if (of.self() == rank{0} && !path.empty()) require_place(path);
  } catch (const failure& e) {
    wrong = e.what();
  }
  const auto said = gather_in(of, std::as_bytes(std::span{wrong})).front();
  if (said.empty()) return;
  throw failure{exit_code::runtime, std::string{reinterpret_cast<const char*>(said.data()), said.size()}};
}

}  // namespace weft::tool
