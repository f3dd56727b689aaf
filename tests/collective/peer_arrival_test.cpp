// SPDX-License-Identifier: Apache-2.0
// On a machine with pairs that lose or change data every operation of every layer ends with the right result, or with
// an error. Each is run between all ordered pairs of a fresh machine.
#include "collective/collective_samples.hpp"
#include "support/samples.hpp"
#include "weft/channel/message_queue.hpp"
#include "weft/channel/queue_network.hpp"
#include "weft/collective/communicator.hpp"
#include "weft/core/log.hpp"
#include "weft/exec/array.hpp"
#include "weft/exec/launch.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/exec/pipeline.hpp"
#include "weft/exec/reduce.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/grant.hpp"
#include "weft/memory/mapping.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/pool.hpp"
#include "weft/memory/scatter.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace peer_arrival_test {

using samples::error_of;
using samples::gpu0;
using samples::gpu1;
using samples::gpu2;
using weft::buffer;
using weft::device;
using weft::errc;
using weft::machine;
using weft::range;
using weft::topology_fault;

WEFT_KERNEL(arrival_triple, (WEFT_IN(int32_t) in, WEFT_OUT(int32_t) out), { out[i] = in[i] * 3; });

using ints = std::vector<std::int32_t>;
using testing::AssertionFailure;
using testing::AssertionResult;
using testing::AssertionSuccess;

constexpr std::size_t count = 3000;

ints numbers(std::uint32_t seed) {
  ints made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = static_cast<std::int32_t>((i + seed) * 2654435761U % 100003);
  return made;
}

ints tripled(ints values) {
  for (std::int32_t& v : values) v *= 3;
  return values;
}

template <class Memory>
AssertionResult holds(const Memory& memory, const ints& expected) {
  ints got(expected.size(), -1);
  weft::copy(got, memory);
  const auto bad = std::mismatch(got.begin(), got.end(), expected.begin());
  if (bad.first == got.end()) return AssertionSuccess();
  return AssertionFailure() << "element " << bad.first - got.begin() << " is " << *bad.first << ", not " << *bad.second;
}

buffer<std::int32_t> made(const device& on, const ints& values) {
  buffer<std::int32_t> memory{on, values.size()};
  weft::copy(memory, values);
  return memory;
}

// ---- the operations: from device a into memory of device b ----------------------------------------------------------

using operation = std::function<AssertionResult(const machine& m, const device& a, const device& b)>;

AssertionResult copied(const device& a, const device& b, const weft::copy_options& options) {
  const auto from = made(a, numbers(1));
  const auto to = made(b, numbers(2));
  weft::copy(to, from, options);
  return holds(to, numbers(1));
}

operation copied_by(weft::copy_path path) {
  return [path](const machine&, const device& a, const device& b) {
    weft::copy_options options;
    options.route.path = path;
    return copied(a, b, options);
  };
}

AssertionResult a_copy_in_a_stream(const machine&, const device& a, const device& b) {
  const auto from = made(a, numbers(1));
  const auto to = made(b, numbers(2));
  weft::copy(weft::stream{a}, to, from).wait();
  return holds(to, numbers(1));
}

AssertionResult a_copy_of_boxes(const machine&, const device& a, const device& b) {
  const auto from = made(a, numbers(1));
  const auto to = made(b, numbers(2));
  weft::copy_box(weft::box<std::int32_t>{to.span(), {}, 0, 100}, weft::box<std::int32_t>{from.span(), {}, 0, 100},
                 {60, 30});
  ints expected = numbers(2);
  const ints source = numbers(1);
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 100 < 60) expected[i] = source[i];
  }
  return holds(to, expected);
}

AssertionResult a_batch_of_copies(const machine&, const device& a, const device& b) {
  const auto from = made(a, numbers(1));
  const auto to = made(b, numbers(2));
  const std::array parts{weft::part(to.subspan(2000, 1000), from.subspan(0, 1000)),
                         weft::part(to.subspan(0, 2000), from.subspan(1000, 2000))};
  weft::copy_batch(weft::stream{b}, parts).wait();
  ints expected = numbers(1);
  std::rotate(expected.begin(), expected.begin() + 1000, expected.end());
  return holds(to, expected);
}

