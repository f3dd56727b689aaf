// SPDX-License-Identifier: Apache-2.0
#include "weft/collective/collective_cost.hpp"

#include "support/samples.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

namespace weft {
namespace collective_cost_test {

using table = std::vector<std::uint64_t>;  // [from * ranks + to]
constexpr std::size_t element = 4;

std::vector<device_id> first_devices(int n) {
  std::vector<device_id> list;
  for (int i = 0; i < n; ++i) list.emplace_back(i);
  return list;
}

/// Four devices, or so, on one switch; 10 us from device to device at 12 GB/s in each direction.
topology switched(int n, double rate = 12e9, std::chrono::nanoseconds latency = std::chrono::microseconds{10}) {
  topology made;
  made.name = "switched";
  made.devices.resize(static_cast<std::size_t>(n));
  made.access.assign(static_cast<std::size_t>(n * n), true);
  for (int d = 0; d < n; ++d) {
    made.devices[static_cast<std::size_t>(d)].name = "device";
    made.devices[static_cast<std::size_t>(d)].memory = bytes{std::uint64_t{8} << 30};
    made.devices[static_cast<std::size_t>(d)].capabilities = capability::peer_to_peer;
    made.access[static_cast<std::size_t>(d * n + d)] = false;
    made.nodes.push_back({.kind = node_kind::device, .name = to_string(device_id{d}), .parent = n});
  }
  made.nodes.push_back({.kind = node_kind::pcie_switch, .name = "switch0", .parent = n + 1});
  made.nodes.push_back({.kind = node_kind::socket, .name = "socket0"});
  const auto join = [&](int from, int to, double r, std::chrono::nanoseconds l) {
    made.links.push_back({.from = from,
                          .to = to,
                          .wire = static_cast<int>(made.links.size()),
                          .kind = link_kind::pcie,
                          .generation = 4,
                          .lanes = 16,
                          .bytes_per_second = r,
                          .latency = l});
  };
  for (int d = 0; d < n; ++d) {
    join(d, n, rate, latency / 2);
    join(n, d, rate, latency / 2);
  }
  join(n, n + 1, rate, latency);
  join(n + 1, n, rate, latency);
  return value_or_raise(complete_topology(std::move(made)));
}

std::int64_t total(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

collective_cost price(const collective_shape& shape, collective_algorithm algorithm, std::int64_t piece,
                      const topology& machine, std::chrono::nanoseconds launch = usual_launch_latency) {
  const auto made = make_schedule(shape, algorithm, piece);
  EXPECT_TRUE(made) << to_string(shape.what) << " by " << to_string(algorithm);
  if (!made) return {};
  return cost_of(*made, element, machine, first_devices(shape.ranks), launch);
}

/// What a formula says, filled in by pairs.
class pairs {
 public:
  explicit pairs(int n) : n_(n), bytes_(static_cast<std::size_t>(n * n)) {}
  void add(int from, int to, std::int64_t elements) {
    from = (from % n_ + n_) % n_;
    to = (to % n_ + n_) % n_;
    if (from != to) bytes_[static_cast<std::size_t>(from * n_ + to)] += static_cast<std::uint64_t>(elements) * element;
  }
  [[nodiscard]] const table& all() const { return bytes_; }

 private:
  int n_;
  table bytes_;
};

testing::AssertionResult same(const table& got, const table& wanted, int n) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (got[i] == wanted[i]) continue;
    const auto ranks = static_cast<std::size_t>(n);
    return testing::AssertionFailure() << "from rank " << i / ranks << " to rank " << i % ranks << " of " << n
                                       << ": expected " << wanted[i] << " bytes, got " << got[i];
  }
  return testing::AssertionSuccess();
}

/// Part i of n nearly equal ones.
std::int64_t share(std::int64_t count, int n, int i) {
  i = (i % n + n) % n;
  return count / n + (i < count % n ? 1 : 0);
}

std::vector<std::int64_t> odd_blocks(int n) {
  std::vector<std::int64_t> counts;
  for (int r = 0; r < n; ++r) counts.push_back(r % 4 == 2 ? 0 : 5 * r + 3);
  return counts;
}

std::vector<std::int64_t> odd_lengths(int n) { return {0, 1, n - 1, n, n + 1, 7 * n + 3, 1000, 1009}; }

// ---- bytes, by formulas that know nothing of schedules

TEST(collective_bytes_between, a_ring_sends_two_arrays_less_two_chunks) {
  for (int n = 1; n <= 9; ++n) {
    for (const std::int64_t count : odd_lengths(n)) {
      for (const std::int64_t piece : {0, 3}) {
        pairs all(n);
        for (int r = 0; r < n; ++r) all.add(r, r + 1, 2 * count - share(count, n, r + 1) - share(count, n, r + 2));
        const auto cost =
            price({collective::all_reduce, n, 0, {count}}, collective_algorithm::ring, piece, switched(n));
        EXPECT_TRUE(same(cost.bytes_between, all.all(), n)) << count << " elements";
      }
    }
    if (n < 2) continue;
    const std::int64_t count = 60 * n;
    const auto cost = price({collective::all_reduce, n, 0, {count}}, collective_algorithm::ring, 0, switched(n));
    EXPECT_EQ(cost.bytes_between[1], static_cast<std::uint64_t>(2 * (n - 1) * count / n) * element);
  }
}

TEST(collective_bytes_between, a_ring_of_blocks_sends_all_but_one_block) {
  for (int n = 1; n <= 9; ++n) {
    const std::vector<std::int64_t> blocks = odd_blocks(n);
    const std::int64_t all = total(blocks);
    const auto block = [&](int r) { return blocks[static_cast<std::size_t>(((r % n) + n) % n)]; };
    pairs scattered(n);
    pairs gathered(n);
    for (int r = 0; r < n; ++r) {
      scattered.add(r, r + 1, all - block(r));
      gathered.add(r, r + 1, all - block(r + 1));
    }
    const auto ring = collective_algorithm::ring;
    EXPECT_TRUE(same(price({collective::reduce_scatter, n, 0, blocks}, ring, 4, switched(n)).bytes_between,
                     scattered.all(), n));
    EXPECT_TRUE(
        same(price({collective::all_gather, n, 0, blocks}, ring, 4, switched(n)).bytes_between, gathered.all(), n));
  }
}

TEST(collective_bytes_between, a_chain_sends_one_array_on_each_link) {
  for (int n = 1; n <= 9; ++n) {
    for (const std::int64_t count : odd_lengths(n)) {
      const int root = n / 2;
      pairs down(n);
      pairs up(n);
      for (int hop = 0; hop + 1 < n; ++hop) {
        down.add(root + hop, root + hop + 1, count);
        up.add(root + 1 + hop, root + 2 + hop, count);
      }
      const auto ring = collective_algorithm::ring;
      EXPECT_TRUE(
          same(price({collective::broadcast, n, root, {count}}, ring, 5, switched(n)).bytes_between, down.all(), n));
      EXPECT_TRUE(same(price({collective::reduce, n, root, {count}}, ring, 5, switched(n)).bytes_between, up.all(), n));
    }
  }
}

TEST(collective_bytes_between, naive_sends_all_through_one_rank) {
  for (int n = 1; n <= 9; ++n) {
    const int root = n - 1;
    const std::int64_t count = 7 * n + 3;
    const std::vector<std::int64_t> blocks = odd_blocks(n);
    pairs reduced_for_all(n), reduced(n), reduce_scattered(n), gathered_for_all(n), broadcast(n), scattered(n),
        gathered(n);
    for (int r = 0; r < n; ++r) {
      const std::int64_t block = blocks[static_cast<std::size_t>(r)];
      reduced_for_all.add(r, 0, count);
      reduced_for_all.add(0, r, count);
      reduced.add(r, root, count);
      reduce_scattered.add(r, 0, total(blocks));
      reduce_scattered.add(0, r, block);
      gathered_for_all.add(r, 0, block);
      gathered_for_all.add(0, r, total(blocks));
      broadcast.add(root, r, count);
      scattered.add(root, r, block);
      gathered.add(r, root, block);
    }
    const auto bytes_of = [&](collective what, const std::vector<std::int64_t>& counts) {
      const auto cost = price({what, n, root, counts}, collective_algorithm::naive, 6, switched(n));
      return cost.bytes_between;
    };
    EXPECT_TRUE(same(bytes_of(collective::all_reduce, {count}), reduced_for_all.all(), n));
    EXPECT_TRUE(same(bytes_of(collective::reduce, {count}), reduced.all(), n));
    EXPECT_TRUE(same(bytes_of(collective::reduce_scatter, blocks), reduce_scattered.all(), n));
    EXPECT_TRUE(same(bytes_of(collective::all_gather, blocks), gathered_for_all.all(), n));
    EXPECT_TRUE(same(bytes_of(collective::broadcast, {count}), broadcast.all(), n));
    EXPECT_TRUE(same(bytes_of(collective::scatter, blocks), scattered.all(), n));
    EXPECT_TRUE(same(bytes_of(collective::gather, blocks), gathered.all(), n));
  }
}

TEST(collective_bytes_between, direct_reads_a_slice_and_writes_a_slice) {
  for (int n = 1; n <= 12; ++n) {
    const int root = n / 3;
    for (const std::int64_t count : odd_lengths(n)) {
      pairs for_all(n);
      pairs to_root(n);
      for (int a = 0; a < n; ++a) {
        for (int b = 0; b < n; ++b) {
          for_all.add(a, b, share(count, n, b) + share(count, n, a));
          to_root.add(a, b, share(count, n, b) + (b == root ? share(count, n, a) : 0));
        }
      }
      const auto direct = collective_algorithm::direct;
      EXPECT_TRUE(
          same(price({collective::all_reduce, n, 0, {count}}, direct, 2, switched(n)).bytes_between, for_all.all(), n));
      EXPECT_TRUE(
          same(price({collective::reduce, n, root, {count}}, direct, 2, switched(n)).bytes_between, to_root.all(), n));
    }
    const std::vector<std::int64_t> blocks = odd_blocks(n);
    pairs scattered(n);
    pairs gathered(n);
    for (int a = 0; a < n; ++a) {
      for (int b = 0; b < n; ++b) {
        scattered.add(a, b, blocks[static_cast<std::size_t>(b)]);
        gathered.add(a, b, blocks[static_cast<std::size_t>(a)]);
      }
    }
    const auto direct = collective_algorithm::direct;
    EXPECT_TRUE(same(price({collective::reduce_scatter, n, 0, blocks}, direct, 2, switched(n)).bytes_between,
                     scattered.all(), n));
    EXPECT_TRUE(
        same(price({collective::all_gather, n, 0, blocks}, direct, 2, switched(n)).bytes_between, gathered.all(), n));
  }
}

TEST(collective_bytes_between, all_to_all_sends_the_counts) {
  for (int n = 1; n <= 9; ++n) {
    std::vector<std::int64_t> counts;
    for (int i = 0; i < n * n; ++i) counts.push_back((i * 7 + 2) % 5);
    pairs all(n);
    for (int a = 0; a < n; ++a)
      for (int b = 0; b < n; ++b) all.add(a, b, counts[static_cast<std::size_t>(a * n + b)]);
    for (const auto algorithm : {collective_algorithm::naive, collective_algorithm::direct}) {
      const auto cost = price({collective::all_to_all, n, 0, counts}, algorithm, 2, switched(n));
      EXPECT_TRUE(same(cost.bytes_between, all.all(), n)) << to_string(algorithm);
    }
  }
}

TEST(collective_bytes_between, a_tree_sends_one_array_up_and_one_down_each_edge) {
  for (int n = 1; n <= 9; ++n) {
    const std::int64_t count = 7 * n + 3;
    const std::uint64_t whole = static_cast<std::uint64_t>(count) * element;
    for (const auto what : {collective::all_reduce, collective::reduce, collective::broadcast}) {
      const int root = what == collective::all_reduce ? 0 : n / 2;
      const auto cost = price({what, n, root, {count}}, collective_algorithm::tree, 3, switched(n));
      std::uint64_t edges = 0;
      for (int a = 0; a < n; ++a) {
        std::uint64_t sent = 0;
        std::uint64_t received = 0;
        for (int b = 0; b < n; ++b) {
          const std::uint64_t forth = cost.bytes_between[static_cast<std::size_t>(a * n + b)];
          const std::uint64_t back = cost.bytes_between[static_cast<std::size_t>(b * n + a)];
          EXPECT_TRUE(forth == 0 || forth == whole) << forth << " bytes from rank " << a << " to rank " << b;
          if (what == collective::all_reduce) {
            EXPECT_EQ(forth, back);
          }
          sent += forth;
          received += back;
          edges += forth / whole;
        }
        EXPECT_LE(std::max(sent, received), 3 * whole) << "rank " << a << " of " << n;
        if (what == collective::reduce) {
          EXPECT_EQ(sent, a == root ? 0 : whole);
        }
        if (what == collective::broadcast) {
          EXPECT_EQ(received, a == root ? 0 : whole);
        }
      }
      EXPECT_EQ(edges, static_cast<std::uint64_t>((what == collective::all_reduce ? 2 : 1) * (n - 1)));
    }
  }
}

TEST(collective_bytes_between, halving_and_doubling_sends_the_least_possible) {
  const auto algorithm = collective_algorithm::halving_doubling;
  const auto sum = [](const collective_cost& cost) {
    return std::accumulate(cost.bytes_between.begin(), cost.bytes_between.end(), std::uint64_t{0}) / element;
  };
  const auto bits = [](int v) { return static_cast<std::int64_t>(std::popcount(static_cast<unsigned>(v))); };
  for (int n = 1; n <= 9; ++n) {
    const int root = n / 2;
    for (const std::int64_t count : odd_lengths(n)) {
      std::int64_t binomial = 0;  // a chunk crosses as many edges as its number has bits
      for (int v = 0; v < n; ++v) binomial += bits(v) * share(count, n, v);
      EXPECT_EQ(sum(price({collective::all_reduce, n, 0, {count}}, algorithm, 3, switched(n))),
                static_cast<std::uint64_t>(2 * (n - 1) * count));
      EXPECT_EQ(sum(price({collective::reduce, n, root, {count}}, algorithm, 3, switched(n))),
                static_cast<std::uint64_t>((n - 1) * count + binomial));
      EXPECT_EQ(sum(price({collective::broadcast, n, root, {count}}, algorithm, 3, switched(n))),
                static_cast<std::uint64_t>(n * count - count - (count - share(count, n, 0)) + binomial));
    }
    if (n > 1) {
      const std::int64_t count = 12 * n;
      const auto cost = price({collective::all_reduce, n, 0, {count}}, algorithm, 0, switched(n));
      for (int r = 0; r < n; ++r) {
        const auto row = cost.bytes_between.begin() + r * n;
        EXPECT_EQ(std::accumulate(row, row + n, std::uint64_t{0}),
                  static_cast<std::uint64_t>(2 * (n - 1) * count / n) * element);
      }
    }
    const std::vector<std::int64_t> blocks = odd_blocks(n);
    std::int64_t binomial = 0;
    for (int v = 0; v < n; ++v) binomial += bits(v) * blocks[static_cast<std::size_t>((root + v) % n)];
    const auto all = static_cast<std::uint64_t>((n - 1) * total(blocks));
    EXPECT_EQ(sum(price({collective::reduce_scatter, n, 0, blocks}, algorithm, 7, switched(n))), all);
    EXPECT_EQ(sum(price({collective::all_gather, n, 0, blocks}, algorithm, 7, switched(n))), all);
    for (const auto what : {collective::scatter, collective::gather}) {
      EXPECT_EQ(sum(price({what, n, root, blocks}, algorithm, 7, switched(n))), static_cast<std::uint64_t>(binomial));
    }
  }
}

TEST(collective_bytes_on_link, are_those_of_the_ranks_behind_it) {
  const topology machine = samples::wired(5);  // a link of its own for each pair
  for (const auto algorithm : {collective_algorithm::ring, collective_algorithm::tree, collective_algorithm::direct,
                               collective_algorithm::naive, collective_algorithm::halving_doubling}) {
    const auto cost = price({collective::all_reduce, 5, 0, {1003}}, algorithm, 100, machine);
    for (std::size_t i = 0; i < machine.links.size(); ++i) {
      const topology_link& link = machine.links[i];
      const bool is_peer = link.from < 5 && link.to < 5;
      const std::uint64_t wanted = is_peer ? cost.bytes_between[static_cast<std::size_t>(link.from * 5 + link.to)] : 0;
      EXPECT_EQ(cost.bytes_on_link[i], wanted) << to_string(algorithm) << ", link " << i;
    }
  }
}

TEST(collective_bytes_on_link, staged_moves_go_up_and_down_again) {
  topology machine = samples::wired(3);
  machine.access.assign(9, false);
  const auto cost = price({collective::all_reduce, 3, 0, {300}}, collective_algorithm::ring, 0, machine);
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    const bool is_host = machine.links[i].from == 3 || machine.links[i].to == 3;
    EXPECT_EQ(cost.bytes_on_link[i], is_host ? 4 * 100 * element : 0) << "link " << i;
  }
  EXPECT_GT(cost.seconds, 0);
}

