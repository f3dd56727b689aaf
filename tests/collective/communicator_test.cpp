// SPDX-License-Identifier: Apache-2.0
#include "weft/collective/communicator.hpp"

#include "collective/collective_samples.hpp"
#include "support/samples.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/mapping.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/physical_block.hpp"
#include "weft/memory/pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <numeric>

namespace communicator_test {

using namespace samples;
using collectives::exchange_case;
using weft::collective;
using weft::collective_algorithm;
using weft::collective_options;
using weft::communicator;
using weft::device_span;
using weft::errc;
using weft::machine;
using weft::rank;
using weft::reduce_op;
using weft::reduction_op;
using weft::reduction_order;

constexpr collective_algorithm algorithms[] = {collective_algorithm::automatic,
                                               collective_algorithm::naive,
                                               collective_algorithm::tree,
                                               collective_algorithm::ring,
                                               collective_algorithm::halving_doubling,
                                               collective_algorithm::direct};

machine host_machine(int devices, weft::clock_kind clock) {
  weft::machine_options options;
  options.devices = devices;
  options.clock = clock;
  return machine{options};
}

/// Counts of each kind for a collective over `n` ranks.
std::vector<std::vector<std::int64_t>> counts_of(collective what, int n) {
  const auto ranks = static_cast<std::size_t>(n);
  std::vector<std::vector<std::int64_t>> made;
  if (what == collective::all_reduce || what == collective::reduce || what == collective::broadcast) {
    for (const std::int64_t count : {0, 1, 7, 1000, 64 * n + n / 2}) made.push_back({count});
    return made;
  }
  if (what == collective::all_to_all) {
    for (const std::int64_t each : {0, 1, 33}) made.emplace_back(ranks * ranks, each);
    std::vector<std::int64_t> uneven(ranks * ranks);
    for (std::size_t i = 0; i < uneven.size(); ++i) uneven[i] = static_cast<std::int64_t>(i * 5 % 7);
    made.push_back(uneven);
    return made;
  }
  for (const std::int64_t each : {0, 1, 250}) made.emplace_back(ranks, each);
  std::vector<std::int64_t> uneven(ranks);
  for (std::size_t r = 0; r < ranks; ++r) uneven[r] = static_cast<std::int64_t>(r * 13 % 5);
  made.push_back(uneven);
  return made;
}

void every_case(weft::clock_kind clock, const std::vector<int>& sizes, bool peer_access) {
  const machine m = host_machine(8, clock);
  for (const int n : sizes) {
    const auto devices = m.devices();
    weft::communicator_options with;
    with.peer_access = peer_access;
    communicator all{std::span{devices}.first(static_cast<std::size_t>(n)), with};
    for (int w = 0; w < weft::collective_count; ++w) {
      const auto what = static_cast<collective>(w);
      for (const collective_algorithm algorithm : algorithms) {
        if (algorithm != collective_algorithm::automatic && !weft::offers(what, algorithm).offered) continue;
        if (algorithm == collective_algorithm::direct && !peer_access && n > 1) continue;
        for (const auto& counts : counts_of(what, n)) {
          for (const bool in_place : {false, true}) {
            if (in_place && what == collective::all_to_all) continue;
            exchange_case one{what, algorithm, n, (n - 1) / 2, counts, in_place};
            ASSERT_TRUE(one.run(all)) << one.text();
          }
        }
      }
    }
  }
}

TEST(communicator, does_every_collective_by_every_algorithm_in_streams) {
  every_case(weft::clock_kind::virtual_time, {1, 2, 3, 4, 5, 6, 8}, true);
}

TEST(communicator, does_every_collective_on_the_calling_thread) {
  every_case(weft::clock_kind::wall, {1, 2, 3, 4, 5, 6, 8}, true);
}

TEST(communicator, does_every_collective_through_the_host_where_nobody_has_peer_access) {
  every_case(weft::clock_kind::wall, {2, 3, 5}, false);
}

// ---- types and operations -------------------------------------------------------------------------------------------

/// Combines in the order of ranks, as it is documented: integers modulo 2^bits, half and bfloat16 in float.
template <class T>
T combined(reduction_op::kind op, const std::vector<T>& values) {
  using wide = std::conditional_t<std::is_integral_v<T>,
                                  std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>, double>;
  auto sum = static_cast<wide>(static_cast<wide>(0));
  wide product = 1, least = 0, most = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    wide v{};
    if constexpr (std::is_integral_v<T>) {
      v = static_cast<wide>(values[i]);
    } else {
      v = static_cast<wide>(static_cast<float>(values[i]));
    }
    sum += v;
    product *= v;
    least = i == 0 ? v : std::min(least, v);
    most = i == 0 ? v : std::max(most, v);
  }
  const auto rounded = [](wide v) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(v);
    } else {
      return static_cast<T>(static_cast<float>(v));
    }
  };
  switch (op) {
    case reduction_op::kind::product:
      return rounded(product);
    case reduction_op::kind::min:
      return rounded(least);
    case reduction_op::kind::max:
      return rounded(most);
    case reduction_op::kind::average:
      return rounded(sum / static_cast<wide>(values.size()));
    default:
      return rounded(sum);
  }
}

template <class T>
class communicator_of_type : public testing::Test {};
using every_type = testing::Types<std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t,
                                  std::uint32_t, std::uint64_t, weft::half, weft::bfloat16, float, double>;
