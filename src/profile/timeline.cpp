// SPDX-License-Identifier: Apache-2.0
#include "profile/timeline.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>

namespace weft {
namespace {

using std::chrono::nanoseconds;

constexpr std::size_t most_samples = 256;

/// A sample relative to the first one: small enough for a double to hold it to the nanosecond.
struct point {
  double device = 0;
  double ahead = 0;  // of the host's clock, beyond the device's: small where clocks run alike
  double uncertainty = 0;
};

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

std::vector<point> points_of(std::span<const clock_sample> samples) {
  const clock_sample& first = samples.front();
  const std::size_t count = std::min(samples.size(), most_samples);
  std::vector<point> points;
  points.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    // the first and the last are always among them: the longest lever has the best slope
    const clock_sample& s = samples[count == 1 ? 0 : i * (samples.size() - 1) / (count - 1)];
    const nanoseconds device = s.device - first.device;
    points.push_back({static_cast<double>(device.count()), static_cast<double>((s.host - first.host - device).count()),
                      static_cast<double>(s.uncertainty.count())});
  }
  return points;
}

struct line {
  double ahead = 0;  // at device time 0
  double drift = 0;
  [[nodiscard]] double residual(const point& p) const { return p.ahead - ahead - drift * p.device; }
};

/// With a quarter of the samples wrong, 9 of 16 pairs are right: the median of their slopes is that of a right pair.
line median_line(const std::vector<point>& points) {
  std::vector<double> slopes;
  for (std::size_t a = 0; a < points.size(); ++a) {
    for (std::size_t b = a + 1; b < points.size(); ++b) {
      const double run = points[b].device - points[a].device;
      if (run != 0) slopes.push_back((points[b].ahead - points[a].ahead) / run);
    }
  }
  line found;
  if (!slopes.empty()) found.drift = median_of(std::move(slopes));
  std::vector<double> heights;
  heights.reserve(points.size());
  for (const point& p : points) heights.push_back(p.ahead - found.drift * p.device);
  found.ahead = median_of(std::move(heights));
  return found;
}

line least_squares(const std::vector<point>& points) {
  const double n = static_cast<double>(points.size());
  double mean_device = 0, mean_ahead = 0;
  for (const point& p : points) {
    mean_device += p.device / n;
    mean_ahead += p.ahead / n;
  }
  double spread = 0, together = 0;
  for (const point& p : points) {
    spread += (p.device - mean_device) * (p.device - mean_device);
    together += (p.device - mean_device) * (p.ahead - mean_ahead);
  }
  const double drift = spread > 0 ? together / spread : 0.0;
  return {mean_ahead - drift * mean_device, drift};
}

}  // namespace

nanoseconds clock_fit::host_time(nanoseconds device_time) const {
  const nanoseconds since = device_time - device_origin;
  // the drift alone goes through floating point: its product is small where the time itself would lose digits
  return host_origin + since + nanoseconds{std::llround(static_cast<double>(since.count()) * drift)};
}

clock_fit fit_clock(std::span<const clock_sample> samples) {
  clock_fit fit;
  if (samples.empty()) return fit;
  const std::vector<point> points = points_of(samples);
  const line rough = median_line(points);

  std::vector<double> distances;
  distances.reserve(points.size());
  for (const point& p : points) distances.push_back(std::abs(rough.residual(p)));
  // 1.4826: the median distance of a normal distribution is that part of its standard deviation; three of those are
  // kept, and a nanosecond for what rounding does to clocks that agree exactly
  const double most = 3 * 1.4826 * median_of(distances) + 1;
  std::vector<point> kept;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (distances[i] <= most) kept.push_back(points[i]);
  }
  line best = least_squares(kept);
  if (best.drift <= -1) best = {rough.ahead, 0};  // time that runs backwards: no clock was sampled here
  double worst = 0;
  for (const point& p : kept) worst = std::max(worst, std::abs(best.residual(p)) + p.uncertainty);

  fit.device_origin = samples.front().device;
  fit.host_origin = samples.front().host + nanoseconds{std::llround(best.ahead)};
  fit.drift = best.drift;
  fit.error = nanoseconds{static_cast<std::int64_t>(std::ceil(worst))};
  fit.outliers = points.size() - kept.size();
  return fit;
}

const clock_fit* timeline::fit_of(device_id device) const {
  const auto found = fits_.find(device);
  return found == fits_.end() ? nullptr : &found->second;
}

nanoseconds timeline::host_time(device_id device, nanoseconds time) const {
  const clock_fit* fit = fit_of(device);
  return fit == nullptr ? time : fit->host_time(time);
}

nanoseconds timeline::error_between(device_id a, device_id b) const {
  if (a == b) return nanoseconds{0};
  nanoseconds sum{0};
  for (const device_id device : {a, b}) {
    // a nanosecond more: each mapped time is rounded
    if (const clock_fit* fit = fit_of(device)) sum += fit->error + nanoseconds{1};
  }
  return sum;
}

std::vector<trace_record> timeline::merge(std::vector<trace_record> records) const {
  for (trace_record& r : records) {
    const clock_fit* fit = fit_of(r.device);
    if (fit == nullptr) continue;
    for (nanoseconds* time : {&r.submitted, &r.started, &r.ended}) *time = fit->host_time(*time);
  }
  std::vector<std::size_t> order(records.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&records](std::size_t x, std::size_t y) {
    const trace_record& a = records[x];
    const trace_record& b = records[y];
    if (a.started != b.started) return a.started < b.started;
    return a.ended != b.ended ? a.ended < b.ended : x < y;
  });
  std::vector<trace_record> merged;
  merged.reserve(records.size());
  for (const std::size_t i : order) merged.push_back(std::move(records[i]));
  return merged;
}

}  // namespace weft