TEST(collective_bytes_on_link, ranks_on_one_device_use_no_link) {
  const topology machine = samples::wired(2);
  const auto made = make_schedule({collective::all_reduce, 4, 0, {400}}, collective_algorithm::ring, 0);
  ASSERT_TRUE(made);
  const std::vector<device_id> devices{device_id{0}, device_id{0}, device_id{1}, device_id{1}};
  const auto cost = cost_of(*made, element, machine, devices);
  EXPECT_EQ(std::accumulate(cost.bytes_on_link.begin(), cost.bytes_on_link.end(), std::uint64_t{0}),
            2 * 6 * 100 * element);  // two of four links of the ring
}

// ---- time, by the formulas of the model

constexpr double alpha = 10e-6;
constexpr double rate = 12e9;
constexpr double launch = 5e-6;  // usual_launch_latency

double price_in_seconds(int n, std::int64_t count, collective_algorithm algorithm, std::int64_t piece = 0) {
  return price({collective::all_reduce, n, 0, {count}}, algorithm, piece, switched(n)).seconds;
}

TEST(collective_seconds, follow_the_formulas) {
  for (int n = 2; n <= 9; ++n) {
    const std::int64_t count = 100'000 * n;
    const double time = static_cast<double>(count * 4) / rate;
    const double others = n - 1;
    const double rounding = 1e-9 * n;  // half a nanosecond for each of 2 (N - 1) copies in a row
    // a kernel folds eight at a time: the ninth takes another launch, and its output of direct one more
    EXPECT_NEAR(price_in_seconds(n, count, collective_algorithm::naive),
                2 * others * (alpha + time) + (n > 8 ? 2 : 1) * launch, rounding);
    EXPECT_NEAR(price_in_seconds(n, count, collective_algorithm::direct),
                alpha + 2 * others * time / n + (n > 8 ? 3 : 1) * launch, rounding);
    // a fold for each step of the first half
    EXPECT_NEAR(price_in_seconds(n, count, collective_algorithm::ring),
                2 * others * (alpha + time / n) + others * launch, rounding);
    if (std::has_single_bit(static_cast<unsigned>(n))) {
      EXPECT_NEAR(price_in_seconds(n, count, collective_algorithm::halving_doubling),
                  std::log2(n) * (2 * alpha + launch) + 2 * others * time / n, rounding);
    }
  }
}

