// SPDX-License-Identifier: Apache-2.0
#include "rank_pairs.hpp"

#include "bench/queue/queue_bench.hpp"
#include "bench_row.hpp"
#include "commands/joined_world.hpp"
#include "weft/core/host_memory.hpp"
#include "weft/core/raise.hpp"
#include "weft/distributed/far_memory.hpp"
#include "weft/distributed/world_queue.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace weft::tool {

namespace {

using wall = std::chrono::steady_clock;

constexpr std::size_t messages_of_a_batch = 64, batches_of_a_sample = 4, trips_of_a_sample = 20, first_trips = 100;

/// Of the messages about one size: none is taken for that of another, however late it comes.
enum class about : std::uint32_t { turn, memory, end };

/// Memory of the other rank, or why there is none.
struct offer {
  far_span<std::byte> memory;
  std::array<char, 200> why{};
};

// of a queue: there and back, and one way by batches; of a copy: to the other rank's memory, and from there
enum class rank_kind : std::int32_t { round_trip, batches, there, back };
constexpr std::array<std::string_view, 4> kind_words{"round_trip", "batch_64", "write", "read"};

/// A figure of the lower rank of a pair.
struct rank_row {
  std::int32_t lower = 0, higher = 0;
  rank_kind kind{};
  std::int32_t is_direct = -1;  // of a queue: in memory of both
  std::uint64_t size = 0;
  row_state state = row_state::skipped;
  std::int32_t held = -1;  // 1: every byte was right
  statistics seconds;
  std::string why;
  std::optional<bool> verified;

  [[nodiscard]] std::string name() const {
    return fmt::format("{}/ranks/{}/{}/{}-{}", kind < rank_kind::there ? "queue" : "copy",
                       kind_words[static_cast<std::size_t>(kind)], size_name(size), lower, higher);
  }
};

/// The same as it goes to rank 0: plain bytes.
struct sent_row {
  std::int32_t lower, higher, kind, is_direct, state, held;
  std::uint64_t size, samples;
  double median, p5, p95;
  std::array<char, 200> text;
};

sent_row to_be_sent(const rank_row& r) {
  sent_row made{r.lower,
                r.higher,
                static_cast<std::int32_t>(r.kind),
                r.is_direct,
                static_cast<std::int32_t>(r.state),
                r.held,
                r.size,
                r.seconds.samples,
                r.seconds.median,
                r.seconds.p5,
                r.seconds.p95,
                {}};
  r.why.copy(made.text.data(), made.text.size() - 1);
  return made;
}

rank_row as_it_came(const sent_row& s) {
  rank_row made;
  made.lower = s.lower;
  made.higher = s.higher;
  made.kind = static_cast<rank_kind>(std::clamp(s.kind, 0, 3));
  made.is_direct = s.is_direct;
  made.size = s.size;
  made.state = s.state == static_cast<std::int32_t>(row_state::done)      ? row_state::done
               : s.state == static_cast<std::int32_t>(row_state::skipped) ? row_state::skipped
                                                                          : row_state::failed;
  made.seconds = {s.median, s.p5, s.p95, s.samples};
  made.why = std::string{s.text.data(), ::strnlen(s.text.data(), s.text.size())};
  if (made.state == row_state::done) made.verified = s.held == 1;
  return made;
}

std::byte letter(std::uint64_t n, std::size_t at) { return static_cast<std::byte>(n * 167 + at * 31 + at / 253); }

template <std::size_t Size>
struct payload {
  std::array<std::byte, Size> bytes;

  static payload of(std::uint64_t n) {
    payload made;
    for (std::size_t at = 0; at < Size; ++at) made.bytes[at] = letter(n, at);
    return made;
  }
  friend bool operator==(const payload&, const payload&) = default;
};

/// This rank's part in one pair. Both take the same steps; the lower rank measures.
class rank_pair {
 public:
  rank_pair(world& w, rank other, const device& mine, const rank_pair_plan& plan)
      : w_(w), other_(other), mine_(mine), plan_(plan), leads_(w.self() < other) {}

  std::vector<rank_row> rows() {
    for (const std::uint64_t size : plan_.sizes) {
      ++turn_;
      try {
        if (!begins(size)) continue;
        if (plan_.what == rank_work::queues) {
          queue_of(size, std::make_index_sequence<queue_sizes.size()>{});
        } else {
          copies(size);
        }
      } catch (const error_exception& e) {
        for (const rank_kind kind : kinds())
          if (std::ranges::none_of(rows_, [&](const rank_row& r) { return r.size == size && r.kind == kind; }))
            add(kind, size, row_state::failed, e.cause().what);
      }
    }
    return std::move(rows_);
  }

