// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/balance.hpp"

#include "core/errors/make_error.hpp"
#include "core/text/readable.hpp"
#include "exec/balance/affine_cost.hpp"
#include "exec/balance/granules.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace weft {
namespace {

/// Launches shorter than this many starts of a chunk are not cut into chunks: the starts would cost more than the
/// balance gains.
constexpr double starts_worth_chunks = 40;

bool known(const balance_device& d) { return d.items_per_second > 0; }

bool all_known(const balance_request& request) {
  return std::all_of(request.devices.begin(), request.devices.end(), known);
}

result<void> check(const balance_request& request) {
  const auto sane = [](double x) { return std::isfinite(x) && x >= 0; };
  for (const balance_device& d : request.devices) {
    const std::string name = to_string(d.id);
    if (!sane(d.items_per_second))
      return make_error(errc::invalid_argument, name + " does " + std::to_string(d.items_per_second) +
                                                    " items/s: a speed is positive, or 0 when it is not known");
    if (!sane(d.chunk_seconds))
      return make_error(errc::invalid_argument,
                        name + " takes " + std::to_string(d.chunk_seconds) + " s for a chunk: a time is 0 or more");
    if (!sane(d.nominal_speed) || d.nominal_speed <= 0)
      return make_error(errc::invalid_argument,
                        name + " has a nominal speed of " + std::to_string(d.nominal_speed) + ": it is more than 0");
  }
  if (!std::isfinite(request.guided_divisor) || request.guided_divisor < 1)
    return make_error(errc::invalid_argument, "a guided divisor of " + std::to_string(request.guided_divisor) +
                                                  ": it is at least 1, where a chunk is all that a device would get");
  if (!sane(request.moved_item_seconds))
    return make_error(errc::invalid_argument,
                      "moving an item takes " + std::to_string(request.moved_item_seconds) + " s: a time is 0 or more");
  return {};
}

/// Measured speeds; for a device without one, what its nominal speed makes likely beside those that have one.
std::vector<double> likely_speeds(const std::vector<balance_device>& devices) {
  double measured = 0;
  double nominal = 0;
  for (const balance_device& d : devices) {
    if (!known(d)) continue;
    measured += d.items_per_second;
    nominal += d.nominal_speed;
  }
  const double scale = nominal > 0 ? measured / nominal : 1;
  std::vector<double> speeds;
  speeds.reserve(devices.size());
  for (const balance_device& d : devices) speeds.push_back(known(d) ? d.items_per_second : d.nominal_speed * scale);
  return speeds;
}

double seconds_of(const balance_device& d, const share& s) {
  if (s.count == 0 || !known(d)) return 0;
  return static_cast<double>(s.passes()) * d.chunk_seconds + static_cast<double>(s.count) / d.items_per_second;
}

/// When the last is done; 0 when a device with work has no known speed.
double predict(const balance_request& request, const std::vector<share>& shares) {
  double end = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].count == 0) continue;
    if (!known(request.devices[i])) return 0;
    end = std::max(end, seconds_of(request.devices[i], shares[i]));
  }
  return end;
}

enum class by : std::uint8_t { count, weight, speed };

result<balance_plan> proportional(const balance_request& request, balance strategy, by what) {
  std::vector<double> weights;
  if (what == by::speed) weights = likely_speeds(request.devices);
  std::vector<split_device> over;
  over.reserve(request.devices.size());
  for (std::size_t i = 0; i < request.devices.size(); ++i) {
    const balance_device& d = request.devices[i];
    over.push_back({d.id, what == by::speed ? weights[i] : what == by::weight ? d.weight : 1, d.cap});
  }
  auto made = split(request.items, over, {request.granularity, request.keeps_data});
  if (!made) return std::move(made).error();
  return balance_plan{strategy, std::move(made->shares), made->in_passes, 0};
}

result<balance_plan> by_cost(const balance_request& request) {
  std::vector<costed_device> over;
  over.reserve(request.devices.size());
  double slowest_start = 0;
  for (const balance_device& d : request.devices) {
    over.push_back({d.id, {d.chunk_seconds, 1 / d.items_per_second}, d.cap});
  }
  auto made = finish_together(request.items, over, {request.granularity, request.keeps_data});
  if (!made) return std::move(made).error();
  for (std::size_t i = 0; i < over.size(); ++i) {
    if (made->split.shares[i].count > 0) slowest_start = std::max(slowest_start, over[i].cost.seconds);
  }
  // Chunks make up for a speed that changed since it was measured, where there is time for them and data is to be
  // carried anyway.
  const bool in_chunks =
      made->devices > 1 && !request.keeps_data && made->seconds >= starts_worth_chunks * slowest_start;
  return balance_plan{in_chunks ? balance::guided : balance::dynamic, std::move(made->split.shares),
                      made->split.in_passes, 0};
}

result<balance_plan> choose(const balance_request& request) {
  switch (request.strategy) {
    case balance::automatic:
      if (!request.devices.empty() && all_known(request)) return by_cost(request);
      // Data would stay in as many memories as there were chunks.
      if (request.keeps_data && request.alike) return proportional(request, balance::dynamic, by::speed);
      return proportional(request, balance::guided, by::speed);
    case balance::static_equal:
      return proportional(request, balance::static_equal, by::count);
    case balance::dynamic:
      return proportional(request, all_known(request) ? balance::dynamic : balance::guided, by::speed);
    case balance::guided:
    case balance::memory_aware:
    case balance::work_stealing:
      return proportional(request, request.strategy, by::speed);
    case balance::weighted:
      return proportional(request, balance::weighted, by::weight);
  }
  return make_error(errc::invalid_argument, "there is no such strategy");
}