TEST(collective_seconds, grow_with_the_length) {
  for (const auto algorithm : {collective_algorithm::ring, collective_algorithm::tree, collective_algorithm::direct,
                               collective_algorithm::naive, collective_algorithm::halving_doubling}) {
    double before = 0;
    for (std::int64_t count = 1; count < 100'000'000; count *= 7) {
      const double now = price_in_seconds(4, count, algorithm, 4 << 20);
      EXPECT_GT(now, before) << to_string(algorithm) << " of " << count;
      before = now;
    }
  }
}

TEST(collective_seconds, grow_with_each_launch_in_a_row) {
  const auto seconds = [](collective_algorithm algorithm, std::chrono::nanoseconds latency) {
    return price({collective::all_reduce, 4, 0, {1000}}, algorithm, 0, switched(4), latency).seconds;
  };
  for (const auto& [algorithm, launches] :
       {std::pair{collective_algorithm::naive, 1}, std::pair{collective_algorithm::ring, 3},
        std::pair{collective_algorithm::halving_doubling, 2}, std::pair{collective_algorithm::direct, 1}}) {
    const double more = seconds(algorithm, std::chrono::microseconds{7}) - seconds(algorithm, {});
    EXPECT_NEAR(more, launches * 7e-6, 1e-12) << to_string(algorithm);
  }
}

