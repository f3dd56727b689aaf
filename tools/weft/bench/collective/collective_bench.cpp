// SPDX-License-Identifier: Apache-2.0
#include "collective_bench.hpp"

#include "collective_words.hpp"
#include "weft/core/host_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unistd.h>

namespace weft::tool {

namespace {

using std::chrono::nanoseconds;
using wall = std::chrono::steady_clock;

std::uint64_t elements_on(const collective_task& task, int rank) {
  const auto in = static_cast<std::uint64_t>(input_elements(task.shape, rank));
  const auto out = static_cast<std::uint64_t>(output_elements(task.shape, rank));
  return task.in_place || task.shape.what == collective::broadcast ? std::max(in, out) : in + out;
}

class collective_runner {
 public:
  collective_runner(session& run, const machine& m, std::span<const device_id> devices, const collective_plan& plan)
      : run_(run), m_(m), devices_(devices), plan_(plan), all_(ranks_of(m, devices)), budget_(plan.budget) {}

  std::vector<collective_row> all() {
    std::vector<collective_row> rows = rows_of(plan_);
    progress line{run_, "collectives", rows.size()};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].state != row_state::done) continue;
      line.step(i, rows[i].name);
      if (!budget_.leaves_out(rows[i])) measure(rows[i], budget_.share_of(rows.size() - i));
    }
    budget_.tell(run_, rows.size());
    return rows;
  }

 private:
  static communicator ranks_of(const machine& m, std::span<const device_id> devices) {
    std::vector<device> list;
    list.reserve(devices.size());
    for (const device_id id : devices) list.push_back(m[id]);
    return communicator{list};
  }

  void measure(collective_row& row, nanoseconds share) {
    if (const auto why = does_not_fit(m_, devices_, row.task)) {
      end_row(row, row_state::skipped, *why);
      run_.warn(row.name + ": " + *why);
      return;
    }
    try {
      sample(row, share);
    } catch (const error_exception& e) {
      end_row(row, e.cause(), {errc::unsupported});
      row.wrong.reset();
    }
  }

  void sample(collective_row& row, nanoseconds share) {
    const auto began = wall::now();
    const auto work = work_of_all(all_, row.task);
    if (!check(row, *work)) return;
    const auto timed = [&](int repeats) {
      const nanoseconds start = m_.now();
      for (int i = 0; i < repeats; ++i) work->run();
      return std::chrono::duration<double>(m_.now() - start).count() / repeats;
    };
    const double once = timed(1);
    const int repeats = repeats_of(run_, once, 20e-6);
    std::vector<double> samples = take_samples(budget_, plan_.samples, began + share, [&] { return timed(repeats); });
    if (samples.empty()) samples.push_back(once);
    row.seconds = summarise(std::move(samples));
    if (row.seconds->median <= 0) row.why = "the clock did not move: it models no cost for this";
    static_cast<void>(check(row, *work));
  }

  /// Runs it on new inputs and looks at every element.
  static bool check(collective_row& row, collective_work& work) {
    work.load();
    work.run();
    row.algorithm = work.algorithm();
    const collective_finding found = work.check();
    row.wrong = row.wrong.value_or(0) + found.wrong;
    row.verified = *row.wrong == 0;
    if (row.why.empty()) row.why = found.first;
    return found.wrong == 0;
  }

  session& run_;
  const machine& m_;
  std::span<const device_id> devices_;
  const collective_plan& plan_;
  communicator all_;
  row_budget budget_;
};

}  // namespace

std::optional<double> collective_row::algorithm_bandwidth() const {
  if (!seconds || seconds->median <= 0) return std::nullopt;
  return static_cast<double>(size) / seconds->median;
}

std::optional<double> collective_row::bus_bandwidth() const {
  const auto rate = algorithm_bandwidth();
  if (!rate) return std::nullopt;
  return *rate * bus_factor(task.shape.what, task.shape.ranks);
}

std::vector<collective_row> rows_of(const collective_plan& plan) {
  std::vector<std::int64_t> counts;  // each once: a name is that of one row
  for (const std::uint64_t size : plan.sizes) {
    const std::int64_t count = elements_of(size, plan.type);
    if (std::ranges::find(counts, count) == counts.end()) counts.push_back(count);
  }
  std::vector<collective_row> rows;
  for (const collective what : plan.collectives) {
    for (const std::int64_t count : counts) {
      for (const collective_algorithm algorithm : plan.algorithms) {
        collective_row row;
        row.count = count;
        row.size = static_cast<std::uint64_t>(row.count) * size_of(plan.type);
        row.task = {
            shape_of(what, plan.ranks, row.count), plan.type, plan.operation, plan.order, algorithm, plan.in_place};
        row.algorithm = algorithm;
        row.name =
            fmt::format("collective/{}/{}/{}/{}/{}_{}", to_string(what), to_string(algorithm), to_string(plan.type),
                        size_name(row.size), plan.ranks, plan.processes > 0 ? "processes" : "ranks");
        if (plan.in_place && what == collective::all_to_all) {
          row.state = row_state::not_offered;
          row.why = "an all_to_all cannot be done in place";
        }
        rows.push_back(std::move(row));
      }
    }
  }
  return rows;
}

std::optional<std::string> does_not_fit(const machine& m, std::span<const device_id> devices,
                                        const collective_task& task) {
  std::vector<std::uint64_t> needs(static_cast<std::size_t>(m.device_count()));
  std::uint64_t all = 0;
  for (std::size_t r = 0; r < devices.size(); ++r) {
    // as large as the sums below can hold
    const std::uint64_t need = std::min(times(elements_on(task, static_cast<int>(r)), size_of(task.type)),
                                        std::numeric_limits<std::uint64_t>::max() / devices.size());
    needs[devices[r].index()] += need;
    all += need;
  }
  const auto too_much = [](std::uint64_t need, bytes free, const std::string& where) {
    return fmt::format("{} need more than a quarter of the {} that are free on {}", to_string(bytes{need}),
                       to_string(free), where);
  };
  for (const device_id id : devices) {
    const bytes free = m[id].free_memory();
    if (needs[id.index()] > free.value() / 4) return too_much(needs[id.index()], free, to_string(id));
  }
  if (m[devices.front()].kind() == backend_kind::host) {
    const std::uint64_t free = memory_of_host().free.value();
    if (free != 0 && all > free / 4) return too_much(all, bytes{free}, "this host");
  }
  return std::nullopt;
}

std::vector<collective_row> run_collectives(session& run, const machine& m, std::span<const device_id> devices,
                                            const collective_plan& plan) {
  return collective_runner{run, m, devices, plan}.all();
}

json rows_json(const std::vector<collective_row>& rows) {
  json list = json::array();
  for (const collective_row& row : rows) {
    json one;
    one["name"] = row.name;
    one["collective"] = to_string(row.task.shape.what);
    one["algorithm"] = to_string(row.algorithm);
    one["ranks"] = row.task.shape.ranks;
    one["bytes"] = row.size;
    one["count"] = row.count;
    one["type"] = to_string(row.task.type);
    one["seconds"] = seconds_json(row.seconds);
    one["algbw_bytes_per_second"] = or_null(row.algorithm_bandwidth());
    one["busbw_bytes_per_second"] = or_null(row.bus_bandwidth());
    one["wrong"] = or_null(row.wrong);
    one["verified"] = or_null(row.verified);
    one["why"] = row.why.empty() ? json(nullptr) : json(row.why);
    list.push_back(std::move(one));
  }
  return list;
}

}  // namespace weft::tool