TYPED_TEST_SUITE(communicator_of_type, every_type);

TYPED_TEST(communicator_of_type, is_combined_by_every_operation_of_the_library) {
  using T = TypeParam;
  constexpr std::size_t count = 53;
  for (const auto clock : {weft::clock_kind::wall, weft::clock_kind::virtual_time}) {
    const machine m = host_machine(4, clock);
    for (const int n : {1, 2, 4}) {
      const auto devices = m.devices();
      communicator all{std::span{devices}.first(static_cast<std::size_t>(n))};
      for (const reduction_op& op :
           {reduction_op{reduce_op::sum}, reduction_op{reduce_op::product}, reduction_op{reduce_op::min},
            reduction_op{reduce_op::max}, reduction_op::average()}) {
        for (const collective_algorithm algorithm : algorithms) {
          if (!weft::offers(collective::all_reduce, algorithm).offered && algorithm != collective_algorithm::automatic)
            continue;
          std::vector<collectives::guarded<T>> memory;
          std::vector<device_span<T>> spans;
          std::vector<T> expected(count);
          memory.reserve(4);
          std::vector<std::vector<T>> of_place(count);
          for (int r = 0; r < n; ++r) {
            std::vector<T> values(count);
            // products of four of these are exact in half and bfloat16; averages of them too
            for (std::size_t i = 0; i < count; ++i) {
              values[i] = static_cast<T>(static_cast<float>(op.what() == reduction_op::kind::average
                                                                ? 4 * ((i + static_cast<std::size_t>(r) * 3) % 8)
                                                                : (i + static_cast<std::size_t>(r) * 3) % 5));
              of_place[i].push_back(values[i]);
            }
            memory.emplace_back(m[r], static_cast<std::int64_t>(count)).fill(values);
            spans.push_back(memory.back().span());
          }
          for (std::size_t i = 0; i < count; ++i) expected[i] = combined<T>(op.what(), of_place[i]);
          collective_options with;
          with.algorithm = algorithm;
          all.all_reduce(spans, op, with).wait();
          for (const auto& one : memory) {
            ASSERT_TRUE(collectives::same(one.read(), expected))
                << op.name() << " by " << to_string(algorithm) << " over " << n;
          }
        }
      }
    }
  }
}

WEFT_KERNEL(collective_bits, (WEFT_INOUT(uint32_t) into, WEFT_IN(uint32_t) more), { into[i] = into[i] ^ more[i]; });
/// Associative and not commutative: a map x -> a x + b in 16 bits each, one after the other.
WEFT_KERNEL(collective_chain, (WEFT_INOUT(uint32_t) into, WEFT_IN(uint32_t) more), {
  const uint32_t a = into[i] >> 16;
  const uint32_t b = into[i] & 0xffffu;
  const uint32_t c = more[i] >> 16;
  const uint32_t d = more[i] & 0xffffu;
  into[i] = ((a * c) & 0xffffu) << 16 | ((b * c + d) & 0xffffu);
});

std::uint32_t chained(std::uint32_t into, std::uint32_t more) {
  const std::uint32_t c = more >> 16;
  return (((into >> 16) * c) & 0xffffU) << 16 | (((into & 0xffffU) * c + (more & 0xffffU)) & 0xffffU);
}

struct words {
  std::vector<weft::buffer<std::uint32_t>> memory;
  std::vector<std::vector<std::uint32_t>> given;

  words(const communicator& all, std::size_t count) {
    for (int r = 0; r < all.size(); ++r) {
      std::vector<std::uint32_t> values(count);
      for (std::size_t i = 0; i < count; ++i)
        values[i] = static_cast<std::uint32_t>((i + 1) * 2654435761U + static_cast<unsigned>(r) * 40503U) | 0x10000U;
      memory.emplace_back(all.on(rank{r}), count);
      weft::copy(memory.back(), values);
      given.push_back(std::move(values));
    }
  }
  [[nodiscard]] std::vector<std::uint32_t> read(std::size_t r) const {
    std::vector<std::uint32_t> values(memory[r].size());
    weft::copy(values, memory[r]);
    return values;
  }
};

TEST(communicator, combines_by_a_kernel_of_the_program) {
  for (const auto clock : {weft::clock_kind::wall, weft::clock_kind::virtual_time}) {
    const machine m = host_machine(5, clock);
    communicator all{m};
    for (const collective_algorithm algorithm : {collective_algorithm::automatic, collective_algorithm::naive,
                                                 collective_algorithm::tree, collective_algorithm::ring}) {
      const words w{all, 131};
      collective_options with;
      with.algorithm = algorithm;
      const auto run = all.all_reduce(w.memory, reduction_op::by<collective_bits>(), with);
      run.wait();
      EXPECT_NE(run.algorithm(), collective_algorithm::direct);
      std::vector<std::uint32_t> expected(131);
      for (const auto& one : w.given) {
        for (std::size_t i = 0; i < one.size(); ++i) expected[i] ^= one[i];
      }
      for (std::size_t r = 0; r < 5; ++r) ASSERT_TRUE(collectives::same(w.read(r), expected)) << to_string(algorithm);
    }
  }
}

WEFT_KERNEL(collective_sneak, (WEFT_INOUT(float) into, WEFT_IN(float) more), { into[i + 5] = into[i] + more[i]; });
WEFT_KERNEL(collective_refusal, (WEFT_INOUT(uint32_t) into, WEFT_IN(uint32_t) more), {
  if (into[i] == more[i]) throw std::runtime_error{"spilt milk"};
  if (i == 3) throw 42;
});

