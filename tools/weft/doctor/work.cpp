// SPDX-License-Identifier: Apache-2.0
#include "doctor/work.hpp"

#include "bench/copy/copy_bench.hpp"
#include "command_line/statistics.hpp"
#include "doctor/gather.hpp"
#include "doctor/record.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/peer_access.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <sched.h>
#include <thread>

namespace weft::tool {

namespace {

constexpr std::uint64_t copied = std::uint64_t{16} << 20;

WEFT_KERNEL(doctor_count, (WEFT_OUT(uint32_t) to, uint32_t seed), { to[i] = (uint32_t)i * 2654435761u + seed; });

/// The PCI address, as far as only one device has it; else "gpu0".
std::vector<std::string> labels_of(const machine& m) {
  std::map<std::string, int> times;
  for (const device& d : m.devices()) ++times[d.pci_address()];
  std::vector<std::string> labels;
  for (const device& d : m.devices()) {
    const bool names_one = !d.pci_address().empty() && times[d.pci_address()] == 1;
    labels.push_back(names_one ? d.pci_address() : to_string(d.id()));
  }
  return labels;
}

json pairs_of(session& run, const machine& m, const std::vector<std::string>& labels) {
  copy_plan plan;
  plan.sizes = {copied};
  plan.staged = false;
  plan.by_kernel = false;
  plan.samples = 5;
  plan.budget = std::chrono::seconds{4};
  std::map<std::pair<int, int>, json> pairs;
  const std::vector<std::string> classes = link_classes(m.layout());
  for (const peer_check& check : verify_peers(m, false, interruption())) {
    if (check.offered && check.arrived) plan.pairs.emplace_back(check.from, check.to);
    const bool is_known = check.outcome != peer_outcome::not_tried;
    pairs[{check.from.value(), check.to.value()}] = {{"from", labels[check.from.index()]},
                                                     {"to", labels[check.to.index()]},
                                                     {"class", classes[m.layout().pair(check.from, check.to)]},
                                                     {"offered", check.offered},
                                                     {"arrived", is_known ? json(check.arrived) : json(nullptr)},
                                                     {"outcome", to_string(check.outcome)},
                                                     {"why", check.why.empty() ? json(nullptr) : json(check.why)},
                                                     {"bytes_per_second", nullptr}};
  }
  for (const copy_row& row : run_copies(run, m, plan)) {
    json& pair = pairs[{row.src.value(), row.dst.value()}];
    pair["bytes_per_second"] = or_null(row.bytes_per_second());
    if (row.verified == false) {
      pair["arrived"] = false;
      pair["outcome"] = to_string(peer_outcome::wrong_data);
      pair["why"] = row.why;
    }
  }
  json list = json::array();
  for (auto& [ids, pair] : pairs) list.push_back(std::move(pair));
  return list;
}

/// Lets the calling thread run on the processors of a NUMA node alone; false where it may not.
bool go_to_node(int node) {
  std::ifstream in{fmt::format("/sys/devices/system/node/node{}/cpulist", node)};
  std::string text;
  std::getline(in, text);
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const int one : number_list(text)) {
    if (one < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(one), &wanted);
  }
  return CPU_COUNT(&wanted) > 0 && ::sched_setaffinity(0, sizeof wanted, &wanted) == 0;
}

std::vector<int> numa_nodes() {
  constexpr int most = 64;
  std::vector<int> nodes;
  for (int node = 0; node < most; ++node) {
    if (std::ifstream{fmt::format("/sys/devices/system/node/node{}/cpulist", node)}) nodes.push_back(node);
  }
  return nodes;
}

double rate_of(const machine& m, const std::function<void()>& once) {
  once();
  std::vector<double> samples;
  for (int i = 0; i < 5 && !interrupted(); ++i) {
    const auto start = m.now();
    once();
    samples.push_back(seconds_of(m.now() - start));
  }
  const double median = summarise(std::move(samples)).median;
  return median > 0 ? static_cast<double>(copied) / median : 0;
}

json host_rates(const machine& m, const device& d, const std::string& label, std::optional<int> node) {
  json one{{"device", label}, {"node", or_null(node)}, {"near", node ? json(d.numa_node() == node) : json(nullptr)}};
  try {
    const pinned_buffer<std::byte> here{d, copied};  // pages are touched first by this thread, on its node
    const buffer<std::byte> there{d, copied};
    std::ranges::fill(here.host(), std::byte{0x5a});
    const double to = rate_of(m, [&] { copy(there, here); });
    const double from = rate_of(m, [&] { copy(here, there); });
    one["to_device"] = to > 0 ? json(to) : json(nullptr);
    one["from_device"] = from > 0 ? json(from) : json(nullptr);
  } catch (const error_exception& e) {
    one["why"] = e.cause().what;
  }
  return one;
}

json host_of(const machine& m, const std::vector<std::string>& labels) {
  json list = json::array();
  const auto nodes = numa_nodes();
  for (const device& d : m.devices()) {
    if (interrupted()) break;
    const std::string& label = labels[d.id().index()];
    if (nodes.size() < 2 || !d.numa_node()) {
      list.push_back(host_rates(m, d, label, std::nullopt));
      continue;
    }
    // near, and the furthest as their numbers go: every node of every GPU would take too long
    const int far = *d.numa_node() == nodes.back() ? nodes.front() : nodes.back();
    for (const int node : {*d.numa_node(), far}) {
      std::thread{[&] {
        if (go_to_node(node)) list.push_back(host_rates(m, d, label, node));
      }}.join();
    }
  }
  return list;
}

json kernels_of(const machine& m, const std::vector<std::string>& labels) {
  constexpr std::size_t count = 1 << 16;
  constexpr std::chrono::seconds patience{10};
  json list = json::array();
  for (const device& d : m.devices()) {
    if (interrupted()) break;
    json one{{"device", labels[d.id().index()]}, {"right", false}, {"why", nullptr}};
    try {
      const auto seed = static_cast<std::uint32_t>(d.id().value()) * 40503U + 1;
      const buffer<std::uint32_t> there{d, count};
      const stream order{d};
      const event done = launch<doctor_count>(order, range(static_cast<std::int64_t>(count)), there, seed);
      if (done.wait_for(patience) != wait_outcome::ok) {
        one["why"] = fmt::format("it did not end within {} s", patience.count());
      } else {
        std::vector<std::uint32_t> got(count);
        copy(got, there);
        std::uint32_t at = 0;
        const bool is_right =
            std::ranges::all_of(got, [&](std::uint32_t word) { return word == at++ * 2654435761U + seed; });
        one["right"] = is_right;
        if (!is_right) one["why"] = fmt::format("word {} is wrong", at - 1);
      }
    } catch (const error_exception& e) {
      one["why"] = e.cause().what;
    }
    list.push_back(std::move(one));
  }
  return list;
}

}  // namespace

json gather_with_work(session& run, const machine& m) {
  json document = run.simulated() ? json{{"schema", "weft.machine/1"}, {"simulated", true}} : gather_system();
  const auto labels = labels_of(m);
  json& made = document["work"];
  made["measured_on"] =
      std::ranges::all_of(m.devices(), is_played) && m.clock() == clock_kind::wall ? "host_memory" : "link";
  // a kernel first: where none runs, copies may not either
  made["kernels"] = kernels_of(m, labels);
  made["pairs"] = pairs_of(run, m, labels);
  made["host"] = host_of(m, labels);
  return document;
}

}  // namespace weft::tool
