// SPDX-License-Identifier: Apache-2.0
#include "queue_bench.hpp"

#include "queue_kernels.hpp"
#include "weft/channel/message_queue.hpp"
#include "weft/channel/ring_shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <pthread.h>
#include <sched.h>
#include <span>
#include <string>
#include <thread>
#include <utility>

namespace weft::tool {

namespace {

using std::chrono::nanoseconds;
using wall = std::chrono::steady_clock;

/// Room for a few dozen of the largest messages, and for no more of the small ones than a queue has by itself.
std::size_t capacity_for(std::uint64_t size) {
  return std::clamp<std::size_t>((std::size_t{1} << 20) / size, 64, queue_options{}.capacity);
}

/// Whether `b` is another thread of the core of `a`.
bool share_a_core(int a, int b) {
  const auto core = [](int cpu) {
    std::ifstream file{fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu)};
    std::string text;
    std::getline(file, text);
    return text;
  };
  const std::string of_a = core(a);
  return !of_a.empty() && of_a == core(b);
}

/// The calling thread on one core, until the end of the scope.
class bound {
 public:
  explicit bound(std::optional<int> core) {
    if (!core || pthread_getaffinity_np(pthread_self(), sizeof before_, &before_) != 0) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(*core), &one);
    changed_ = pthread_setaffinity_np(pthread_self(), sizeof one, &one) == 0;
  }
  ~bound() {
    if (changed_) pthread_setaffinity_np(pthread_self(), sizeof before_, &before_);
  }
  bound(const bound&) = delete;
  bound& operator=(const bound&) = delete;

 private:
  cpu_set_t before_{};
  bool changed_ = false;
};

/// What both threads of a measurement see. The near one orders legs and the far one answers.
class common_ground {
 public:
  struct leg {
    std::uint64_t first = 0;  // number of its first message
    std::uint64_t count = 0;  // none: the end
    bool whole = false;       // every byte is written and checked
  };

  void order(const leg& next) {
    next_ = next;
    ordered_.fetch_add(1, std::memory_order_release);  // pairs with acquire in await_order
  }
  /// None when there is nothing more to do.
  leg await_order() {
    ++seen_;
    if (!await(ordered_, seen_)) return {};
    return next_;
  }
  void answer_ready() { ready_.fetch_add(1, std::memory_order_release); }  // pairs with acquire in await_ready
  [[nodiscard]] bool await_ready() { return await(ready_, ordered_.load(std::memory_order_relaxed)); }
  void answer_done(wall::time_point at) {
    ended_ = at;
    done_.fetch_add(1, std::memory_order_release);  // pairs with acquire in await_done
  }
  [[nodiscard]] bool await_done() { return await(done_, ordered_.load(std::memory_order_relaxed)); }
  [[nodiscard]] wall::time_point ended() const { return ended_; }

  /// The first to find something says what; true for that one.
  bool spoil(row_state state, std::optional<bool> verified, std::string why) {
    if (claimed_.exchange(true)) return false;
    state_ = state;
    verified_ = verified;
    why_ = std::move(why);
    spoilt_.store(true, std::memory_order_release);  // pairs with acquire in spoilt
    return true;
  }
  [[nodiscard]] bool spoilt() const { return spoilt_.load(std::memory_order_acquire); }
  void tell(queue_row& row) const {
    row.state = state_;
    row.verified = verified_;
    row.why = why_;
    row.seconds.reset();
  }

 private:
  bool await(const std::atomic<std::uint32_t>& word, std::uint32_t turn) const {
    for (std::uint32_t looks = 0; word.load(std::memory_order_acquire) != turn; ++looks) {
      if (spoilt()) return false;
      if (looks > 4000) std::this_thread::yield();
    }
    return true;
  }

  leg next_;
  wall::time_point ended_;
  std::uint32_t seen_ = 0;  // of the far thread
  std::atomic<std::uint32_t> ordered_{0}, ready_{0}, done_{0};
  std::atomic<bool> claimed_{false}, spoilt_{false};
  row_state state_ = row_state::done;
  std::optional<bool> verified_;
  std::string why_;
};

