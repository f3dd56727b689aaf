// SPDX-License-Identifier: Apache-2.0
// queue/…: message queues between two host devices against what people use today, turn about in one run, each side on a
// core of its own; and the same between two processes. Bars, as ratios to the best peer of the cell: round trip 1.3 at
// 8 B and 1.1 at 64 B, batches of 4 KiB 0.80, everything else 0.90.

#include "ours.hpp"
#include "paired.hpp"
#include "peers.hpp"
#include "traffic.hpp"
#include "two_cores.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/processes/rendezvous.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <optional>
#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using namespace weft::bench;

struct settings {
  int runs = 11;
  double run_seconds = 0.010;
  bool json = false;
  std::string only;  // part of a cell's name
};

settings parse_settings(int argc, char** argv) {
  settings how;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word{argv[i]};
    if (word == "--json") {
      how.json = true;
    } else if (word == "--quick") {
      how.runs = 3;
      how.run_seconds = 0.001;
    } else if (word == "--runs" && i + 1 < argc) {
      how.runs = std::max(1, std::atoi(argv[++i]));
    } else if (word == "--only" && i + 1 < argc) {
      how.only = argv[++i];
    } else {
      std::fprintf(stderr,
                   "usage: %s [--runs N] [--quick] [--only PART-OF-A-NAME] [--json]\n"
                   "a name: 'in process/round trip/64 B', 'across processes/batch 64/4096 B'\n",
                   argv[0]);
      std::exit(2);
    }
  }
  return how;
}

constexpr std::size_t capacity_for(std::size_t bytes) { return bytes >= 4096 ? 256 : 1024; }

enum class role { ours, peer, beside };  // beside: shown, and compared with nobody

struct contender_run {
  std::string name;
  role part = role::peer;
  bool priority = true;
  // one whole run, both sides of it
  std::function<reading(traffic_kind, const run_length&)> run;
};

struct row {
  std::string name;
  role part = role::peer;
  std::vector<double> seconds;  // per message or round trip, by run
  std::vector<placement> where;
  std::vector<double> one_line_ns, two_lines_ns;  // the bounce around it
  [[nodiscard]] std::vector<double> of(placement wanted) const {
    std::vector<double> chosen;
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      if (where[i] == wanted) chosen.push_back(seconds[i]);
    }
    return chosen;
  }
};

struct cell {
  std::string scope;
  traffic_kind kind = traffic_kind::single;
  std::size_t bytes = 0;
  std::vector<row> rows;
  [[nodiscard]] std::string name() const {
    return scope + "/" + std::string{to_string(kind)} + "/" + std::to_string(bytes) + " B";
  }
  [[nodiscard]] double bar() const {
    if (kind == traffic_kind::round_trip && bytes == 8) return 1.3;
    if (kind == traffic_kind::round_trip && bytes == 64) return 1.1;
    return kind == traffic_kind::batch && bytes == 4096 ? 0.80 : 0.90;
  }
};

std::string figure(traffic_kind kind, double seconds) {
  char text[32];
  if (kind == traffic_kind::round_trip) {
    std::snprintf(text, sizeof text, "%9.1f ns   ", seconds * 1e9);
  } else {
    std::snprintf(text, sizeof text, "%9.2f M/s  ", 1e-6 / seconds);
  }
  return text;
}

// ---- running ------------------------------------------------------------------------------------------------------

std::uint64_t whole_batches(double messages) {
  return (static_cast<std::uint64_t>(messages) + batch_messages - 1) / batch_messages * batch_messages;
}

/// Every contender once per round, the order turning.
cell measure(std::string scope, traffic_kind kind, std::size_t bytes, const std::vector<contender_run>& contenders,
             const settings& how) {
  cell made{std::move(scope), kind, bytes, {}};
  const auto lap = static_cast<double>(capacity_for(bytes));
  std::vector<run_length> lengths;
  for (const contender_run& c : contenders) {
    made.rows.push_back({c.name, c.part, {}, {}, {}, {}});
    run_length probe{whole_batches(lap), whole_batches(2 * lap), c.priority};
    const reading first = c.run(kind, probe);
    const double wanted = how.run_seconds / (first.seconds / static_cast<double>(probe.timed));
    lengths.push_back({whole_batches(2 * lap), whole_batches(std::clamp(wanted, 2 * lap, 8e6)), c.priority});
  }
  for (int round = 0; round < how.runs; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const std::size_t who = (i + static_cast<std::size_t>(round)) % contenders.size();
      reading came_to;
      for (int tries = 0; tries < 4; ++tries) {
        // what was kept from running by the priority of a run gets as long a turn
        std::this_thread::sleep_for(std::chrono::duration<double>(how.run_seconds));
        came_to = contenders[who].run(kind, lengths[who]);
        if (came_to.where() == placement::two_cores || came_to.where() == placement::one_core) break;
      }
      row& r = made.rows[who];
      r.seconds.push_back(came_to.seconds / static_cast<double>(lengths[who].timed));
      r.where.push_back(came_to.where());
      r.one_line_ns.push_back((came_to.before.one_line_ns + came_to.after.one_line_ns) / 2);
      r.two_lines_ns.push_back((came_to.before.two_lines_ns + came_to.after.two_lines_ns) / 2);
    }
  }
  return made;
}