TEST(collective_seconds, copies_over_one_wire_add_up_and_others_do_not) {
  // three blocks into gpu0, over its one wire; three out of it to wires of their own, over its one wire too
  constexpr double time = 1200 * 4 / rate;
  const topology machine = switched(4);
  const auto seconds = [&](collective what, std::vector<std::int64_t> counts) {
    return price({what, 4, 0, std::move(counts)}, collective_algorithm::naive, 0, machine).seconds;
  };
  EXPECT_NEAR(seconds(collective::gather, {0, 1200, 1200, 1200}), 3 * (alpha + time), 2e-9);
  EXPECT_NEAR(seconds(collective::scatter, {0, 1200, 1200, 1200}), 3 * (alpha + time), 2e-9);
  // round robin: everybody sends on one wire and receives on another
  EXPECT_NEAR(seconds(collective::all_to_all, std::vector<std::int64_t>(16, 1200)), 3 * (alpha + time), 2e-9);
}

TEST(collective_seconds, rounds_that_overlap_are_not_added_up) {
  // k pieces through gpu0, where the next comes in, once the fold of the last has left its room, while that one goes
  // out: k + 1 steps, not 2 k
  constexpr int k = 6;
  constexpr double time = 100'000 * 4 / rate;
  const double taken = price_in_seconds(4, k * 100'000, collective_algorithm::naive, 100'000);
  EXPECT_NEAR(taken, (k + 1) * 3 * (alpha + time) + k * launch, 3e-8);
}

