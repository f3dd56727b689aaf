// SPDX-License-Identifier: Apache-2.0
// all_reduce of float, sum, in place, one process for each rank: weft against Open MPI and Gloo, all alive in one run
// and timed turn about, so that whatever else the machine does hits all alike. Every turn checks its sums first. Bars:
// at most 1.15 times the fastest Open MPI's time at 4 B and 1 KiB, else faster; 4 times as fast at 64 KiB and 1 MiB for
// 4 ranks and 5 times for 2; 2.5 times from 16 MiB up; 6 times Gloo's best.
//
// usage: bench_collective_collective [--samples N] [--ranks N]... [--bytes N]... [--all] [--json]
//        --all plays and prints every contender, also those that turn out hopeless before the samples

#include "collective/cpu_watch.hpp"
#include "collective/peers.hpp"
#include "collective/plain_ranks.hpp"
#include "collective/rank_group.hpp"
#include "collective/weft_ranks.hpp"
#include "paired.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

namespace {

using namespace weft::bench;

struct wishes {
  options how;
  std::vector<int> ranks;
  std::vector<std::uint64_t> bytes;
  bool all = false;
};

wishes parse_wishes(int argc, char** argv) {
  wishes w;
  w.how.samples = 11;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word{argv[i]};
    if (word == "--json") {
      w.how.json = true;
    } else if (word == "--all") {
      w.all = true;
    } else if (word == "--samples" && i + 1 < argc) {
      w.how.samples = std::max(3, std::atoi(argv[++i]));
    } else if (word == "--ranks" && i + 1 < argc) {
      w.ranks.push_back(std::atoi(argv[++i]));
    } else if (word == "--bytes" && i + 1 < argc) {
      w.bytes.push_back(std::strtoull(argv[++i], nullptr, 10) / sizeof(float) * sizeof(float));
    } else {
      std::fprintf(stderr, "usage: %s [--samples N] [--ranks N]... [--bytes N]... [--all] [--json]\n", argv[0]);
      std::exit(2);
    }
  }
  if (w.ranks.empty()) w.ranks = {2, 4};
  if (w.bytes.empty()) w.bytes = {4, 1024, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
  return w;
}

/// A folder that goes with the run.
class work_folder {
 public:
  work_folder() {
    for (const char* below : {"/dev/shm", "/tmp"}) {
      std::string name = std::string{below} + "/weft_bench_XXXXXX";
      if (::mkdtemp(name.data()) == nullptr) continue;
      path_ = name;
      return;
    }
    std::fprintf(stderr, "no folder for the run: neither /dev/shm nor /tmp can be written\n");
    std::exit(1);
  }
  work_folder(const work_folder&) = delete;
  work_folder& operator=(const work_folder&) = delete;
  ~work_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  /// A new folder in it.
  [[nodiscard]] std::string next() {
    std::string made = path_ + "/" + std::to_string(count_++);
    std::filesystem::create_directory(made);
    return made;
  }

 private:
  std::string path_;
  int count_ = 0;
};

/// One contender at one size.
struct score {
  std::vector<double> seconds;
  std::uint64_t iterations = 1;
  double estimate = std::numeric_limits<double>::infinity();  // seconds, the best turn before the samples
  bool passed_over = false;
  std::uint64_t wrong = 0;
  std::string failure, algorithm;
  [[nodiscard]] bool is_there() const { return !seconds.empty() && failure.empty(); }
  [[nodiscard]] double median() const { return spread_of(seconds).median; }
};

/// A turn is long enough that what it takes to start is nothing, and that ranks that share a core have changed places.
constexpr double turn_seconds = 0.02;

/// So many calls that a turn takes turn_seconds. Grows step by step: the first calls are not typical.
std::uint64_t calls_per_turn(rank_group& group, std::uint64_t bytes, score& s) {
  std::uint64_t calls = 1;
  int long_enough = 0;  // twice in a row: once may be somebody else's doing
  for (int tries = 0; tries < 12; ++tries) {
    const turn_result t = group.play(bytes, calls);
    s.wrong += t.wrong;
    s.failure = t.failure;
    if (!t.failure.empty()) return 1;
    const double took = t.seconds * static_cast<double>(calls);
    s.estimate = std::min(s.estimate, t.seconds);
    long_enough = took >= turn_seconds / 2 || calls >= 200000 ? long_enough + 1 : 0;
    if (long_enough == 2 || took > 4 * turn_seconds) return calls;
    if (long_enough == 1) continue;
    const double factor = std::clamp(turn_seconds / std::max(took, 1e-9), 1.0, 30.0);
    calls = static_cast<std::uint64_t>(static_cast<double>(calls) * factor) + 1;
  }
  return calls;
}

struct size_result {
  std::vector<score> scores;
  double others = -1;
};

/// One that is this many times slower than the fastest of its library will not be the fastest of the run.
constexpr double hopeless = 4;

void pass_over(const std::vector<rank_group>& groups, std::vector<score>& scores) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t other = 0; other < groups.size(); ++other) {
      if (groups[g].plan().library == groups[other].plan().library &&
          scores[g].estimate > hopeless * scores[other].estimate)
        scores[g].passed_over = true;
    }
  }
}