[[noreturn]] void wrong_data(const std::string& name, std::uint64_t wrong) {
  std::fprintf(stderr, "%s: %llu messages arrived wrong\n", name.c_str(), static_cast<unsigned long long>(wrong));
  std::_Exit(1);
}

// ---- in one process -----------------------------------------------------------------------------------------------

/// `make(capacity)` gives a queue, fresh for every run.
template <std::size_t Bytes, class Make>
contender_run in_process(second_thread& other, std::string name, role part, bool priority, Make make) {
  return {name, part, priority, [&other, make, name](traffic_kind kind, const run_length& length) {
            const auto there = make(capacity_for(Bytes));
            const auto back = make(capacity_for(Bytes));
            findings found;
            const auto work = [&](side who) {
              return [&, who](std::uint64_t first, std::uint64_t count) {
                move_messages<Bytes>(who, kind, *there, *back, first, count, found);
              };
            };
            const reading came_to = other.run(length, work(side::first), work(side::second));
            if (found.wrong != 0) wrong_data(name, found.wrong);
            return came_to;
          }};
}

template <class Queue>
auto made_of() {
  return [](std::size_t capacity) { return std::make_unique<Queue>(capacity); };
}

/// A bare ring and its memory.
template <class T>
class held_ring {
 public:
  explicit held_ring(std::size_t capacity)
      : memory_(::operator new(bare_ring<T>::size_for(capacity), std::align_val_t{128})),
        ring_(std::memset(memory_.get(), 0, bare_ring<T>::size_for(capacity)), capacity) {}
  bool try_send(const T& message) { return ring_.try_send(message); }
  bool try_receive(T& message) { return ring_.try_receive(message); }
  std::size_t try_send_some(const T* messages, std::size_t n) { return ring_.try_send_some(messages, n); }
  std::size_t try_receive_some(T* messages, std::size_t n) { return ring_.try_receive_some(messages, n); }

 private:
  struct release {
    void operator()(void* memory) const { ::operator delete(memory, std::align_val_t{128}); }
  };
  std::unique_ptr<void, release> memory_;
  bare_ring<T> ring_;
};

template <std::size_t Bytes>
std::vector<contender_run> contenders_in_process(second_thread& other, const weft::machine& m) {
  using message = payload<Bytes>;
  const auto ours_with = [&m](weft::transfer_mode mode, bool validate) {
    return [&m, mode, validate](std::size_t capacity) {
      weft::queue_options options;
      options.capacity = capacity;
      options.mode = mode;
      options.validate = validate;
      auto made = std::make_unique<ours<message>>(m, options);
      if (made->queue().mode() != mode) {
        std::fprintf(stderr, "the queue is not %s: %s\n", std::string{to_string(mode)}.c_str(),
                     made->queue().why().c_str());
        std::_Exit(1);
      }
      return made;
    };
  };
  const auto waiting_with = [&m](weft::transfer_mode mode) {
    return [&m, mode](std::size_t capacity) {
      weft::queue_options options;
      options.capacity = capacity;
      options.mode = mode;
      return std::make_unique<ours_waiting<message>>(m, options);
    };
  };
  std::vector<contender_run> all;
  const auto add = [&](std::string name, role part, bool priority, auto make) {
    all.push_back(in_process<Bytes>(other, std::move(name), part, priority, make));
  };
  add("weft direct", role::ours, true, ours_with(weft::transfer_mode::direct, false));
  add("rigtorp-style", role::peer, true, made_of<rigtorp_style<message>>());
#if WEFT_BENCH_HAS_READER_WRITER_QUEUE
  add("ReaderWriterQueue", role::peer, true, made_of<reader_writer_queue<message>>());
#endif
#if WEFT_BENCH_HAS_CONCURRENT_QUEUE
  add("ConcurrentQueue, tokens", role::peer, true, made_of<concurrent_queue<message>>());
#endif
#if WEFT_BENCH_HAS_BOOST
  add("boost::lockfree::spsc", role::peer, true, made_of<boost_spsc<message>>());
#endif
  add("mutex + deque", role::peer, true, made_of<mutex_deque<message>>());
  add("weft ring alone", role::beside, true, made_of<held_ring<message>>());
  add("weft direct, waiting calls", role::beside, true, waiting_with(weft::transfer_mode::direct));
  add("weft direct, validated", role::beside, true, ours_with(weft::transfer_mode::direct, true));
  // the forwarder is a third thread on the two cores: no priority, and calls that sleep when there is nothing to do
  add("weft host_staged", role::beside, false, waiting_with(weft::transfer_mode::host_staged));
  return all;
}