 private:
  [[nodiscard]] std::array<rank_kind, 2> kinds() const {
    using enum rank_kind;
    return plan_.what == rank_work::queues ? std::array{round_trip, batches} : std::array{there, back};
  }

  /// Whether this size is measured, which the lower rank says: the other one has then come here too.
  bool begins(std::uint64_t size) {
    std::array<std::byte, 1> goes{std::byte{1}};
    if (!leads_) {
      static_cast<void>(value_or_raise(w_.receive(other_, tag(about::turn), goes, no_deadline)));
      return goes[0] == std::byte{1};
    }
    std::string why = plan_.budget.over();
    if (why.empty() && plan_.what == rank_work::copies) why = too_large(size);
    if (!why.empty()) goes[0] = std::byte{0};
    value_or_raise(w_.send(other_, tag(about::turn), goes, world_timeout));
    if (why.empty()) return true;
    for (const rank_kind kind : kinds()) add(kind, size, row_state::skipped, why);
    return false;
  }

  [[nodiscard]] std::uint32_t tag(about what) const { return 2 + 3 * turn_ + static_cast<std::uint32_t>(what); }

  /// Why a copy of this size is not made, of which this rank holds one end; empty where it is.
  [[nodiscard]] std::string too_large(std::uint64_t size) const {
    const std::uint64_t on_device = mine_.free_memory().value(), on_host = memory_of_host().free.value();
    if (size <= on_device / 4 && (on_host == 0 || 4 * size <= on_host / 4)) return {};
    return fmt::format("{} need more than a quarter of the memory that is free at {}", to_string(bytes{size}),
                       to_string(w_.self()));
  }

  rank_row& add(rank_kind kind, std::uint64_t size, row_state state, std::string why) {
    rank_row& made = rows_.emplace_back();
    made.lower = std::min(w_.self(), other_).value();
    made.higher = std::max(w_.self(), other_).value();
    made.kind = kind;
    made.is_direct = is_direct_;
    made.size = size;
    made.state = state;
    made.why = std::move(why);
    return made;
  }
  void add(rank_kind kind, std::uint64_t size, const std::vector<double>& samples, bool held) {
    rank_row& made = add(kind, size, row_state::done, held ? "" : "other bytes arrived");
    made.held = held ? 1 : 0;
    made.seconds = summarise(samples);
  }

  template <std::size_t... Is>
  void queue_of(std::uint64_t size, std::index_sequence<Is...>) {
    static_cast<void>(((size == queue_sizes[Is] && (queue<queue_sizes[Is]>(), true)) || ...));
  }

  template <std::size_t Size>
  void queue() {
    using message = payload<Size>;
    queue_options how;
    how.capacity = messages_of_a_batch;
    how.timeout = world_timeout;
    connect_options within;
    within.timeout = world_timeout;
    auto [tx, rx] = connect_both<message>(w_, other_, Size, how, within);
    is_direct_ = tx.mode() == transfer_mode::direct ? 1 : 0;
    const auto must = [&](queue_status came) {
      if (came == queue_status::ok) return;
      const auto cause = tx.failure() ? tx.failure() : rx.failure();
      if (cause) raise(*cause);
      raise(errc::closed, "a queue: " + std::string{to_string(came)});
    };
    bool held = true;
    std::vector<double> samples;
    message got{};
    const auto trip = [&](std::uint64_t n) {
      const message sent = message::of(n);
      if (leads_) must(tx.send(sent));
      must(rx.receive(got));
      if (!leads_) must(tx.send(got));
      held = held && got == sent;
    };
    for (std::uint64_t n = 0; n < first_trips; ++n) trip(n);
    const message sent = message::of(7);
    for (int s = 0; s < plan_.samples; ++s) {
      const auto begin = wall::now();
      for (std::size_t n = 0; n < trips_of_a_sample; ++n) {
        if (leads_) must(tx.send(sent));
        must(rx.receive(got));
        if (!leads_) must(tx.send(got));
      }
      samples.push_back(seconds_since(begin) / trips_of_a_sample);
      held = held && got == sent;
    }
    add(rank_kind::round_trip, Size, samples, held);

    samples.clear();
    held = true;
    std::vector<message> batch(messages_of_a_batch);
    for (std::size_t n = 0; n < batch.size(); ++n) batch[n] = message::of(n);
    const std::vector<message> expected = batch;
    for (int s = 0; s < plan_.samples; ++s) {
      const auto begin = wall::now();
      for (std::size_t n = 0; n < batches_of_a_sample; ++n) {
        must(leads_ ? tx.send_batch(batch).status : rx.receive_batch(batch, batch.size()).status);
      }
      // an answer ends a sample: the last batch has arrived, and as it was
      message answer = message::of(!leads_ && batch == expected ? 1 : 2);
      if (!leads_) must(tx.send(answer));
      if (!leads_) continue;
      must(rx.receive(answer));
      samples.push_back(seconds_since(begin) / (batches_of_a_sample * messages_of_a_batch));
      held = held && answer == message::of(1);
    }
    add(rank_kind::batches, Size, samples, held);
  }