AssertionResult a_raw_copy(const machine& m, const device& a, const device& b) {
  const auto from = made(a, numbers(1));
  const auto to = made(b, numbers(2));
  weft::copy_peer(m, to.data(), b.id(), from.data(), a.id(), to.size_bytes());
  return holds(to, numbers(1));
}

AssertionResult a_gathering(const machine& m, const device&, const device& b) {
  std::vector<buffer<std::int32_t>> parts;
  const ints all = numbers(7);
  const std::size_t share = count / static_cast<std::size_t>(m.device_count());
  for (const device& d : m.devices()) {
    const auto at = all.begin() + static_cast<std::ptrdiff_t>(parts.size() * share);
    parts.push_back(made(d, ints(at, at + static_cast<std::ptrdiff_t>(share))));
  }
  const buffer<std::int32_t> whole{b, share * parts.size()};
  weft::gather(whole, std::span{parts});
  return holds(whole, ints(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(whole.size())));
}

AssertionResult stores_of_a_kernel(const machine&, const device& a, const device& b) {
  const auto from = made(a, numbers(1));
  const auto to = made(b, numbers(2));
  weft::launch<arrival_triple>(weft::stream{a}, range(count), from, to).wait();
  return holds(to, tripled(numbers(1)));
}

AssertionResult loads_of_a_kernel(const machine&, const device& a, const device& b) {
  const auto from = made(a, numbers(1));
  const auto to = made(b, numbers(2));
  weft::launch<arrival_triple>(weft::stream{b}, range(count), from, to).wait();
  return holds(to, tripled(numbers(1)));
}

AssertionResult stores_after_a_raw_enable(const machine& m, const device& a, const device& b) {
  if (weft::peer_enabled(m, a.id(), b.id())) weft::disable_peer(m, a.id(), b.id());
  weft::enable_peer(m, a.id(), b.id());
  return stores_of_a_kernel(m, a, b);
}

AssertionResult stores_through_a_mapping(const machine& m, const device& a, const device& b) {
  const auto from = made(a, numbers(1));
  const auto to = made(b, numbers(2));
  const weft::peer_mapping<std::int32_t> seen{m, to.span(), a.id()};
  weft::launch<arrival_triple>(weft::stream{a}, range(count), from, seen.span()).wait();
  return holds(to, tripled(numbers(1)));
}

AssertionResult stores_by_a_grant(const machine&, const device& a, const device& b) {
  const auto from = made(a, numbers(1));
  const auto to = made(b, numbers(2));
  const auto right = weft::grant(to.span(), a, weft::access_right::read_write);
  weft::launch<arrival_triple>(weft::stream{a}, range(count), from, to).wait();
  return holds(to, tripled(numbers(1)));
}

AssertionResult stores_into_a_pool(const machine&, const device& a, const device& b) {
  const auto from = made(a, numbers(1));
  weft::pool_options options;
  options.shareable = true;
  const weft::memory_pool pool{b, options};
  pool.set_access(a, weft::access_right::read_write);
  const buffer<std::int32_t> to{pool, count};
  weft::launch<arrival_triple>(weft::stream{a}, range(count), from, to).wait();
  return holds(to, tripled(numbers(1)));
}

AssertionResult stores_into_a_block(const machine&, const device& a, const device& b) {
  const auto from = made(a, numbers(1));
  weft::mapping block{weft::physical_block{b, weft::bytes{std::uint64_t{2} << 20}}};
  block.grant({{a.id(), weft::access_right::read_write}, {b.id(), weft::access_right::read_write}});
  const auto to = block.span<std::int32_t>().subspan(0, count);
  weft::launch<arrival_triple>(weft::stream{a}, range(count), from, to).wait();
  return holds(to, tripled(numbers(1)));
}

AssertionResult a_copy_into_a_block(const machine&, const device& a, const device& b) {
  const auto from = made(a, numbers(1));
  weft::mapping block{weft::physical_block{b, weft::bytes{std::uint64_t{2} << 20}}};
  block.grant({{a.id(), weft::access_right::read_write}, {b.id(), weft::access_right::read_write}});
  const auto to = block.span<std::int32_t>().subspan(0, count);
  weft::copy(to, from);
  return holds(to, numbers(1));
}