// ---- across two processes -----------------------------------------------------------------------------------------

/// What the two processes share besides a queue's own memory.
struct stage {
  meeting at;
  findings found;
  std::atomic<std::uint32_t> turn{0}, done{0};
  std::atomic<bool> end{false};
  // the order of a turn
  std::size_t contender = 0;
  traffic_kind kind = traffic_kind::single;
  run_length length;
};

constexpr std::size_t shared_bytes = std::size_t{16} << 20;

struct shared_memory {
  stage* shared = nullptr;
  void* memory = nullptr;  // for the queues of one run
  int pipes[2][2] = {};
  weft::process_group* group = nullptr;  // this process's
};

/// One side of a run of one contender, in the process that calls it. It makes its end of the queues (the first process
/// made the memory new), then runs.
struct process_contender {
  std::string name;
  role part = role::peer;
  std::size_t bytes = 0;
  std::function<reading(side, const shared_memory&, traffic_kind, const run_length&)> run_one_side;
};

/// `View(memory, capacity, side)` is a queue over shared memory as one process sees it. Both processes map it at the
/// same address.
template <std::size_t Bytes, class MakeView>
process_contender across(std::string name, role part, MakeView view) {
  return {std::move(name), part, Bytes,
          [view](side who, const shared_memory& s, traffic_kind kind, const run_length& length) {
            auto* half = static_cast<std::byte*>(s.memory);
            if (who == side::first) std::memset(s.memory, 0, shared_bytes);
            auto there = view(s, 0, half, who);
            auto back = view(s, 1, half + shared_bytes / 2, who);
            return run_side(s.shared->at, who, length, [&](std::uint64_t first, std::uint64_t count) {
              move_messages<Bytes>(who, kind, *there, *back, first, count, s.shared->found);
            });
          }};
}

/// Lies in the shared memory, so that a pointer to it is the view.
template <class Queue, class... Arguments>
Queue* placed(stage& shared, std::byte* memory, side who, Arguments... arguments) {
  auto* here = reinterpret_cast<Queue*>(memory);
  if (who == side::first) new (here) Queue(arguments...);
  shared.at.meet(who);
  return here;
}

template <class T>
class batched_index_ring : public index_ring<T> {
  using index_ring<T>::index_ring;
};
template <class T>
class single_index_ring : public index_ring<T> {
 public:
  using index_ring<T>::index_ring;
  std::size_t try_send_some(const T* messages, std::size_t n) { return send_one_by_one(*this, messages, n); }
  std::size_t try_receive_some(T* messages, std::size_t n) { return receive_one_by_one(*this, messages, n); }
};

