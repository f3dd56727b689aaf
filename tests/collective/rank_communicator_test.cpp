// SPDX-License-Identifier: Apache-2.0
#include "collective/rank_ranks.hpp"
#include "weft/exec/launch.hpp"
#include "weft/kernel/define.hpp"

#include <array>
#include <cstring>
#include <numeric>

namespace rank_communicator_test {

using ranks::kind;
using ranks::same;
using weft::collective_algorithm;
using weft::rank;
using weft::rank_communicator;
using weft::reduce_op;
using weft::reduction_op;

using group = std::shared_ptr<weft::process_group>;

WEFT_KERNEL(wider, (WEFT_INOUT(int32_t) into, WEFT_IN(int32_t) more), { into[i] = into[i] * 3 + more[i]; });

/// Whole numbers that each type holds exactly, and whose sums over eight ranks it holds too; different at every place.
int number(int r, std::size_t i) {
  return static_cast<int>((i * 37 + static_cast<std::size_t>(r) * 101 + i / 251) % 25) - 12;
}
/// Factors whose product over eight ranks every type holds.
int factor(int r, std::size_t i) {
  return (i + static_cast<std::size_t>(r)) % 3 == 0 ? 2 : (i + static_cast<std::size_t>(r)) % 5 == 0 ? -1 : 1;
}

template <class T>
T as(double value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::int64_t>(value));
  } else if constexpr (sizeof(T) == 2) {
    return T{static_cast<float>(value)};
  } else {
    return static_cast<T>(value);
  }
}

template <class T>
std::vector<T> input(int r, std::size_t count, reduction_op::kind op = reduction_op::kind::sum) {
  std::vector<T> made(count);
  for (std::size_t i = 0; i < count; ++i)
    made[i] =
        as<T>(op == reduction_op::kind::product ? factor(r, i) : number(r, i) & (std::is_unsigned_v<T> ? 15 : ~0));
  return made;
}

template <class T>
std::vector<T> reduced(int n, std::size_t count, reduction_op::kind op) {
  std::vector<T> made(count);
  for (std::size_t i = 0; i < count; ++i) {
    double all = 0;
    for (int r = 0; r < n; ++r) {
      double one = op == reduction_op::kind::product ? factor(r, i) : number(r, i) & (std::is_unsigned_v<T> ? 15 : ~0);
      if (r == 0) {
        all = one;
      } else if (op == reduction_op::kind::product) {
        all *= one;
      } else if (op == reduction_op::kind::min) {
        all = std::min(all, one);
      } else if (op == reduction_op::kind::max) {
        all = std::max(all, one);
      } else {
        all += one;
      }
    }
    if (op == reduction_op::kind::average) {
      if constexpr (std::is_integral_v<T>) {
        all = static_cast<double>(static_cast<std::int64_t>(all) / n);
      } else if constexpr (sizeof(T) <= 4) {
        all = static_cast<double>(static_cast<float>(all) / static_cast<float>(n));
      } else {
        all /= n;
      }
    }
    made[i] = as<T>(all);
  }
  return made;
}

/// The three kinds of memory that a rank may hand in.
enum class home : std::uint8_t { host, device, symmetric };

template <class T>
class memory {
 public:
  memory(rank_communicator& c, home where, std::size_t count) : where_(where) {
    if (where == home::host) host_.resize(count);
    if (where == home::device) device_ = weft::buffer<T>{c.on(), count};
    if (where == home::symmetric) symmetric_ = c.allocate<T>(count);
  }
  void set(const std::vector<T>& values, std::size_t at = 0) {
    if (values.empty()) return;
    if (where_ == home::host) std::copy(values.begin(), values.end(), host_.begin() + static_cast<std::ptrdiff_t>(at));
    if (where_ == home::device) weft::copy(device_.subspan(at, values.size()), values);
    if (where_ == home::symmetric) weft::copy(symmetric_.span().subspan(at, values.size()), values);
  }
  [[nodiscard]] std::vector<T> get(std::size_t at, std::size_t count) const {
    std::vector<T> made(count);
    if (count == 0) return made;
    if (where_ == home::host) std::copy_n(host_.begin() + static_cast<std::ptrdiff_t>(at), count, made.begin());
    if (where_ == home::device) weft::copy(made, device_.subspan(at, count));
    if (where_ == home::symmetric) weft::copy(made, symmetric_.span().subspan(at, count));
    return made;
  }
  /// Calls f with the part as what a program hands in.
  template <class F>
  void with(std::size_t at, std::size_t count, F&& f) {
    if (where_ == home::host) f(std::span{host_}.subspan(at, count));
    if (where_ == home::device) f(device_.subspan(at, count));
    if (where_ == home::symmetric) f(symmetric_.subspan(at, count));
  }

