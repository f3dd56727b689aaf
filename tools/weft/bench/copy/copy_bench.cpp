// SPDX-License-Identifier: Apache-2.0
#include "copy_bench.hpp"

#include "copy_ways.hpp"

#include <unistd.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "weft/core/host_memory.hpp"
#include "weft/memory/peer_access.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <map>
#include <span>
#include <thread>
#include <utility>

namespace weft::tool {

namespace {

using std::chrono::nanoseconds;
using wall = std::chrono::steady_clock;

/// Copies past the caches, where the compiler can: a large copy is not read again soon, and its lines need not be
/// fetched before they are written.
void stream_copy(std::byte* to, const std::byte* from, std::size_t size) {
#if defined(__SSE2__)
  const std::size_t lines = size / 16 * 16;
  for (std::size_t i = 0; i < lines; i += 16) {
    const __m128i word = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), word);
  }
  _mm_sfence();
  std::memcpy(to + lines, from + lines, size - lines);
#else
  std::memcpy(to, from, size);
#endif
}

void cached_copy(std::byte* to, const std::byte* from, std::size_t size) {
  std::memcpy(to, from, size);
  asm volatile("" : : "r"(to) : "memory");  // or repeated copies would be one, or none
}

/// The best that a plain copy in this host's memory reaches: what the host backend's devices are made of. memcpy and
/// streaming stores, on one thread and on two, differ by a factor that depends on the size; so each is tried.
class host_copy_reference {
 public:
  double bytes_per_second(std::uint64_t size) {
    const std::uint64_t used = std::min<std::uint64_t>(size, std::uint64_t{64} << 20);
    if (const auto found = known_.find(used); found != known_.end()) return found->second;
    std::vector<std::byte> source(used + 64, std::byte{1});
    std::vector<std::byte> target(used + 64, std::byte{2});
    const auto skew = (64 - reinterpret_cast<std::uintptr_t>(target.data()) % 64) % 64;
    const block all{target.data() + skew, source.data(), used};
    double best = std::max(one_thread(all, cached_copy), one_thread(all, stream_copy));
    if (used >= std::uint64_t{256} << 10 && std::thread::hardware_concurrency() > 1) {
      best = std::max({best, two_threads(all, cached_copy), two_threads(all, stream_copy)});
    }
    return known_[used] = best;
  }

 private:
  struct block {
    std::byte* to;
    const std::byte* from;
    std::size_t size;
  };
  using copier = void (*)(std::byte*, const std::byte*, std::size_t);
  static constexpr int samples = 9;

  static double rate_of(std::vector<double> times, std::size_t size) {
    return static_cast<double>(size) / std::max(summarise(std::move(times)).median, 1e-12);
  }

  static double one_thread(const block& all, copier copy_block) {
    const std::size_t repeats = std::max<std::size_t>(1, 65536 / all.size);
    std::vector<double> times;
    for (int i = 0; i < samples; ++i) {
      const auto start = wall::now();
      for (std::size_t r = 0; r < repeats; ++r) copy_block(all.to, all.from, all.size);
      times.push_back(std::chrono::duration<double>(wall::now() - start).count() / static_cast<double>(repeats));
    }
    return rate_of(std::move(times), all.size);
  }

  static double two_threads(const block& all, copier copy_block) {
    const std::size_t half = all.size / 2 / 64 * 64;
    std::barrier meet{2};
    std::vector<double> times;
    const std::jthread helper{[&] {
      for (int i = 0; i < samples; ++i) {
        meet.arrive_and_wait();
        copy_block(all.to + half, all.from + half, all.size - half);
        meet.arrive_and_wait();
      }
    }};
    for (int i = 0; i < samples; ++i) {
      meet.arrive_and_wait();
      const auto start = wall::now();
      copy_block(all.to, all.from, half);
      meet.arrive_and_wait();
      times.push_back(std::chrono::duration<double>(wall::now() - start).count());
    }
    return rate_of(std::move(times), all.size);
  }

  std::map<std::uint64_t, double> known_;
};

class copy_runner {
 public:
  copy_runner(session& run, const machine& m, const copy_plan& plan)
      : run_(run), m_(m), plan_(plan), facts_(route_facts_of(m.layout())), budget_(plan.budget) {}