TEST(collective_seconds, naive_and_tree_come_near_half_of_a_link_and_the_others_near_all) {
  const auto share_of_link = [](const topology& machine, std::int64_t count, collective_algorithm algorithm) {
    const collective_shape shape{collective::all_reduce, 4, 0, {count}};
    const auto devices = first_devices(4);
    const auto choice = choose_collective(shape, element, machine, devices, reduction_order::any, algorithm);
    EXPECT_TRUE(choice);
    return choice ? choice->candidates.front().bus_bandwidth / rate : 0;
  };
  constexpr std::int64_t count = 25'000'000;  // 100 MB
  // A quarter, had each piece gone out before the next came in. Of six, five do both at once: 6 / 7 of a half.
  EXPECT_NEAR(share_of_link(switched(4), count, collective_algorithm::naive), 0.43, 0.01);
  EXPECT_GE(share_of_link(switched(4), count, collective_algorithm::ring), 0.98);
  EXPECT_GE(share_of_link(switched(4), count, collective_algorithm::halving_doubling), 0.98);
  // A tree comes to a half in the limit: its pieces fill the tree first, and each of them pays its latency.
  EXPECT_NEAR(share_of_link(switched(4), count, collective_algorithm::tree), 0.46, 0.01);
  EXPECT_NEAR(share_of_link(switched(4), 100 * count, collective_algorithm::tree), 0.5, 0.02);
  EXPECT_NEAR(share_of_link(switched(4, rate, std::chrono::nanoseconds{10}), 100 * count, collective_algorithm::tree),
              0.5, 0.01);
}

