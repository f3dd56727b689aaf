// SPDX-License-Identifier: Apache-2.0
#include "exec/balance/launch_history.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace weft {
namespace {

struct sample {
  double items = 0;
  double seconds = 0;
  [[nodiscard]] double per_item() const { return seconds / items; }
};

/// The last samples of one size class.
class window {
 public:
  void add(const sample& s) {
    kept_[next_] = s;
    next_ = (next_ + 1) % kept_.size();
    count_ = std::min(count_ + 1, kept_.size());
  }
  [[nodiscard]] std::size_t count() const { return count_; }

  /// The median by time per item; of an even number the faster of the two.
  [[nodiscard]] sample median() const {
    std::array<sample, 5> sorted = kept_;
    const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(count_);
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((count_ - 1) / 2);
    std::nth_element(sorted.begin(), middle, end,
                     [](const sample& a, const sample& b) { return a.per_item() < b.per_item(); });
    return *middle;
  }

 private:
  std::array<sample, 5> kept_{};
  std::size_t next_ = 0;
  std::size_t count_ = 0;
};

/// Sums of a least-squares line with weights 1/t²: errors count relative to the time they are errors of.
struct line_sums {
  double w = 0, wn = 0, wnn = 0, wt = 0, wnt = 0;

  void add(const sample& s) {
    const double weight = 1 / (s.seconds * s.seconds);
    w += weight;
    wn += weight * s.items;
    wnn += weight * s.items * s.items;
    wt += weight * s.seconds;
    wnt += weight * s.items * s.seconds;
  }
  [[nodiscard]] affine_cost line() const {
    const double scale = w * wnn - wn * wn;
    if (scale > 1e-12 * w * wnn) {  // the sizes differ
      const double slope = (w * wnt - wn * wt) / scale;
      const double start = (wt - slope * wn) / w;
      if (slope > 0 && start >= 0) return {start, slope};
    }
    return {0, wnt / wnn};
  }
};

double misfit(const affine_cost& cost, const std::vector<sample>& points, std::size_t but) {
  double sum = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (i == but) continue;
    const double off = (cost.seconds + cost.seconds_per_item * points[i].items) / points[i].seconds - 1;
    sum += off * off;
  }
  return sum;
}

affine_cost fit(const std::vector<sample>& points) {
  constexpr std::size_t nobody = static_cast<std::size_t>(-1);
  const auto without = [&](std::size_t but) {
    line_sums sums;
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (i != but) sums.add(points[i]);
    }
    return sums.line();
  };
  if (points.size() < 4) return without(nobody);
  affine_cost best;
  double least = 0;
  for (std::size_t but = 0; but < points.size(); ++but) {
    const affine_cost line = without(but);
    const double off = misfit(line, points, but);
    if (but > 0 && off >= least) continue;
    best = line;
    least = off;
  }
  return best;
}

using class_map = std::map<int, window>;  // few classes, in order of size

struct series {
  bool is_warm = false;  // the first sample came, and was dropped
  std::uint64_t asked = 0;
  class_map classes;
  std::optional<affine_cost> line;  // of `classes`, made when asked for
};

int class_of(std::int64_t items) { return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(items))) - 1; }

struct stored_key {
  std::string kernel;
  std::string device;
  bool resident;
  bool simulated;

  [[nodiscard]] work_key view() const { return {kernel, device, resident, simulated}; }
};

struct key_hash {
  std::size_t operator()(const work_key& key) const {
    const std::hash<std::string_view> text;
    return text(key.kernel) * 31 + text(key.device) * 4 + (key.resident ? 2U : 0U) + (key.simulated ? 1U : 0U);
  }
};

}  // namespace

struct launch_history::body {
  using entry = std::pair<stored_key, series>;

  explicit body(const history_limits& given) : limits(given) {}

  /// The series of a key, now the most recently used; null when there is none, or when it has been asked too often.
  series* find(const work_key& key) {
    const auto at = places.find(key);
    if (at == places.end()) return nullptr;
    kept.splice(kept.begin(), kept, at->second);
    series& found = at->second->second;
    if (found.asked++ >= limits.forget_after) {
      found.classes.clear();
      found.line.reset();
    }
    return found.classes.empty() ? nullptr : &found;
  }

  series& find_or_add(const work_key& key) {
    if (const auto at = places.find(key); at != places.end()) {
      kept.splice(kept.begin(), kept, at->second);
      return at->second->second;
    }
    while (!kept.empty() && kept.size() >= std::max<std::size_t>(1, limits.series)) {
      places.erase(kept.back().first.view());
      kept.pop_back();
    }
    kept.emplace_front(stored_key{std::string{key.kernel}, std::string{key.device}, key.resident, key.simulated},
                       series{});
    places.emplace(kept.front().first.view(), kept.begin());
    return kept.front().second;
  }

  std::mutex guard;
  history_limits limits;
  std::list<entry> kept;  // most recently used first; the keys of `places` look into it
  std::unordered_map<work_key, std::list<entry>::iterator, key_hash> places;
};

launch_history::launch_history(const history_limits& limits) : body_(std::make_unique<body>(limits)) {}
launch_history::~launch_history() = default;

void launch_history::record(const work_key& key, std::int64_t items, double seconds) {
  if (items <= 0 || !(seconds > 0) || !std::isfinite(seconds)) return;
  const std::lock_guard lock{body_->guard};
  series& of = body_->find_or_add(key);
  of.asked = 0;
  if (!of.is_warm) {  // compiling and loading are in it
    of.is_warm = true;
    return;
  }
  of.classes[class_of(items)].add({static_cast<double>(items), seconds});
  of.line.reset();
}

std::optional<double> launch_history::items_per_second(const work_key& key, std::int64_t items) const {
  const std::lock_guard lock{body_->guard};
  const series* of = body_->find(key);
  if (of == nullptr) return std::nullopt;
  const int wanted = items > 0 ? class_of(items) : 0;
  const auto nearest = std::min_element(of->classes.begin(), of->classes.end(), [&](const auto& a, const auto& b) {
    return std::abs(a.first - wanted) < std::abs(b.first - wanted);
  });
  return 1 / nearest->second.median().per_item();
}

std::optional<affine_cost> launch_history::cost(const work_key& key) const {
  const std::lock_guard lock{body_->guard};
  series* of = body_->find(key);
  if (of == nullptr) return std::nullopt;
  if (!of->line) {
    // A class with one sample may be a bad one; it speaks only while there is no class with more.
    std::vector<sample> points;
    for (const std::size_t enough : {std::size_t{2}, std::size_t{1}}) {
      for (const auto& [size, samples] : of->classes) {
        if (samples.count() >= enough) points.push_back(samples.median());
      }
      if (!points.empty()) break;
    }
    of->line = fit(points);
  }
  return of->line;
}

std::size_t launch_history::size() const {
  const std::lock_guard lock{body_->guard};
  return body_->kept.size();
}

void launch_history::clear() {
  const std::lock_guard lock{body_->guard};
  body_->places.clear();
  body_->kept.clear();
}

}  // namespace weft
