// SPDX-License-Identifier: Apache-2.0
#include "exec/pipeline/place_stages.hpp"

#include "core/errors/make_error.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <numeric>

namespace weft {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::size_t most_exact = 10;
constexpr device_id host{};

error invalid(std::string what) { return make_error(errc::invalid_argument, std::move(what)); }

std::optional<error> refused(const placement_problem& p) {
  if (p.stages.empty()) return invalid("a pipeline without a stage has nothing to place");
  if (p.devices.empty()) return invalid("no device was given to place the stages on");
  for (const stage_cost& s : p.stages) {
    if (!std::isfinite(s.seconds) || s.seconds < 0)
      return invalid("stage '" + s.name + "' has a cost that is no time: " + std::to_string(s.seconds) + " s");
  }
  for (const stage_device& d : p.devices) {
    if (!std::isfinite(d.speed) || d.speed <= 0)
      return invalid(to_string(d.id) + " has a speed that is none: " + std::to_string(d.speed));
    if (std::count_if(p.devices.begin(), p.devices.end(), [&](const stage_device& o) { return o.id == d.id; }) > 1)
      return invalid(to_string(d.id) + " was given twice");
  }
  return std::nullopt;
}

double hop(const placement_problem& p, device_id from, device_id to, std::uint64_t size) {
  if (!p.hop_seconds || from == to) return 0;
  const double seconds = p.hop_seconds(from, to, size);
  return std::isfinite(seconds) && seconds > 0 ? seconds : 0;
}

/// What a run of stages on one device adds to the line.
struct segment {
  double busy = 0;   // what it holds up: the device, or the longer of the device and its hops
  double total = 0;  // what it adds to the time of one batch
};

/// Prefix sums and hops, so that a segment is priced without a loop.
class prices {
 public:
  explicit prices(const placement_problem& p) : problem_(p), count_(p.stages.size()), devices_(p.devices.size()) {
    for (const stage_cost& s : p.stages) {
      seconds_.push_back(seconds_.back() + s.seconds);
      memory_.push_back(memory_.back() + s.memory);
    }
    for (const stage_device& from : p.devices) in_.push_back(hop(p, host, from.id, p.bytes_in));
    out_.resize(count_ * devices_ * (devices_ + 1));
    for (std::size_t s = 0; s < count_; ++s) {
      for (std::size_t from = 0; from < devices_; ++from) {
        for (std::size_t to = 0; to <= devices_; ++to) {
          out_[(s * devices_ + from) * (devices_ + 1) + to] =
              hop(p, p.devices[from].id, to == devices_ ? host : p.devices[to].id, p.stages[s].bytes_out);
        }
      }
    }
  }

  [[nodiscard]] double work(std::size_t device, std::size_t first, std::size_t end) const {
    return (seconds_[end] - seconds_[first]) / problem_.devices[device].speed;
  }
  [[nodiscard]] bool fits(std::size_t device, std::size_t first, std::size_t end) const {
    return memory_[end] - memory_[first] <=
           problem_.devices[device].memory.value_or(std::numeric_limits<std::uint64_t>::max());
  }
  /// `next` is devices() for the host, behind the last stage.
  [[nodiscard]] segment of(std::size_t device, std::size_t first, std::size_t end, std::size_t next) const {
    const double compute = work(device, first, end);
    const double in = first == 0 ? in_[device] : 0;
    const double out = out_[((end - 1) * devices_ + device) * (devices_ + 1) + next];
    const double total = in + compute + out;
    return {problem_.overlap_hops ? std::max({in, compute, out}) : total, total};
  }
  [[nodiscard]] std::size_t stages() const { return count_; }
  [[nodiscard]] std::size_t devices() const { return devices_; }

 private:
  const placement_problem& problem_;
  std::size_t count_, devices_;
  std::vector<double> seconds_{0.0}, in_, out_;
  std::vector<std::uint64_t> memory_{0};
};

/// Places in the search: which devices have been used, and which of them takes the next stages.
/// Exact: a set of devices and its last one. In order: a position, behind which the next one lies.
struct search_space {
  std::vector<std::size_t> order;  // of the devices
  bool exact = false;

