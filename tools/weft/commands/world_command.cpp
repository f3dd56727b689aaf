// SPDX-License-Identifier: Apache-2.0
// weft world check: every pair of ranks sends each other small and large messages, and rank 0 prints one table.
#include "command_line/commands.hpp"
#include "command_line/json_parts.hpp"
#include "commands/joined_world.hpp"
#include "weft/core/raise.hpp"
#include "weft/core/version.hpp"
#include "weft/distributed/world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace weft::tool {

namespace {

using clock = std::chrono::steady_clock;

constexpr std::uint32_t small_tag = 1, large_tag = 2, result_tag = 3;
constexpr std::size_t large_bytes = std::size_t{1} << 20U;
constexpr int round_trips = 200;
constexpr std::size_t large_messages = 8;  // each way

enum class pair_state : std::int32_t { not_tried, well, wrong_data, failed };

/// What the lower rank of a pair found, as it goes to rank 0.
struct pair_record {
  std::int32_t lower = 0, higher = 0;
  pair_state how = pair_state::not_tried;
  std::int32_t reserved = 0;
  double round_trip = 0;         // seconds, the median of small messages
  double rate = 0;               // bytes a second, of large messages one after the other
  std::int64_t clock_ahead = 0;  // nanoseconds by which the higher rank's clock is ahead, at the shortest round trip
  std::array<char, 56> transport{};
  std::array<char, 232> why{};

  void fail(pair_state what, std::string_view text) {
    how = what;
    why = {};
    std::copy_n(text.begin(), std::min(text.size(), why.size() - 1), why.begin());
  }
};

struct rank_record {
  std::array<char, 64> commit{};
};

std::int64_t wall_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void fill(std::vector<std::byte>& bytes, int from) {
  for (std::size_t n = 0; n < bytes.size(); ++n)
    bytes[n] = static_cast<std::byte>(n * 37 + n / 509 + static_cast<std::size_t>(from) * 11);
}

/// One side of a pair's talk. Both send and receive the same; the lower rank measures.
class talk {
 public:
  talk(world& w, rank other, std::chrono::nanoseconds timeout) : w_(w), other_(other), timeout_(timeout) {}

  pair_record run() {
    const bool leads = w_.self() < other_;
    record_.lower = std::min(w_.self(), other_).value();
    record_.higher = std::max(w_.self(), other_).value();
    record_.how = pair_state::well;
    if (small(leads)) large(leads);
    w_.transport(other_).copy(record_.transport.data(), record_.transport.size() - 1);
    return record_;
  }

 private:
  template <class T>
  bool went(const result<T>& r) {
    if (!r) record_.fail(pair_state::failed, r.error().what);
    return static_cast<bool>(r);
  }
  bool send(std::uint32_t tag, std::span<const std::byte> bytes) { return went(w_.send(other_, tag, bytes, timeout_)); }
  bool receive(std::uint32_t tag, std::span<std::byte> into) {
    auto got = w_.receive(other_, tag, into, timeout_);
    if (!went(got)) return false;
    if (*got != into.size())
      record_.fail(pair_state::wrong_data, fmt::format("{} bytes came for {}", *got, into.size()));
    return *got == into.size();
  }

  bool small(bool leads) {
    std::vector<double> times;
    double shortest = 1e9;
    for (int n = 0; n < round_trips; ++n) {
      std::int64_t mine = wall_clock();
      std::int64_t theirs = 0;
      const auto bytes = std::as_bytes(std::span{&mine, 1});
      const auto room = std::as_writable_bytes(std::span{&theirs, 1});
      if (!leads) {
        if (!receive(small_tag, room)) return false;
        mine = wall_clock();
        if (!send(small_tag, bytes)) return false;
        continue;
      }
      const auto begin = clock::now();
      if (!send(small_tag, bytes) || !receive(small_tag, room)) return false;
      times.push_back(std::chrono::duration<double>(clock::now() - begin).count());
      if (times.back() >= shortest) continue;
      shortest = times.back();
      record_.clock_ahead = theirs - mine - static_cast<std::int64_t>(shortest / 2 * 1e9);
    }
    if (!leads) return true;
    std::ranges::nth_element(times, times.begin() + round_trips / 2);
    record_.round_trip = times[round_trips / 2];
    return true;
  }