 private:
  home where_;
  std::vector<T> host_;
  weft::buffer<T> device_;
  weft::symmetric_buffer<T> symmetric_;
};

/// Every collective once, with blocks of `counts`, in that memory, in place and out of place.
template <class T>
std::string each_collective(rank_communicator& c, home where, std::span<const std::int64_t> counts, int root,
                            collective_algorithm by, bool is_even) {
  const int n = c.size(), me = c.self().value();
  const auto mine = static_cast<std::size_t>(me);
  std::vector<std::size_t> start(counts.size() + 1);
  for (std::size_t i = 0; i < counts.size(); ++i) start[i + 1] = start[i] + static_cast<std::size_t>(counts[i]);
  const std::size_t total = start.back(), own = static_cast<std::size_t>(counts[mine]);
  weft::collective_options o;
  o.root = rank{root};
  o.algorithm = by;
  const auto offered = [&](weft::collective what) {
    return by == collective_algorithm::automatic || weft::offers(what, by).offered;
  };
  const auto uneven = is_even ? std::span<const std::int64_t>{} : counts;
  const std::string with = " of " + std::to_string(total) + " in memory " + std::to_string(static_cast<int>(where)) +
                           ", root " + std::to_string(root) + ", by " + std::string{to_string(by)};
  // what each rank hands in where blocks matter
  const auto whole = [&](int r) { return input<T>(r, total); };
  const auto part = [&](int r) {
    auto all = input<T>(r, total);
    return std::vector<T>(all.begin() + static_cast<std::ptrdiff_t>(start[static_cast<std::size_t>(r)]),
                          all.begin() + static_cast<std::ptrdiff_t>(start[static_cast<std::size_t>(r) + 1]));
  };
  std::vector<T> gathered;
  for (int r = 0; r < n; ++r) {
    const auto one = part(r);
    gathered.insert(gathered.end(), one.begin(), one.end());
  }
  const auto sum = reduced<T>(n, total, reduction_op::kind::sum);
  const std::vector<T> own_sum(sum.begin() + static_cast<std::ptrdiff_t>(start[mine]),
                               sum.begin() + static_cast<std::ptrdiff_t>(start[mine + 1]));
  memory<T> a{c, where, total + 3}, b{c, where, total + 3};
  const std::size_t shift = 1;  // nothing begins at the beginning of its memory
  std::string wrong;
  const auto judge = [&](const memory<T>& m, std::size_t at, const std::vector<T>& expected, const std::string& what) {
    if (wrong.empty()) wrong = same(m.get(at, expected.size()), expected, what + with);
  };

  for (const bool in_place : {false, true}) {
    memory<T>& out = in_place ? a : b;
    const std::string place = in_place ? " in place" : " out of place";
    if (offered(weft::collective::all_reduce)) {
      a.set(whole(me), shift);
      a.with(shift, total,
             [&](auto in) { out.with(shift, total, [&](auto to) { c.all_reduce(in, to, reduce_op::sum, o); }); });
      judge(out, shift, sum, "all_reduce" + place);
      if (!in_place) judge(a, shift, whole(me), "input of all_reduce");
    }
    if (offered(weft::collective::reduce)) {
      a.set(whole(me), shift);
      a.with(shift, total,
             [&](auto in) { out.with(shift, total, [&](auto to) { c.reduce(in, to, reduce_op::sum, o); }); });
      if (me == root) judge(out, shift, sum, "reduce" + place);
    }
    if (offered(weft::collective::reduce_scatter)) {
      a.set(whole(me), shift);
      const std::size_t at = in_place ? shift + start[mine] : shift;
      a.with(shift, total, [&](auto in) {
        out.with(at, own, [&](auto to) { c.reduce_scatter(in, to, reduce_op::sum, o, uneven); });
      });
      judge(out, at, own_sum, "reduce_scatter" + place);
    }
    if (offered(weft::collective::all_gather)) {
      const std::size_t at = in_place ? shift + start[mine] : shift;
      a.set(part(me), at);
      a.with(at, own, [&](auto in) { out.with(shift, total, [&](auto to) { c.all_gather(in, to, o, uneven); }); });
      judge(out, shift, gathered, "all_gather" + place);
    }
    if (offered(weft::collective::gather)) {
      const std::size_t at = in_place ? shift + start[mine] : shift;
      a.set(part(me), at);
      a.with(at, own, [&](auto in) { out.with(shift, total, [&](auto to) { c.gather(in, to, o, uneven); }); });
      if (me == root) judge(out, shift, gathered, "gather" + place);
    }
    if (offered(weft::collective::scatter)) {
      a.set(whole(me), shift);
      const std::size_t at = in_place ? shift + start[mine] : shift;
      a.with(shift, total, [&](auto in) { out.with(at, own, [&](auto to) { c.scatter(in, to, o, uneven); }); });
      const auto all = whole(root);
      judge(out, at,
            std::vector<T>(all.begin() + static_cast<std::ptrdiff_t>(start[mine]),
                           all.begin() + static_cast<std::ptrdiff_t>(start[mine + 1])),
            "scatter" + place);
    }
  }
  if (offered(weft::collective::broadcast)) {
    a.set(whole(me), shift);
    a.with(shift, total, [&](auto memory) { c.broadcast(memory, o); });
    judge(a, shift, whole(root), "broadcast");
  }
  if (offered(weft::collective::all_to_all)) {
    // rank r has (counts[to] + r) % 7 more elements for each, unless blocks are equal
    std::vector<std::int64_t> matrix(static_cast<std::size_t>(n * n));
    for (int r = 0; r < n; ++r) {
      for (int to = 0; to < n; ++to)
        matrix[static_cast<std::size_t>(r * n + to)] =
            counts[static_cast<std::size_t>(to)] / n + (is_even ? 0 : (counts[static_cast<std::size_t>(to)] + r) % 7);
    }
    const auto block = [&](int r, int to) {
      return static_cast<std::size_t>(matrix[static_cast<std::size_t>(r * n + to)]);
    };
    const auto row = [&](int r) {
      std::size_t count = 0;
      for (int to = 0; to < n; ++to) count += block(r, to);
      return count;
    };
    std::vector<T> expected;
    std::size_t most = 0;
    for (int r = 0; r < n; ++r) {
      const auto all = input<T>(r, row(r));
      std::size_t at = 0;
      for (int to = 0; to < me; ++to) at += block(r, to);
      expected.insert(expected.end(), all.begin() + static_cast<std::ptrdiff_t>(at),
                      all.begin() + static_cast<std::ptrdiff_t>(at + block(r, me)));
      std::size_t column = 0;
      for (int from = 0; from < n; ++from) column += block(from, r);
      most = std::max({most, row(r), column});
    }
    memory<T> from{c, where, most + 1}, to{c, where, most + 1};
    from.set(input<T>(me, row(me)));
    from.with(0, row(me), [&](auto in) {
      to.with(0, expected.size(), [&](auto out) {
        c.all_to_all(in, out, o, is_even ? std::span<const std::int64_t>{} : std::span<const std::int64_t>{matrix});
      });
    });
    judge(to, 0, expected, "all_to_all");
  }
  return wrong;
}