  [[nodiscard]] std::size_t size() const {
    return exact ? (std::size_t{1} << order.size()) * order.size() : order.size();
  }
  [[nodiscard]] std::size_t begin(std::size_t at) const {
    return exact ? (std::size_t{1} << at) * order.size() + at : at;
  }
  [[nodiscard]] std::size_t last(std::size_t node) const { return exact ? node % order.size() : node; }
  /// The node after `node` when the device at `at` comes next; the node itself when it may not.
  [[nodiscard]] std::size_t next(std::size_t node, std::size_t at) const {
    if (!exact) return at > node ? at : node;
    const std::size_t used = node / order.size();
    if ((used >> at & 1) != 0) return node;
    return (used | std::size_t{1} << at) * order.size() + at;
  }
};

struct found {
  double value = infinity;
  std::vector<std::size_t> device_of;  // index into the devices
};

/// Dynamic programming over (stages placed, node). With `least_total` the sum over the segments is least, among the
/// placements without a segment that holds up more than `limit`; otherwise the longest hold-up is.
found search(const prices& price, const search_space& space, double limit, bool least_total) {
  const std::size_t k = price.stages(), nodes = space.size(), devices = price.devices();
  struct cell {
    double value = infinity;
    std::uint32_t node = 0, first = 0;  // where it came from
  };
  std::vector<cell> cells(k * nodes);
  for (std::size_t at = 0; at < devices; ++at) cells[space.begin(at)].value = 0;
  found best;
  std::uint32_t best_node = 0, best_first = 0;
  const auto joined = [&](double so_far, const segment& s) {
    return least_total ? so_far + s.total : std::max(so_far, s.busy);
  };
  for (std::size_t first = 0; first < k; ++first) {
    for (std::size_t node = 0; node < nodes; ++node) {
      const cell from = cells[first * nodes + node];
      if (from.value == infinity) continue;
      const std::size_t device = space.order[space.last(node)];
      for (std::size_t end = first + 1; end <= k; ++end) {
        // longer segments only take longer, and only need more
        if (price.work(device, first, end) > limit || !price.fits(device, first, end)) break;
        if (end == k) {
          const segment s = price.of(device, first, k, devices);
          if (s.busy > limit) continue;
          if (const double value = joined(from.value, s); value < best.value) {
            best.value = value;
            best_node = static_cast<std::uint32_t>(node);
            best_first = static_cast<std::uint32_t>(first);
          }
          continue;
        }
        for (std::size_t at = 0; at < devices; ++at) {
          const std::size_t to = space.next(node, at);
          if (to == node) continue;
          const segment s = price.of(device, first, end, space.order[at]);
          if (s.busy > limit) continue;
          const double value = joined(from.value, s);
          cell& there = cells[end * nodes + to];
          if (value < there.value) there = {value, static_cast<std::uint32_t>(node), static_cast<std::uint32_t>(first)};
        }
      }
    }
  }
  if (best.value == infinity) return best;
  best.device_of.resize(k);
  std::size_t end = k;
  for (std::size_t node = best_node, first = best_first;;) {
    std::fill(best.device_of.begin() + static_cast<std::ptrdiff_t>(first),
              best.device_of.begin() + static_cast<std::ptrdiff_t>(end), space.order[space.last(node)]);
    if (first == 0) return best;
    const cell& c = cells[first * nodes + node];
    end = first;
    node = c.node;
    first = c.first;
  }
}

std::string milliseconds(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g ms", seconds * 1e3);
  return text.data();
}

const stage_device* device_named(const placement_problem& p, device_id id) {
  const auto it = std::find_if(p.devices.begin(), p.devices.end(), [&](const stage_device& d) { return d.id == id; });
  return it == p.devices.end() ? nullptr : &*it;
}

/// The runs of consecutive stages on one device, and what each takes.
struct station {
  std::size_t first = 0, end = 0;
  device_id device;
  double compute = 0, in = 0, out = 0;
};

stage_placement judged(const placement_problem& p, const std::vector<device_id>& device_of) {
  stage_placement made;
  made.device_of = device_of;
  std::vector<station> line;
  const std::size_t k = p.stages.size();
  for (std::size_t s = 0; s < k; ++s) {
    if (s == 0 || device_of[s] != device_of[s - 1]) line.push_back({s, s, device_of[s], 0, 0, 0});
    line.back().end = s + 1;
    line.back().compute += p.stages[s].seconds / device_named(p, device_of[s])->speed;
  }
  for (std::size_t i = 0; i < line.size(); ++i) {
    station& at = line[i];
    at.out = hop(p, at.device, i + 1 < line.size() ? line[i + 1].device : host, p.stages[at.end - 1].bytes_out);
    if (i == 0) at.in = hop(p, host, at.device, p.bytes_in);
  }
  const auto held_up = [&](const station& at) {
    double of_device = 0;  // stations that are apart and on one device share it
    for (const station& other : line) of_device += other.device == at.device ? other.compute : 0;
    return std::max(of_device, p.overlap_hops ? std::max(at.in, at.out) : at.in + at.compute + at.out);
  };
  for (const station& at : line) {
    made.first_seconds += at.in + at.compute + at.out;
    made.period_seconds = std::max(made.period_seconds, held_up(at));
  }
  made.fill_seconds = made.first_seconds - line.back().compute - line.back().out -
                      (line.size() == 1 && !p.overlap_hops ? line.back().in : 0);
  made.drain_seconds =
      made.first_seconds - line.front().in - line.front().compute - (p.overlap_hops ? 0 : line.front().out);
  for (const station& at : line) {
    std::string text = milliseconds(at.compute) + " of work";
    if (const double speed = device_named(p, at.device)->speed; speed != 1) {
      std::array<char, 32> number{};
      std::snprintf(number.data(), number.size(), " at speed %.4g", speed);
      text += number.data();
    }
    if (at.in > 0) text += ", " + milliseconds(at.in) + " to take in";
    if (at.out > 0) text += ", " + milliseconds(at.out) + " to hand on";
    if (p.overlap_hops && at.in + at.out > 0) text += " beside it";
    text += held_up(at) >= made.period_seconds * (1 - 1e-9) ? "; it sets the pace"
                                                            : "; the pace is " + milliseconds(made.period_seconds);
    for (std::size_t s = at.first; s < at.end; ++s) {
      std::string why = "'" + p.stages[s].name + "' on " + to_string(at.device);
      if (at.end - at.first > 1) {
        why += " with ";
        for (std::size_t o = at.first; o < at.end; ++o) {
          if (o != s) why += "'" + p.stages[o].name + "' ";
        }
        why += "(" + text + ")";
      } else {
        why += ": " + text;
      }
      made.why.push_back(std::move(why));
    }
  }
  return made;
}

error no_room(const placement_problem& p) {
  std::uint64_t largest = 0;
  for (const stage_device& d : p.devices)
    largest = std::max(largest, d.memory.value_or(std::numeric_limits<std::uint64_t>::max()));
  for (const stage_cost& s : p.stages) {
    if (s.memory > largest) {
      return make_error(errc::out_of_memory, "stage '" + s.name + "' keeps " + std::to_string(s.memory) +
                                                 " bytes, and no device has more than " + std::to_string(largest) +
                                                 ": take smaller batches or less depth");
    }
  }
  return make_error(errc::out_of_memory,
                    "the stages do not fit on the " + std::to_string(p.devices.size()) +
                        " devices within their memory: take smaller batches, less depth or more devices");
}

}  // namespace