  void large(bool leads) {
    constexpr std::size_t all = large_messages * large_bytes;
    std::vector<std::byte> mine(all);
    std::vector<std::byte> theirs(all);
    fill(mine, w_.self().value());
    std::array<std::byte, 1> ready{};
    for (const bool sends : {!leads, leads})  // both have filled theirs: what follows is the messages' time
      if (!(sends ? send(small_tag, ready) : receive(small_tag, ready))) return;
    const auto begin = clock::now();
    for (std::size_t at = 0; at < all; at += large_bytes) {
      for (const bool sends : {leads, !leads}) {
        if (!(sends ? send(large_tag, std::span{mine}.subspan(at, large_bytes))
                    : receive(large_tag, std::span{theirs}.subspan(at, large_bytes))))
          return;
      }
    }
    record_.rate = 2.0 * static_cast<double>(all) / std::chrono::duration<double>(clock::now() - begin).count();
    fill(mine, other_.value());
    if (theirs == mine) return;
    const auto differs = std::ranges::mismatch(theirs, mine);
    const auto at = static_cast<std::size_t>(differs.in1 - theirs.begin());
    record_.fail(pair_state::wrong_data,
                 fmt::format("byte {} of message {} of 1 MiB is another", at % large_bytes, at / large_bytes));
  }

