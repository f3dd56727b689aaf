// SPDX-License-Identifier: Apache-2.0
// What work on the GPUs showed: data, rates, kernels.
#include "command_line/statistics.hpp"
#include "doctor/finding_words.hpp"
#include "weft/core/peer_description.hpp"

#include <algorithm>
#include <map>
#include <ranges>

namespace weft::tool::doctor_checks {

namespace {

constexpr const char* by_work = "weft doctor --run";

finding without_work() { return not_known("it uses the GPUs; weft doctor --run does"); }

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
  finding made;
  std::vector<const json*> wrong, failing, untried;
  std::size_t offered = 0;
  for (const json& pair : pairs) {
    if (!bool_in(pair, "offered").value_or(false)) continue;
    ++offered;
    const auto outcome = string_in(pair, "outcome");
    if (outcome == to_string(peer_outcome::not_tried)) {
      untried.push_back(&pair);
    } else if (bool_in(pair, "arrived") == false) {
      // files of older versions have no outcome, and their reason names a wrong byte
      const bool is_wrong = outcome ? outcome == to_string(peer_outcome::wrong_data)
                                    : string_in(pair, "why").value_or("").find("expected 0x") != std::string::npos;
      (is_wrong ? wrong : failing).push_back(&pair);
    }
  }
  if (pairs.empty()) return does_not_apply("there are no two devices that work");
  if (offered == 0) return does_not_apply("no pair offers peer access");
  for (const auto* list : {&wrong, &failing, &untried}) {
    for (const json* pair : *list)
      made.facts.push_back({pair_text(*pair), string_in(*pair, "why").value_or("no reason is known"), by_work});
  }
  const auto say = [&](const char* what, const std::vector<const json*>& list) {
    if (list.empty()) return;
    constexpr std::size_t most = 2;
    std::vector<std::string> named;
    for (const json* pair : list | std::views::take(most)) named.push_back(pair_text(*pair));
    made.add(verdict::failed, fmt::format("Direct copies {} over {} of {} ordered pairs: {}{}.", what, list.size(),
                                          offered, fmt::join(named, ", "),
                                          list.size() > most ? fmt::format(" and {} more", list.size() - most) : ""));
    for (const json* pair : list) add_ends(*pair, made.about);
    made.decisive += list.size();
  };
  say("deliver WRONG DATA", wrong);
  say("fail", failing);
  if (made.found == verdict::ok && untried.empty())
    return well(fmt::format("it arrives over all {} ordered pairs", offered));
  if (made.found == verdict::ok) {
    made.found = verdict::unknown;
    made.summary = fmt::format("{} of {} ordered pairs could not be tried: {}: {}", untried.size(), offered,
                               made.facts.front().what, made.facts.front().value);
    return made;
  }
  if (wrong.empty()) {
    made.effect = "Programs that copy between them directly get an error, or hang.";
    made.steps = {"Look at the reason behind \"seen\", and at the checks kernels and kernel-log."};
    return made;
  }
  made.effect =
      "Programs that use them compute with wrong data and get no error. Earlier results may be wrong. weft itself "
      "copies between these pairs through the host.";
  if (machine.is_in_virtual_machine())
    made.cause = "the hypervisor offers peer access over a way that it does not pass on";
  made.is_guess = true;
  made.steps = {
      "Now: stop programs that use several of these GPUs, and tell their users. Those that copy between GPUs by NCCL "
      "alone may be started again in a shell with this:",
      "$ export NCCL_P2P_DISABLE=1", "For UCX and MPI over it:", "$ export UCX_TLS=^cuda_ipc"};
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
  finding made{.found = verdict::warning,
               .effect = "Collectives over several GPUs go at the speed of the slowest pair.",
               .facts = std::move(facts)};
  for (const slow_pair& one : slow) add_ends(*one.pair, made.about);
  const auto has_end = [](const slow_pair& one, const std::string& label) {
    return string_in(*one.pair, "from") == label || string_in(*one.pair, "to") == label;
  };
  const auto common = std::ranges::find_if(made.about, [&](const std::string& label) {
    return std::ranges::all_of(slow, [&](const slow_pair& one) { return has_end(one, label); });
  });
  const slow_pair& first = slow.front();
  const std::string speeds = fmt::format("{} instead of {} ({:.0f}%)", rate_text(first.rate), rate_text(first.usual),
                                         100 * first.rate / first.usual);
  if (common != made.about.end() && slow.size() > 2) {
    const bool is_address = machine.gpu_at(*common) != nullptr;
    made.summary = fmt::format("All slow copies are to or from {}{}: {}.", is_address ? "GPU " : "", *common, speeds);
    made.about = {*common};
  } else {
    made.summary = fmt::format("{} is slow: {}{}.", pair_text(*first.pair), speeds,
                               slow.size() > 1 ? fmt::format("; and {} more", counted(slow.size() - 1, "pair")) : "");
  }
  made.decisive = 1;
  made.facts.insert(made.facts.begin(), {pair_text(*first.pair), speeds, by_work});
  made.steps = {"Repeat it on a machine at rest (weft bench copy). Then look at the links of both GPUs."};
  return made;
}

finding host_rate(const machine_facts& machine) {
  const json& rates = work_of(machine, "host");
  if (!rates.is_array()) return without_work();
  if (is_played(machine)) return of_host_memory();
  finding made;
  std::map<std::string, double> near;
  std::vector<evidence> decisive, failed;
  bool is_link = false;
  bool is_far_slow = false;
  const auto say = [&](const std::string& label, const std::string& sentence) {
    made.add(verdict::warning, sentence);
    made.about.push_back(label);
    decisive.push_back(made.facts.back());
    made.facts.pop_back();
  };
  for (const json& one : rates) {
    const std::string label = string_in(one, "device").value_or("?");
    const auto to = number_in(one, "to_device");
    const auto from = number_in(one, "from_device");
    if (!to || !from) {
      if (const auto why = string_in(one, "why")) failed.push_back({label, *why, by_work});
      continue;
    }
    const auto node = integer_in(one, "node");
    const bool is_far = bool_in(one, "near") == false;
    made.facts.push_back({label,
                          fmt::format("to it {}, from it {}{}", rate_text(*to), rate_text(*from),
                                      node ? fmt::format(", NUMA node {} ({})", *node, is_far ? "far" : "near") : ""),
                          by_work});
    const double slower = std::min(*to, *from);
    if (is_far) {
      const auto found = near.find(label);
      if (found == near.end() || slower >= 0.7 * found->second) continue;
      is_far_slow = true;
      say(label, fmt::format("From memory of the far socket, {} gets {} instead of {}.", label, rate_text(slower),
                             rate_text(found->second)));
      continue;
    }
    near[label] = slower;
    const gpu_facts* gpu = machine.gpu_at(label);
    if (gpu == nullptr) continue;
    std::optional<double> rate = gpu->link.most_rate;
    if (!gpu->bridges.empty()) {  // the slot may be older
      const bus_link slot = machine.link_of(gpu->bridges.back());
      if (slot.most_rate && rate) rate = std::min(*slot.most_rate, *rate);
    }
    const auto expected = link_bytes_per_second(gpu->link.most_lanes, rate);
    constexpr double usual = 0.8, least = 0.6;  // packets have headers; below `least` something is wrong
    if (!expected || slower >= least * *expected) continue;
    is_link = true;
    say(label, fmt::format("GPU {} copies to and from host memory at {}; {} allows about {}.", label, rate_text(slower),
                           link_text(gpu->link.most_lanes, rate), rate_text(usual * *expected)));
  }
  made.decisive = decisive.size();
  made.facts.insert(made.facts.begin(), decisive.begin(), decisive.end());
  if (made.facts.empty()) {
    finding none = not_known("nothing was measured");
    if (!failed.empty()) none.summary += fmt::format(": {}: {}", failed.front().what, failed.front().value);
    none.facts = std::move(failed);
    return none;
  }
  made.facts.insert(made.facts.end(), failed.begin(), failed.end());
  if (made.found == verdict::ok) return well("as fast as the links allow", std::move(made.facts));
  made.effect = "Loading data and staged copies take longer.";
  if (is_link)
    made.steps.emplace_back("Repeat it on a machine at rest. Then look at its lanes (weft doctor --check pci-link).");
  if (is_far_slow) made.steps.emplace_back("Run its threads on its own socket (numactl --cpunodebind --membind).");
  return made;
}

finding kernels(const machine_facts& machine) {
  const json& list = work_of(machine, "kernels");
  if (!list.is_array()) return without_work();
  finding made;
  std::string why;
  for (const json& one : list) {
    const std::string label = string_in(one, "device").value_or("?");
    if (bool_in(one, "right").value_or(false)) continue;
    why = string_in(one, "why").value_or("no reason is known");
    made.about.push_back(label);
    made.facts.push_back({label, why, by_work});
  }
  if (made.about.empty())
    return well(fmt::format("one ran on {}, with the right result", counted(list.size(), "device")));
  made.found = verdict::failed;
  made.decisive = made.facts.size();
  made.summary = fmt::format("No kernel runs on {} of {}: {}.", made.about.size(), counted(list.size(), "device"), why);
  made.effect = "No program can use them.";
  made.steps = {"Look at the checks libraries, toolkit, fabric and kernel-log."};
  return made;
}

}  // namespace weft::tool::doctor_checks