  std::vector<copy_row> all() {
    std::vector<copy_row> rows = planned();
    progress line{run_, "copies", rows.size()};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      line.step(i, rows[i].name);
      if (!budget_.leaves_out(rows[i])) measure(rows[i], budget_.share_of(rows.size() - i));
    }
    budget_.tell(run_, rows.size());
    return rows;
  }

 private:
  std::vector<copy_row> planned() const {
    std::vector<copy_row> rows;
    for (const std::uint64_t size : plan_.sizes) {
      for (const auto& [src, dst] : plan_.pairs) {
        std::vector<std::pair<copy_path, copy_maker>> ways;
        const copy_path straight = src == dst ? copy_path::same_device : copy_path::direct;
        if (src == dst || plan_.direct) {
          if (plan_.by_engine) ways.emplace_back(straight, copy_maker::engine);
          if (plan_.by_kernel.value_or(!is_host(src) || !is_host(dst))) ways.emplace_back(straight, copy_maker::kernel);
        }
        if (src != dst && plan_.staged && plan_.by_engine) ways.emplace_back(copy_path::staged, copy_maker::engine);
        for (const auto& [path, by] : ways) {
          copy_row row;
          row.src = src;
          row.dst = dst;
          row.path = path;
          row.by = by;
          row.size = size;
          row.name = fmt::format("copy/{}{}/{}/{}-{}", to_string(path), by == copy_maker::kernel ? "_by_kernel" : "",
                                 size_name(size), to_string(src), to_string(dst));
          rows.push_back(std::move(row));
        }
      }
    }
    return rows;
  }

  bool is_host(device_id id) const { return m_[id].kind() == backend_kind::host; }

  void set_limit(copy_row& row) {
    if (is_host(row.src) && !run_.virtual_time()) {
      row.limit = {host_copy_.bytes_per_second(row.size), "host_copy", {}};
      return;
    }
    double rate = 0;
    if (row.path == copy_path::same_device) {
      rate = facts_.local[row.src.index()].bytes_per_second;
    } else if (row.path == copy_path::direct) {
      rate = facts_.pair(row.src, row.dst).lane.bytes_per_second;
      if (rate <= 0) {
        const auto known = capability_between(m_, row.src, row.dst);
        if (known && known->bytes_per_second) rate = *known->bytes_per_second;
      }
    } else {
      const double up = facts_.to_host[row.src.index()].bytes_per_second;
      const double down = facts_.from_host[row.src.index() * facts_.devices + row.dst.index()].bytes_per_second;
      rate = std::min(up, down);
    }
    if (rate > 0) {
      row.limit = {rate, "link", {}};
    } else {
      row.limit.why = "the rate of a link on the way is not known";
    }
  }

  void predict(copy_row& row) const {
    if (row.by == copy_maker::kernel) return;              // routes are of commands
    if (is_host(row.src) && !run_.virtual_time()) return;  // the model is of other hardware
    route_wish wish;
    if (row.path != copy_path::same_device) wish.path = row.path;
    const auto chosen = route(facts_, row.src, row.dst, bytes{row.size}, wish);
    if (chosen && chosen->predicted_seconds > 0) row.predicted_seconds = chosen->predicted_seconds;
  }

  /// Access in both directions where it is offered: a driver may need either. Says why the copy cannot be direct.
  std::string lease(const copy_row& row, std::vector<peer_access>& leases) const {
    std::string why;
    bool one = false;
    for (const auto& [by, owner] : {std::pair{row.dst, row.src}, std::pair{row.src, row.dst}}) {
      if (!can_access_peer(m_, by, owner)) {
        why = fmt::format("{} cannot access the memory of {}", to_string(by), to_string(owner));
        continue;
      }
      try {
        leases.emplace_back(m_, by, owner);
        one = true;
      } catch (const error_exception& e) {
        why = e.cause().what;
      }
    }
    return one ? std::string{} : why;
  }

  /// Who runs the kernel of a copy: the source where it reaches the destination, for a link carries stores better than
  /// answers to loads; else the destination.
  static device_id runner_of(const copy_row& row, const std::vector<peer_access>& leases) {
    const bool pushes = row.src == row.dst ||
                        std::ranges::any_of(leases, [&](const peer_access& one) { return one.from() == row.src; });
    return pushes ? row.src : row.dst;
  }

  void measure(copy_row& row, nanoseconds share) {
    if (const auto why = too_large(m_, row)) {
      end_row(row, row_state::skipped, *why);
      run_.warn(row.name + ": " + *why);
      return;
    }
    std::vector<peer_access> leases;
    if (row.path == copy_path::direct) {
      if (row.why = lease(row, leases); !row.why.empty()) {
        row.state = row_state::not_offered;
        return;
      }
    }
    set_limit(row);
    predict(row);
    try {
      if (row.by == copy_maker::kernel) {
        row.ran_on = runner_of(row, leases);
        sample(row, share, kernel_copy{m_, *row.ran_on, row.src, row.dst, row.size});
      } else {
        copy_options how;
        if (row.path != copy_path::same_device) how.route.path = row.path;
        sample(row, share, engine_copy{m_, row.src, row.dst, row.size, how});
      }
    } catch (const error_exception& e) {
      end_row(row, e.cause(), {errc::peer_unsupported});
    }
  }

  template <class Copy>
  void sample(copy_row& row, nanoseconds share, const Copy& copy) {
    const auto began = wall::now();
    const std::uint64_t seed = ++seed_ * 0x2545F4914F6CDD1DULL;
    copy.write(seed);
    copy.blank();

    // The first copy may hang: it is the one that is waited for with a limit.
    if (copy.once_within(std::chrono::seconds{30}) != wait_outcome::ok) {
      end_row(row, row_state::no_answer, "no answer within 30 s");
      return;
    }
    if (!check(row, copy.check(seed))) return;
    copy.blank();

    const auto timed = [&](int repeats) {
      const nanoseconds start = m_.now();
      for (int i = 0; i < repeats; ++i) copy.once();
      return seconds_of(m_.now() - start) / repeats;
    };
    const double once = timed(1);
    const int repeats = repeats_of(run_, once, 5e-6);
    std::vector<double> samples =
        take_samples(budget_, plan_.samples, began + share, [&] { return timed(repeats); }, plan_.min_time);
    if (samples.empty()) samples.push_back(once);
    row.seconds = summarise(std::move(samples));
    row.check_limit();
    if (row.seconds->median <= 0) row.why = "the clock did not move: it models no cost for this copy";
    static_cast<void>(check(row, copy.check(seed)));
  }

  static bool check(copy_row& row, const std::string& wrong) {
    row.verified = wrong.empty();
    if (!wrong.empty()) row.why = wrong;
    return wrong.empty();
  }

  session& run_;
  const machine& m_;
  const copy_plan& plan_;
  route_facts facts_;
  host_copy_reference host_copy_;
  row_budget budget_;
  std::uint64_t seed_ = 0;
};

}  // namespace