  world& w_;
  rank other_;
  std::chrono::nanoseconds timeout_;
  pair_record record_;
};

json rank_json(const world_member& m, const rank_record& r) {
  return {
      {"rank", m.rank.value()}, {"node", m.node},           {"local", m.local.value()}, {"host", m.host},
      {"pid", m.pid},           {"interface", m.interface}, {"address", m.address},     {"commit", r.commit.data()}};
}

std::string_view word_of(pair_state how) {
  static constexpr std::string_view words[] = {"not_tried", "ok", "wrong_data", "failed"};
  return words[static_cast<std::size_t>(how)];
}

json pair_json(const pair_record& p) {
  const bool well = p.how == pair_state::well;
  return {{"ranks", {p.lower, p.higher}},
          {"verdict", word_of(p.how)},
          {"round_trip_seconds", well ? json(p.round_trip) : json(nullptr)},
          {"bytes_per_second", well ? json(p.rate) : json(nullptr)},
          {"clock_ahead_seconds", well ? json(static_cast<double>(p.clock_ahead) * 1e-9) : json(nullptr)},
          {"transport", p.transport.front() == '\0' ? json(nullptr) : json(p.transport.data())},
          {"why", well ? json(nullptr) : json(p.why.data())}};
}

std::string counted(int count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

void print(const session& run, const world& w, const std::vector<rank_record>& ranks,
           const std::vector<pair_record>& pairs) {
  std::string text = fmt::format("{} on {} by {}\n\n", counted(w.size(), "rank"), counted(w.nodes(), "node"),
                                 w.engine().empty() ? "nothing: " + w.engine_reason() : w.engine());
  text_table who{{"rank", "node", "host", "pid", "interface", "address", "build"}, {true, true}};
  for (int r = 0; r < w.size(); ++r) {
    const world_member& m = w.member(rank{r});
    who.row({std::to_string(r), std::to_string(m.node), m.host, std::to_string(m.pid), m.interface, m.address,
             ranks[static_cast<std::size_t>(r)].commit.data()});
  }
  text += who.render(run) + "\n";
  text_table table{{"ranks", "nodes", "8 B there and back", "1 MiB", "clocks apart", "by", ""},
                   {false, false, true, true, true, false, false}};
  for (const pair_record& p : pairs) {
    const bool well = p.how == pair_state::well;
    std::vector<std::string> cells{fmt::format("{} {}", p.lower, p.higher),
                                   fmt::format("{} {}", w.member(rank{p.lower}).node, w.member(rank{p.higher}).node),
                                   well ? time_text(p.round_trip) : "-",
                                   well ? rate_text(p.rate) : "-",
                                   well ? time_text(std::abs(static_cast<double>(p.clock_ahead)) * 1e-9) : "-",
                                   p.transport.front() == '\0' ? "-" : p.transport.data(),
                                   well ? "ok"
                                   : p.how == pair_state::wrong_data
                                       ? fmt::format("WRONG DATA: {}", p.why.data())
                                       : fmt::format("FAILED: {}", printable(p.why.data()))};
    table.row(std::move(cells), well ? style::good : style::bad);
  }
  run.print(text + table.render(run));
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& list) {
  return std::as_bytes(std::span{list});
}

}  // namespace

exit_code run_world_check(session& run, const world_check_options& options) {
  world w = joined_world(run, options.timeout);
  const int size = w.size();
  if (size > 1 && w.engine().empty())
    throw failure{exit_code::absent, "nothing carries messages between the ranks: " + w.engine_reason()};

  std::vector<pair_record> mine;  // those of which this rank is the lower
  bool all_well = true;
  for (int round = 0; round < rounds_of(size); ++round) {
    const auto other = partner(w.self(), size, round);
    if (!other) continue;
    const pair_record found = talk{w, *other, options.timeout}.run();
    all_well = all_well && found.how == pair_state::well;
    if (w.self() < *other) mine.push_back(found);
  }
  rank_record me;
  const std::string_view commit = library_commit();
  std::copy_n(commit.begin(), std::min(commit.size(), me.commit.size() - 1), me.commit.begin());
  if (w.self() != rank{0}) {
    auto told = w.send(rank{0}, result_tag, std::as_bytes(std::span{&me, 1}), options.timeout);
    if (told) told = w.send(rank{0}, result_tag, bytes_of(mine), options.timeout);
    if (!told) throw failure{exit_code_of(told.error()), to_string(told.error())};
    return all_well ? exit_code::ok : exit_code::falls_short;
  }

  std::vector<rank_record> ranks{me};
  std::vector<pair_record> pairs = std::move(mine);
  for (int r = 1; r < size; ++r) {
    rank_record its;
    std::vector<pair_record> theirs(static_cast<std::size_t>(size - 1 - r));
    auto got = w.receive(rank{r}, result_tag, std::as_writable_bytes(std::span{&its, 1}), options.timeout);
    if (got) got = w.receive(rank{r}, result_tag, std::as_writable_bytes(std::span{theirs}), options.timeout);
    if (!got) {
      for (std::size_t n = 0; n < theirs.size(); ++n) {
        theirs[n].lower = r;
        theirs[n].higher = r + 1 + static_cast<int>(n);
        theirs[n].fail(pair_state::not_tried, "its result did not come: " + got.error().what);
      }
      all_well = false;
    }
    ranks.push_back(its);
    pairs.insert(pairs.end(), theirs.begin(), theirs.end());
  }
  std::ranges::sort(pairs, {}, [](const pair_record& p) { return std::pair{p.lower, p.higher}; });
  all_well = all_well && std::ranges::all_of(pairs, [](const pair_record& p) { return p.how == pair_state::well; });

  json document = run.document("weft.world/1");
  document["engine"] = w.engine().empty() ? json(nullptr) : json(w.engine());
  json list = json::array();
  for (int r = 0; r < size; ++r) list.push_back(rank_json(w.member(rank{r}), ranks[static_cast<std::size_t>(r)]));
  document["ranks"] = std::move(list);
  json found = json::array();
  for (const pair_record& p : pairs) found.push_back(pair_json(p));
  document["pairs"] = std::move(found);
  run.emit(document);
  print(run, w, ranks, pairs);
  return all_well ? exit_code::ok : exit_code::falls_short;
}

}  // namespace weft::tool