/// The queues between one pair for one size and mode, and their measurements.
template <std::size_t Bytes>
class queue_cell {
 public:
  using message = numbered_message<Bytes>;

  queue_cell(const machine& m, const queue_row& row)
      : there_(m, row.src, row.dst, options(row.mode)),
        back_(m, row.dst, row.src, options(row.mode)),
        there_in_(there_.open_sender()),
        there_out_(there_.open_receiver()),
        back_in_(back_.open_sender()),
        back_out_(back_.open_receiver()) {}

  /// Why the row cannot be had by the mode that was asked for; empty when it can.
  [[nodiscard]] std::string missing(const queue_row& row) const {
    if (row.mode != transfer_mode::direct) return {};
    if (!there_.is_direct()) return there_.why();
    if (row.kind == queue_kind::round_trip && !back_.is_direct()) return "the way back: " + back_.why();
    return {};
  }
  [[nodiscard]] transfer_mode mode() const { return there_.mode(); }
  [[nodiscard]] std::string why() const { return there_.why(); }

  void measure(queue_row& row, const queue_plan& plan, bool timed, nanoseconds share,
               const std::optional<std::pair<int, int>>& cores) {
    const auto began = wall::now();
    common_ground ground;
    const std::size_t batch = row.kind == queue_kind::round_trip ? 1 : row.batch;
    std::vector<message> near_messages(batch), far_messages(batch);
    for (std::vector<message>* all : {&near_messages, &far_messages}) {
      for (message& one : *all) one.fill(0);
    }
    std::vector<double> samples;
    {
      const std::jthread far{[&] {
        const bound here{cores ? std::optional{cores->second} : std::nullopt};
        far_end(row.kind, far_messages, ground);
      }};
      struct ending {
        common_ground& at;
        ~ending() { at.order({}); }
      } const last{ground};
      const bound here{cores ? std::optional{cores->first} : std::nullopt};
      const auto run = [&](std::uint64_t count, bool whole) {
        return near_end(row.kind, near_messages, ground, (count + batch - 1) / batch * batch, whole);
      };
      // more than the ring holds, so that every place in it was written and read
      const std::uint64_t checked = row.kind == queue_kind::round_trip ? 32 : there_.capacity() + 1;
      run(checked, true);
      if (timed && !ground.spoilt()) {
        // Longer and longer until a sample is long enough to hide that its first message had to wake somebody.
        std::uint64_t count = (row.kind == queue_kind::round_trip ? 15 : 256) + batch;
        while (!ground.spoilt() && count < 100'000'000 && run(count, false) < seconds_of(plan.sample_time) / 2)
          count *= 2;
        const std::uint64_t moved = (count + batch - 1) / batch * batch;
        while (!interrupted() && !ground.spoilt()) {
          samples.push_back(run(moved, false) / static_cast<double>(moved));
          if (are_enough(samples.size(), plan.samples, began + share)) break;
        }
        run(checked, true);
      }
    }
    row.messages = row.kind == queue_kind::round_trip ? 2 * number_ : number_;
    if (ground.spoilt()) {
      ground.tell(row);
    } else {
      row.verified = true;
      if (!samples.empty()) {
        row.seconds = summarise(std::move(samples));
      } else if (timed) {
        row.state = row_state::skipped;
        row.why = stopped_by_user;
      }
      if (!timed) row.why = "a virtual clock has no model of a queue: the messages were checked and not timed";
    }
  }

 private:
  static queue_options options(transfer_mode mode) {
    queue_options made;
    made.capacity = capacity_for(Bytes);
    made.mode = mode;
    made.timeout = longest_wait;
    return made;
  }