  void copies(std::uint64_t size) {
    std::array<std::byte, 1> over{};
    if (!leads_) return offers(size, over);
    // the other one waits to hear that it is over, whatever this one finds
    try {
      offer theirs;
      static_cast<void>(value_or_raise(
          w_.receive(other_, tag(about::memory), std::as_writable_bytes(std::span{&theirs, 1}), world_timeout)));
      if (theirs.why[0] != '\0') raise(errc::out_of_memory, theirs.why.data());
      const far_span<std::byte> far = theirs.memory;
      const buffer<std::byte> near{mine_, size};
      std::vector<std::byte> pattern(size), came(size);
      for (std::size_t at = 0; at < pattern.size(); ++at) pattern[at] = letter(3, at);
      far_copy_options checked;
      checked.verify = true;
      weft::copy(near, pattern);
      const auto times_of = [&](const auto& copies_once) {
        copies_once();
        std::vector<double> samples;
        for (int s = 0; s < plan_.samples; ++s) {
          const auto begin = wall::now();
          copies_once();
          samples.push_back(seconds_since(begin));
        }
        return samples;
      };
      const auto there = times_of([&] { copy(w_, far, near); });
      copy(w_, far, near, checked);
      weft::copy(near, came);  // other bytes
      const auto back = times_of([&] { copy(w_, near, far); });
      weft::copy(came, near);
      add(rank_kind::there, size, there, came == pattern);
      add(rank_kind::back, size, back, came == pattern);
    } catch (...) {
      static_cast<void>(w_.send(other_, tag(about::end), over, world_timeout));
      throw;
    }
    value_or_raise(w_.send(other_, tag(about::end), over, world_timeout));
  }

  /// The part of the rank that does not measure.
  void offers(std::uint64_t size, std::span<std::byte> over) {
    std::optional<buffer<std::byte>> near;
    std::optional<offered_memory<std::byte>> offered;
    offer mine;
    std::string why = too_large(size);
    try {
      if (why.empty()) mine.memory = offered.emplace(w_, near.emplace(mine_, size)).span();
    } catch (const error_exception& e) {
      why = e.cause().what;
    }
    why.copy(mine.why.data(), mine.why.size() - 1);
    value_or_raise(w_.send(other_, tag(about::memory), std::as_bytes(std::span{&mine, 1}), world_timeout));
    static_cast<void>(value_or_raise(w_.receive(other_, tag(about::end), over, no_deadline)));
  }

  world& w_;
  rank other_;
  device mine_;
  const rank_pair_plan& plan_;
  bool leads_;
  std::uint32_t turn_ = 0;  // both count the same
  std::int32_t is_direct_ = -1;
  std::vector<rank_row> rows_;
};

json pairs_json(const world& w, const std::vector<rank_row>& rows) {
  json list = json::array();
  for (const rank_row& r : rows) {
    const bool done = r.state == row_state::done;
    const bool is_trip = r.kind == rank_kind::round_trip;
    json one;
    one["name"] = r.name();
    one["ranks"] = json::array({r.lower, r.higher});
    one["nodes"] = json::array({w.member(rank{r.lower}).node, w.member(rank{r.higher}).node});
    one["kind"] = kind_words[static_cast<std::size_t>(r.kind)];
    one["bytes"] = r.size;
    one["mode"] = r.is_direct < 0 ? json(nullptr) : json(r.is_direct == 1 ? "direct" : "network");
    one["seconds"] = seconds_json(done ? std::optional{r.seconds} : std::nullopt);
    one["bytes_per_second"] = done && r.seconds.median > 0
                                  ? json(static_cast<double>(r.size) * (is_trip ? 2 : 1) / r.seconds.median)
                                  : json(nullptr);
    one["verified"] = or_null(r.verified);
    one["why"] = r.why.empty() ? json(nullptr) : json(r.why);
    list.push_back(std::move(one));
  }
  return list;
}

std::string table_text(const session& run, const world& w, rank_work what, const std::vector<rank_row>& rows) {
  const bool is_queue = what == rank_work::queues;
  text_table table{{"ranks", "nodes", "size", is_queue ? "there and back" : "to its memory", "p5..p95",
                    is_queue ? "by 64" : "rate", is_queue ? "mode" : "from its memory", is_queue ? "" : "rate", "data"},
                   {false, false, true, true, true, true, !is_queue, true, false}};
  std::map<std::tuple<int, int, std::uint64_t>, std::pair<const rank_row*, const rank_row*>> lines;
  for (const rank_row& r : rows) {
    auto& line = lines[{r.lower, r.higher, r.size}];
    (r.kind == rank_kind::round_trip || r.kind == rank_kind::there ? line.first : line.second) = &r;
  }
  for (const auto& [key, line] : lines) {
    const auto& [lower, higher, size] = key;
    const auto time_of = [](const rank_row* r) {
      return r != nullptr && r->state == row_state::done ? time_text(r->seconds.median) : std::string{"-"};
    };
    const auto rate_of = [&](const rank_row* r) -> std::string {
      if (r == nullptr || r->state != row_state::done || r->seconds.median <= 0) return "-";
      return is_queue ? message_rate_text(1 / r->seconds.median)
                      : rate_text(static_cast<double>(r->size) / r->seconds.median);
    };
    const rank_row* const first = line.first;
    const bool done = first != nullptr && first->state == row_state::done;
    std::vector<std::string> cells{
        fmt::format("{} {}", lower, higher),
        fmt::format("{} {}", w.member(rank{lower}).node, w.member(rank{higher}).node),
        size_name(size),
        time_of(first),
        done ? spread_text(first->seconds) : "-",
        is_queue ? rate_of(line.second) : rate_of(first),
        is_queue ? (done && first->is_direct == 1 ? "direct" : "network") : time_of(line.second),
        is_queue ? "" : rate_of(line.second),
        verified_text<rank_row>({line.first, line.second})};
    table.row(cells, style_of_verified(cells.back()));
  }
  return table.render(run);
}

}  // namespace