size_result play_size(std::vector<rank_group>& groups, std::uint64_t bytes, const wishes& w) {
  size_result r;
  r.scores.resize(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g)
    r.scores[g].iterations = calls_per_turn(groups[g], bytes, r.scores[g]);
  if (!w.all) pass_over(groups, r.scores);
  cpu_watch watch;
  double own = 0;
  for (int sample = 0; sample < w.how.samples; ++sample) {
    for (std::size_t i = 0; i < groups.size(); ++i) {
      // the order turns, so that nobody always follows the same neighbour
      const std::size_t g = (i + static_cast<std::size_t>(sample)) % groups.size();
      score& s = r.scores[g];
      if (!s.failure.empty() || s.passed_over) continue;
      const turn_result t = groups[g].play(bytes, s.iterations);
      own += t.cpu_seconds;
      s.wrong += t.wrong;
      s.failure = t.failure;
      s.algorithm = t.algorithm;
      if (t.failure.empty()) s.seconds.push_back(t.seconds);
    }
  }
  r.others = watch.others_since(own);
  return r;
}

/// How many times as fast the first contender is as this one, turn by turn.
spread ratio_of(const score& first, const score& other) {
  std::vector<double> ratios;
  const std::size_t both = std::min(first.seconds.size(), other.seconds.size());
  ratios.reserve(both);
  for (std::size_t i = 0; i < both; ++i) ratios.push_back(other.seconds[i] / first.seconds[i]);
  return spread_of(std::move(ratios));
}

double bar_against_mpi(int ranks, std::uint64_t bytes) {
  if (bytes <= 1024) return 1 / 1.15;
  if (bytes >= (16 << 20)) return 2.5;
  if (bytes == (64 << 10) || bytes == (1 << 20)) return ranks == 2 ? 5 : 4;
  return 1;
}
constexpr double bar_against_gloo = 6;

constexpr std::size_t nobody = std::numeric_limits<std::size_t>::max();

std::size_t best_of(const std::vector<rank_group>& groups, const size_result& r, std::string_view library) {
  std::size_t best = nobody;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].plan().library != library || !r.scores[g].is_there()) continue;
    if (best == nobody || r.scores[g].median() < r.scores[best].median()) best = g;
  }
  return best;
}

std::string size_name(std::uint64_t bytes) {
  if (bytes >= (1 << 20) && bytes % (1 << 20) == 0) return std::to_string(bytes >> 20) + " MiB";
  if (bytes >= 1024 && bytes % 1024 == 0) return std::to_string(bytes >> 10) + " KiB";
  return std::to_string(bytes) + " B";
}

void print_row(const group_plan& plan, const score& s, const score& first, int ranks, std::uint64_t bytes,
               double others) {
  const spread t = spread_of(s.seconds);
  const double algorithm_bandwidth = static_cast<double>(bytes) / t.median;
  const std::string who = plan.library == plan.name ? plan.name : plan.library + "/" + plan.name;
  std::printf(
      "{\"name\":\"all_reduce/%d "
      "ranks/"
      "%s\",\"contender\":\"%s\",\"collective\":\"all_reduce\",\"algorithm\":\"%s\",\"ranks\":%d,\"bytes\":%llu,"
      "\"count\":%llu,"
      "\"type\":\"float32\",\"seconds\":{\"median\":%.9g,\"p5\":%.9g,\"p95\":%.9g,\"samples\":%zu},"
      "\"algbw_bytes_per_second\":%.6g,\"busbw_bytes_per_second\":%.6g,\"wrong\":%llu,\"verified\":%s,"
      "\"calls_per_sample\":%llu,\"others_cpu\":%.4f",
      ranks, size_name(bytes).c_str(), who.c_str(), s.algorithm.c_str(), ranks, static_cast<unsigned long long>(bytes),
      static_cast<unsigned long long>(bytes / sizeof(float)), t.median, t.p5, t.p95, s.seconds.size(),
      algorithm_bandwidth, algorithm_bandwidth * 2 * (ranks - 1) / ranks, static_cast<unsigned long long>(s.wrong),
      s.wrong == 0 ? "true" : "false", static_cast<unsigned long long>(s.iterations), others);
  if (first.is_there()) {
    const spread r = ratio_of(first, s);
    std::printf(",\"weft_against_this\":{\"median\":%.4f,\"p5\":%.4f,\"p95\":%.4f}", r.median, r.p5, r.p95);
  }
  std::printf("}\n");
}

std::string time_name(double seconds) {
  char text[32];
  if (seconds < 10e-6) {
    std::snprintf(text, sizeof text, "%.3f us", seconds * 1e6);
  } else if (seconds < 10e-3) {
    std::snprintf(text, sizeof text, "%.1f us", seconds * 1e6);
  } else {
    std::snprintf(text, sizeof text, "%.2f ms", seconds * 1e3);
  }
  return text;
}