TEST(communicator, reports_in_check_mode_an_operation_that_leaves_its_elements) {
  weft::machine_options options;
  options.devices = 2;
  options.check_access = true;
  const machine m{options};
  communicator all{m};
  std::vector<weft::buffer<float>> memory;
  std::vector<weft::device_span<float>> first;
  for (int r = 0; r < 2; ++r) {
    first.push_back(memory.emplace_back(m[r], 200).span().subspan(0, 100));
    weft::fill(memory.back(), 1.0F);
  }
  const auto cause = error_of([&] { all.all_reduce(first, reduction_op::by<collective_sneak>()).wait(); });
  EXPECT_EQ(cause.code, errc::illegal_access) << cause.what;
  EXPECT_NE(cause.what.find("collective_sneak: item 0 accesses element 5"), std::string::npos) << cause.what;
  std::vector<float> behind(100);
  for (const auto& one : memory) {
    weft::copy(behind, one.span().subspan(100, 100));
    EXPECT_EQ(behind, std::vector<float>(100, 1.0F));
  }
}

TEST(communicator, fails_where_all_its_devices_are_lost_while_it_submits) {
  weft::machine_options options;
  options.devices = 2;
  options.check_access = true;
  options.check_order = true;  // nothing runs outside of the devices' streams
  const machine m{options};
  communicator all{m};
  std::vector<weft::buffer<float>> memory;
  for (int r = 0; r < 2; ++r) memory.emplace_back(m[r], 100);
  collective_options with;
  with.algorithm = collective_algorithm::halving_doubling;
  const auto run = all.all_reduce(memory, reduction_op::by<collective_sneak>(), with);
  for (const auto& cause : {error_of([&] { run.wait(); }), error_of([&] { run.done(rank{0}).wait(); })})
    EXPECT_NE(cause.what.find("collective_sneak: item 0 accesses element 5"), std::string::npos) << cause.what;
  EXPECT_TRUE(m[0].is_lost() && m[1].is_lost());
}

TEST(communicator, names_the_operation_that_throws) {
  for (const auto clock : {weft::clock_kind::wall, weft::clock_kind::virtual_time}) {
    const machine m = host_machine(2, clock);
    communicator all{m};
    const words w{all, 131};
    const auto cause = error_of([&] { all.all_reduce(w.memory, reduction_op::by<collective_refusal>()).wait(); });
    EXPECT_EQ(cause.code, errc::kernel_failed) << cause.what;
    EXPECT_NE(cause.what.find("collective_refusal"), std::string::npos) << cause.what;
    weft::copy(w.memory[0], w.given[1]);
    weft::copy(w.memory[1], w.given[1]);
    const auto worded = error_of([&] { all.all_reduce(w.memory, reduction_op::by<collective_refusal>()).wait(); });
    EXPECT_EQ(worded.code, errc::kernel_failed) << worded.what;
    EXPECT_NE(worded.what.find("spilt milk"), std::string::npos) << worded.what;
    all.all_reduce(w.memory, reduction_op::by<collective_bits>()).wait();
    EXPECT_EQ(w.read(0), w.read(1)) << "it goes on";
  }
}

TEST(communicator, combines_in_the_order_of_ranks_when_asked_to) {
  const machine m = host_machine(5, weft::clock_kind::wall);
  communicator all{m};
  const words w{all, 77};
  collective_options with;
  with.order = reduction_order::rank;
  all.all_reduce(w.memory, reduction_op::by<collective_chain>(), with).wait();
  std::vector<std::uint32_t> expected = w.given.front();
  for (std::size_t r = 1; r < 5; ++r) {
    for (std::size_t i = 0; i < 77; ++i) expected[i] = chained(expected[i], w.given[r][i]);
  }
  for (std::size_t r = 0; r < 5; ++r) ASSERT_TRUE(collectives::same(w.read(r), expected));
}

TEST(communicator, refuses_a_kernel_of_another_type) {
  const machine m = host_machine(2, weft::clock_kind::wall);
  communicator all{m};
  std::vector<weft::buffer<float>> floats;
  std::vector<weft::buffer<weft::half>> halves;
  for (int r = 0; r < 2; ++r) {
    floats.emplace_back(m[r], 8);
    halves.emplace_back(m[r], 8);
  }
  EXPECT_EQ(error_of([&] { all.all_reduce(floats, reduction_op::by<collective_bits>()); }).code, errc::incompatible);
  EXPECT_EQ(error_of([&] { all.all_reduce(halves, reduction_op::by<collective_bits>()); }).code, errc::unsupported);
  collective_options with;
  with.algorithm = collective_algorithm::direct;
  const words w{all, 8};
  EXPECT_EQ(error_of([&] { all.all_reduce(w.memory, reduction_op::by<collective_bits>(), with); }).code,
            errc::unsupported);
  auto moved_from = reduction_op::by<collective_bits>();
  const reduction_op op = std::move(moved_from);
  EXPECT_EQ(op.what(), reduction_op::kind::user);
  // NOLINTNEXTLINE(bugprone-use-after-move): that is what it is about
  EXPECT_EQ(error_of([&] { all.all_reduce(w.memory, moved_from); }).code, errc::invalid_argument);
}