  /// Nothing more comes through: both ends of both queues are let go.
  void spoil(common_ground& ground, row_state state, std::optional<bool> verified, std::string why) {
    ground.spoil(state, verified, std::move(why));
    there_.close();
    back_.close();
  }
  void spoil(common_ground& ground, queue_status status, const std::optional<error>& cause, std::string_view what) {
    if (status == queue_status::timed_out) {
      spoil(ground, row_state::no_answer, {}, fmt::format("{} within {} s", what, longest_wait.count()));
    } else {
      spoil(ground, row_state::failed, {}, cause ? cause->what : fmt::format("{}: {}", what, to_string(status)));
    }
  }
  bool check(common_ground& ground, const message& got, std::uint64_t number, bool whole) {
    const std::size_t bad = got.first_bad(number, whole);
    if (bad == message::words) return true;
    spoil(ground, row_state::done, false,
          fmt::format("message {}, first bad word at offset {}: expected 0x{:016x}, got 0x{:016x}", number, 8 * bad,
                      message::expected(bad, number), got.word[bad]));
    return false;
  }
  bool send(common_ground& ground, sender<message>& to, const message& one) {
    const queue_status status = to.send(one);
    if (status == queue_status::ok) [[likely]]
      return true;
    spoil(ground, status, to.failure(), "there was no space for a message");
    return false;
  }
  bool receive(common_ground& ground, receiver<message>& from, message& one) {
    const queue_status status = from.receive(one);
    if (status == queue_status::ok) [[likely]]
      return true;
    spoil(ground, status, from.failure(), "no message arrived");
    return false;
  }
  static void write(message& one, std::uint64_t number, bool whole) {
    if (whole) {
      one.fill(number);
    } else {
      one.mark(number);
    }
  }

  /// Sends `count` messages, a multiple of the batch, and waits until they were received; the seconds that it took.
  double near_end(queue_kind kind, std::vector<message>& messages, common_ground& ground, std::uint64_t count,
                  bool whole) {
    const std::uint64_t end = number_ + count;
    ground.order({number_, count, whole});
    if (!ground.await_ready()) return 0;
    const auto start = wall::now();
    if (kind == queue_kind::round_trip) {
      for (; number_ != end; ++number_) {
        message& one = messages.front();
        write(one, number_, whole);
        if (!send(ground, there_in_, one) || !receive(ground, back_out_, one) || !check(ground, one, number_, whole)) {
          return 0;
        }
      }
      const auto stop = wall::now();
      return ground.await_done() ? seconds_of(stop - start) : 0;
    }
    while (number_ != end) {
      if (messages.size() == 1) {
        write(messages.front(), number_, whole);
        if (!send(ground, there_in_, messages.front())) return 0;
      } else {
        for (std::size_t i = 0; i < messages.size(); ++i) write(messages[i], number_ + i, whole);
        const batch_result sent = there_in_.send_batch(std::span<const message>{messages});
        if (sent.status != queue_status::ok) {
          spoil(ground, sent.status == queue_status::partial ? queue_status::timed_out : sent.status,
                there_in_.failure(), "there was no space for a batch");
          return 0;
        }
      }
      number_ += messages.size();
    }
    return ground.await_done() ? seconds_of(ground.ended() - start) : 0;
  }

  void far_end(queue_kind kind, std::vector<message>& messages, common_ground& ground) {
    for (;;) {
      const common_ground::leg leg = ground.await_order();
      if (leg.count == 0) return;
      ground.answer_ready();
      for (std::uint64_t number = leg.first; number != leg.first + leg.count;) {
        message& one = messages.front();
        if (messages.size() == 1) {
          if (!receive(ground, there_out_, one) || !check(ground, one, number, leg.whole)) return;
          if (kind == queue_kind::round_trip && !send(ground, back_in_, one)) return;
          ++number;
          continue;
        }
        const std::size_t left = std::min<std::uint64_t>(messages.size(), leg.first + leg.count - number);
        const batch_result got = there_out_.receive_batch(std::span{messages}.first(left));
        if (got.status != queue_status::ok) {
          spoil(ground, got.status, there_out_.failure(), "no message arrived");
          return;
        }
        for (std::size_t i = 0; i < got.count; ++i) {
          if (!check(ground, messages[i], number + i, leg.whole)) return;
        }
        number += got.count;
      }
      ground.answer_done(wall::now());
    }
  }