TEST(collective_seconds, count_the_memory_that_a_fold_goes_over) {
  topology machine = switched(2);
  const double without =
      price({collective::all_reduce, 2, 0, {1'000'000}}, collective_algorithm::ring, 0, machine).seconds;
  for (topology_device& d : machine.devices) d.bytes_per_second = 100e9;
  const double with =
      price({collective::all_reduce, 2, 0, {1'000'000}}, collective_algorithm::ring, 0, machine).seconds;
  EXPECT_NEAR(with - without, 3 * 2e6 / 100e9, 1e-9);  // reads two halves, writes one
}

TEST(collective_seconds, are_unknown_where_a_rate_is) {
  const auto cost =
      price({collective::all_reduce, 4, 0, {1000}}, collective_algorithm::ring, 0, host_topology(4, bytes{1 << 20}));
  EXPECT_EQ(cost.seconds, 0);
  EXPECT_EQ(cost.bytes_between[1], 2U * 3U * 250U * element);
}

// ---- pieces

/// How much longer a collective takes with the library's piece than with the best of a row of lengths.
double loss_of(const collective_shape& shape, collective_algorithm algorithm, const topology& machine,
               std::chrono::nanoseconds start) {
  const std::int64_t piece =
      best_piece(shape, element, algorithm, machine, first_devices(machine.device_count()), start);
  const double taken = price(shape, algorithm, piece, machine, start).seconds;
  double best = taken;
  for (std::int64_t other = 20'000; other < shape.counts.front(); other += other / 4)
    best = std::min(best, price(shape, algorithm, other, machine, start).seconds);
  return taken / best;
}

TEST(best_piece, is_close_to_the_best_there_is) {
  const topology machine = switched(9);
  const topology fast = samples::shipped("dgx_h100");
  for (const std::int64_t count : {1'000'000, 25'000'000}) {
    for (const auto& [what, algorithm] : {std::pair{collective::all_reduce, collective_algorithm::tree},
                                          std::pair{collective::broadcast, collective_algorithm::tree},
                                          std::pair{collective::reduce, collective_algorithm::ring}}) {
      const std::string text = std::string{to_string(what)} + " by " + std::string{to_string(algorithm)} + " of ";
      EXPECT_LE(loss_of({what, 9, 0, {count}}, algorithm, machine, {}), 1.03) << text << count;
      // where the start of a kernel takes longer than many a piece is on its way
      EXPECT_LE(loss_of({what, 8, 0, {count}}, algorithm, fast, usual_launch_latency), 1.07) << text << count;
    }
  }
}

TEST(best_piece, is_never_more_than_the_library_moves_at_once) {
  const auto devices = first_devices(4);
  const std::int64_t most = static_cast<std::int64_t>(collective_piece_bytes / element);
  for (const auto algorithm : {collective_algorithm::ring, collective_algorithm::tree, collective_algorithm::naive}) {
    const collective_shape shape{collective::all_reduce, 4, 0, {std::int64_t{1} << 40}};
    EXPECT_LE(best_piece(shape, element, algorithm, switched(4), devices), most);
    EXPECT_GE(best_piece({collective::all_reduce, 4, 0, {0}}, element, algorithm, switched(4), devices), 1);
    EXPECT_GE(best_piece(shape, element, algorithm, host_topology(4, bytes{1 << 20}), devices), 1);
  }
}

// ---- the choice

std::string chosen(const collective_shape& shape, const topology& machine,
                   reduction_order order = reduction_order::any) {
  const auto devices = first_devices(shape.ranks);
  const auto choice = choose_collective(shape, element, machine, devices, order);
  if (!choice) return choice.error().what;
  EXPECT_EQ(choice->candidates.size(), 5U);
  for (const collective_candidate& c : choice->candidates) EXPECT_FALSE(c.why.empty()) << to_string(c.algorithm);
  EXPECT_EQ(choice->candidates.front().algorithm, choice->algorithm);
  EXPECT_TRUE(choice->candidates.front().possible);
  return std::string{to_string(choice->algorithm)};
}

TEST(collective_choice, takes_the_ring_for_much_and_few_rounds_for_little) {
  topology machine = switched(8);
  machine.access[1] = false;  // no direct
  EXPECT_EQ(chosen({collective::all_reduce, 8, 0, {5'000'000}}, samples::shipped("two_socket_8")), "ring");
  const std::string small = chosen({collective::all_reduce, 8, 0, {1}}, machine);
  EXPECT_EQ(small, "halving_doubling");
}

TEST(collective_choice, knows_the_nodes_of_a_machine_and_takes_hierarchical_there) {
  // eight ranks of a node and eight of the other, in an order in which halving and doubling cross the network each time
  topology machine = samples::shipped("dgx_h100_x2");
  std::vector<device_id> devices;
  for (int r = 0; r < 16; ++r) devices.push_back(device_id{r % 2 * 8 + r / 2});
  EXPECT_EQ(nodes_of(machine, devices).size(), 16U);
  EXPECT_TRUE(nodes_of(machine, std::span{devices}.first(1)).empty());
  const auto choice =
      choose_collective({collective::all_reduce, 16, 0, {25'000'000}}, element, machine, devices, reduction_order::any);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->algorithm, collective_algorithm::hierarchical);
  const auto alone = choose_collective({collective::all_reduce, 4, 0, {1000}}, element, switched(4), first_devices(4),
                                       reduction_order::any, collective_algorithm::hierarchical);
  ASSERT_FALSE(alone);
  EXPECT_NE(alone.error().what.find("all ranks are on one node"), std::string::npos) << alone.error().what;
}