std::string all_shapes(rank_communicator& c, home where, collective_algorithm by = collective_algorithm::automatic) {
  const auto n = static_cast<std::size_t>(c.size());
  // one element; tiny; small; more than the staging memory holds
  for (const std::int64_t each : {1, 3, 130, 2053, 40'000}) {
    std::vector<std::int64_t> counts(n, each);
    for (const int root : {0, c.size() - 1}) {
      if (std::string wrong = each_collective<float>(c, where, counts, root, by, true); !wrong.empty()) return wrong;
    }
    for (std::size_t i = 0; i < n; ++i) counts[i] = i == 1 ? 0 : each + static_cast<std::int64_t>(i * 5);
    if (std::string wrong = each_collective<float>(c, where, counts, c.size() / 2, by, false); !wrong.empty())
      return wrong;
  }
  return {};
}

class memories : public testing::TestWithParam<home> {};

TEST_P(memories, of_every_kind_give_every_collective_to_processes) {
  for (const int n : {1, 2, 3, 4, 5, 8}) {
    EXPECT_TRUE(ranks::run(kind::processes, n, [](rank_communicator& c, const group&) {
      return all_shapes(c, GetParam());
    })) << n;
  }
}

TEST_P(memories, of_every_kind_give_every_collective_to_threads) {
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

TEST_P(algorithms, that_are_asked_for_run_over_wires_and_are_right) {
  for (const int n : {1, 2, 3, 4, 5}) {
    EXPECT_TRUE(ranks::run(n == 3 ? kind::threads : kind::processes, n, [](rank_communicator& c, const group&) {
      if (std::string wrong = all_shapes(c, home::host, GetParam()); !wrong.empty()) return wrong;
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
    return std::string{};
  }));
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

TEST(rank_communicator, reduces_in_place_to_each_of_more_ranks_than_one_pass_takes) {
  EXPECT_TRUE(ranks::run(kind::threads, 11, [](rank_communicator& c, const group&) {
    constexpr std::size_t count = 20'011;
    for (const int root : {0, 7, 8, 10}) {
      weft::collective_options o;
      o.root = rank{root};
      for (const home where : {home::host, home::symmetric}) {
        memory<std::int32_t> m{c, where, count};
        m.set(input<std::int32_t>(c.self().value(), count));
        m.with(0, count, [&](auto both) { c.reduce(both, both, reduce_op::sum, o); });
        if (c.self().value() != root) continue;
        auto wrong = same(m.get(0, count), reduced<std::int32_t>(c.size(), count, reduction_op::kind::sum), "reduce");
        if (!wrong.empty()) return wrong;
      }
    }
    return std::string{};
  }));
}

TEST(rank_communicator, sends_and_receives_between_ranks_without_an_order_that_deadlocks) {
  EXPECT_TRUE(ranks::run(kind::processes, 4, [](rank_communicator& c, const group&) {
    constexpr std::size_t count = 200'003;  // more than a wire holds
    const int n = c.size(), me = c.self().value();
    const rank next{(me + 1) % n}, before{(me + n - 1) % n};
    const auto mine = input<float>(me, count);
    const std::vector<float> three{1, 2, 3};
    std::vector<float> got(count), self(3), nothing;
    rank_communicator::exchange all{c};
    all.send(next, mine).send(c.self(), three).receive(before, got).receive(c.self(), self);
    all.send(next, nothing).receive(before, nothing);
    all.run();
    if (auto wrong = same(got, input<float>(before.value(), count), "from the one before"); !wrong.empty())
      return wrong;
    if (auto wrong = same(self, three, "from itself"); !wrong.empty()) return wrong;
    // two messages of one pair arrive in order, and one that does not fit is told and taken away
    std::array<std::int32_t, 2> first{me, 1}, second{me, 2}, a{}, b{};
    std::array<std::int32_t, 3> wide{};
    rank_communicator::exchange{c}.send(next, first).send(next, second).receive(before, a).receive(before, b).run();
    if (a[0] != before.value() || a[1] != 1 || b[1] != 2) return std::string{"out of order"};
    const weft::error e =
        samples::error_of([&] { rank_communicator::exchange{c}.send(next, first).receive(before, wide).run(); });
    if (e.code != weft::errc::incompatible || e.what.find("8 bytes") == std::string::npos ||
        e.what.find("12") == std::string::npos)
      return "sizes: " + to_string(e);
    rank_communicator::exchange{c}.send(next, second).receive(before, b).run();
    return b[0] == before.value() ? std::string{} : std::string{"what came after did not arrive"};
  }));
}

TEST(rank_communicator, names_both_calls_that_do_not_match_on_every_rank_and_goes_on) {
  EXPECT_TRUE(ranks::run(kind::processes, 4, [](rank_communicator& c, const group&) {
    const bool odd = c.self() == rank{2};
    std::vector<float> few(100, 1.0F), many(70'000, 1.0F);
    std::vector<std::int32_t> whole(100, 1);
    weft::collective_options root;
    root.root = rank{odd ? 1 : 3};
    const std::vector<std::function<void()>> calls{
        [&] { odd ? c.all_reduce(many, reduce_op::sum) : c.all_reduce(few, reduce_op::sum); },
        [&] { odd ? c.all_reduce(whole, reduce_op::sum) : c.all_reduce(few, reduce_op::sum); },
        [&] { c.all_reduce(many, odd ? reduce_op::max : reduce_op::sum); },
        [&] { c.broadcast(many, root); },
        [&] {
          if (odd) {
            c.barrier();
          } else {
            c.broadcast(few);
          }
        },
        [&] { odd ? c.all_reduce(many, reduction_op::average()) : c.broadcast(many); },
    };
    const std::vector<std::array<std::string, 2>> wanted{
        {"all_reduce of 100 float32, sum", "all_reduce of 70000 float32, sum"},
        {"all_reduce of 100 float32, sum", "all_reduce of 100 int32, sum"},
        {"all_reduce of 70000 float32, sum", "all_reduce of 70000 float32, max"},
        {"broadcast of 70000 float32 from rank 3", "broadcast of 70000 float32 from rank 1"},
        {"broadcast of 100 float32 from rank 0", "barrier"},
        {"broadcast of 70000 float32 from rank 0", "all_reduce of 70000 float32, average"},
    };
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const weft::error e = samples::error_of(calls[i]);
      if (e.code != weft::errc::incompatible) return std::to_string(i) + ": " + to_string(e);
      for (const std::string& text : wanted[i]) {
        if (e.what.find(text) == std::string::npos) return "not '" + text + "' in " + to_string(e);
      }
      if (e.what.find("rank 0 (") == std::string::npos || e.what.find("rank 2 (") == std::string::npos)
        return "ranks not named in " + to_string(e);
      // and it goes on
      std::vector<float> one(3, static_cast<float>(i));
      c.all_reduce(one, reduce_op::sum);
      if (one[2] != 4.0F * static_cast<float>(i)) return std::string{"what came after is wrong"};
    }
    return std::string{};
  }));
}

TEST(rank_communicator, tells_all_of_a_call_that_one_rank_refuses) {
  EXPECT_TRUE(ranks::run(kind::processes, 3, [](rank_communicator& c, const group&) {
    std::vector<float> in(12, 1.0F), out(c.self() == rank{1} ? 11 : 12);
    const weft::error e = samples::error_of([&] { c.all_reduce(in, out, reduce_op::sum); });
    if (c.self() == rank{1}) {
      if (e.code != weft::errc::invalid_argument) return "on the rank itself: " + to_string(e);
    } else if (e.code != weft::errc::incompatible || e.what.find("rank 1 (") == std::string::npos ||
               e.what.find("refuses") == std::string::npos) {
      return "on the others: " + to_string(e);
    }
    std::vector<float> both(5, 1.0F);
    const weft::error overlap =
        samples::error_of([&] { c.all_reduce(std::span{both}.first(4), std::span{both}.last(4), reduce_op::sum); });
    if (overlap.code != weft::errc::invalid_argument && overlap.code != weft::errc::incompatible)
      return "overlap: " + to_string(overlap);
    c.barrier();
    return std::string{};
  }));
}

TEST(rank_communicator, runs_in_the_order_of_a_stream) {
  EXPECT_TRUE(ranks::run(kind::processes, 3, [](rank_communicator& c, const group&) {
    constexpr std::size_t count = 50'000;
    const weft::stream order{c.on()};
    auto there = c.allocate<float>(count);
    samples::gate gate;
    static_cast<void>(gate.hold(order));
    const auto values = input<float>(c.self().value(), count);
    weft::copy(order, there.span(), values);
    weft::collective_options o;
    o.streams = {&order, 1};
    const weft::event first = c.all_reduce(there, reduce_op::sum, o);
    const weft::event second = c.all_reduce(there, reduce_op::max, o);
    if (first.ready() || second.ready()) return std::string{"it did not wait for its stream"};
    gate.open();
    second.wait();
    std::vector<float> got(count);
    weft::copy(got, there.span());
    if (auto wrong = same(got, reduced<float>(c.size(), count, reduction_op::kind::sum), "in a stream"); !wrong.empty())
      return wrong;
    // what does not match fails its event, on every rank
    std::vector<float> host(c.self() == rank{0} ? 3 : 4);
    const weft::event wrong = c.all_reduce(host, reduce_op::sum, o);
    const weft::error e = samples::error_of([&] { wrong.wait(); });
    if (e.code != weft::errc::incompatible) return "mismatch in a stream: " + to_string(e);
    c.barrier();
    return std::string{};
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
    return there.size() == 10 ? std::string{} : std::string{"nothing was allocated"};
  }));
}

TEST(rank_communicator, of_more_ranks_than_cores_completes_thousands_of_operations) {
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
