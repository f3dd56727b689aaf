// SPDX-License-Identifier: Apache-2.0
#include "collective/rank_collectives.hpp"
#include "weft/exec/launch.hpp"
#include "weft/kernel/define.hpp"

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <latch>
#include <numeric>
#include <thread>

namespace rank_communicator_test {

using namespace ranks;

WEFT_KERNEL(wider, (WEFT_INOUT(int32_t) into, WEFT_IN(int32_t) more), { into[i] = into[i] * 3 + more[i]; });

class memories : public testing::TestWithParam<home> {};

TEST_P(memories, every_collective_gives_right_results_to_processes_in_each_memory) {
  for (const int n : {1, 2, 3, 4, 5, 8}) {
    EXPECT_TRUE(ranks::run(kind::processes, n, [](rank_communicator& c, const group&) {
      return all_shapes(c, GetParam());
    })) << n;
  }
}

TEST_P(memories, every_collective_gives_right_results_to_threads_in_each_memory) {
  for (const int n : {2, 3, 4}) {
    EXPECT_TRUE(ranks::run(kind::threads, n, [](rank_communicator& c, const group&) {
      return all_shapes(c, GetParam());
    })) << n;
    EXPECT_TRUE(ranks::run(kind::threads_of_one_machine, n, [](rank_communicator& c, const group&) {
      return all_shapes(c, GetParam());
    })) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(rank_communicator, memories, testing::Values(home::host, home::device, home::symmetric));

class algorithms : public testing::TestWithParam<collective_algorithm> {};

TEST_P(algorithms, the_requested_algorithm_runs_over_wires_and_is_right) {
  for (const int n : {1, 2, 3, 4, 5}) {
    EXPECT_TRUE(ranks::run(n == 3 ? kind::threads : kind::processes, n, [](rank_communicator& c, const group&) {
      // symmetric memory is read where it is, other memory goes over the wires
      for (const home where : {home::host, home::symmetric})
        if (std::string wrong = all_shapes(c, where, GetParam()); !wrong.empty()) return wrong;
      return c.last_algorithm() == GetParam() ? std::string{} : std::string{"another algorithm was taken"};
    })) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(rank_communicator, algorithms,
                         testing::Values(collective_algorithm::naive, collective_algorithm::tree,
                                         collective_algorithm::ring, collective_algorithm::halving_doubling));

template <class T>
std::string each_operation(rank_communicator& c) {
  for (const auto op : {reduction_op::kind::sum, reduction_op::kind::product, reduction_op::kind::min,
                        reduction_op::kind::max, reduction_op::kind::average}) {
    const reduction_op what =
        op == reduction_op::kind::average ? reduction_op::average() : reduction_op{static_cast<reduce_op>(op)};
    for (const std::size_t count : {std::size_t{5}, std::size_t{700}, std::size_t{70'001}}) {
      for (const home where : {home::host, home::symmetric}) {
        memory<T> m{c, where, count};
        m.set(input<T>(c.self().value(), count, op));
        m.with(0, count, [&](auto memory) { c.all_reduce(memory, what); });
        std::string wrong =
            same(m.get(0, count), reduced<T>(c.size(), count, op),
                 std::string{to_string(weft::data_type_of<T>)} + " " + what.name() + " of " + std::to_string(count));
        if (!wrong.empty()) return wrong;
      }
    }
  }
  return {};
}

TEST(rank_communicator, combines_all_types_with_all_operations) {
  for (const int n : {2, 3}) {
    EXPECT_TRUE(ranks::run(kind::processes, n, [](rank_communicator& c, const group&) {
      std::string wrong;
      const auto next = [&](auto&& f) {
        if (wrong.empty()) wrong = f(c);
      };
      next(each_operation<std::int8_t>);
      next(each_operation<std::int16_t>);
      next(each_operation<std::int32_t>);
      next(each_operation<std::int64_t>);
      next(each_operation<std::uint8_t>);
      next(each_operation<std::uint16_t>);
      next(each_operation<std::uint32_t>);
      next(each_operation<std::uint64_t>);
      next(each_operation<weft::half>);
      next(each_operation<weft::bfloat16>);
      next(each_operation<float>);
      next(each_operation<double>);
      return wrong;
    })) << n;
  }
}

TEST(rank_communicator, combines_by_a_kernel_of_the_user_in_the_order_of_ranks) {
  EXPECT_TRUE(ranks::run(kind::processes, 4, [](rank_communicator& c, const group&) {
    for (const std::size_t count : {std::size_t{7}, std::size_t{1500}, std::size_t{300'001}}) {
      std::vector<std::int32_t> mine(count), expected(count);
      for (std::size_t i = 0; i < count; ++i) {
        mine[i] = number(c.self().value(), i);
        expected[i] = number(0, i);
        for (int r = 1; r < c.size(); ++r) expected[i] = expected[i] * 3 + number(r, i);
      }
      auto there = c.allocate<std::int32_t>(count);
      weft::copy(there.span(), mine);
      c.all_reduce(mine, reduction_op::by<wider>());
      if (auto wrong = same(mine, expected, "host memory"); !wrong.empty()) return wrong;
      c.all_reduce(there, reduction_op::by<wider>());
      std::vector<std::int32_t> got(count);
      weft::copy(got, there.span());
      if (auto wrong = same(got, expected, "symmetric memory"); !wrong.empty()) return wrong;
    }
    std::vector<float> floats(5);
    const weft::error e = samples::error_of([&] { c.all_reduce(floats, reduction_op::by<wider>()); });
    if (e.code != weft::errc::incompatible) return "of another type: " + to_string(e);
    auto moved_from = reduction_op::by<wider>();
    const reduction_op op = std::move(moved_from);
    std::vector<std::int32_t> numbers(5, 1);
    // NOLINTNEXTLINE(bugprone-use-after-move): that is what it is about
    const weft::error empty = samples::error_of([&] { c.all_reduce(numbers, c.self() == rank{1} ? moved_from : op); });
    return empty.code == (c.self() == rank{1} ? weft::errc::invalid_argument : weft::errc::incompatible)
               ? std::string{}
               : "moved from: " + to_string(empty);
  }));
}

WEFT_KERNEL(sneaks, (WEFT_INOUT(float) into, WEFT_IN(float) more), { into[i + 5] = into[i] + more[i]; });
WEFT_KERNEL(refuses, (WEFT_INOUT(float) into, WEFT_IN(float) more), {
  if (into[i] + more[i] > 1) throw std::runtime_error{"spilt milk"};
  if (into[i] + more[i] > 0) throw 42;
});

TEST(rank_communicator, reports_in_check_mode_an_operation_that_leaves_its_elements) {
  const world checked{[](int devices) {
    weft::machine_options options;
    options.devices = devices;
    options.check_access = true;
    return weft::machine{options};
  }};
  // the first enters with its elements; in symmetric memory the others are combined in place
  for (const std::size_t count : {std::size_t{100}, std::size_t{5000}}) {
    const auto part = [count](rank_communicator& c, const group&) -> std::string {
      auto there = c.allocate<float>(2 * count);
      weft::copy(there.span(), std::vector<float>(2 * count, 1.0F));
      const weft::error e =
          samples::error_of([&] { c.all_reduce(there.span().subspan(0, count), reduction_op::by<sneaks>()); });
      if (e.code != weft::errc::illegal_access || e.what.find("sneaks: item ") == std::string::npos)
        return to_string(e);
      std::vector<float> behind(count);
      weft::copy(behind, there.span().subspan(count, count));
      return same(behind, std::vector<float>(count, 1.0F), "behind its elements");
    };
    EXPECT_TRUE(ranks::run(kind::threads, 2, part, {}, checked)) << count;
  }
}

TEST(rank_communicator, tells_every_rank_of_the_operation_that_throws) {
  for (const float value : {0.5F, 1.0F}) {
    // the first alone combines the element that spills
    EXPECT_TRUE(ranks::run(kind::threads, 2, [value](rank_communicator& c, const group&) -> std::string {
      auto mine = c.allocate<float>(5000);
      weft::fill(mine.span(), 0.0F);
      weft::copy(mine.span().subspan(0, 1), std::vector<float>{value});
      const weft::error e = samples::error_of([&] { c.all_reduce(mine, reduction_op::by<refuses>()); });
      const bool is_told = e.code == weft::errc::kernel_failed && e.what.find("refuses") != std::string::npos &&
                           (e.what.find("spilt milk") != std::string::npos) == (value == 1.0F) &&
                           e.what.find("rank 0") != std::string::npos;
      return is_told ? std::string{} : to_string(e);
    })) << value;
  }
}

/// Floats whose sum depends on the order.
float rough(int r, std::size_t i) {
  const auto x = static_cast<float>((i * 2654435761U + static_cast<std::size_t>(r) * 40503U) % 100003U);
  return (x - 50'000.0F) * (r % 2 == 0 ? 1.0F : 1e-4F);
}

TEST(order_rank, gives_the_same_bits_for_every_size_and_memory_and_algorithm_that_keeps_it) {
  for (const int n : {3, 4, 10}) {
    EXPECT_TRUE(ranks::run(kind::processes, n, [](rank_communicator& c, const group&) {
      constexpr std::size_t count = 300'007;
      std::vector<float> mine(count), expected(count);
      for (std::size_t i = 0; i < count; ++i) {
        mine[i] = rough(c.self().value(), i);
        expected[i] = rough(0, i);
        for (int r = 1; r < c.size(); ++r) expected[i] += rough(r, i);
      }
      weft::collective_options o;
      o.order = weft::reduction_order::rank;
      auto there = c.allocate<float>(count);
      weft::copy(there.span(), mine);
      c.all_reduce(there, reduce_op::sum, o);
      std::vector<float> got(count);
      weft::copy(got, there.span());
      if (auto wrong = same(got, expected, "direct"); !wrong.empty()) return wrong;
      got = mine;
      c.all_reduce(got, reduce_op::sum, o);
      if (auto wrong = same(got, expected, "staged"); !wrong.empty()) return wrong;
      for (const std::size_t some : {std::size_t{1}, std::size_t{100}, std::size_t{1999}}) {
        std::vector<float> part(mine.begin(), mine.begin() + static_cast<std::ptrdiff_t>(some));
        c.all_reduce(part, reduce_op::sum, o);
        std::vector<float> wanted(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(some));
        if (auto wrong = same(part, wanted, "small"); !wrong.empty()) return wrong;
      }
      o.algorithm = collective_algorithm::naive;
      got = mine;
      c.all_reduce(got, reduce_op::sum, o);
      if (auto wrong = same(got, expected, "naive"); !wrong.empty()) return wrong;
      o.algorithm = collective_algorithm::ring;
      const weft::error e = samples::error_of([&] { c.all_reduce(got, reduce_op::sum, o); });
      if (e.code != weft::errc::unsupported) return "ring: " + to_string(e);
      return std::string{};
    })) << n;
  }
}

/// 3 * (3 * x0 + x1) + x2 and so on, as `wider` has it.
std::vector<std::int32_t> widened(int n, std::size_t count) {
  std::vector<std::int32_t> made(count);
  for (std::size_t i = 0; i < count; ++i) {
    made[i] = number(0, i);
    for (int r = 1; r < n; ++r) made[i] = made[i] * 3 + number(r, i);
  }
  return made;
}

TEST_P(memories, memory_of_every_kind_is_reduced_in_place_for_more_ranks_than_one_pass_takes) {
  EXPECT_TRUE(ranks::run(kind::threads, 11, [](rank_communicator& c, const group&) {
    return reduces_in_place(c, GetParam(), reduce_op::sum, [&](std::size_t count) {
      return reduced<std::int32_t>(c.size(), count, reduction_op::kind::sum);
    });
  }));
}

TEST_P(memories, memory_of_every_kind_is_reduced_in_place_by_a_kernel_of_the_user) {
  EXPECT_TRUE(ranks::run(kind::threads, 3, [](rank_communicator& c, const group&) {
    return reduces_in_place(c, GetParam(), reduction_op::by<wider>(),
                            [&](std::size_t count) { return widened(c.size(), count); });
  }));
}

TEST_P(memories, memory_of_every_kind_is_exchanged) {
  EXPECT_TRUE(ranks::run(kind::processes, 3,
                         [](rank_communicator& c, const group&) { return exchanges_memory(c, GetParam()); }));
}

TEST(rank_communicator, takes_memory_of_another_kind_from_each_rank) {
  EXPECT_TRUE(ranks::run(kind::processes, 3, [](rank_communicator& c, const group&) { return mixes_memories(c); }));
}

TEST(rank_communicator, says_that_it_was_moved_from) {
  EXPECT_TRUE(ranks::run(kind::threads, 2, [](rank_communicator& c, const group&) {
    const rank_communicator moved = std::move(c);
    std::vector<float> one(1);
    // NOLINTBEGIN(bugprone-use-after-move): that is the question
    const weft::error call = samples::error_of([&] { c.all_reduce(one, reduce_op::sum); });
    const weft::error question = samples::error_of([&] { static_cast<void>(c.size()); });
    // NOLINTEND(bugprone-use-after-move)
    if (call.what != "an empty rank communicator: it was moved from") return to_string(call);
    if (question.code != weft::errc::invalid_argument) return to_string(question);
    return moved.size() == 2 ? std::string{} : std::string{"not moved"};
  }));
}

TEST(rank_communicator, sends_and_receives_between_ranks_without_an_order_that_deadlocks) {
  EXPECT_TRUE(ranks::run(kind::processes, 4, [](rank_communicator& c, const group&) { return exchanges(c); }));
}

TEST(rank_communicator, names_both_calls_that_do_not_match_on_every_rank_and_goes_on) {
  EXPECT_TRUE(ranks::run(kind::processes, 4, [](rank_communicator& c, const group&) { return names_mismatches(c); }));
}

TEST(rank_communicator, tells_all_of_a_call_that_one_rank_refuses) {
  EXPECT_TRUE(ranks::run(kind::processes, 3, [](rank_communicator& c, const group&) { return tells_of_refusals(c); }));
}

TEST(rank_communicator, tells_all_of_streams_that_one_rank_may_not_use) {
  EXPECT_TRUE(ranks::run(kind::processes, 3, [](rank_communicator& c, const group&) {
    const std::array<weft::stream, 2> two{weft::stream{c.on()}, weft::stream{c.on()}};
    const bool is_wrong = c.self() == rank{1};
    std::vector<float> x(1000, 1.0F);
    weft::collective_options o;
    if (is_wrong) o.streams = two;
    const weft::error e = samples::error_of([&] { c.all_reduce(x, reduce_op::sum, o); });
    if (e.code != (is_wrong ? weft::errc::invalid_argument : weft::errc::incompatible) ||
        e.what.find("takes one stream") == std::string::npos)
      return to_string(e);
    c.all_reduce(x, reduce_op::sum);
    return same(x, std::vector<float>(1000, 3.0F), "afterwards");
  }));
}

TEST_P(memories, memory_of_every_kind_is_used_in_the_order_of_a_stream) {
  EXPECT_TRUE(ranks::run(kind::processes, 3,
                         [](rank_communicator& c, const group&) { return runs_in_a_stream(c, GetParam()); }));
  if (GetParam() == home::host) return;  // which is the program's to keep
  EXPECT_TRUE(ranks::run(kind::processes, 3, [](rank_communicator& c, const group&) {
    return keeps_memory_of_streamed_calls(c, GetParam());
  }));
}

TEST(rank_communicator, splits_by_colour_and_orders_by_key) {
  EXPECT_TRUE(ranks::run(kind::processes, 5, [](rank_communicator& c, const group&) {
    const int me = c.self().value();
    auto half = c.split(me % 2, -me);
    const int expected_size = me % 2 == 0 ? 3 : 2;
    if (half.size() != expected_size) return std::string{"another size"};
    if (half.self().value() != (expected_size - 1) - me / 2) return std::string{"another order"};
    if (half.member(half.self()) != rank{me}) return std::string{"another member"};
    auto there = half.allocate<std::int32_t>(30'000);
    weft::copy(there.span(), std::vector<std::int32_t>(30'000, me));
    half.all_reduce(there, reduce_op::sum);
    std::vector<std::int32_t> got(30'000);
    weft::copy(got, there.span());
    if (auto wrong = same(got, std::vector<std::int32_t>(30'000, me % 2 == 0 ? 6 : 4), "of a half"); !wrong.empty())
      return wrong;
    // symmetric memory of a part is plain memory to the whole
    std::vector<std::int32_t> all(30'000);
    c.all_reduce(there, all, reduce_op::sum);
    return same(all, std::vector<std::int32_t>(30'000, 26), "of all");
  }));
}

TEST(rank_communicator, names_the_ranks_that_ask_for_different_symmetric_memory) {
  EXPECT_TRUE(ranks::run(kind::processes, 3, [](rank_communicator& c, const group&) {
    const weft::error e =
        samples::error_of([&] { static_cast<void>(c.allocate<float>(c.self() == rank{1} ? 20 : 10)); });
    if (e.code != weft::errc::incompatible || e.what.find("rank 1 (") == std::string::npos ||
        e.what.find("20 elements") == std::string::npos || e.what.find("10 elements") == std::string::npos)
      return to_string(e);
    // too much on one rank is known to all
    const weft::error full =
        samples::error_of([&] { static_cast<void>(c.allocate<std::uint8_t>(std::size_t{1} << 45)); });
    if (full.code != weft::errc::out_of_memory) return to_string(full);
    auto there = c.allocate<float>(10);
    if (there.size() != 10) return std::string{"nothing was allocated"};
    const auto other = std::move(there);
    // NOLINTNEXTLINE(bugprone-use-after-move): that is what it is about
    const bool is_empty = there.size() == 0 && there.data() == nullptr && there.span().size() == 0;
    return is_empty && other.size() == 10 ? std::string{} : std::string{"what was moved from has memory"};
  }));
}

/// Runs `part(rank)` on two threads; what went wrong.
std::string of_two(const std::function<std::string(int)>& part) {
  std::array<std::string, 2> found;
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        try {
          found[static_cast<std::size_t>(r)] = part(r);
        } catch (const std::exception& e) {
          found[static_cast<std::size_t>(r)] = e.what();
        }
      });
    }
  }
  return found[0] + found[1];
}

TEST(rank_communicator, waits_without_end_for_ranks_that_are_late_where_it_has_no_timeout) {
  for (const int late : {0, 1}) {
    auto places = weft::rendezvous::connected(2);
    const weft::machine m = ranks::a_machine(2);
    std::promise<void> gave_up;
    auto other = gave_up.get_future();
    EXPECT_EQ(of_two([&](int r) {
                weft::rank_communicator_options endless;
                endless.timeout = std::chrono::nanoseconds::max();
                const auto what = [&](rank_communicator& c, const group&) {
                  // later than several looks of the other one, which does not give up meanwhile
                  if (r == late && other.wait_for(std::chrono::milliseconds{60}) == std::future_status::ready)
                    return std::string{"the other one has given up"};
                  const weft::error e = samples::error_of([&] { static_cast<void>(c.allocate<int>(10)); });
                  if (r != late) gave_up.set_value();
                  return e.code == weft::errc::not_ready ? std::string{} : to_string(e);
                };
                return ranks::joined(std::move(places[static_cast<std::size_t>(r)]), m[r], what, endless);
              }),
              "");
  }
}

TEST(rank_communicator, joins_again_after_a_try_to_which_another_rank_came_too_late) {
  auto places = weft::rendezvous::connected(2);
  const weft::machine m = ranks::a_machine(2);
  std::latch first_is_late{1}, second_is_late{1};
  const auto part = [&](int r) {
    const auto i = static_cast<std::size_t>(r);
    auto of = std::make_shared<weft::process_group>(weft::value_or_raise(std::move(places[i]).join()));
    weft::rank_communicator_options brief;
    brief.timeout = std::chrono::milliseconds{1};
    weft::rank_communicator_options patient;
    patient.timeout = samples::only_a_hang;
    const auto tries = [&] {
      return samples::error_of([&] { static_cast<void>(rank_communicator::join(of, m[r], brief)); });
    };
    if (r == 0) first_is_late.wait();  // the other one has given up
    if (const weft::error e = tries(); e.code != weft::errc::timed_out) return to_string(e);
    (r == 0 ? second_is_late : first_is_late).count_down();
    if (r == 1) second_is_late.wait();
    auto all = rank_communicator::join(of, m[r], patient);
    all.barrier();
    return std::string{};
  };
  EXPECT_EQ(of_two(part), "");
}

TEST(rank_communicator, more_ranks_than_cores_complete_thousands_of_operations) {
  EXPECT_TRUE(ranks::run(kind::processes, 8, [](rank_communicator& c, const group&) {
    auto there = c.allocate<std::int32_t>(600);
    std::vector<std::int32_t> one(1);
    for (int i = 0; i < 3000; ++i) {
      one[0] = i + c.self().value();
      c.all_reduce(one, reduce_op::sum);
      if (one[0] != 8 * i + 28) return "operation " + std::to_string(i) + ": got " + std::to_string(one[0]);
      if (i % 10 == 0) c.all_reduce(there, reduce_op::sum);
    }
    return std::string{};
  }));
}

TEST(rank_communicator, tells_where_every_rank_is) {
  EXPECT_TRUE(ranks::run(kind::processes, 2, [](rank_communicator& c, const group&) {
    std::vector<float> some(10);
    c.all_reduce(some, reduce_op::min);
    c.barrier();
    const auto states = c.states();
    if (states.size() != 2 || states[0].of != rank{0} || states[1].operation < 2) return std::string{"other states"};
    if (!states[0].is_alive) return std::string{"dead"};
    if (states[c.self().index()].is_inside || states[c.self().index()].call != "barrier")
      return states[c.self().index()].call;
    if (c.footprint() < weft::bytes{2 << 20}) return std::string{"the footprint leaves something out"};
    c.barrier();
    return std::string{};
  }));
}

}  // namespace rank_communicator_test