std::string_view to_string(copy_maker by) { return by == copy_maker::kernel ? "kernel" : "engine"; }

std::optional<double> copy_row::bytes_per_second() const {
  if (!seconds || seconds->median <= 0) return std::nullopt;
  return static_cast<double>(size) / seconds->median;
}

std::optional<double> copy_row::share() const {
  const auto rate = bytes_per_second();
  if (!rate || !limit.bytes_per_second) return std::nullopt;
  return *rate / *limit.bytes_per_second;
}

void copy_row::check_limit() {
  // of a model, a rate may be above its limit by rounding
  if (limit.from != "host_copy" || share().value_or(0) <= 1) return;
  limit.why = fmt::format("this copy was faster than the best plain copy, {:.3g} GB/s, which therefore is no limit",
                          *limit.bytes_per_second / 1e9);
  limit.bytes_per_second.reset();
}

/// An eighth of a quarter: a copy needs two buffers, and they may be on one device, and all are on the host.
std::optional<std::string> too_large(const machine& m, const copy_row& row) {
  const std::uint64_t both = times(row.size, 2);
  const std::uint64_t need = row.src == row.dst ? both : row.size;
  for (const device_id id : {row.src, row.dst}) {
    const bytes free = m[id].free_memory();
    if (need > free.value() / 4) {
      return fmt::format("{} need more than a quarter of the {} that are free on {}", to_string(bytes{need}),
                         to_string(free), to_string(id));
    }
  }
  if (m[row.src].kind() == backend_kind::host) {
    const std::uint64_t free = memory_of_host().free.value();
    if (free != 0 && both > free / 4) {
      return fmt::format("{} need more than a quarter of the {} that are free on this host", to_string(bytes{both}),
                         to_string(bytes{free}));
    }
  }
  return std::nullopt;
}

double host_copy_rate(std::uint64_t size) { return host_copy_reference{}.bytes_per_second(size); }

std::vector<copy_row> run_copies(session& run, const machine& m, const copy_plan& plan) {
  return copy_runner{run, m, plan}.all();
}

json rows_json(const std::vector<copy_row>& rows) {
  json list = json::array();
  for (const copy_row& row : rows) {
    json one;
    one["name"] = row.name;
    one["src"] = row.src.value();
    one["dst"] = row.dst.value();
    one["path"] = to_string(row.path);
    one["by"] = to_string(row.by);
    one["kernel_on"] = row.ran_on ? json(row.ran_on->value()) : json(nullptr);
    one["bytes"] = row.size;
    one["seconds"] = seconds_json(row.seconds);
    one["bytes_per_second"] = or_null(row.bytes_per_second());
    one["predicted_seconds"] = or_null(row.predicted_seconds);
    one["limit_bytes_per_second"] = or_null(row.limit.bytes_per_second);
    one["limit_from"] = row.limit.from.empty() ? json(nullptr) : json(row.limit.from);
    one["share_of_limit"] = or_null(row.share());
    one["verified"] = or_null(row.verified);
    std::string why = row.why;
    if (why.empty()) why = row.limit.why;
    one["why"] = why.empty() ? json(nullptr) : json(why);
    list.push_back(std::move(one));
  }
  return list;
}

}  // namespace weft::tool
