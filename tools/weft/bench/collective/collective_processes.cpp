// SPDX-License-Identifier: Apache-2.0
// Collectives with a process for each rank. All go through the same rows in step: what one decides or finds, all are
// told before they go on.
#include "collective_bench.hpp"
#include "collective_words.hpp"
#include "command_line/forked_process.hpp"
#include "command_line/statistics.hpp"
#include "commands/joined_world.hpp"
#include "weft/processes/rendezvous.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <span>
#include <utility>

namespace weft::tool {

namespace {

using wall = std::chrono::steady_clock;

constexpr std::chrono::seconds gather_timeout{60};

/// What a rank says to all others. Between two halves of one program: sent as it lies.
struct word {
  std::int32_t code = -1;  // an errc, or -1: nothing is wrong
  std::int32_t device = 0;
  std::uint64_t wrong = 0;
  double seconds = 0;
  char text[232] = {};

  void set_text(const std::string& from) { from.copy(text, sizeof text - 1); }
};

/// How the processes of a run meet.
struct process_ranks {
  rank self;
  std::function<std::vector<std::vector<std::byte>>(std::span<const std::byte>)> gather;  // what each says, by rank
  std::function<rank_communicator(const device&)> join;
  std::function<int(int rank)> local{};  // its place on its node; empty: all are on one
};

class process_runner {
 public:
  process_runner(session& run, process_ranks ranks, const std::vector<int>& named, const collective_plan& plan)
      : run_(run), ranks_(std::move(ranks)), plan_(plan), budget_(plan.budget), m_(run.open_again()) {
    devices_ = devices_of_ranks(m_.layout(), named, plan.ranks);
    if (!ranks_.local || !named.empty()) return;
    for (int r = 0; r < plan.ranks; ++r)
      devices_[static_cast<std::size_t>(r)] = device_id{ranks_.local(r) % m_.device_count()};
  }

  collective_processes_report all() {
    collective_processes_report made;
    made.devices = devices_;
    made.rows = rows_of(plan_);
    std::vector<collective_row>& rows = made.rows;
    rank_communicator mine = ranks_.join(m_[devices_[ranks_.self.index()]]);
    std::optional<progress> line;
    if (is_first()) line.emplace(run_, "collectives", rows.size());
    std::string broken;  // no further calls once one has failed for good
    for (std::size_t i = 0; i < rows.size(); ++i) {
      collective_row& row = rows[i];
      if (row.state != row_state::done) continue;
      if (line) line->step(i, row.name);
      // the first process decides for all: clocks and signals differ
      word decision;
      decision.set_text(broken.empty() ? budget_.over() : broken);
      decision.seconds = seconds_of(budget_.share_of(rows.size() - i));
      decision = exchange(decision).front();
      if (decision.text[0] != '\0') {
        budget_.leave_out(row, decision.text);
        continue;
      }
      // free memory is not the same everywhere, and somebody may still have found room
      word room;
      room.set_text(does_not_fit(m_, devices_, row.task).value_or(""));
      if (const std::string why = first_text(exchange(room)); !why.empty()) {
        end_row(row, row_state::skipped, why);
        if (is_first()) run_.warn(row.name + ": " + why);
        continue;
      }
      measure(mine, row, decision.seconds);
      if (const auto failed = mine.failure()) broken = failed->what;
    }
    if (is_first()) budget_.tell(run_, rows.size());
    return made;
  }

 private:
  [[nodiscard]] bool is_first() const { return ranks_.self == rank{0}; }