std::string rate_text(double items_per_second) {
  if (items_per_second >= 100)
    return detail::readable_count(std::llround(std::min(items_per_second, 1e18))) + " items/s";
  char text[32];
  std::snprintf(text, sizeof text, "%.3g items/s", items_per_second);
  return text;
}

std::string not_known_yet(const balance_request& request) {
  std::string names;
  std::size_t count = 0;
  for (const balance_device& d : request.devices) {
    if (known(d)) continue;
    names += (count == 0 ? "" : ", ") + to_string(d.id);
    ++count;
  }
  if (count == request.devices.size()) return "no device's speed is known yet";
  return (count == 1 ? "the speed of " : "the speeds of ") + names + (count == 1 ? " is" : " are") + " not known yet";
}

std::string why_strategy(const balance_request& request, const balance_plan& plan) {
  const std::string name{to_string(plan.strategy)};
  if (request.strategy == plan.strategy) return name + " was asked for";
  const std::string chosen = request.strategy == balance::automatic
                                 ? name + ": "
                                 : name + " for " + std::string{to_string(request.strategy)} + ": ";
  if (!all_known(request) && plan.strategy == balance::dynamic)
    return chosen + not_known_yet(request) + ", and the devices are of one model, so each gets one share";
  if (!all_known(request)) return chosen + not_known_yet(request) + ", and chunks find it out";
  if (plan.strategy == balance::guided) {
    return chosen + "the launch is long enough that chunks cost little, and they follow the load";
  }
  const auto used = std::count_if(plan.shares.begin(), plan.shares.end(), [](const share& s) { return s.count > 0; });
  if (used == 1 && request.devices.size() == 1) return chosen + "there is one device";
  const bool all_have_room = std::all_of(request.devices.begin(), request.devices.end(), [&](const balance_device& d) {
    return detail::granules{request.items, request.granularity}.holding(d.cap) > 0;
  });
  if (used == 1)
    return chosen + (all_have_room ? "one device alone is done first" : "one device is done first, of those with room");
  return request.keeps_data ? chosen + "data stays where it is, so each device gets one share"
                            : chosen + "too short for chunks, so each device gets one share";
}

struct device_reason {
  std::string text;
  bool is_capped = false;
};

device_reason why_device(const balance_request& request, const balance_plan& plan, std::size_t i) {
  const balance_device& d = request.devices[i];
  const share& s = plan.shares[i];
  const detail::granules grid{request.items, request.granularity};
  if (request.items == 0) return {"there is nothing to do"};
  if (s.count == 0) {
    const std::string least =
        grid.size() == 1 ? "one item" : "the least piece of " + detail::readable_count(grid.size());
    if (d.cap == 0) return {"left out: its memory is full", true};
    if (grid.holding(d.cap) == 0) {
      return {"left out: its memory holds " + detail::readable_count(d.cap) + " items, less than " + least, true};
    }
    if (plan.strategy == balance::weighted && d.weight <= 0) return {"left out: weight 0"};
    if (plan.predicted_seconds > 0 && d.chunk_seconds >= plan.predicted_seconds) {
      return {"left out: starting it takes " + detail::readable_time(d.chunk_seconds) + ", the others are done after " +
              detail::readable_time(plan.predicted_seconds)};
    }
    return {"left out: its part is less than " + least};
  }
  if (s.passes() > 1) {
    return {"in " + detail::readable_count(s.passes()) + " passes: its memory holds " + detail::readable_count(d.cap) +
                " items",
            true};
  }
  if (request.keeps_data && s.count / grid.size() >= grid.holding(d.cap)) {
    return {"held to " + detail::readable_count(s.count) + " items by its memory", true};
  }
  switch (plan.strategy) {
    case balance::static_equal:
      return {"the same as every other"};
    case balance::weighted:
      return {"by its weight"};
    default:
      if (known(d)) {
        return {(d.is_given ? "by the supposed speed of " : "by its measured speed of ") +
                rate_text(d.items_per_second)};
      }
      return {"by its nominal speed, until it is measured"};
  }
}

}  // namespace

std::string_view to_string(balance strategy) {
  switch (strategy) {
    case balance::automatic:
      return "automatic";
    case balance::static_equal:
      return "static_equal";
    case balance::dynamic:
      return "dynamic";
    case balance::guided:
      return "guided";
    case balance::memory_aware:
      return "memory_aware";
    case balance::work_stealing:
      return "work_stealing";
    case balance::weighted:
      return "weighted";
  }
  return "automatic";
}

result<balance_plan> plan_balance(const balance_request& request) {
  if (auto fine = check(request); !fine) return std::move(fine).error();
  auto plan = choose(request);
  if (plan) plan->predicted_seconds = predict(request, plan->shares);
  return plan;
}

result<balance_report> explain_balance(const balance_request& request) {
  auto plan = plan_balance(request);
  if (!plan) return std::move(plan).error();
  balance_report report;
  report.asked = request.strategy;
  report.plan = std::move(plan).value();
  report.why = why_strategy(request, report.plan);
  double speed = 0;
  for (std::size_t i = 0; i < request.devices.size(); ++i) {
    const balance_device& d = request.devices[i];
    const share& s = report.plan.shares[i];
    device_reason reason = why_device(request, report.plan, i);
    report.devices.push_back({d.id, s.count, seconds_of(d, s), std::move(reason.text), reason.is_capped});
    speed += d.items_per_second;
  }
  if (all_known(request) && speed > 0) report.ideal_seconds = static_cast<double>(request.items) / speed;
  return report;
}

}  // namespace weft