result<stage_placement> judge_placement(const placement_problem& problem, const std::vector<device_id>& device_of) {
  if (auto cause = refused(problem)) return *cause;
  if (device_of.size() != problem.stages.size()) {
    return invalid("a placement names " + std::to_string(device_of.size()) + " devices for " +
                   std::to_string(problem.stages.size()) + " stages");
  }
  for (std::size_t s = 0; s < device_of.size(); ++s) {
    if (device_named(problem, device_of[s]) == nullptr)
      return invalid("stage '" + problem.stages[s].name + "' was placed on " + to_string(device_of[s]) +
                     ", which is not among the devices");
  }
  return judged(problem, device_of);
}

result<stage_placement> place_stages(const placement_problem& problem) {
  if (auto cause = refused(problem)) return *cause;
  const prices price{problem};
  std::vector<search_space> spaces;
  search_space given;
  given.order.resize(problem.devices.size());
  std::iota(given.order.begin(), given.order.end(), std::size_t{0});
  search_space falling = given, rising = given;
  const auto speed = [&](std::size_t d) { return problem.devices[d].speed; };
  std::sort(falling.order.begin(), falling.order.end(),
            [&](std::size_t a, std::size_t b) { return speed(a) != speed(b) ? speed(a) > speed(b) : a < b; });
  std::sort(rising.order.begin(), rising.order.end(),
            [&](std::size_t a, std::size_t b) { return speed(a) != speed(b) ? speed(a) < speed(b) : a < b; });
  spaces = {given, falling, rising};
  double limit = infinity;
  for (const search_space& space : spaces) limit = std::min(limit, search(price, space, limit, false).value);
  // The bound that the orders give keeps the search over all subsets small.
  const bool exact = problem.devices.size() <= most_exact;
  if (exact) {
    given.exact = true;
    spaces = {given};
    limit = search(price, given, limit, false).value;
  }
  if (limit == infinity) return no_room(problem);
  // sums are added in another order than they were compared in
  const double within = limit * (1 + 1e-12);
  found best;
  for (const search_space& space : spaces) {
    found one = search(price, space, within, true);
    if (one.value < best.value) best = std::move(one);
  }
  std::vector<device_id> device_of;
  device_of.reserve(best.device_of.size());
  for (const std::size_t d : best.device_of) device_of.push_back(problem.devices[d].id);
  stage_placement made = judged(problem, device_of);
  made.exact = exact;
  return made;
}

}  // namespace weft