AssertionResult a_fill(const machine&, const device& a, const device& b) {
  const auto to = made(b, numbers(2));
  weft::fill(weft::stream{a}, to, std::int32_t{77}).wait();
  return holds(to, ints(count, 77));
}

AssertionResult a_value_written_by_a_stream(const machine&, const device& a, const device& b) {
  const buffer<std::uint32_t> word{b, 1};
  weft::fill(word, std::uint32_t{1});
  weft::stream{a}.write_value(word.data(), std::uint32_t{42}).wait();
  std::vector<std::uint32_t> got(1);
  weft::copy(got, word);
  if (got[0] == 42) return AssertionSuccess();
  return AssertionFailure() << "the word is " << got[0];
}

AssertionResult a_kernel_over_all_devices(const machine& m, const device& a, const device& b) {
  const auto in = made(a, numbers(1));
  const auto out = made(b, numbers(2));
  weft::spread_options options;
  options.strategy = weft::balance::static_equal;
  weft::launch<arrival_triple>(m, options, range(count), in, out).wait();
  return holds(out, tripled(numbers(1)));
}

AssertionResult a_sum_over_all_devices(const machine& m, const device& a, const device&) {
  const auto in = made(a, numbers(1));
  const ints values = numbers(1);
  const std::int64_t expected = std::accumulate(values.begin(), values.end(), std::int64_t{0});
  const auto got = static_cast<std::int64_t>(weft::sum(m, in));
  if (got == expected) return AssertionSuccess();
  return AssertionFailure() << "the sum is " << got << ", not " << expected;
}

AssertionResult an_array_that_moves(const machine& m, const device& a, const device& b) {
  weft::array<std::int32_t> values{m, numbers(1)};
  weft::array<std::int32_t> results{m, count};
  const auto only = [](const device& d) {
    weft::spread_options options;
    options.devices.ids = {d.id()};
    return options;
  };
  weft::launch<arrival_triple>(m, only(a), range(count), values, results).wait();
  weft::launch<arrival_triple>(m, only(b), range(count), results, values).wait();
  const ints got = values.host();
  return got == tripled(tripled(numbers(1))) ? AssertionSuccess() : AssertionFailure() << "the array differs";
}

AssertionResult a_pipeline(const machine& m, const device& a, const device& b) {
  weft::pipeline_options options;
  options.placement = {a.id(), b.id()};
  auto line = weft::make_pipeline<std::int32_t>(m, count, options)
                  .kernel<arrival_triple>("first")
                  .kernel<arrival_triple>("second")
                  .build();
  const ints batch = numbers(1);
  ints result(count);
  line.push(batch, result);
  line.drain();
  return result == tripled(tripled(batch)) ? AssertionSuccess() : AssertionFailure() << "the batch differs";
}

AssertionResult a_queue(const machine& m, const device& a, const device& b) {
  const weft::message_queue<std::uint64_t> queue{m, a.id(), b.id()};
  auto tx = queue.open_sender();
  auto rx = queue.open_receiver();
  for (std::uint64_t n = 0; n < 100; ++n) {
    if (tx.try_send(n * 7) != weft::queue_status::ok) return AssertionFailure() << "sending " << n;
  }
  for (std::uint64_t n = 0; n < 100; ++n) {
    std::uint64_t got = 0;
    if (rx.receive(got) != weft::queue_status::ok || got != n * 7) return AssertionFailure() << "message " << n;
  }
  return AssertionSuccess();
}

operation all_reduced_by(weft::collective_algorithm algorithm) {
  return [algorithm](const machine& m, const device&, const device&) -> AssertionResult {
    weft::communicator all{m.devices()};
    std::vector<buffer<std::int32_t>> memory;
    ints expected(count);
    for (const device& d : m.devices()) {
      const ints values = numbers(static_cast<std::uint32_t>(memory.size()));
      for (std::size_t i = 0; i < count; ++i) expected[i] += values[i];
      memory.push_back(made(d, values));
    }
    weft::collective_options options;
    options.algorithm = algorithm;
    all.all_reduce(memory, weft::reduce_op::sum, options).wait();
    for (const auto& one : memory) {
      if (auto right = holds(one, expected); !right) return right;
    }
    return AssertionSuccess();
  };
}