  [[nodiscard]] std::vector<word> exchange(const word& mine) {
    const auto all = ranks_.gather(std::as_bytes(std::span{&mine, 1}));
    std::vector<word> made(all.size());
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r].size() != sizeof(word)) throw failure{exit_code::runtime, "a process said something else"};
      std::memcpy(&made[r], all[r].data(), sizeof(word));
    }
    return made;
  }

  static std::string first_text(const std::vector<word>& all) {
    for (const word& one : all) {
      if (one.text[0] != '\0') return one.text;
    }
    return {};
  }

  /// Does something on every rank; the first error of any is that of all.
  template <class F>
  std::vector<word> together(F&& step) {
    word mine;
    try {
      step(mine);
    } catch (const error_exception& e) {
      mine.code = static_cast<std::int32_t>(e.code());
      mine.set_text(e.cause().what);
    }
    std::vector<word> all = exchange(mine);
    for (const word& one : all) {
      if (one.code < 0) continue;
      error cause;
      cause.code = static_cast<errc>(one.code);
      cause.what = one.text;
      throw error_exception{cause};
    }
    return all;
  }

  /// Whether the user has stopped, as the first says it to all.
  [[nodiscard]] bool is_stopped(rank_communicator& mine) {
    std::array<std::uint8_t, 1> said{static_cast<std::uint8_t>(is_first() && interrupted())};
    mine.broadcast(said);
    stopped_ = said[0] != 0;
    return stopped_;
  }

  void measure(rank_communicator& mine, collective_row& row, double share) {
    try {
      sample(mine, row, share);
    } catch (const error_exception& e) {
      end_row(row, e.cause(), {errc::unsupported});
      row.wrong.reset();
    }
  }

  void sample(rank_communicator& mine, collective_row& row, double share) {
    std::unique_ptr<collective_work> work;
    static_cast<void>(together([&](word&) { work = work_of_one(mine, row.task); }));
    if (!check(row, *work)) return;

    const auto timed = [&](int repeats) {
      mine.barrier();
      const auto start = wall::now();
      for (int i = 0; i < repeats; ++i) work->run();
      return seconds_since(start) / repeats;
    };
    double once = 0;
    for (const word& one : together([&](word& said) { said.seconds = timed(3); })) once = std::max(once, one.seconds);
    // few enough that a sample is not disturbed, enough that reading the clock and the barrier do not show
    const int repeats = static_cast<int>(std::clamp(200e-6 / std::max(once, 1e-9), 1.0, 1000.0));
    const double fit = share / std::max(once * repeats, 1e-9);
    const int samples = static_cast<int>(std::clamp<double>(plan_.samples, std::min(3, plan_.samples),
                                                            std::max(fit, std::min(3.0, double(plan_.samples)))));
    std::vector<double> times;
    static_cast<void>(together([&](word&) {
      times.reserve(static_cast<std::size_t>(samples));
      for (int k = 0; k < samples && !is_stopped(mine); ++k) times.push_back(timed(repeats));
      row.algorithm = work->algorithm();
    }));
    if (stopped_) {
      budget_.leave_out(row, stopped_by_user);
      row.wrong.reset();
      return;
    }
    // a sample ends when its last rank does
    const auto everybody = ranks_.gather(std::as_bytes(std::span{times}));
    for (const auto& one : everybody) {
      for (std::size_t k = 0; k < times.size() && (k + 1) * sizeof(double) <= one.size(); ++k) {
        double took = 0;
        std::memcpy(&took, one.data() + k * sizeof(double), sizeof took);
        times[k] = std::max(times[k], took);
      }
    }
    row.seconds = summarise(std::move(times));
    static_cast<void>(check(row, *work));
  }

  bool check(collective_row& row, collective_work& work) {
    const std::vector<word> all = together([&](word& said) {
      work.load();
      work.run();
      const collective_finding found = work.check();
      said.wrong = found.wrong;
      said.set_text(found.first);
    });
    row.algorithm = work.algorithm();
    std::uint64_t wrong = 0;
    for (const word& one : all) wrong += one.wrong;
    row.wrong = row.wrong.value_or(0) + wrong;
    row.verified = *row.wrong == 0;
    if (row.why.empty()) row.why = first_text(all);
    return wrong == 0;
  }

  session& run_;
  process_ranks ranks_;
  const collective_plan& plan_;
  bool stopped_ = false;
  row_budget budget_;
  machine m_;
  std::vector<device_id> devices_;
};

}  // namespace

collective_processes_report run_collective_processes(session& run, const std::vector<int>& named,
                                                     const collective_plan& plan) {
  std::vector<rendezvous> places = rendezvous::connected(plan.ranks);
  const auto join = [&places](int rank) {
    rendezvous mine = std::move(places[static_cast<std::size_t>(rank)]);
    places.clear();  // those of the others: as long as one is held here, its end is not seen
    join_options how;
    how.timeout = gather_timeout;
    const auto group = std::make_shared<process_group>(value_or_raise(std::move(mine).join(how)));
    const auto gather = [group](std::span<const std::byte> said) {
      return value_or_raise(group->all_gather(said, gather_timeout));
    };
    return process_ranks{group->self(), gather,
                         [group](const device& on) { return rank_communicator::join(group, on); }};
  };
  std::vector<forked_process> others;
  others.reserve(static_cast<std::size_t>(plan.ranks));
  for (int r = 1; r < plan.ranks; ++r) {
    others.emplace_back([&] {
      static_cast<void>(process_runner{run, join(r), named, plan}.all());
      return 0;
    });
  }
  const auto say_who_died = [&] {
    for (int r = 1; r < plan.ranks; ++r) {
      forked_process& one = others[static_cast<std::size_t>(r) - 1];
      const pid_t pid = one.pid();
      if (const auto how = one.killed_by()) run.warn(fmt::format("rank {} (process {}) was ended by {}", r, pid, *how));
    }
  };
  try {
    collective_processes_report made = process_runner{run, join(0), named, plan}.all();
    say_who_died();
    return made;
  } catch (...) {
    say_who_died();
    throw;
  }
}

collective_processes_report run_collective_world(session& run, world& of, const std::vector<int>& named,
                                                 const collective_plan& plan) {
  process_ranks ranks;
  ranks.self = of.self();
  ranks.gather = [&of](std::span<const std::byte> mine) { return gather_in(of, mine); };
  ranks.join = [&of](const device& on) { return of.communicator(on); };
  ranks.local = [&of](int r) { return of.member(rank{r}).local.value(); };
  return process_runner{run, std::move(ranks), named, plan}.all();
}

}  // namespace weft::tool