/// Floats whose sum depends on the order.
std::vector<float> rough(int r, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = pattern(2, i * 31 + static_cast<std::size_t>(r));
    values[i] = (static_cast<float>(bits[0]) - 127.3F) * std::exp2(static_cast<float>(bits[1] % 24) - 12.0F);
  }
  return values;
}

TEST(communicator, a_sum_in_the_order_of_ranks_has_the_same_bits_for_every_algorithm_and_size) {
  constexpr std::size_t whole = 20'000;
  for (const int n : {2, 3, 5, 8}) {
    std::vector<float> expected = rough(0, whole);
    for (int r = 1; r < n; ++r) {
      const auto more = rough(r, whole);
      for (std::size_t i = 0; i < whole; ++i) expected[i] += more[i];
    }
    for (const auto clock : {weft::clock_kind::wall, weft::clock_kind::virtual_time}) {
      const machine m = host_machine(n, clock);
      communicator all{m};
      for (const collective_algorithm algorithm :
           {collective_algorithm::automatic, collective_algorithm::naive, collective_algorithm::direct}) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{515}, whole}) {
          for (const bool in_place : {true, false}) {
            std::vector<weft::buffer<float>> in, out;
            for (int r = 0; r < n; ++r) {
              in.emplace_back(all.on(rank{r}), count);
              out.emplace_back(all.on(rank{r}), count);
              auto values = rough(r, whole);
              values.resize(count);
              weft::copy(in.back(), values);
            }
            collective_options with;
            with.algorithm = algorithm;
            with.order = reduction_order::rank;
            all.all_reduce(in, in_place ? in : out, reduce_op::sum, with).wait();
            for (int r = 0; r < n; ++r) {
              std::vector<float> got(count);
              weft::copy(got, (in_place ? in : out)[static_cast<std::size_t>(r)]);
              for (std::size_t i = 0; i < count; ++i) {
                ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(expected[i]))
                    << "first bad offset " << i << ", " << to_string(algorithm) << " over " << n << ", count " << count;
              }
            }
          }
        }
      }
    }
  }
}

TEST(communicator, refuses_an_algorithm_that_does_not_keep_the_order_of_ranks) {
  const machine m = host_machine(4, weft::clock_kind::wall);
  communicator all{m};
  const words w{all, 16};
  collective_options with;
  with.order = reduction_order::rank;
  with.algorithm = collective_algorithm::ring;
  EXPECT_EQ(error_of([&] { all.all_reduce(w.memory, reduce_op::sum, with); }).code, errc::unsupported);
}

// ---- order in streams -----------------------------------------------------------------------------------------------