template <std::size_t Bytes>
void add_contenders_across(std::vector<process_contender>& all) {
  using message = payload<Bytes>;
  static constexpr std::size_t capacity = capacity_for(Bytes);
  all.push_back(across<Bytes>("weft", role::ours, [](const shared_memory& s, int way, std::byte*, side who) {
    weft::queue_options options;
    options.capacity = capacity;
    const bool is_first = who == side::first;
    const std::uint64_t channel = 2 * std::uint64_t{s.shared->turn.load()} + static_cast<std::uint64_t>(way);
    return std::make_unique<ours_across<message>>(*s.group, weft::rank{is_first ? 1 : 0}, channel,
                                                  is_first == (way == 0), options);
  }));
  all.push_back(
      across<Bytes>("weft ring alone", role::beside, [](const shared_memory& s, int, std::byte* memory, side who) {
        s.shared->at.meet(who);
        return std::make_unique<bare_ring<message>>(memory, capacity);
      }));
  all.push_back(
      across<Bytes>("rigtorp-style", role::peer, [](const shared_memory& s, int, std::byte* memory, side who) {
        return placed<single_index_ring<message>>(*s.shared, memory, who, capacity);
      }));
  all.push_back(
      across<Bytes>("rigtorp-style, batched", role::peer, [](const shared_memory& s, int, std::byte* memory, side who) {
        return placed<batched_index_ring<message>>(*s.shared, memory, who, capacity);
      }));
#if WEFT_BENCH_HAS_BOOST
  all.push_back(
      across<Bytes>("boost::lockfree::spsc", role::peer, [](const shared_memory& s, int, std::byte* memory, side who) {
        return placed<boost_spsc_inside<message, capacity>>(*s.shared, memory, who);
      }));
#endif
  all.push_back(across<Bytes>("pipe", role::peer, [](const shared_memory& s, int way, std::byte*, side who) {
    s.shared->at.meet(who);
    return std::make_unique<pipe_queue<message>>(s.pipes[way][1], s.pipes[way][0]);
  }));
}

/// The second process. Made before this one has threads; ends with it.
class second_process {
 public:
  second_process(const std::vector<process_contender>& contenders, const cores& where) : where_(where) {
    memory_.shared = new (mapped(sizeof(stage))) stage;
    memory_.memory = mapped(shared_bytes);
    for (auto& pipe_ends : memory_.pipes) {
      if (::pipe(pipe_ends) != 0) std::_Exit(1);
    }
    std::vector<weft::rendezvous> places = weft::rendezvous::connected(2);
    std::fflush(nullptr);
    const pid_t parent = ::getpid();
    child_ = ::fork();
    if (child_ < 0) {
      std::perror("fork");
      std::_Exit(1);
    }
    if (child_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) std::_Exit(0);
      pin_to(where.second);
      join(std::move(places[1]));
      serve(contenders);
      std::_Exit(0);
    }
    join(std::move(places[0]));
  }
  ~second_process() {
    memory_.shared->end.store(true, std::memory_order_release);
    ::waitpid(child_, nullptr, 0);
  }
  second_process(const second_process&) = delete;
  second_process& operator=(const second_process&) = delete;

  reading run(const std::vector<process_contender>& contenders, std::size_t index, traffic_kind kind,
              const run_length& length) {
    stage& shared = *memory_.shared;
    shared.contender = index;
    shared.kind = kind;
    shared.length = length;
    const std::uint32_t turn = shared.turn.load(std::memory_order_relaxed) + 1;
    shared.turn.store(turn, std::memory_order_release);  // pairs with acquire in serve
    const pinned here{where_.first};
    const reading came_to = contenders[index].run_one_side(side::first, memory_, kind, length);
    patience wait{"the second process"};
    while (shared.done.load(std::memory_order_acquire) != turn) wait();
    if (shared.found.wrong != 0) wrong_data(contenders[index].name, shared.found.wrong);
    return came_to;
  }

 private:
  static void* mapped(std::size_t bytes) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (at == MAP_FAILED) {
      std::perror("mmap");
      std::_Exit(1);
    }
    return at;
  }
  void join(weft::rendezvous place) {
    group_.emplace(std::move(place).join().value());
    memory_.group = &*group_;
  }
  void serve(const std::vector<process_contender>& contenders) {
    stage& shared = *memory_.shared;
    for (std::uint32_t turn = 1;; ++turn) {
      while (shared.turn.load(std::memory_order_acquire) != turn) {
        if (shared.end.load(std::memory_order_acquire)) return;
        std::this_thread::sleep_for(std::chrono::microseconds{200});
      }
      static_cast<void>(contenders[shared.contender].run_one_side(side::second, memory_, shared.kind, shared.length));
      shared.done.store(turn, std::memory_order_release);
    }
  }

  cores where_;
  shared_memory memory_;
  std::optional<weft::process_group> group_;
  pid_t child_ = -1;
};

// ---- telling ------------------------------------------------------------------------------------------------------

struct verdict {
  std::string cell, best_peer;
  std::string ours_figure, peer_figure;
  spread ratio;
  std::size_t pairs = 0;
  double bar = 0;
};