AssertionResult a_broadcast(const machine& m, const device& a, const device&) {
  weft::communicator all{m.devices()};
  std::vector<buffer<std::int32_t>> memory;
  for (const device& d : m.devices()) memory.push_back(made(d, numbers(static_cast<std::uint32_t>(d.id().value()))));
  weft::collective_options options;
  options.root = weft::rank{a.id().value()};
  all.broadcast(memory, options).wait();
  for (const auto& one : memory) {
    if (auto right = holds(one, numbers(static_cast<std::uint32_t>(a.id().value()))); !right) return right;
  }
  return AssertionSuccess();
}

AssertionResult an_all_to_all(const machine& m, const device&, const device&) {
  weft::communicator all{m.devices()};
  const auto n = static_cast<std::size_t>(m.device_count());
  const std::size_t share = 500;
  std::vector<buffer<std::int32_t>> in, out;
  std::vector<ints> expected(n, ints(n * share));
  for (std::size_t r = 0; r < n; ++r) {
    ints values(n * share);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int32_t>(r * 100'000 + i);
    for (std::size_t to = 0; to < n; ++to)
      for (std::size_t i = 0; i < share; ++i) expected[to][r * share + i] = values[to * share + i];
    in.push_back(made(m[static_cast<int>(r)], values));
    out.emplace_back(m[static_cast<int>(r)], n * share);
  }
  all.all_to_all(in, out).wait();
  for (std::size_t r = 0; r < n; ++r) {
    if (auto right = holds(out[r], expected[r]); !right) return right;
  }
  return AssertionSuccess();
}

struct named_operation {
  const char* name;
  operation run;
  bool crosses = true;  // from a to b over their link, if nobody knows that it loses data
};

const std::vector<named_operation>& operations() {
  using weft::collective_algorithm;
  static const auto* const list = new std::vector<named_operation>{
      {"a copy", copied_by(weft::copy_path::automatic)},
      {"a direct copy", copied_by(weft::copy_path::direct)},
      {"a staged copy", copied_by(weft::copy_path::staged), false},
      {"a relayed copy", copied_by(weft::copy_path::relayed), false},
      {"a copy in a stream", a_copy_in_a_stream},
      {"a copy of boxes", a_copy_of_boxes},
      {"a batch of copies", a_batch_of_copies},
      {"a raw copy", a_raw_copy},
      {"a gathering", a_gathering},
      {"stores of a kernel", stores_of_a_kernel},
      {"loads of a kernel", loads_of_a_kernel, false},
      {"stores after a raw enable", stores_after_a_raw_enable},
      {"stores through a mapping", stores_through_a_mapping},
      {"stores by a grant", stores_by_a_grant},
      {"stores into a pool", stores_into_a_pool},
      {"stores into a block", stores_into_a_block},
      {"a copy into a block", a_copy_into_a_block},
      {"a fill", a_fill},
      {"a value written by a stream", a_value_written_by_a_stream},
      {"a kernel over all devices", a_kernel_over_all_devices},
      {"a sum over all devices", a_sum_over_all_devices},
      {"an array that moves", an_array_that_moves},
      {"a pipeline", a_pipeline},
      {"a queue", a_queue, false},  // tests itself
      {"a naive all_reduce", all_reduced_by(collective_algorithm::naive)},
      {"a tree all_reduce", all_reduced_by(collective_algorithm::tree), false},
      {"a ring all_reduce", all_reduced_by(collective_algorithm::ring)},
      {"a halving-doubling all_reduce", all_reduced_by(collective_algorithm::halving_doubling)},
      {"a direct all_reduce", all_reduced_by(collective_algorithm::direct)},
      {"a broadcast", a_broadcast},
      {"an all_to_all", an_all_to_all},
  };
  return *list;
}

machine play(const weft::topology& layout, weft::clock_kind clock, weft::peer_verification verify) {
  weft::machine_options options;
  options.machine = layout;
  options.clock = clock;
  options.verify_peers = verify;
  return machine{options};
}

enum class outcome : std::uint8_t { right, wrong, refused };

outcome run(const named_operation& one, const weft::topology& layout, int a, int b, weft::clock_kind clock,
            weft::peer_verification verify, std::string& why) {
  const machine m = play(layout, clock, verify);
  try {
    const auto leases = weft::enable_all_peers(m);
    const AssertionResult got = one.run(m, m[a], m[b]);
    why = got.message();
    return got ? outcome::right : outcome::wrong;
  } catch (const weft::error_exception& refused) {
    why = refused.what();
    return outcome::refused;
  }
}

void expect_right_or_refused(const weft::topology& layout, weft::clock_kind clock) {
  for (int a = 0; a < layout.device_count(); ++a) {
    for (int b = 0; b < layout.device_count(); ++b) {
      if (a == b) continue;
      for (const named_operation& one : operations()) {
        std::string why;
        EXPECT_NE(run(one, layout, a, b, clock, weft::peer_verification::first_use, why), outcome::wrong)
            << one.name << " from gpu" << a << " to gpu" << b << " on " << layout.name << ": " << why;
      }
    }
  }
}

weft::topology with_fault(weft::topology layout, topology_fault::kind what, int from, int to) {
  topology_fault fault;
  fault.what = what;
  fault.from = weft::device_id{from};
  fault.to = weft::device_id{to};
  fault.nth = 0;
  layout.faults.push_back(fault);
  return layout;
}

TEST(peer_arrival, every_operation_is_right_or_refused_over_each_shipped_topology_with_faults) {
  int found = 0;
  for (const std::string_view name : weft::shipped_topologies()) {
    const weft::topology layout = samples::shipped(name);
    if (layout.faults.empty()) continue;
    ++found;
    expect_right_or_refused(layout, weft::clock_kind::virtual_time);  // its devices may stall
  }
  EXPECT_GT(found, 0);
}

TEST(peer_arrival, every_operation_is_right_or_refused_where_one_pair_loses_data) {
  expect_right_or_refused(with_fault(samples::shipped("pair_nvlink"), topology_fault::kind::drops_data, 0, 1),
                          weft::clock_kind::wall);
  expect_right_or_refused(with_fault(samples::wired(3), topology_fault::kind::drops_data, 0, 1),
                          weft::clock_kind::virtual_time);
}

TEST(peer_arrival, every_operation_is_right_or_refused_over_random_topologies) {
  std::mt19937 random{20261123};
  for (int round = 0; round < 4; ++round) {
    const int devices = 2 + round % 3;
    weft::topology layout = samples::wired(devices);
    layout.name += " " + std::to_string(round);
    for (int a = 0; a < devices; ++a) {
      for (int b = 0; b < devices; ++b) {
        if (a == b || random() % 3 != 0) continue;
        layout =
            with_fault(std::move(layout),
                       random() % 2 == 0 ? topology_fault::kind::drops_data : topology_fault::kind::corrupts, a, b);
      }
    }
    expect_right_or_refused(layout, round % 2 == 0 ? weft::clock_kind::wall : weft::clock_kind::virtual_time);
  }
}

// so that the tests above can fail: the simulated link does lose what these operations send over it
TEST(peer_arrival, is_missed_by_the_operations_themselves_where_nothing_is_verified) {
  const auto layout = with_fault(samples::wired(3), topology_fault::kind::drops_data, 0, 1);
  for (const named_operation& one : operations()) {
    std::string why;
    const outcome got = run(one, layout, 0, 1, weft::clock_kind::virtual_time, weft::peer_verification::never, why);
    EXPECT_EQ(got == outcome::wrong, one.crosses) << one.name << ": " << why;
  }
}

TEST(peer_arrival, is_right_for_every_operation_that_no_fault_concerns) {
  for (const named_operation& one : operations()) {
    std::string why;
    EXPECT_EQ(run(one, samples::wired(3), 0, 1, weft::clock_kind::wall, weft::peer_verification::first_use, why),
              outcome::right)
        << one.name << ": " << why;
  }
}

}  // namespace peer_arrival_test