TEST(collective_choice, the_order_of_ranks_leaves_the_choice_of_direct_and_naive) {
  const auto devices = first_devices(4);
  const collective_shape shape{collective::all_reduce, 4, 0, {1000}};
  const auto choice = choose_collective(shape, element, switched(4), devices, reduction_order::rank);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->algorithm, collective_algorithm::direct);
  for (const collective_candidate& c : choice->candidates) {
    const bool keeps = c.algorithm == collective_algorithm::naive || c.algorithm == collective_algorithm::direct;
    EXPECT_EQ(c.possible, keeps) << to_string(c.algorithm);
    if (!keeps) {
      EXPECT_EQ(c.why, "does not combine in the order of ranks");
    }
  }
  topology apart = switched(4);
  apart.access.assign(16, false);
  EXPECT_EQ(chosen(shape, apart, reduction_order::rank), "naive");
  // nothing is combined: every order is kept
  EXPECT_EQ(
      chosen({collective::broadcast, 8, 0, {25'000'000}}, samples::shipped("two_socket_8"), reduction_order::rank),
      "ring");
}

TEST(collective_choice, where_no_rate_is_known_is_direct_or_the_fewest_bytes) {
  topology host = host_topology(4, bytes{1 << 20});
  const collective_shape shape{collective::all_reduce, 4, 0, {1000}};
  EXPECT_EQ(chosen(shape, host), "direct");
  host.access.assign(16, false);
  EXPECT_EQ(chosen(shape, host), "halving_doubling");  // as many bytes as the ring, in fewer rounds
}

TEST(collective_choice, says_why_each_other_one_lost) {
  const auto devices = first_devices(4);
  const auto choice = choose_collective({collective::all_reduce, 4, 0, {25'000'000}}, element, switched(4), devices,
                                        reduction_order::any, collective_algorithm::ring);
  ASSERT_TRUE(choice);
  EXPECT_TRUE(choice->is_forced);
  EXPECT_EQ(choice->candidates[0].why, "was asked for");
  EXPECT_EQ(choice->candidates.back().algorithm, collective_algorithm::naive);
  EXPECT_EQ(choice->candidates.back().why, "2.3x slower than ring: its busiest link carries 300 MB");
  for (std::size_t i = 2; i < choice->candidates.size(); ++i)
    EXPECT_LE(choice->candidates[i - 1].cost.seconds, choice->candidates[i].cost.seconds);
  const auto why_the_best = [&](const topology& machine) {
    const auto best =
        choose_collective({collective::all_reduce, 4, 0, {1000}}, element, machine, devices, reduction_order::any);
    return best ? best->candidates[0].why : best.error().what;
  };
  EXPECT_TRUE(why_the_best(switched(4)).ends_with(": its busiest link carries 6 kB in 1 round"))
      << why_the_best(switched(4));
  topology apart = switched(4);
  apart.access.assign(16, false);
  EXPECT_TRUE(why_the_best(apart).ends_with(" in 2 rounds")) << why_the_best(apart);
}