void print_peer(const std::vector<rank_group>& groups, const size_result& r, std::size_t g, double bar) {
  if (g == nobody) {
    std::printf(" | %-51s", "nobody");
    return;
  }
  const score& s = r.scores[g];
  std::string ratio = "-";
  if (r.scores[0].is_there()) {
    const spread times = ratio_of(r.scores[0], s);
    char text[64];
    std::snprintf(text, sizeof text, "%.2f (%.2f-%.2f)%s", times.median, times.p5, times.p95,
                  bar <= 0             ? ""
                  : times.median < bar ? " below"
                                       : "");
    ratio = text;
  }
  std::printf(" | %10s %-18s %-21s", time_name(s.median()).c_str(), groups[g].plan().name.c_str(), ratio.c_str());
}

void print_line(const std::vector<rank_group>& groups, const size_result& r, int ranks, std::uint64_t bytes, bool all) {
  std::printf("%8s | %10s", size_name(bytes).c_str(),
              r.scores[0].is_there() ? time_name(r.scores[0].median()).c_str() : "-");
  print_peer(groups, r, best_of(groups, r, "Open MPI"), bar_against_mpi(ranks, bytes));
  print_peer(groups, r, best_of(groups, r, "Gloo"), bar_against_gloo);
  print_peer(groups, r, best_of(groups, r, "by hand"), 0);
  std::printf(" | %s %3.0f %%\n", r.scores[0].algorithm.c_str(), r.others * 100);
  if (!all) return;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!r.scores[g].is_there()) continue;
    const spread t = spread_of(r.scores[g].seconds);
    std::printf("         |   %-9s %-22s %12s (p5 %s, p95 %s), %llu calls a turn\n", groups[g].plan().library.c_str(),
                groups[g].plan().name.c_str(), time_name(t.median).c_str(), time_name(t.p5).c_str(),
                time_name(t.p95).c_str(), static_cast<unsigned long long>(r.scores[g].iterations));
  }
}

/// Who does not play, and why: each library and reason once.
void print_failures(const std::vector<rank_group>& groups, const size_result& r, std::set<std::string>& told,
                    bool json) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const group_plan& plan = groups[g].plan();
    const std::string& why = r.scores[g].failure;
    if (why.empty() || !told.insert(plan.library + why).second) continue;
    std::size_t more = 0;
    for (std::size_t other = g + 1; other < groups.size(); ++other)
      if (groups[other].plan().library == plan.library && r.scores[other].failure == why) ++more;
    std::string who = plan.library + "/" + plan.name;
    if (more != 0) who += " and " + std::to_string(more) + " more";
    if (!json) {
      std::printf("  skipped: %s: %s\n", who.c_str(), why.c_str());
      continue;
    }
    std::printf("{\"contender\":\"%s\",\"skipped\":\"", who.c_str());
    for (const char c : why) {
      if (c == '"' || c == '\\') std::putchar('\\');
      if (static_cast<unsigned char>(c) >= ' ') std::putchar(c);
    }
    std::printf("\"}\n");
  }
}

/// Number of wrong elements of the library itself, or 1 when it does not work at all.
std::uint64_t play_ranks(int ranks, const wishes& w) {
  const bool pinned = ranks <= ::sysconf(_SC_NPROCESSORS_ONLN);
  const std::uint64_t largest = *std::max_element(w.bytes.begin(), w.bytes.end());
  const std::string programs = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  work_folder folder;
  std::vector<group_plan> plans{weft_ranks(ranks, pinned), plain_ranks(ranks, pinned, largest)};
  for (group_plan& plan : peer_plans(ranks, programs)) plans.push_back(std::move(plan));
  std::vector<rank_group> groups;
  groups.reserve(plans.size());
  for (group_plan& plan : plans) groups.emplace_back(std::move(plan), ranks, folder.next());

  if (!w.how.json) {
    std::printf(
        "\nall_reduce, float32, sum, in place, %d processes%s; ratio: how many times as fast weft is (p5-p95)\n", ranks,
        pinned ? ", each on a core of its own" : "");
    std::printf("%8s | %10s | %-51s | %-51s | %-51s | algorithm, CPU of others\n", "bytes", "weft", "fastest Open MPI",
                "fastest Gloo", "one pass by hand");
  }
  std::set<std::string> told;
  std::uint64_t wrong = 0;
  for (const std::uint64_t bytes : w.bytes) {
    const size_result r = play_size(groups, bytes, w);
    if (w.how.json) {
      for (std::size_t g = 0; g < groups.size(); ++g)
        if (r.scores[g].is_there()) print_row(groups[g].plan(), r.scores[g], r.scores[0], ranks, bytes, r.others);
    } else {
      print_line(groups, r, ranks, bytes, w.all);
    }
    print_failures(groups, r, told, w.how.json);
    std::fflush(stdout);
    wrong += r.scores[0].is_there() ? r.scores[0].wrong : 1;
  }
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  const wishes w = parse_wishes(argc, argv);
  print_machine(w.how);
  std::fflush(stdout);  // or every fork says it again
  std::uint64_t wrong = 0;
  for (const int ranks : w.ranks) wrong += play_ranks(ranks, w);
  return wrong == 0 ? 0 : 1;
}
