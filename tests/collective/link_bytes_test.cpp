// SPDX-License-Identifier: Apache-2.0
// Bytes on every link are those of the formula, and the time on the virtual clock is close to what the model says.
#include "collective/collective_samples.hpp"
#include "support/raw_launch.hpp"
#include "support/samples.hpp"
#include "weft/collective/collective_cost.hpp"
#include "weft/collective/communicator.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

namespace link_bytes_test {

using namespace samples;
using weft::collective;
using weft::collective_algorithm;
using weft::communicator;
using weft::device_span;
using weft::machine;
using weft::rank;
using weft::reduce_op;

constexpr collective_algorithm algorithms[] = {collective_algorithm::naive,  collective_algorithm::tree,
                                               collective_algorithm::ring,   collective_algorithm::halving_doubling,
                                               collective_algorithm::direct, collective_algorithm::hierarchical};

/// Those that not every machine has.
bool may_be_refused(collective_algorithm algorithm) {
  return algorithm == collective_algorithm::direct || algorithm == collective_algorithm::hierarchical;
}

/// N devices that reach each other through the host only.
weft::topology without_peers(int devices) {
  weft::topology made = wired(devices);
  made.access.assign(made.access.size(), false);
  return weft::value_or_raise(weft::complete_topology(std::move(made)));
}

weft::collective_shape shape_of(collective what, int n, std::int64_t count) {
  const auto ranks = static_cast<std::size_t>(n);
  weft::collective_shape shape{what, n, 0, {}};
  switch (what) {
    case collective::all_reduce:
      shape.counts = {count};
      break;
    case collective::reduce:
    case collective::broadcast:
      shape.root = n - 1;
      shape.counts = {count};
      break;
    case collective::all_to_all:
      shape.counts.assign(ranks * ranks, count / n + 1);
      break;
    case collective::scatter:
    case collective::gather:
      shape.root = n / 2;
      [[fallthrough]];
    case collective::reduce_scatter:
    case collective::all_gather:
      shape.counts.assign(ranks, count / n);
      shape.counts.back() += count % n;
      break;
  }
  return shape;
}

/// Memory of a shape, and a call that uses it.
struct prepared {
  weft::collective_shape shape;
  std::vector<weft::buffer<float>> memory;
  std::vector<device_span<float>> in, out;
  std::uint64_t in_place = 0;  // a bit for each rank