  message_queue<message> there_, back_;
  sender<message> there_in_;
  receiver<message> there_out_;
  sender<message> back_in_;
  receiver<message> back_out_;
  std::uint64_t number_ = 0;  // of the next message; of the near thread
};

class queue_runner {
 public:
  queue_runner(session& run, const machine& m, const queue_plan& plan)
      : run_(run), m_(m), plan_(plan), cores_(cores_of_two_threads()), budget_(plan.budget) {}

  std::vector<queue_row> all() {
    std::vector<queue_row> rows = planned();
    progress line{run_, "queues", rows.size()};
    for (std::size_t first = 0; first < rows.size();) {
      std::size_t last = first + 1;
      while (last < rows.size() && same_queues(rows[first], rows[last])) ++last;
      const std::span<queue_row> cell{rows.data() + first, last - first};
      line.step(first, cell.front().name);
      dispatch(cell, rows.size() - first, std::make_index_sequence<queue_sizes.size()>{});
      first = last;
    }
    budget_.tell(run_, rows.size());
    return rows;
  }

 private:
  static bool same_queues(const queue_row& a, const queue_row& b) {
    return !has_kernels(a.kind) && !has_kernels(b.kind) && a.size == b.size && a.src == b.src && a.dst == b.dst &&
           a.mode == b.mode;
  }

  std::vector<queue_row> planned() const {
    std::vector<queue_row> rows;
    for (const std::uint64_t size : plan_.sizes) {
      for (const auto& [src, dst] : plan_.pairs) {
        for (const transfer_mode mode : plan_.modes) {
          queue_row row;
          row.src = src;
          row.dst = dst;
          row.mode = mode;
          row.size = size;
          if (plan_.host_ends && plan_.round_trips) {
            row.kind = queue_kind::round_trip;
            rows.push_back(row);
          }
          row.kind = queue_kind::throughput;
          for (const std::size_t batch : plan_.batches) {
            row.batch = batch;
            if (plan_.host_ends) rows.push_back(row);
          }
          row.batch = 1;
          for (const queue_kind kind : {queue_kind::round_trip_to_kernel, queue_kind::round_trip_of_kernels}) {
            row.kind = kind;
            if (size == kernel_message_size && plan_.kernel_ends.value_or(is_cuda(src) && is_cuda(dst)))
              rows.push_back(row);
          }
        }
      }
    }
    for (queue_row& row : rows) row.name = name_of(row);
    return rows;
  }
  [[nodiscard]] bool is_cuda(device_id id) const { return m_[id].kind() == backend_kind::cuda; }
  static std::string name_of(const queue_row& row) {
    const std::string kind =
        row.kind == queue_kind::throughput ? fmt::format("batch_{}", row.batch) : std::string{to_string(row.kind)};
    return fmt::format("queue/{}/{}/{}/{}-{}", to_string(row.mode), kind, size_name(row.size), to_string(row.src),
                       to_string(row.dst));
  }

  template <std::size_t... Is>
  void dispatch(std::span<queue_row> rows, std::size_t rows_left, std::index_sequence<Is...>) {
    const bool known =
        ((rows.front().size == queue_sizes[Is] && (measure<queue_sizes[Is]>(rows, rows_left), true)) || ...);
    if (known) return;
    for (queue_row& row : rows) {
      end_row(row, row_state::not_offered, fmt::format("there are no messages of {} bytes", row.size));
    }
  }

  [[nodiscard]] std::optional<std::string> too_large(const queue_row& row) const {
    const std::uint64_t capacity = capacity_for(row.size);
    const bytes need{capacity * detail::stride_of(row.size, 8) * (row.src == row.dst ? 2 : 1)};
    for (const device_id id : {row.src, row.dst}) {
      const bytes free = m_[id].free_memory();
      if (need.value() <= free.value() / 4) continue;
      return fmt::format("a ring of {} messages needs more than a quarter of the {} that are free on {}", capacity,
                         to_string(free), to_string(id));
    }
    return std::nullopt;
  }

  void by_kernels(queue_row& row, nanoseconds share) const {
    if (run_.virtual_time()) {
      end_row(row, row_state::not_offered, "a virtual clock has no model of a queue");
      return;
    }
    measure_by_kernels(m_, row, plan_, share);
  }

