// SPDX-License-Identifier: Apache-2.0
#include "collective/schedule/collective_kind.hpp"
#include "core/errors/make_error.hpp"
#include "core/text/readable.hpp"
#include "weft/collective/collective_cost.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>

namespace weft {
namespace {

constexpr std::array all_algorithms{
    collective_algorithm::direct, collective_algorithm::ring,  collective_algorithm::halving_doubling,
    collective_algorithm::tree,   collective_algorithm::naive, collective_algorithm::hierarchical};

/// "150 MB": decimal, as rates of links are; three digits.
std::string size_text(std::uint64_t size) {
  constexpr std::array units{"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(size);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  std::array<char, 32> made{};
  std::snprintf(made.data(), made.size(), "%.3g %s", value, units[unit]);
  return made.data();
}

std::string times_text(double times) {
  std::array<char, 32> made{};
  if (times < 9.95) {
    std::snprintf(made.data(), made.size(), "%.1fx", times);
  } else {
    std::snprintf(made.data(), made.size(), "%.0fx", times);
  }
  return made.data();
}

std::string rounds_text(int rounds) { return std::to_string(rounds) + (rounds == 1 ? " round" : " rounds"); }

std::uint64_t busiest_link(const collective_cost& cost) {
  return cost.bytes_on_link.empty() ? 0 : *std::max_element(cost.bytes_on_link.begin(), cost.bytes_on_link.end());
}

/// Bytes that the busiest rank sends, or receives.
std::uint64_t busiest_rank(const collective_cost& cost, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  std::uint64_t most = 0;
  for (std::size_t r = 0; r < n; ++r) {
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    for (std::size_t other = 0; other < n; ++other) {
      sent += cost.bytes_between[r * n + other];
      received += cost.bytes_between[other * n + r];
    }
    most = std::max({most, sent, received});
  }
  return most;
}

std::uint64_t moved(const collective_cost& cost) {
  return std::accumulate(cost.bytes_between.begin(), cost.bytes_between.end(), std::uint64_t{0});
}

bool is_known(const collective_cost& cost) { return cost.seconds > 0 || moved(cost) == 0; }

/// Why ranks on these devices cannot all map each other; empty if they can.
std::string why_not_mapped(const topology& machine, std::span<const device_id> devices) {
  for (const device_id from : devices) {
    for (const device_id to : devices) {
      if (from != to && !machine.can_access(from, to))
        return to_string(from) + " cannot map the memory of " + to_string(to);
    }
  }
  return {};
}

result<void> check(const collective_shape& shape, std::size_t element_size, const topology& machine,
                   std::span<const device_id> devices) {
  const std::string name{to_string(shape.what)};
  if (element_size == 0) return make_error(errc::invalid_argument, name + ": elements of 0 bytes");
  if (devices.size() != static_cast<std::size_t>(std::max(shape.ranks, 0))) {
    return make_error(errc::invalid_argument, name + ": " + std::to_string(devices.size()) + " devices for " +
                                                  std::to_string(shape.ranks) + " ranks");
  }
  for (const device_id id : devices) {
    if (id.value() < 0 || id.value() >= machine.device_count())
      return make_error(errc::invalid_argument, name + ": there is no " + to_string(id));
  }
  return {};
}

/// The order of candidates by what is known of them.
class preference {
 public:
  preference(int ranks, bool by_time) : ranks_(ranks), by_time_(by_time) {}

  [[nodiscard]] bool operator()(const collective_candidate& a, const collective_candidate& b) const {
    if (a.possible != b.possible) return a.possible;
    if (!a.possible) return a.algorithm < b.algorithm;
    if (by_time_) {
      if (a.cost.seconds != b.cost.seconds) return a.cost.seconds < b.cost.seconds;
    } else {
      const bool a_is_direct = a.algorithm == collective_algorithm::direct;
      if (a_is_direct != (b.algorithm == collective_algorithm::direct)) return a_is_direct;
      const std::uint64_t a_bytes = busiest_rank(a.cost, ranks_);
      const std::uint64_t b_bytes = busiest_rank(b.cost, ranks_);
      if (a_bytes != b_bytes) return a_bytes < b_bytes;
    }
    if (a.cost.rounds != b.cost.rounds) return a.cost.rounds < b.cost.rounds;
    return a.algorithm > b.algorithm;  // the simplest comes last
  }

 private:
  int ranks_;
  bool by_time_;
};

std::string why_won(const collective_choice& choice, int ranks, bool by_time) {
  const collective_candidate& won = choice.candidates.front();
  if (choice.is_forced) return "was asked for";
  if (moved(won.cost) == 0) return "nothing goes from rank to rank";
  const bool is_only = choice.candidates.size() < 2 || !choice.candidates[1].possible;
  if (is_only) return "the only one that is possible";
  if (by_time) {
    return "predicted " + detail::readable_time(won.cost.seconds) + ": its busiest link carries " +
           size_text(busiest_link(won.cost)) + " in " + rounds_text(won.cost.rounds);
  }
  if (won.algorithm == collective_algorithm::direct)
    return "no rate of a link is known, and one pass over mapped memory moves nothing twice";
  return "no rate of a link is known; its busiest rank sends or receives " + size_text(busiest_rank(won.cost, ranks)) +
         ", the least";
}

std::string why_lost(const collective_candidate& lost, const collective_candidate& won, int ranks, bool by_time) {
  const std::string winner{to_string(won.algorithm)};
  if (moved(lost.cost) == 0) return "does the same as " + winner + ": nothing goes from rank to rank";
  if (!by_time) {
    return "no rate of a link is known; its busiest rank sends or receives " +
           size_text(busiest_rank(lost.cost, ranks)) + ", " + size_text(busiest_rank(won.cost, ranks)) + " by " +
           winner;
  }
  const double times = won.cost.seconds > 0 ? lost.cost.seconds / won.cost.seconds : 1;
  std::string made;
  if (times >= 1.05) {
    made = times_text(times) + " slower than " + winner;
  } else if (times > 1) {
    made = "less than 5 % slower than " + winner;
  } else if (times == 1) {
    made = "takes as long as " + winner;
  } else {
    made = times_text(1 / times) + " faster than " + winner;  // which was asked for
  }
  const std::uint64_t mine = busiest_link(lost.cost);
  if (static_cast<double>(mine) > 1.02 * static_cast<double>(busiest_link(won.cost)))
    return made + ": its busiest link carries " + size_text(mine);
  if (lost.cost.rounds > won.cost.rounds)
    return made + ": " + rounds_text(lost.cost.rounds) + " for " + std::to_string(won.cost.rounds);
  return made + ": predicted " + detail::readable_time(lost.cost.seconds);
}

}  // namespace

std::vector<int> nodes_of(const topology& machine, std::span<const device_id> devices) {
  std::vector<int> made;
  made.reserve(devices.size());
  for (const device_id id : devices) made.push_back(machine.computer_of(id));
  if (std::adjacent_find(made.begin(), made.end(), std::not_equal_to<>{}) == made.end()) made.clear();
  return made;
}

result<collective_choice> choose_collective(const collective_shape& wish, std::size_t element_size,
                                            const topology& machine, std::span<const device_id> devices,
                                            reduction_order order, collective_algorithm wanted,
                                            std::chrono::nanoseconds launch_latency, std::uint64_t in_place) {
  if (auto checked = check(wish, element_size, machine, devices); !checked) return std::move(checked).error();
  collective_shape shape = wish;
  shape.nodes = nodes_of(machine, devices);
  collective_choice choice;
  choice.is_forced = wanted != collective_algorithm::automatic;
  choice.candidates.reserve(all_algorithms.size());
  const bool combines = detail::reduces(shape.what);
  const std::string unmapped = why_not_mapped(machine, devices);
  const bool has_nodes = is_on_several_nodes(shape);
  bool by_time = true;
  for (const collective_algorithm algorithm : all_algorithms) {
    const bool is_direct = algorithm == collective_algorithm::direct;
    const bool is_of_nodes = algorithm == collective_algorithm::hierarchical;
    if (is_of_nodes && !has_nodes && wanted != algorithm) continue;  // nothing to choose there
    const schedule_offer offer = offers(shape.what, algorithm);
    collective_candidate one;
    one.algorithm = algorithm;
    if (!offer.offered) {
      one.why = offer.why;
    } else if (is_of_nodes && !has_nodes) {
      one.why = "all ranks are on one node";
    } else if (is_direct && !unmapped.empty()) {
      one.why = unmapped;
    } else if (combines && order == reduction_order::rank && !is_direct && algorithm != collective_algorithm::naive) {
      one.why = "does not combine in the order of ranks";
    } else {
      auto made =
          make_schedule(shape, algorithm, best_piece(shape, element_size, algorithm, machine, devices, launch_latency));
      if (!made) return std::move(made).error();
      one.possible = true;
      one.cost = cost_of(*made, element_size, machine, devices, launch_latency, in_place);
      if (one.cost.seconds > 0) {
        one.algorithm_bandwidth = static_cast<double>(collective_bytes(shape, element_size)) / one.cost.seconds;
        one.bus_bandwidth = one.algorithm_bandwidth * bus_factor(shape.what, shape.ranks);
      }
      by_time = by_time && is_known(one.cost);
    }
    choice.candidates.push_back(std::move(one));
  }
  std::sort(choice.candidates.begin(), choice.candidates.end(), preference{shape.ranks, by_time});
  if (choice.is_forced) {
    const auto asked = std::find_if(choice.candidates.begin(), choice.candidates.end(),
                                    [&](const collective_candidate& c) { return c.algorithm == wanted; });
    if (asked == choice.candidates.end() || !asked->possible) {
      return make_error(
          errc::unsupported,
          std::string{to_string(shape.what)} + " by " + std::string{to_string(wanted)} + ": " +
              (asked == choice.candidates.end() ? std::string{offers(shape.what, wanted).why} : asked->why));
    }
    std::rotate(choice.candidates.begin(), asked, asked + 1);
  }
  collective_candidate& won = choice.candidates.front();
  choice.algorithm = won.algorithm;
  won.why = why_won(choice, shape.ranks, by_time);
  for (std::size_t i = 1; i < choice.candidates.size(); ++i) {
    collective_candidate& lost = choice.candidates[i];
    if (lost.possible) lost.why = why_lost(lost, won, shape.ranks, by_time);
  }
  return choice;
}

}  // namespace weft