/// Ours against the peer that is fastest here, run by run; both of them with the two sides on two cores.
std::optional<verdict> judge(const cell& c) {
  const row* ours = nullptr;
  const row* best = nullptr;
  double shortest = 0;
  for (const row& r : c.rows) {
    if (r.part == role::ours) ours = &r;
    const std::vector<double> times = r.of(placement::two_cores);
    if (r.part != role::peer || times.empty()) continue;
    const double median = spread_of(times).median;
    if (best == nullptr || median < shortest) {
      best = &r;
      shortest = median;
    }
  }
  if (ours == nullptr || best == nullptr) return std::nullopt;
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours->seconds.size(); ++i) {
    if (ours->where[i] == placement::two_cores && best->where[i] == placement::two_cores) {
      ratios.push_back(best->seconds[i] / ours->seconds[i]);
    }
  }
  if (ratios.empty()) return std::nullopt;
  return verdict{c.name(),
                 best->name,
                 figure(c.kind, spread_of(ours->of(placement::two_cores)).median),
                 figure(c.kind, shortest),
                 spread_of(ratios),
                 ratios.size(),
                 c.bar()};
}

void tell(const cell& c, bool json) {
  if (!json) std::printf("\nqueue/%s\n", c.name().c_str());
  for (const row& r : c.rows) {
    std::map<placement, int> runs;
    for (const placement where : r.where) ++runs[where];
    for (const placement where : {placement::two_cores, placement::one_core}) {
      const std::vector<double> times = r.of(where);
      if (times.empty()) continue;
      const spread t = spread_of(times);
      const spread one_line = spread_of(r.one_line_ns);
      const spread two_lines = spread_of(r.two_lines_ns);
      if (json) {
        std::printf(
            "{\"name\":\"queue/%s\",\"contender\":\"%s\",\"bytes\":%zu,\"mode\":\"%s\",\"kind\":\"%s\",\"batch\":%zu,"
            "\"placement\":\"%s\",\"bounce_ns\":{\"one_line\":%.1f,\"two_lines\":%.1f},\"seconds\":{\"median\":%.6g,"
            "\"p5\":%.6g,\"p95\":%.6g,"
            "\"samples\":%zu},\"messages_per_second\":%.6g,\"verified\":true}\n",
            c.name().c_str(), r.name.c_str(), c.bytes, c.scope.c_str(),
            c.kind == traffic_kind::round_trip ? "round_trip" : "throughput",
            c.kind == traffic_kind::batch ? batch_messages : 1, std::string{to_string(where)}.c_str(), one_line.median,
            two_lines.median, t.median, t.p5, t.p95, times.size(), 1 / t.median);
      } else {
        std::printf("  %-28s %s (p5 %s p95 %s)  %d runs on %s, bounce %.0f/%.0f ns", r.name.c_str(),
                    figure(c.kind, t.median).c_str(), figure(c.kind, t.p5).c_str(), figure(c.kind, t.p95).c_str(),
                    runs[where], std::string{to_string(where)}.c_str(), one_line.median, two_lines.median);
        if (const int left_out = runs[placement::moved] + runs[placement::disturbed]; left_out != 0) {
          std::printf(", %d left out", left_out);
        }
        std::printf("\n");
      }
    }
  }
  if (!json) std::fflush(stdout);
}

void sum_up(const std::vector<cell>& cells, bool json) {
  int short_of = 0;
  int judged = 0;
  if (!json) {
    std::printf("\n%-36s %-16s %-16s %-26s %-22s %5s  %s\n", "ours against the best peer, two cores", "weft", "peer",
                "", "ratio (p5 to p95)", "bar", "verdict");
  }
  for (const cell& c : cells) {
    const std::optional<verdict> v = judge(c);
    if (!v) {
      if (!json) std::printf("%-36s not judged: no run of both on two cores\n", c.name().c_str());
      continue;
    }
    const bool holds = v->ratio.median >= v->bar;
    ++judged;
    if (!holds) ++short_of;
    if (json) {
      std::printf(
          "{\"name\":\"queue/%s\",\"best_peer\":\"%s\",\"ratio\":{\"median\":%.4f,\"p5\":%.4f,\"p95\":%.4f,\"samples\":"
          "%zu},\"bar\":%.2f,\"holds\":%s}\n",
          v->cell.c_str(), v->best_peer.c_str(), v->ratio.median, v->ratio.p5, v->ratio.p95, v->pairs, v->bar,
          holds ? "true" : "false");
    } else {
      std::printf("%-36s %-16s %-16s %-26s %5.2f (%.2f to %.2f)     %5.2f  %s\n", v->cell.c_str(),
                  v->ours_figure.c_str(), v->peer_figure.c_str(), v->best_peer.c_str(), v->ratio.median, v->ratio.p5,
                  v->ratio.p95, v->bar, holds ? "holds" : "falls short");
    }
  }
  if (!json) std::printf("%d of %d cells hold\n", judged - short_of, judged);
}

