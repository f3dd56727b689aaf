// SPDX-License-Identifier: Apache-2.0
// What work on the GPUs showed: data, rates, kernels.
#include "doctor/finding_words.hpp"
#include "statistics.hpp"

#include <algorithm>
#include <map>

namespace weft::tool::doctor_checks {

namespace {

constexpr const char* by_work = "weft doctor --run";

finding without_work() { return not_known("it needs work on the GPUs", "weft doctor --run"); }

const json& work_of(const machine_facts& machine, const char* part) {
  return part_of(machine.record().at("/work"), part);
}

bool is_played(const machine_facts& machine) {
  return string_in(machine.record().at("/work"), "measured_on") == "host_memory";
}

finding of_host_memory() {
  return does_not_apply("the processor plays these devices: a rate would be that of its memory");
}

/// "gpu0 to gpu1".
std::string pair_text(const json& pair) {
  return fmt::format("{} to {}", string_in(pair, "from").value_or("?"), string_in(pair, "to").value_or("?"));
}

void add_ends(const json& pair, std::vector<std::string>& to) {
  for (const char* end : {"from", "to"}) {
    const auto label = string_in(pair, end);
    if (label && std::ranges::find(to, *label) == to.end()) to.push_back(*label);
  }
}

}  // namespace

finding p2p_data(const machine_facts& machine) {
  const json& pairs = work_of(machine, "pairs");
  if (!pairs.is_array()) return without_work();
  if (pairs.empty()) return does_not_apply("there are no two devices");
  complaints wrong;
  std::vector<evidence> facts;
  std::vector<std::string> about;
  std::size_t offered = 0;
  for (const json& pair : pairs) {
    if (!bool_in(pair, "offered").value_or(false)) continue;
    ++offered;
    if (bool_in(pair, "arrived").value_or(true)) continue;
    wrong.add(verdict::failed, {}, pair_text(pair) + " loses data");
    facts.push_back({pair_text(pair), string_in(pair, "why").value_or(""), by_work});
    add_ends(pair, about);
  }
  if (!wrong.any()) {
    return offered == 0 ? does_not_apply("no pair offers peer access")
                        : well(fmt::format("it arrives over all {}", counted(offered, "ordered pair")));
  }
  finding made = wrong.told(
      machine.is_in_virtual_machine() ? "the hypervisor offers peer access over a way that it does not pass on" : "",
      "until then weft copies these pairs through the host by itself; other libraries need to be told "
      "(NCCL_P2P_DISABLE=1)",
      std::move(facts));
  made.about = std::move(about);
  return made;
}

finding p2p_rate(const machine_facts& machine) {
  const json& pairs = work_of(machine, "pairs");
  if (!pairs.is_array()) return without_work();
  if (is_played(machine)) return of_host_memory();
  std::map<std::string, std::vector<std::pair<const json*, double>>> classes;
  for (const json& pair : pairs) {
    const auto rate = number_in(pair, "bytes_per_second");
    if (rate && *rate > 0) classes[string_in(pair, "class").value_or("?")].emplace_back(&pair, *rate);
  }
  if (classes.empty()) return does_not_apply("no pair copies directly");
  struct slow_pair {
    const json* pair;
    double rate, usual;
  };
  std::vector<slow_pair> slow;
  std::vector<evidence> facts;
  for (const auto& [name, of_class] : classes) {
    std::vector<double> rates;
    for (const auto& [pair, rate] : of_class) rates.push_back(rate);
    std::ranges::sort(rates);
    // Not the median: one slow GPU of four has half of all pairs.
    const double usual = quantile(rates, 0.75);
    facts.push_back(
        {name, fmt::format("{}, usually {}", counted(of_class.size(), "ordered pair"), rate_text(usual)), by_work});
    constexpr std::size_t fewest = 4;  // of two, none is the odd one
    constexpr double least = 0.75;
    if (of_class.size() < fewest) continue;
    for (const auto& [pair, rate] : of_class) {
      if (rate < least * usual) slow.push_back({pair, rate, usual});
    }
  }
  if (slow.empty()) return well("each pair is about as fast as its like", std::move(facts));
  std::vector<std::string> about;
  for (const slow_pair& one : slow) add_ends(*one.pair, about);
  const auto has_end = [](const slow_pair& one, const std::string& label) {
    return string_in(*one.pair, "from") == label || string_in(*one.pair, "to") == label;
  };
  const auto common = std::ranges::find_if(about, [&](const std::string& label) {
    return std::ranges::all_of(slow, [&](const slow_pair& one) { return has_end(one, label); });
  });
  complaints wrong;
  if (common != about.end() && slow.size() > 2) {
    wrong.add(verdict::warning, {},
              fmt::format("every slow pair is one of {}: {} where like pairs reach {} (x{:.2f})", *common,
                          rate_text(slow.front().rate), rate_text(slow.front().usual),
                          slow.front().rate / slow.front().usual));
    about = {*common};
  } else {
    for (const slow_pair& one : slow)
      wrong.add(verdict::warning, {},
                fmt::format("{}: {} where like pairs reach {} (x{:.2f})", pair_text(*one.pair), rate_text(one.rate),
                            rate_text(one.usual), one.rate / one.usual));
  }
  finding made = wrong.told({}, "repeat it on a machine at rest (weft bench copy); then look at the links of both GPUs",
                            std::move(facts));
  made.about = std::move(about);
  return made;
}

finding host_rate(const machine_facts& machine) {
  const json& rates = work_of(machine, "host");
  if (!rates.is_array()) return without_work();
  if (is_played(machine)) return of_host_memory();
  complaints wrong;
  std::vector<evidence> facts;
  std::string advice;
  std::map<std::string, double> near;
  for (const json& one : rates) {
    const std::string label = string_in(one, "device").value_or("?");
    const auto to = number_in(one, "to_device");
    const auto from = number_in(one, "from_device");
    if (!to || !from) continue;
    const auto node = integer_in(one, "node");
    const bool is_far = bool_in(one, "near") == false;
    facts.push_back({label,
                     fmt::format("to it {}, from it {}{}", rate_text(*to), rate_text(*from),
                                 node ? fmt::format(", node {}{}", *node, is_far ? " (far)" : " (near)") : ""),
                     by_work});
    const double slower = std::min(*to, *from);
    if (is_far) {
      const auto found = near.find(label);
      if (found != near.end() && slower < 0.7 * found->second) {
        wrong.add(verdict::warning, label,
                  fmt::format("from node {}, {} gets {} of the {} that it gets from near memory", *node, label,
                              rate_text(slower), rate_text(found->second)));
        advice = "run its threads on its own node (numactl --cpunodebind --membind)";
      }
      continue;
    }
    near[label] = slower;
    const gpu_facts* gpu = machine.gpu_at(label);
    if (gpu == nullptr) continue;
    bus_link most{gpu->link.most_lanes, {}, gpu->link.most_rate, {}};
    if (!gpu->bridges.empty()) {  // the slot may be narrower, or older
      const bus_link slot = machine.link_of(gpu->bridges.back());
      if (slot.most_rate && most.rate) most.rate = std::min(*slot.most_rate, *most.rate);
    }
    const auto expected = link_bytes_per_second(most.lanes, most.rate);
    constexpr double usual = 0.8, least = 0.6;  // packets have headers; below `least` something is wrong
    if (expected && slower < least * *expected) {
      wrong.add(verdict::warning, label,
                fmt::format("{} reaches {} of the {} that {} allows", gpu->title(), rate_text(slower),
                            rate_text(usual * *expected), link_text(most.lanes, most.rate)));
      if (advice.empty())
        advice = "repeat it on a machine at rest; then look at its lanes (weft doctor --check pci-link)";
    }
  }
  if (facts.empty()) return not_known("nothing was measured");
  if (wrong.any()) return wrong.told({}, std::move(advice), std::move(facts));
  return well("as fast as the links allow", std::move(facts));
}

finding kernels(const machine_facts& machine) {
  const json& list = work_of(machine, "kernels");
  if (!list.is_array()) return without_work();
  complaints wrong;
  std::vector<evidence> facts;
  for (const json& one : list) {
    const std::string label = string_in(one, "device").value_or("?");
    if (bool_in(one, "right").value_or(false)) continue;
    const std::string why = string_in(one, "why").value_or("no reason is known");
    wrong.add(verdict::failed, label, fmt::format("no kernel runs on {}: {}", label, why));
    facts.push_back({label, why, by_work});
  }
  if (wrong.any()) return wrong.told({}, "look at the checks libraries, toolkit and kernel-log", std::move(facts));
  return well(fmt::format("one ran on {}, with the right result", counted(list.size(), "device")));
}

}  // namespace weft::tool::doctor_checks