exit_code run_rank_pairs(session& run, const rank_pair_plan& plan) {
  if (run.virtual_time())
    throw failure{exit_code::usage, "between processes there is no virtual clock: drop --clock virtual"};
  const machine& m = run.open_machine(peer_verification::never);
  const results_output file{run, plan.output, true};
  file.require_own();  // before the ranks meet: each that sees the file ends here, and none waits for rank 0
  world w = joined_world(run, world_timeout);
  if (w.size() == 1) throw failure{exit_code::usage, "a pair needs two ranks: WORLD_SIZE is 1"};
  if (w.engine().empty() && (plan.what == rank_work::copies || w.nodes() > 1))
    throw failure{exit_code::absent, "nothing carries messages between the ranks: " + w.engine_reason()};
  require_place_at_first(w, plan.output);
  const device mine = m[w.member(w.self()).local.value() % m.device_count()];
  const bool speaks = w.self() == rank{0};

  std::vector<sent_row> found;
  std::optional<progress> line;
  if (speaks) line.emplace(run, plan.what == rank_work::queues ? "queues" : "copies", rounds_of(w.size()));
  for (int round = 0; round < rounds_of(w.size()); ++round) {
    const auto other = partner(w.self(), w.size(), round);
    if (!other) continue;
    if (line) line->step(static_cast<std::size_t>(round), "with " + to_string(*other));
    const std::vector<rank_row> rows = rank_pair{w, *other, mine, plan}.rows();
    if (w.self() < *other) std::ranges::transform(rows, std::back_inserter(found), to_be_sent);
  }
  line.reset();
  const auto all = gather_in(w, std::as_bytes(std::span{found}));
  std::vector<rank_row> rows;
  for (const auto& said : all) {
    std::vector<sent_row> theirs(said.size() / sizeof(sent_row));
    if (!theirs.empty()) std::memcpy(theirs.data(), said.data(), theirs.size() * sizeof(sent_row));
    std::ranges::transform(theirs, std::back_inserter(rows), as_it_came);
  }
  const exit_code verdict = verdict_of_bench(rows);
  if (!speaks) return verdict;

  const json doc =
      bench_document(run, "weft.bench.ranks/1", all_measured(rows), pairs_json(w, rows),
                     {{"nodes", w.nodes()}, {"engine", w.engine().empty() ? json(nullptr) : json(w.engine())}});
  run.emit(doc);
  std::vector<std::pair<std::string, std::string>> reasons;
  reasons.reserve(rows.size());
  for (const rank_row& r : rows) reasons.emplace_back(r.name(), r.why);
  run.print(fmt::format("{} between {} ranks on {} node{}{}\nMedian of the samples, every pair verified.\n\n",
                        plan.what == rank_work::queues ? "queues" : "copies", w.size(), w.nodes(),
                        w.nodes() == 1 ? "" : "s", w.engine().empty() ? "" : ", by " + w.engine()) +
            table_text(run, w, plan.what, rows) + reasons_text(run, reasons));
  file.write(doc);
  return verdict;
}

}  // namespace weft::tool