void print_absent(bool json) {
  const auto say = [json](bool present, const char* name, const char* header, const char* package) {
    if (present) return;
    if (json) {
      std::printf("{\"absent\":\"%s\",\"why\":\"no %s\"}\n", name, header);
    } else {
      std::printf("%s is absent, because <%s> was not there when this was built (Debian: %s)\n", name, header, package);
    }
  };
  say(WEFT_BENCH_HAS_READER_WRITER_QUEUE, "moodycamel::ReaderWriterQueue", "readerwriterqueue/readerwriterqueue.h",
      "libreaderwriterqueue-dev");
  say(WEFT_BENCH_HAS_CONCURRENT_QUEUE, "moodycamel::ConcurrentQueue", "concurrentqueue/concurrentqueue.h",
      "libconcurrentqueue-dev");
  say(WEFT_BENCH_HAS_BOOST, "boost::lockfree::spsc_queue", "boost/lockfree/spsc_queue.hpp", "libboost-dev");
}

}  // namespace

int main(int argc, char** argv) {
  const settings how = parse_settings(argc, argv);
  const cores where = find_cores();
  options machine_line;
  machine_line.json = how.json;
  print_machine(machine_line);
  if (where.first == where.second) {
    std::printf("nothing is measured: this program may run on one core only\n");
    return 0;
  }
  if (!how.json) {
    std::printf("the two sides on cores %zu and %zu, %s; capacity 1024 (256 at 4096 B)\n", where.first, where.second,
                undisturbed::is_granted() ? "with real-time priority during a run" : "with ordinary priority");
  }
  print_absent(how.json);

  // before this process has a second thread
  std::vector<process_contender> across_processes;
  add_contenders_across<8>(across_processes);
  add_contenders_across<64>(across_processes);
  add_contenders_across<256>(across_processes);
  add_contenders_across<4096>(across_processes);
  second_process child{across_processes, where};

  weft::machine_options chosen;
  chosen.backend = "host";
  chosen.devices = 2;
  const weft::machine m{chosen};
  const auto leases = weft::enable_all_peers(m);
  second_thread other{where};

  std::vector<cell> cells;
  const auto wanted = [&](std::string_view scope, traffic_kind kind, std::size_t bytes) {
    return cell{std::string{scope}, kind, bytes, {}}.name().find(how.only) != std::string::npos;
  };
  const auto take = [&](std::string_view scope, traffic_kind kind, std::size_t bytes,
                        const std::vector<contender_run>& contenders) {
    if (!wanted(scope, kind, bytes)) return;
    cells.push_back(measure(std::string{scope}, kind, bytes, contenders, how));
    tell(cells.back(), how.json);
  };
  const std::vector<std::pair<std::size_t, std::vector<contender_run>>> in_one{
      {8, contenders_in_process<8>(other, m)},
      {64, contenders_in_process<64>(other, m)},
      {256, contenders_in_process<256>(other, m)},
      {4096, contenders_in_process<4096>(other, m)}};
  for (const traffic_kind kind : {traffic_kind::round_trip, traffic_kind::single, traffic_kind::batch}) {
    for (const auto& [bytes, contenders] : in_one) take("in process", kind, bytes, contenders);
  }
  for (const traffic_kind kind : {traffic_kind::round_trip, traffic_kind::single, traffic_kind::batch}) {
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{64}, std::size_t{256}, std::size_t{4096}}) {
      std::vector<contender_run> contenders;
      for (std::size_t i = 0; i < across_processes.size(); ++i) {
        if (across_processes[i].bytes != bytes) continue;
        contenders.push_back({across_processes[i].name, across_processes[i].part, true,
                              [&, i](traffic_kind what, const run_length& length) {
                                return child.run(across_processes, i, what, length);
                              }});
      }
      take("across processes", kind, bytes, contenders);
    }
  }
  sum_up(cells, how.json);
  return 0;
}