TEST(collective_choice, an_impossible_choice_is_refused_with_the_reason) {
  topology machine = switched(4);
  machine.access[1 * 4 + 2] = false;
  const auto devices = first_devices(4);
  const auto refusal = [&](collective what, std::vector<std::int64_t> counts, collective_algorithm wanted,
                           reduction_order order = reduction_order::any) {
    const auto choice = choose_collective({what, 4, 0, std::move(counts)}, element, machine, devices, order, wanted);
    return choice ? std::string{"chosen"} : std::string{to_string(choice.error().code)} + ": " + choice.error().what;
  };
  EXPECT_EQ(refusal(collective::all_reduce, {8}, collective_algorithm::direct),
            "unsupported: all_reduce by direct: gpu1 cannot map the memory of gpu2");
  EXPECT_EQ(refusal(collective::all_reduce, {8}, collective_algorithm::ring, reduction_order::rank),
            "unsupported: all_reduce by ring: does not combine in the order of ranks");
  EXPECT_EQ(refusal(collective::gather, {1, 2, 3, 4}, collective_algorithm::ring),
            "unsupported: gather by ring: the link at the root carries every block whichever way they come");
  EXPECT_EQ(refusal(collective::gather, {1}, collective_algorithm::naive),
            "invalid_argument: gather: 1 counts for 4 ranks: 4 are needed");
  const auto few =
      choose_collective({collective::all_reduce, 3, 0, {8}}, element, machine, devices, reduction_order::any);
  ASSERT_FALSE(few);
  EXPECT_EQ(few.error().what, "all_reduce: 4 devices for 3 ranks");
}

TEST(collective_choice, one_rank_or_no_elements_go_by_direct) {
  EXPECT_EQ(chosen({collective::all_reduce, 1, 0, {100}}, switched(1)), "direct");
  EXPECT_EQ(chosen({collective::all_reduce, 4, 0, {0}}, switched(4)), "direct");
  EXPECT_EQ(chosen({collective::all_to_all, 2, 0, {0, 0, 0, 0}}, host_topology(2, bytes{1 << 20})), "direct");
}

TEST(collective_bandwidth, is_counted_as_nccl_tests_do) {
  EXPECT_DOUBLE_EQ(bus_factor(collective::all_reduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(collective::all_gather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(collective::reduce_scatter, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(collective::broadcast, 8), 1);
  EXPECT_DOUBLE_EQ(bus_factor(collective::reduce, 8), 1);
  EXPECT_EQ(collective_bytes({collective::all_reduce, 4, 0, {100}}, 4), 400U);
  EXPECT_EQ(collective_bytes({collective::all_gather, 2, 0, {100, 20}}, 4), 480U);
  EXPECT_EQ(collective_bytes({collective::all_to_all, 2, 0, {1, 2, 3, 4}}, 4), 28U);
}

// ---- the order of neighbours

std::vector<int> numbers(const std::vector<device_id>& list) {
  std::vector<int> made;
  for (const device_id d : list) made.push_back(d.value());
  return made;
}

TEST(neighbour_order, puts_the_fastest_links_round_the_ring) {
  topology machine = samples::wired(4);
  // 0 - 2 - 1 - 3 - 0 are fast
  for (topology_link& link : machine.links) {
    if (link.from == 4 || link.to == 4) continue;
    const bool is_slow = link.from / 2 == link.to / 2;  // 0 - 1 and 2 - 3
    link.bytes_per_second = is_slow ? 5e9 : 50e9;
  }
  machine = value_or_raise(complete_topology(std::move(machine)));
  EXPECT_EQ(numbers(neighbour_order(machine, first_devices(4))), (std::vector{0, 2, 1, 3}));
}

TEST(neighbour_order, takes_the_closest_of_equally_fast_ones) {
  topology machine = samples::wired(4);
  for (topology_link& link : machine.links) {
    if (link.from == 4 || link.to == 4) continue;
    link.latency = std::chrono::nanoseconds{link.from / 2 == link.to / 2 ? 5000 : 500};
  }
  machine = value_or_raise(complete_topology(std::move(machine)));
  EXPECT_EQ(numbers(neighbour_order(machine, first_devices(4))), (std::vector{0, 2, 1, 3}));
}

TEST(neighbour_order, equal_devices_keep_their_order) {
  for (const int n : {0, 1, 2, 3, 5, 8, 9, 16}) {
    std::vector<int> own(static_cast<std::size_t>(n));
    std::iota(own.begin(), own.end(), 0);
    EXPECT_EQ(numbers(neighbour_order(host_topology(n, bytes{1 << 20}), first_devices(n))), own) << n;
    if (n > 0) {
      EXPECT_EQ(numbers(neighbour_order(samples::wired(n), first_devices(n))), own) << n;
    }
  }
}

TEST(neighbour_order, the_nearest_of_many_devices_comes_first) {
  topology machine = samples::wired(10);
  for (topology_link& link : machine.links) {
    if (link.from == 10 || link.to == 10) continue;
    link.bytes_per_second = link.from % 2 == link.to % 2 ? 50e9 : 5e9;
  }
  machine = value_or_raise(complete_topology(std::move(machine)));
  EXPECT_EQ(numbers(neighbour_order(machine, first_devices(10))), (std::vector{0, 2, 4, 6, 8, 7, 5, 3, 1, 9}));
}

}  // namespace collective_cost_test
}  // namespace weft