  prepared(const communicator& all, weft::collective_shape wanted, bool wants_in_place = false)
      : shape(std::move(wanted)) {
    for (int r = 0; r < shape.ranks; ++r) {
      const auto reads = static_cast<std::size_t>(input_elements(shape, r));
      const auto writes = static_cast<std::size_t>(output_elements(shape, r));
      const auto offset = in_place_offset(shape, r);
      if (wants_in_place && offset && reads != 0 && writes != 0) {
        in_place |= std::uint64_t{1} << r;
        const auto span = memory.emplace_back(all.on(rank{r}), std::max(reads, writes)).span();
        in.push_back(span.subspan(static_cast<std::size_t>(std::max<std::int64_t>(*offset, 0)), reads));
        out.push_back(span.subspan(static_cast<std::size_t>(std::max<std::int64_t>(-*offset, 0)), writes));
      } else {
        in.push_back(memory.emplace_back(all.on(rank{r}), reads).span());
        out.push_back(memory.emplace_back(all.on(rank{r}), writes).span());
      }
    }
  }
  weft::collective_run start(communicator& all, collective_algorithm algorithm) const {
    weft::collective_options with;
    with.algorithm = algorithm;
    with.root = rank{shape.root};
    const auto root = static_cast<std::size_t>(shape.root);
    switch (shape.what) {
      case collective::all_reduce:
        return all.all_reduce(in, out, reduce_op::sum, with);
      case collective::reduce:
        return all.reduce(in, out[root], reduce_op::sum, with);
      case collective::reduce_scatter:
        return all.reduce_scatter(in, out, reduce_op::sum, with);
      case collective::all_gather:
        return all.all_gather(in, out, with);
      case collective::broadcast:
        return all.broadcast(out, with);
      case collective::scatter:
        return all.scatter(in[root], out, with);
      case collective::gather:
        return all.gather(in, out[root], with);
      case collective::all_to_all:
        with.counts = shape.counts;
        return all.all_to_all(in, out, with);
    }
    return {};
  }
};

std::vector<weft::device_id> ids_of(const communicator& all) {
  std::vector<weft::device_id> ids;
  for (int r = 0; r < all.size(); ++r) ids.push_back(all.on(rank{r}).id());
  return ids;
}

weft::collective_cost price(const communicator& all, const machine& m, weft::collective_shape shape,
                            collective_algorithm algorithm, std::chrono::nanoseconds launch = {},
                            std::uint64_t in_place = 0) {
  const auto ids = ids_of(all);
  shape.nodes = weft::nodes_of(m.layout(), ids);
  const std::int64_t piece = weft::best_piece(shape, sizeof(float), algorithm, m.layout(), ids, launch);
  const auto schedule = weft::value_or_raise(weft::make_schedule(shape, algorithm, piece));
  return weft::cost_of(schedule, sizeof(float), m.layout(), ids, launch, in_place);
}

void compare_all(const weft::topology& layout, weft::clock_kind clock, int ranks,
                 std::initializer_list<std::int64_t> counts) {
  const machine m = play(layout, clock);
  std::vector<weft::device> devices = m.devices();
  devices.erase(devices.begin() + ranks, devices.end());
  communicator all{devices};
  for (int w = 0; w < weft::collective_count; ++w) {
    const auto what = static_cast<collective>(w);
    for (const collective_algorithm algorithm : algorithms) {
      if (!weft::offers(what, algorithm).offered) continue;
      for (const std::int64_t count : counts) {
        const prepared one{all, shape_of(what, ranks, count)};
        const std::string text = layout.name + ": " + std::string{to_string(what)} + " by " +
                                 std::string{to_string(algorithm)} + " over " + std::to_string(ranks) + ", count " +
                                 std::to_string(count);
        const auto before = m.traffic();
        try {
          one.start(all, algorithm).wait();
        } catch (const weft::error_exception& refused) {
          ASSERT_EQ(refused.code(), weft::errc::unsupported) << text << ": " << refused.what();
          ASSERT_TRUE(may_be_refused(algorithm)) << text << ": " << refused.what();
          continue;
        }
        const auto after = m.traffic();
        const auto expected = price(all, m, one.shape, algorithm).bytes_on_link;
        ASSERT_EQ(expected.size(), after.bytes_on_link.size());
        for (std::size_t l = 0; l < expected.size(); ++l) {
          const weft::topology_link& link = layout.links[l];
          ASSERT_EQ(after.bytes_on_link[l] - before.bytes_on_link[l], expected[l])
              << text << ": link " << l << ", from " << layout.nodes[static_cast<std::size_t>(link.from)].name << " to "
              << layout.nodes[static_cast<std::size_t>(link.to)].name;
        }
      }
    }
  }
}

TEST(link_bytes, are_those_of_the_formula_for_every_number_of_ranks_and_odd_lengths) {
  for (int n = 1; n <= 9; ++n) {
    compare_all(wired(n), weft::clock_kind::virtual_time, n, {0, 1, 7, 1001, 65'537});
    compare_all(wired(n), weft::clock_kind::wall, n, {1, 1001, 65'537});
  }
}

TEST(link_bytes, through_the_host_are_those_of_the_formula) {
  for (int n = 2; n <= 5; ++n) compare_all(without_peers(n), weft::clock_kind::virtual_time, n, {1, 1001, 300'007});
  compare_all(without_peers(4), weft::clock_kind::wall, 4, {1, 1001, 300'007});
}

TEST(link_bytes, on_shipped_machines_are_those_of_the_formula) {
  for (const char* name :
       {"dgx_h100", "pcie_4", "two_socket_8", "ring_3_no_p2p", "pcie_2x2_switches", "mi300x_8", "two_nodes_4"}) {
    const weft::topology layout = shipped(name);
    for (const int n : {2, 3, layout.device_count()}) {
      compare_all(layout, weft::clock_kind::virtual_time, n, {1, 1001, 300'007});
    }
  }
}

// ---- time -----------------------------------------------------------------------------------------------------------

/// A machine on the virtual clock whose kernels start after `launch`, and all its devices as ranks.
struct timed {
  std::chrono::nanoseconds launch;
  machine m;
  communicator all;

  timed(const weft::topology& layout, std::chrono::nanoseconds launch_latency)
      : launch(launch_latency), m(simulated(layout, {.launch_latency = launch_latency})), all(m) {}

  /// Seconds of virtual time that a collective takes, and what its price says.
  std::pair<double, double> times(collective what, collective_algorithm algorithm, std::int64_t count,
                                  bool in_place = false) {
    const prepared one{all, shape_of(what, all.size(), count), in_place};
    const auto from = m.now();
    one.start(all, algorithm).wait();
    const double took = std::chrono::duration<double>(m.now() - from).count();
    return {took, price(all, m, one.shape, algorithm, launch, one.in_place).seconds};
  }
};

/// Rows of a comparison, and those where the price is not within a tenth of the clock.
struct comparison {
  int rows = 0, off = 0;
  double lowest = 1, highest = 1;  // price / clock
  std::string text;

  void add(const std::string& row, double took, double predicted) {
    constexpr double rounding = 0.05e-6;
    ++rows;
    if (std::abs(predicted - took) <= 0.1 * took + rounding) return;
    ++off;
    lowest = std::min(lowest, predicted / took);
    highest = std::max(highest, predicted / took);
    if (off > 20) return;
    std::ostringstream line;
    line << "\n" << row << ": took " << took * 1e6 << " us, priced at " << predicted * 1e6 << " us";
    text += line.str();
  }
};

TEST(collective_time, is_within_a_tenth_of_the_price) {
  comparison seen;
  for (const char* name : {"dgx_h100", "pcie_4", "two_socket_8", "ring_3_no_p2p", "pcie_2x2_switches", "mi300x_8",
                           "two_nodes_4", "wired", "twelve", "apart"}) {
    const weft::topology layout = std::string_view{name} == "wired"    ? wired(6)
                                  : std::string_view{name} == "twelve" ? wired(12)  // more than a kernel folds at once
                                  : std::string_view{name} == "apart"  ? without_peers(5)
                                                                       : shipped(name);
    for (const int launch_us : {0, 5}) {
      timed on{layout, std::chrono::microseconds{launch_us}};
      for (const std::int64_t count : {256, 16'411, 300'007}) {  // 1 KiB, 64 KiB and 1.2 MB, about
        for (int w = 0; w < weft::collective_count; ++w) {
          const auto what = static_cast<collective>(w);
          for (const collective_algorithm algorithm : algorithms) {
            if (!weft::offers(what, algorithm).offered) continue;
            for (const bool in_place : {false, true}) {
              if (in_place && (what == collective::broadcast || what == collective::all_to_all)) continue;  // the same
              std::pair<double, double> found;
              try {
                found = on.times(what, algorithm, count, in_place);
              } catch (const weft::error_exception& refused) {
                ASSERT_EQ(refused.code(), weft::errc::unsupported) << refused.what();
                ASSERT_TRUE(may_be_refused(algorithm)) << refused.what();
                continue;  // not all are peers, or on several nodes
              }
              seen.add(std::string{name} + " " + std::string{to_string(what)} + " " +
                           std::string{to_string(algorithm)} + " of " + std::to_string(count) +
                           (in_place ? " in place" : "") + ", launches of " + std::to_string(launch_us) + " us",
                       found.first, found.second);
            }
          }
        }
      }
    }
  }
  EXPECT_GT(seen.rows, 2500);
  EXPECT_EQ(seen.off, 0) << "of " << seen.rows << " rows; price / clock " << seen.lowest << " to " << seen.highest
                         << seen.text;
}

/// Four devices with one port each to a switch: 12 GB/s each way, 10 us from device to device.
weft::topology textbook() {
  wiring with;
  with.host_rate = 12e9;
  with.host_latency = 10'000;
  weft::topology made = wired(4, with, std::uint64_t{1} << 30);
  made.name = "textbook";
  const int hub = static_cast<int>(made.nodes.size());
  made.nodes.push_back({weft::node_kind::fabric_switch, "hub"});
  std::erase_if(made.links, [](const weft::topology_link& l) { return l.from < 4 && l.to < 4; });
  int wire = 0;
  for (weft::topology_link& l : made.links) l.wire = wire++;
  for (int d = 0; d < 4; ++d) {
    for (const auto& [from, to] : {std::pair{d, hub}, std::pair{hub, d}}) {
      weft::topology_link link;
      link.from = from;
      link.to = to;
      link.wire = wire++;
      link.kind = weft::link_kind::nvlink;
      link.bytes_per_second = 12e9;
      link.latency = std::chrono::microseconds{5};
      made.links.push_back(link);
    }
  }
  return weft::value_or_raise(weft::complete_topology(std::move(made)));
}

TEST(collective_time, naive_and_tree_reach_half_of_a_textbook_link_and_the_others_all) {
  constexpr std::int64_t count = 25'000'000;  // 100 MB for each rank
  struct row {
    collective_algorithm algorithm;
    double share;
  };
  // Halving and doubling reaches what the ring does, and one pass over everybody's memory moves the same bytes. Through
  // rank 0 a piece goes out while the next comes in: half, but for the first and the last of k = 6, so k / (k + 1) of
  // it.
  timed on{textbook(), std::chrono::microseconds{5}};
  for (const auto& [algorithm, share] : {row{collective_algorithm::naive, 0.43},
                                         {collective_algorithm::tree, 0.5},
                                         {collective_algorithm::ring, 1},
                                         {collective_algorithm::halving_doubling, 1},
                                         {collective_algorithm::direct, 1}}) {
    const auto [took, predicted] = on.times(collective::all_reduce, algorithm, count);
    const double bytes = 4.0 * count * weft::bus_factor(collective::all_reduce, 4);
    EXPECT_NEAR(bytes / took / 12e9, share, 0.05) << to_string(algorithm);
    EXPECT_NEAR(predicted / took, 1, 0.02) << to_string(algorithm);
  }
}

}  // namespace link_bytes_test