TEST(communicator, begins_after_what_the_callers_streams_hold_and_ends_before_what_comes_next) {
  for (const collective_algorithm algorithm : {collective_algorithm::direct, collective_algorithm::ring,
                                               collective_algorithm::tree, collective_algorithm::naive}) {
    for (const std::size_t count : {std::size_t{5}, std::size_t{300'000}}) {
      const machine m = host_machine(4, weft::clock_kind::wall);
      communicator all{m};
      std::vector<weft::stream> streams;
      std::vector<weft::buffer<int>> memory;
      std::vector<std::vector<int>> before, after;
      for (int r = 0; r < 4; ++r) {
        streams.emplace_back(m[r]);
        memory.emplace_back(m[r], count);
        before.emplace_back(count);
        after.emplace_back(count);
        for (std::size_t i = 0; i < count; ++i)
          before.back()[i] = collectives::sample<int>(r, static_cast<std::int64_t>(i));
      }
      gate held;
      std::vector<weft::event> opened;
      // only one rank's data comes late: all must wait for it
      held.hold(streams[2]);
      for (std::size_t r = 0; r < 4; ++r) weft::copy(streams[r], memory[r], before[r]);
      collective_options with;
      with.streams = streams;
      with.algorithm = algorithm;
      const auto run = all.all_reduce(memory, reduce_op::sum, with);
      for (std::size_t r = 0; r < 4; ++r) weft::copy(streams[r], after[r], memory[r]);
      EXPECT_FALSE(run.ready());
      held.open();
      for (const auto& s : streams) s.synchronize();
      EXPECT_TRUE(run.ready());
      std::vector<int> expected(count);
      for (const auto& one : before) {
        for (std::size_t i = 0; i < count; ++i) expected[i] += one[i];
      }
      for (std::size_t r = 0; r < 4; ++r)
        ASSERT_TRUE(collectives::same(after[r], expected)) << to_string(algorithm) << ", rank " << r;
    }
  }
}

TEST(communicator, of_one_rank_has_its_result_when_its_stream_has_got_there) {
  const machine m = host_machine(1, weft::clock_kind::wall);
  communicator all{m};
  std::vector<weft::buffer<int>> memory;
  memory.emplace_back(m[0], 10U);
  const weft::stream order{m[0]};
  collective_options with;
  with.streams = {&order, 1};
  gate held;
  held.hold(order);
  weft::fill(order, memory[0], 7);
  const auto call = all.all_reduce(memory, reduce_op::sum, with);
  EXPECT_FALSE(call.ready());
  EXPECT_FALSE(call.done(rank{0}).ready());
  EXPECT_EQ(call.algorithm(), all.all_reduce(memory, reduce_op::sum).algorithm()) << "as beside an idle stream";
  held.open();
  call.wait();
  EXPECT_TRUE(order.idle());
  EXPECT_TRUE(all.all_reduce(memory, reduce_op::sum, with).ready()) << "nothing to wait for";
}

TEST(communicator, a_call_follows_the_last_one_that_used_scratch_whatever_came_between) {
  const machine m = host_machine(3, weft::clock_kind::wall);
  communicator all{m};
  std::vector<weft::buffer<int>> a, b, sums;
  for (int r = 0; r < 3; ++r) {
    for (auto* list : {&a, &b, &sums}) list->emplace_back(m[r], 1000U);
    weft::copy(a.back(), std::vector<int>(1000, r + 1));
    weft::copy(b.back(), std::vector<int>(1000, 10 * (r + 1)));
  }
  weft::buffer<int> of_b{m[0], 1000}, from{m[1], 1000}, to{m[2], 1000};
  collective_options with;
  with.algorithm = collective_algorithm::naive;
  with.root = rank{0};
  gate held;
  held.hold(m[0].default_stream());
  const auto first = all.reduce(a, sums[0], reduce_op::sum, with);
  const auto between = all.send(rank{1}, from, rank{2}, to);
  const auto second = all.reduce(b, of_b, reduce_op::sum, with);
  between.wait();
  held.open();
  first.wait();
  second.wait();
  std::vector<int> got(1000);
  weft::copy(got, sums[0]);
  EXPECT_EQ(got, std::vector<int>(1000, 6));
  weft::copy(got, of_b);
  EXPECT_EQ(got, std::vector<int>(1000, 60));
}

TEST(communicator, calls_in_a_row_follow_each_other_and_share_scratch) {
  for (const collective_algorithm algorithm : {collective_algorithm::ring, collective_algorithm::naive,
                                               collective_algorithm::tree, collective_algorithm::halving_doubling}) {
    const machine m = host_machine(4, weft::clock_kind::wall);
    communicator all{m};
    constexpr std::size_t count = 40'001;
    std::vector<weft::buffer<std::int64_t>> a, b;
    for (int r = 0; r < 4; ++r) {
      std::vector<std::int64_t> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<std::int64_t>(i % 97) + r;
      a.emplace_back(m[r], count);
      b.emplace_back(m[r], count);
      weft::copy(a.back(), values);
      for (auto& v : values) v += 1000;
      weft::copy(b.back(), values);
    }
    collective_options with;
    with.algorithm = algorithm;
    gate held;
    held.hold(m[1].default_stream());
    std::vector<weft::collective_run> runs;
    std::vector<weft::stream> others;
    for (int r = 0; r < 4; ++r) others.emplace_back(m[r]);
    for (int i = 0; i < 3; ++i) {
      with.streams = {};
      runs.push_back(all.all_reduce(a, reduce_op::sum, with));
      // in other streams: nothing but the scratch memory orders the two
      with.streams = others;
      runs.push_back(all.all_reduce(b, reduce_op::sum, with));
    }
    held.open();
    for (const auto& run : runs) run.wait();
    std::vector<std::int64_t> got(count), expected_a(count), expected_b(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto v = static_cast<std::int64_t>(i % 97);
      expected_a[i] = (4 * v + 6) * 16;
      expected_b[i] = (4 * (v + 1000) + 6) * 16;
    }
    for (std::size_t r = 0; r < 4; ++r) {
      weft::copy(got, a[r]);
      ASSERT_TRUE(collectives::same(got, expected_a)) << to_string(algorithm);
      weft::copy(got, b[r]);
      ASSERT_TRUE(collectives::same(got, expected_b)) << to_string(algorithm);
    }
  }
}

TEST(communicator, holds_no_more_scratch_than_its_documentation_says) {
  const machine m = host_machine(4, weft::clock_kind::virtual_time);
  constexpr std::size_t count = std::size_t{24} << 20;  // bytes, more than one piece of 16 MiB for each rank's block
  std::vector<weft::buffer<std::int8_t>> memory;
  for (int r = 0; r < 4; ++r) memory.emplace_back(m[r], count);
  for (const auto& [algorithm, pieces] : {std::pair{collective_algorithm::ring, 2},
                                          {collective_algorithm::tree, 4},
                                          {collective_algorithm::naive, 6},
                                          {collective_algorithm::direct, 0},
                                          {collective_algorithm::halving_doubling, 2}}) {
    communicator all{m};
    collective_options with;
    with.algorithm = algorithm;
    all.all_reduce(memory, reduce_op::max, with).wait();
    EXPECT_LE(all.footprint().value(), 4U * static_cast<unsigned>(pieces) * weft::collective_piece_bytes)
        << to_string(algorithm);
  }
}

TEST(communicator, barrier_holds_every_stream_until_all_have_come) {
  const machine m = host_machine(3, weft::clock_kind::wall);
  communicator all{m};
  gate held;
  held.hold(m[2].default_stream());
  const auto run = all.barrier();
  std::atomic<int> passed{0};
  std::vector<weft::event> later;
  for (int r = 0; r < 2; ++r) later.push_back(m[r].default_stream().call([&] { ++passed; }));
  EXPECT_FALSE(run.ready());
  EXPECT_EQ(passed, 0);
  held.open();
  run.wait();
  for (const auto& e : later) e.wait();
  EXPECT_EQ(passed, 2);
  EXPECT_TRUE(all.barrier().ready());  // nothing is in any stream
}

TEST(communicator, sends_from_rank_to_rank_in_any_order_of_calls) {
  const machine m = host_machine(3, weft::clock_kind::wall);
  communicator all{m};
  std::vector<weft::buffer<int>> out, in;
  constexpr std::size_t count = 1000;
  for (int r = 0; r < 3; ++r) {
    std::vector<int> values(count);
    std::iota(values.begin(), values.end(), r * 10'000);
    out.emplace_back(m[r], count);
    in.emplace_back(m[r], count);
    weft::copy(out.back(), values);
  }
  std::vector<weft::collective_run> runs;
  for (int r = 0; r < 3; ++r)
    runs.push_back(all.send(rank{r}, out[static_cast<std::size_t>(r)], rank{(r + 1) % 3},
                            in[static_cast<std::size_t>((r + 1) % 3)]));
  for (const auto& run : runs) run.wait();
  for (int r = 0; r < 3; ++r) {
    std::vector<int> got(count), expected(count);
    std::iota(expected.begin(), expected.end(), ((r + 2) % 3) * 10'000);
    weft::copy(got, in[static_cast<std::size_t>(r)]);
    EXPECT_TRUE(collectives::same(got, expected)) << "rank " << r;
  }
  EXPECT_EQ(error_of([&] { all.send(rank{0}, out[0], rank{1}, in[1].subspan(0, 3)); }).code, errc::incompatible);
  EXPECT_EQ(error_of([&] { all.send(rank{0}, out[1], rank{1}, in[1]); }).code, errc::wrong_device);
  EXPECT_EQ(error_of([&] { all.send(rank{3}, out[0], rank{1}, in[1]); }).code, errc::invalid_argument);
}

TEST(communicator, sends_memory_of_the_host_from_and_to_any_rank) {
  const machine m = host_machine(3, weft::clock_kind::wall);
  communicator all{m};
  const auto goes_round = [&](const auto& from, const auto& to) {
    const weft::buffer<int> between{m[2], 1000};
    std::iota(from.host().begin(), from.host().end(), 7);
    all.send(rank{1}, from, rank{2}, between);
    all.send(rank{2}, between, rank{1}, to).wait();
    return std::ranges::equal(from.host(), to.host());
  };
  EXPECT_TRUE(goes_round(weft::pinned_buffer<int>{m[0], 1000}, weft::pinned_buffer<int>{m[0], 1000}));
  EXPECT_TRUE(goes_round(weft::unified_buffer<int>{m[0], 1000}, weft::unified_buffer<int>{m[0], 1000}));
}

// ---- groups ---------------------------------------------------------------------------------------------------------

TEST(communicator, splits_by_colour_and_keeps_the_order_of_ranks) {
  const machine m = host_machine(6, weft::clock_kind::wall);
  const auto devices = m.devices();
  communicator all{devices};
  const int colours[] = {1, 0, 1, -1, 0, 1};
  auto parts = all.split(colours);
  ASSERT_EQ(parts.size(), 2U);
  ASSERT_EQ(parts[0].size(), 2);
  ASSERT_EQ(parts[1].size(), 3);
  EXPECT_EQ(parts[0].on(rank{1}).id(), weft::device_id{4});
  EXPECT_EQ(parts[1].on(rank{2}).id(), weft::device_id{5});
  exchange_case one{collective::all_reduce, collective_algorithm::automatic, 3, 0, {100}, false};
  EXPECT_TRUE(one.run(parts[1]));
  const rank picked[] = {rank{5}, rank{0}};
  communicator two = all.sub(picked);
  EXPECT_EQ(two.on(rank{0}).id(), weft::device_id{5});
  one.ranks = 2;
  EXPECT_TRUE(one.run(two));
  const rank twice[] = {rank{1}, rank{1}};
  EXPECT_EQ(error_of([&] { static_cast<void>(all.sub(twice)); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { static_cast<void>(all.split(std::span{colours}.first(2))); }).code, errc::invalid_argument);
}

TEST(communicator, takes_a_device_as_several_ranks) {
  for (const auto clock : {weft::clock_kind::wall, weft::clock_kind::virtual_time}) {
    const machine m = host_machine(2, clock);
    const std::vector<weft::device> devices{m[0], m[1], m[0], m[1]};
    communicator all{devices};
    for (const collective_algorithm algorithm : algorithms) {
      const exchange_case one{collective::all_reduce, algorithm, 4, 0, {999}, true};
      ASSERT_TRUE(one.run(all)) << one.text();
    }
  }
}

TEST(communicator, goes_up_to_its_largest_size_and_no_further) {
  const machine m = host_machine(2, weft::clock_kind::virtual_time);
  std::vector<weft::device> devices;
  for (int r = 0; r < communicator::max_size; ++r) devices.push_back(m[r % 2]);
  communicator all{devices};
  for (const collective_algorithm algorithm : algorithms) {
    const exchange_case one{collective::all_reduce, algorithm, communicator::max_size, 0, {1025}, true};
    ASSERT_TRUE(one.run(all)) << one.text();
  }
  devices.push_back(m[0]);
  EXPECT_EQ(error_of([&] { communicator more{devices}; }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { communicator none{std::span<const weft::device>{}}; }).code, errc::invalid_argument);
  const machine other = host_machine(1, weft::clock_kind::wall);
  const std::vector<weft::device> mixed{m[0], other[0]};
  EXPECT_EQ(error_of([&] { communicator two{mixed}; }).code, errc::wrong_device);
}

// ---- errors ---------------------------------------------------------------------------------------------------------

struct four {
  machine m = host_machine(4, weft::clock_kind::wall);
  communicator all{m};
  std::vector<weft::buffer<int>> memory;
  four() {
    for (int r = 0; r < 4; ++r) memory.emplace_back(m[r], 64);
  }
  template <class F>
  void expect(errc code, const std::string& part, F&& f) {
    const weft::error cause = error_of(f);
    EXPECT_EQ(cause.code, code) << cause.what;
    EXPECT_NE(cause.what.find(part), std::string::npos) << cause.what;
  }
};

TEST(communicator, says_which_rank_does_not_fit) {
  four f;
  auto spans = [&] {
    std::vector<device_span<int>> list;
    for (const auto& b : f.memory) list.push_back(b.span());
    return list;
  };
  auto wrong = spans();
  wrong[2] = wrong[2].first(63);
  f.expect(errc::incompatible, "rank 2 (gpu2)", [&] { f.all.all_reduce(wrong, reduce_op::sum); });
  f.expect(errc::incompatible, "rank 3 (gpu3)", [&] {
    auto blocks = spans();
    for (auto& b : blocks) b = b.first(16);
    auto whole = spans();
    std::vector<weft::buffer<int>> out;
    for (int r = 0; r < 4; ++r) out.emplace_back(f.m[r], r == 3 ? 65 : 64);
    f.all.all_gather(blocks, out);
  });
  wrong = spans();
  std::swap(wrong[1], wrong[3]);
  f.expect(errc::wrong_device, "rank 1 (gpu1)", [&] { f.all.all_reduce(wrong, reduce_op::sum); });
  wrong = spans();
  wrong.pop_back();
  f.expect(errc::invalid_argument, "3 input", [&] { f.all.all_reduce(wrong, reduce_op::sum); });
  std::vector<std::vector<int>> host(4, std::vector<int>(64));
  f.expect(errc::wrong_device, "host memory", [&] { f.all.all_reduce(host, reduce_op::sum); });
  collective_options with;
  with.root = rank{4};
  f.expect(errc::invalid_argument, "rank 4", [&] { f.all.broadcast(f.memory, with); });
  with.root = rank{0};
  std::vector<weft::stream> streams;
  for (int r = 0; r < 4; ++r) streams.emplace_back(f.m[3 - r]);
  with.streams = streams;
  f.expect(errc::wrong_device, "rank 0 (gpu0)", [&] { f.all.all_reduce(f.memory, reduce_op::sum, with); });
  with.streams = std::span{streams}.first(2);
  f.expect(errc::invalid_argument, "2 streams", [&] { f.all.all_reduce(f.memory, reduce_op::sum, with); });
  const std::int64_t counts[] = {1, 2, 3};
  with.streams = {};
  with.counts = counts;
  f.expect(errc::invalid_argument, "16 counts", [&] { f.all.all_to_all(f.memory, f.memory, with); });
  f.expect(errc::invalid_argument, "from the memory", [&] { f.all.all_gather(f.memory, f.memory, with); });
  std::vector<weft::buffer<int>> odd;
  for (int r = 0; r < 4; ++r) odd.emplace_back(f.m[r], 63);
  f.expect(errc::incompatible, "63 elements", [&] { f.all.all_to_all(odd, odd); });
}

TEST(communicator, refuses_overlap_that_is_not_in_place) {
  four f;
  std::vector<device_span<int>> in, out;
  for (const auto& b : f.memory) {
    in.push_back(b.subspan(0, 32));
    out.push_back(b.subspan(32, 32));
  }
  EXPECT_NO_THROW(f.all.all_reduce(in, out, reduce_op::sum).wait());
  out[1] = f.memory[1].subspan(16, 32);
  f.expect(errc::invalid_argument, "rank 1 (gpu1): its input and output overlap",
           [&] { f.all.all_reduce(in, out, reduce_op::sum); });
  // one device as two ranks: their outputs must be apart, their inputs need not
  const std::vector<weft::device> devices{f.m[0], f.m[0]};
  communicator two{devices};
  std::vector<device_span<int>> same_memory{f.memory[0].subspan(0, 8), f.memory[0].subspan(0, 8)};
  std::vector<device_span<int>> apart{f.memory[0].subspan(8, 8), f.memory[0].subspan(16, 8)};
  EXPECT_NO_THROW(two.all_reduce(same_memory, apart, reduce_op::sum).wait());
  f.expect(errc::invalid_argument, "overlaps memory of rank",
           [&] { two.all_reduce(apart, same_memory, reduce_op::sum); });
  f.expect(errc::invalid_argument, "overlaps memory of rank", [&] { two.all_reduce(same_memory, reduce_op::sum); });
}

TEST(communicator, refuses_memory_that_was_freed) {
  for (const std::size_t count : {std::size_t{16}, std::size_t{1} << 20}) {
    four f;
    std::vector<device_span<int>> spans;
    std::vector<weft::buffer<int>> memory;
    for (int r = 0; r < 4; ++r) {
      memory.emplace_back(f.m[r], count);
      spans.push_back(memory.back().span());
    }
    f.all.all_reduce(spans, reduce_op::sum).wait();
    memory.erase(memory.begin() + 2);
    f.expect(errc::not_found, "rank 2 (gpu2)", [&] { f.all.all_reduce(spans, reduce_op::sum); });
  }
}

TEST(communicator, lets_go_of_the_memory_of_a_call_that_it_refuses) {
  four f;
  weft::mapping shown{weft::physical_block{f.m[0], weft::granularity(f.m).minimum}};
  for (const weft::device& d : f.m.devices()) shown.grant(d.id(), weft::access_right::read_write);
  std::vector<device_span<int>> spans{shown.span<int>(gpu0).subspan(0, 64)};
  for (std::size_t r = 1; r < 4; ++r) spans.push_back(f.memory[r].span());
  f.all.all_reduce(spans, reduce_op::sum).wait();
  f.memory.pop_back();
  f.expect(errc::not_found, "rank 3 (gpu3)", [&] { f.all.all_reduce(spans, reduce_op::sum); });
  const auto known = weft::detail::state_of(f.m)->backend_of(gpu0).find(shown.address());
  ASSERT_TRUE(known);
  EXPECT_EQ(known->pending, 0U) << "or the end of the mapping would wait for it";
}

TEST(communicator, explains_what_it_chose) {
  four f;
  const auto run = f.all.all_reduce(f.memory, reduce_op::sum);
  EXPECT_EQ(run.algorithm(), run.choice().algorithm);
  EXPECT_GE(run.choice().candidates.size(), 2U);
  collective_options with;
  with.algorithm = collective_algorithm::ring;
  EXPECT_EQ(f.all.all_reduce(f.memory, reduce_op::sum, with).algorithm(), collective_algorithm::ring);
  EXPECT_EQ(error_of([&] { static_cast<void>(run.done(rank{4})); }).code, errc::invalid_argument);
  EXPECT_TRUE(run.done(rank{3}).ready());
}

TEST(communicator, goes_on_by_another_way_when_peer_access_is_taken_away) {
  four f;
  EXPECT_EQ(f.all.all_reduce(f.memory, reduce_op::sum).algorithm(), collective_algorithm::direct);
  weft::disable_peer(f.m, gpu1, gpu2);
  const auto run = f.all.all_reduce(f.memory, reduce_op::sum);
  run.wait();
  EXPECT_NE(run.algorithm(), collective_algorithm::direct);
  for (const auto& c : run.choice().candidates) {
    if (c.algorithm != collective_algorithm::direct) continue;
    EXPECT_NE(c.why.find("was disabled"), std::string::npos) << c.why;
  }
  EXPECT_FALSE(f.m[1].is_lost());
}

TEST(communicator, without_peer_access_goes_by_another_way) {
  four f;
  const exchange_case one{collective::all_reduce, collective_algorithm::automatic, 4, 0, {256}, true};
  weft::communicator_options with;
  with.peer_access = false;
  const auto devices = f.m.devices();
  communicator apart{devices, with};
  EXPECT_TRUE(one.run(apart));
  const weft::collective_choice choice = apart.all_reduce(f.memory, reduce_op::sum).choice();
  EXPECT_NE(choice.algorithm, collective_algorithm::direct);
  EXPECT_NE(choice.candidates.front().why.find("but for direct"), std::string::npos) << choice.candidates.front().why;
  with = {};
  collective_options forced;
  forced.algorithm = collective_algorithm::direct;
  f.expect(errc::unsupported, "without peer access", [&] { apart.all_reduce(f.memory, reduce_op::sum, forced); });
}

/// Memory of a pool that can be shared is its device's alone, whatever peer access there is.
TEST(communicator, never_reads_memory_that_a_device_has_no_right_to) {
  for (int owner = 0; owner < 4; ++owner) {
    four f;
    weft::pool_options with;
    with.shareable = true;
    const weft::memory_pool pool{f.m[owner], with};
    std::vector<weft::buffer<int>> memory;
    for (int r = 0; r < 4; ++r) {
      memory.push_back(r == owner ? weft::buffer<int>{pool, 64} : weft::buffer<int>{f.m[r], 64});
      weft::copy(memory.back(), std::vector<int>(64, r + 1));
    }
    const auto run = f.all.all_reduce(memory, reduce_op::sum);
    run.wait();
    EXPECT_NE(run.algorithm(), collective_algorithm::direct) << owner;
    std::vector<int> got(64);
    for (int r = 0; r < 4; ++r) {
      EXPECT_FALSE(f.m[r].is_lost());
      weft::copy(got, memory[static_cast<std::size_t>(r)]);
      EXPECT_EQ(got, std::vector<int>(64, 10)) << owner;
    }
  }
}

TEST(communicator, says_that_it_was_moved_from) {
  const machine m = host_machine(2, weft::clock_kind::virtual_time);
  communicator left{m};
  const communicator moved = std::move(left);
  std::vector<std::vector<int>> memory(2, std::vector<int>(1));
  // NOLINTBEGIN(bugprone-use-after-move): that is the question
  EXPECT_EQ(error_of([&] { left.all_reduce(memory, reduce_op::sum); }).what,
            "an empty communicator: it was moved from");
  EXPECT_EQ(error_of([&] { static_cast<void>(left.size()); }).code, errc::invalid_argument);
  EXPECT_EQ(error_of([&] { left.abort("over"); }).code, errc::invalid_argument);
  // NOLINTEND(bugprone-use-after-move)
  EXPECT_EQ(moved.size(), 2);
}

}  // namespace communicator_test