  template <std::size_t Bytes>
  void measure(std::span<queue_row> rows, std::size_t rows_left) {
    std::optional<queue_cell<Bytes>> cell;
    const auto large = too_large(rows.front());
    if (large) run_.warn(rows.front().name + ": " + *large);
    for (queue_row& row : rows) {
      if (large) end_row(row, row_state::skipped, *large);
      if (large || budget_.leaves_out(row)) continue;
      try {
        if (has_kernels(row.kind)) {
          by_kernels(row, budget_.share_of(rows_left--));
        } else {
          if (!cell) cell.emplace(m_, row);
          if (row.mode == transfer_mode::adaptive) {
            row.mode = cell->mode();
            row.why = cell->why();
            row.name = name_of(row);
          }
          if (std::string why = cell->missing(row); !why.empty()) {
            end_row(row, row_state::not_offered, std::move(why));
            continue;
          }
          cell->measure(row, plan_, !run_.virtual_time(), budget_.share_of(rows_left--), cores_);
        }
      } catch (const error_exception& e) {
        end_row(row, e.cause(), {errc::unsupported});
      }
      if (row.state == row_state::skipped) budget_.count(row.why);  // stopped before its first sample
      if (row.state != row_state::done || row.verified != true) cell.reset();
    }
  }

  session& run_;
  const machine& m_;
  const queue_plan& plan_;
  std::optional<std::pair<int, int>> cores_;
  row_budget budget_;
};

}  // namespace

std::string_view to_string(queue_kind kind) {
  switch (kind) {
    case queue_kind::round_trip:
      return "round_trip";
    case queue_kind::round_trip_to_kernel:
      return "round_trip_to_kernel";
    case queue_kind::round_trip_of_kernels:
      return "round_trip_of_kernels";
    case queue_kind::throughput:
      break;
  }
  return "throughput";
}

std::optional<double> queue_row::messages_per_second() const {
  if (!seconds || seconds->median <= 0) return std::nullopt;
  return (kind == queue_kind::throughput ? 1 : 2) / seconds->median;
}

std::optional<std::pair<int, int>> cores_of_two_threads() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return std::nullopt;
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &allowed)) cpus.push_back(cpu);
  }
  if (cpus.size() < 2) return std::nullopt;
  // Two threads of one core exchange a line several times faster than two cores do: only where there is nothing else.
  for (std::size_t i = 1; i < cpus.size(); ++i) {
    if (!share_a_core(cpus[0], cpus[i])) return std::pair{cpus[0], cpus[i]};
  }
  return std::pair{cpus[0], cpus[1]};
}

std::vector<queue_row> run_queues(session& run, const machine& m, const queue_plan& plan) {
  return queue_runner{run, m, plan}.all();
}

json rows_json(const std::vector<queue_row>& rows) {
  json list = json::array();
  for (const queue_row& row : rows) {
    json one;
    one["name"] = row.name;
    one["src"] = row.src.value();
    one["dst"] = row.dst.value();
    one["bytes"] = row.size;
    one["mode"] = to_string(row.mode);
    one["kind"] = to_string(row.kind);
    one["batch"] = row.batch;
    one["seconds"] = seconds_json(row.seconds);
    one["messages_per_second"] = or_null(row.messages_per_second());
    one["delivery"] = row.delivery ? json(to_string(*row.delivery)) : json(nullptr);
    one["verified"] = or_null(row.verified);
    one["why"] = row.why.empty() ? json(nullptr) : json(row.why);
    list.push_back(std::move(one));
  }
  return list;
}

std::string message_rate_text(double messages_per_second) {
  const auto three = [](double value, std::string_view unit) {
    const int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    return fmt::format("{:.{}f} {}", value, digits, unit);
  };
  if (messages_per_second < 999.5) return three(messages_per_second, "/s");
  if (messages_per_second < 999.5e3) return three(messages_per_second / 1e3, "k/s");
  return three(messages_per_second / 1e6, "M/s");
}

}  // namespace weft::tool
