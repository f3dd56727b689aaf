// SPDX-License-Identifier: Apache-2.0
// What ranks do in the tests of rank_communicator, on whichever backend: every collective in every memory, and what
// goes wrong.
#pragma once

#include "collective/rank_ranks.hpp"
#include "support/rank_data.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"
#include "weft/runtime/stream.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace ranks {

using weft::collective_algorithm;
using weft::rank;
using weft::rank_communicator;
using weft::reduce_op;
using weft::reduction_op;

using group = std::shared_ptr<weft::process_group>;

/// The three kinds of memory that a rank may hand in.
enum class home : std::uint8_t { host, device, symmetric };

template <class T>
class memory {
 public:
  memory(rank_communicator& c, home where, std::size_t count) : where_(where) {
    if (where == home::host) host_ = zeros<T>(count);
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
    std::vector<T> made = zeros<T>(count);
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
  weft::collective_options by_blocks = o;
  if (!is_even) by_blocks.counts = counts;
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
        out.with(at, own, [&](auto to) { c.reduce_scatter(in, to, reduce_op::sum, by_blocks); });
      });
      judge(out, at, own_sum, "reduce_scatter" + place);
    }
    if (offered(weft::collective::all_gather)) {
      const std::size_t at = in_place ? shift + start[mine] : shift;
      a.set(part(me), at);
      a.with(at, own, [&](auto in) { out.with(shift, total, [&](auto to) { c.all_gather(in, to, by_blocks); }); });
      judge(out, shift, gathered, "all_gather" + place);
    }
    if (offered(weft::collective::gather)) {
      const std::size_t at = in_place ? shift + start[mine] : shift;
      a.set(part(me), at);
      a.with(at, own, [&](auto in) { out.with(shift, total, [&](auto to) { c.gather(in, to, by_blocks); }); });
      if (me == root) judge(out, shift, gathered, "gather" + place);
    }
    if (offered(weft::collective::scatter)) {
      a.set(whole(me), shift);
      const std::size_t at = in_place ? shift + start[mine] : shift;
      a.with(shift, total, [&](auto in) { out.with(at, own, [&](auto to) { c.scatter(in, to, by_blocks); }); });
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
    if (!is_even) by_blocks.counts = matrix;
    from.with(0, row(me),
              [&](auto in) { to.with(0, expected.size(), [&](auto out) { c.all_to_all(in, out, by_blocks); }); });
    judge(to, 0, expected, "all_to_all");
  }
  return wrong;
}

inline std::string all_shapes(rank_communicator& c, home where,
                              collective_algorithm by = collective_algorithm::automatic) {
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

/// Messages round the ranks, and to itself.
inline std::string exchanges(rank_communicator& c) {
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
  if (auto wrong = same(got, input<float>(before.value(), count), "from the one before"); !wrong.empty()) return wrong;
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
  // nor does one that is longer than everything that a rank has for it
  const weft::error longer =
      samples::error_of([&] { rank_communicator::exchange{c}.send(next, mine).receive(before, wide).run(); });
  if (longer.code != weft::errc::incompatible || longer.what.find("800012 bytes") == std::string::npos)
    return "a longer one: " + to_string(longer);
  rank_communicator::exchange{c}.send(next, second).receive(before, b).run();
  return b[0] == before.value() ? std::string{} : std::string{"what came after did not arrive"};
}

/// Calls of one rank that are not those of the others.
inline std::string names_mismatches(rank_communicator& c) {
  const bool odd = c.self() == rank{2};
  std::vector<float> few(100, 1.0F), many(70'000, 1.0F);
  std::vector<std::int32_t> whole(100, 1);
  weft::collective_options root;
  root.root = rank{odd ? 1 : 3};
  weft::collective_options by_naive;
  by_naive.algorithm = collective_algorithm::naive;
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
      [&] { odd ? c.all_reduce(many, reduce_op::sum, by_naive) : c.all_reduce(many, reduce_op::sum); },
  };
  const std::vector<std::array<std::string, 2>> wanted{
      {"all_reduce of 100 float32, sum", "all_reduce of 70000 float32, sum"},
      {"all_reduce of 100 float32, sum", "all_reduce of 100 int32, sum"},
      {"all_reduce of 70000 float32, sum", "all_reduce of 70000 float32, max"},
      {"broadcast of 70000 float32 from rank 3", "broadcast of 70000 float32 from rank 1"},
      {"broadcast of 100 float32 from rank 0", "barrier"},
      {"broadcast of 70000 float32 from rank 0", "all_reduce of 70000 float32, average"},
      {"all_reduce of 70000 float32, sum", "all_reduce of 70000 float32, sum, by naive"},
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const weft::error e = samples::error_of(calls[i]);
    if (e.code != weft::errc::incompatible) return std::to_string(i) + ": " + to_string(e);
    const auto& [theirs, of_odd] = wanted[i];
    if (e.what.find(" calls " + theirs + "; rank 2 (") == std::string::npos || !e.what.ends_with(" calls " + of_odd))
      return "not '" + theirs + "' and '" + of_odd + "' in " + to_string(e);
    if (e.what.find("rank 0 (") == std::string::npos) return "rank 0 is not named in " + to_string(e);
    // and it goes on
    std::vector<float> one(3, static_cast<float>(i));
    c.all_reduce(one, reduce_op::sum);
    if (one[2] != 4.0F * static_cast<float>(i)) return std::string{"what came after is wrong"};
  }
  return std::string{};
}

/// A call that one rank refuses.
inline std::string tells_of_refusals(rank_communicator& c) {
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
  weft::collective_options o;
  const std::array<std::int64_t, 3> counts{1, 2, 2};
  o.counts = counts;
  const weft::error no_blocks = samples::error_of([&] { c.broadcast(both, o); });
  if (no_blocks.code != weft::errc::invalid_argument) return "counts of a broadcast: " + to_string(no_blocks);
  c.barrier();
  return std::string{};
}

/// Two calls behind a gate, and one that does not match.
inline std::string runs_in_the_stream(rank_communicator& c, home where, const weft::stream& order) {
  constexpr std::size_t count = 50'000;
  memory<float> there{c, where, count};
  samples::gate gate;
  static_cast<void>(gate.hold(order));
  const auto values = input<float>(c.self().value(), count);
  if (where == home::host) {
    there.set(values);
  } else {
    there.with(0, count, [&](auto part) {
      if constexpr (!std::is_same_v<decltype(part), std::span<float>>) weft::copy(order, part, values);
    });
  }
  weft::collective_options o;
  o.streams = {&order, 1};
  weft::event first, second;
  there.with(0, count, [&](auto part) { first = c.all_reduce(part, reduce_op::sum, o); });
  there.with(0, count, [&](auto part) { second = c.all_reduce(part, reduce_op::max, o); });
  const weft::event all_came = c.barrier(o);
  if (first.ready() || second.ready() || all_came.ready()) return std::string{"it did not wait for its stream"};
  gate.open();
  all_came.wait();
  if (!second.ready()) return std::string{"a barrier in a stream overtook what was before it"};
  const auto got = there.get(0, count);
  if (auto wrong = same(got, reduced<float>(c.size(), count, reduction_op::kind::sum), "in a stream"); !wrong.empty())
    return wrong;
  // what does not match fails its event, on every rank
  std::vector<float> host(c.self() == rank{0} ? 3 : 4);
  const weft::event wrong = c.all_reduce(host, reduce_op::sum, o);
  const weft::error e = samples::error_of([&] { wrong.wait(); });
  if (e.code != weft::errc::incompatible) return "mismatch in a stream: " + to_string(e);
  c.barrier();
  const std::array<weft::stream, 2> two{weft::stream{c.on()}, weft::stream{c.on()}};
  o.streams = two;
  const weft::error two_streams = samples::error_of([&] { c.barrier(o); });
  if (two_streams.code != weft::errc::invalid_argument) return "a barrier in two streams: " + to_string(two_streams);
  return std::string{};
}

inline std::string runs_in_a_stream(rank_communicator& c, home where) {
  if (auto wrong = runs_in_the_stream(c, where, weft::stream{c.on()}); !wrong.empty()) return wrong;
  return runs_in_the_stream(c, where, c.on().default_stream());
}

/// A call behind a gate whose memory the program lets go meanwhile.
inline std::string keeps_memory_of_streamed_calls(rank_communicator& c, home where) {
  constexpr std::size_t count = 50'000;
  const weft::stream order{c.on()};
  weft::collective_options o;
  o.streams = {&order, 1};
  memory<float> out{c, where, count};
  samples::gate gate;
  weft::event last;
  {
    memory<float> in{c, where, count};
    in.set(input<float>(c.self().value(), count));
    static_cast<void>(gate.hold(order));
    in.with(0, count,
            [&](auto a) { out.with(0, count, [&](auto b) { last = c.all_reduce(a, b, reduce_op::sum, o); }); });
  }
  gate.open();
  last.wait();
  if (auto wrong = same(out.get(0, count), reduced<float>(c.size(), count, reduction_op::kind::sum), "let go");
      !wrong.empty())
    return wrong;
  // where the result goes, too
  samples::gate another;
  static_cast<void>(another.hold(order));
  {
    memory<float> both{c, where, count};
    both.with(0, count, [&](auto part) { last = c.all_reduce(part, reduce_op::max, o); });
  }
  another.open();
  last.wait();
  // and where a rank other than the root does not use it
  const bool is_root = c.self() == rank{0};
  std::optional<memory<float>> to{std::in_place, c, where, count};
  samples::gate third;
  static_cast<void>(third.hold(order));
  {
    memory<float> from{c, where, count};
    from.set(input<float>(c.self().value(), count));
    o.root = rank{0};
    from.with(0, count, [&](auto a) { to->with(0, count, [&](auto b) { last = c.reduce(a, b, reduce_op::sum, o); }); });
  }
  if (!is_root) to.reset();
  third.open();
  last.wait();
  if (!is_root) return {};
  return same(to->get(0, count), reduced<float>(c.size(), count, reduction_op::kind::sum), "at the root");
}

/// Messages of memory of any kind, round the ranks and to itself.
inline std::string exchanges_memory(rank_communicator& c, home where) {
  constexpr std::size_t count = 70'001;
  const int n = c.size(), me = c.self().value();
  const rank next{(me + 1) % n}, before{(me + n - 1) % n};
  memory<float> out{c, where, count + 1}, in{c, where, count + 1}, own{c, where, 5};
  out.set(input<float>(me, count), 1);
  const std::vector<float> three{1, 2, 3};
  rank_communicator::exchange all{c};
  // what is named lives until run() has returned
  out.with(1, count, [&](auto from) {
    in.with(1, count, [&](auto to) {
      own.with(1, 3, [&](auto self) {
        all.send(next, from).send(c.self(), three).receive(before, to).receive(c.self(), self);
        all.run();
      });
    });
  });
  if (auto wrong = same(in.get(1, count), input<float>(before.value(), count), "from the one before"); !wrong.empty())
    return wrong;
  return same(own.get(1, 3), three, "from itself");
}

/// One call of which each rank has its memory elsewhere.
inline std::string mixes_memories(rank_communicator& c) {
  for (const std::size_t count : {std::size_t{3}, std::size_t{1000}, std::size_t{150'001}}) {
    const auto mine = input<std::int32_t>(c.self().value(), count);
    const auto expected = reduced<std::int32_t>(c.size(), count, reduction_op::kind::sum);
    const std::string of = " of " + std::to_string(count);
    memory<std::int32_t> all[3]{{c, home::host, count}, {c, home::device, count}, {c, home::symmetric, count}};
    const weft::stream order{c.on()};
    weft::collective_options in_stream;
    in_stream.streams = {&order, 1};
    for (int turn = 0; turn < 3; ++turn) {
      auto& in = all[(c.self().value() + turn) % 3];
      auto& out = all[turn];
      in.set(mine);
      in.with(0, count, [&](auto a) { out.with(0, count, [&](auto b) { c.all_reduce(a, b, reduce_op::sum); }); });
      if (auto wrong = same(out.get(0, count), expected, "another home" + of); !wrong.empty()) return wrong;
      // symmetric here, in a stream there
      all[2].set(mine);
      all[2].with(0, count, [&](auto a) {
        c.all_reduce(a, reduce_op::sum, c.self() == rank{1} ? in_stream : weft::collective_options{}).wait();
      });
      if (auto wrong = same(all[2].get(0, count), expected, "one in a stream" + of); !wrong.empty()) return wrong;
      // out of symmetric memory into what only this rank reaches
      all[2].set(mine);
      all[2].with(0, count, [&](auto a) { out.with(0, count, [&](auto b) { c.reduce(a, b, reduce_op::sum); }); });
      if (c.self() != rank{0}) continue;
      if (auto wrong = same(out.get(0, count), expected, "to the root" + of); !wrong.empty()) return wrong;
    }
    const weft::pinned_buffer<std::int32_t> pinned{c.on(), count};
    std::copy(mine.begin(), mine.end(), pinned.host().begin());
    c.all_reduce(pinned, reduce_op::sum);
    const std::vector<std::int32_t> got(pinned.host().begin(), pinned.host().end());
    if (auto wrong = same(got, expected, "pinned" + of); !wrong.empty()) return wrong;
  }
  return {};
}

/// reduce and reduce_scatter in place to each root, of more ranks than one pass takes, by `op`.
inline std::string reduces_in_place(rank_communicator& c, home where, const reduction_op& op,
                                    const std::function<std::vector<std::int32_t>(std::size_t)>& expected_of) {
  constexpr std::size_t count = 20'011;
  const std::vector<std::int32_t> expected = expected_of(count);
  for (const int root : {0, c.size() / 2, c.size() - 1}) {
    weft::collective_options o;
    o.root = rank{root};
    memory<std::int32_t> m{c, where, count};
    m.set(input<std::int32_t>(c.self().value(), count));
    m.with(0, count, [&](auto both) { c.reduce(both, both, op, o); });
    if (c.self().value() != root) continue;
    if (auto wrong = same(m.get(0, count), expected, "reduce to " + std::to_string(root)); !wrong.empty()) return wrong;
  }
  memory<std::int32_t> m{c, where, count};
  std::vector<std::int64_t> counts(static_cast<std::size_t>(c.size()), 1500);
  counts.back() = static_cast<std::int64_t>(count) - 1500 * (c.size() - 1);
  const std::size_t at = 1500U * c.self().index();
  const auto own = static_cast<std::size_t>(counts[c.self().index()]);
  m.set(input<std::int32_t>(c.self().value(), count));
  weft::collective_options o;
  o.counts = counts;
  m.with(0, count, [&](auto in) { m.with(at, own, [&](auto out) { c.reduce_scatter(in, out, op, o); }); });
  return same(m.get(at, own),
              std::vector<std::int32_t>(expected.begin() + static_cast<std::ptrdiff_t>(at),
                                        expected.begin() + static_cast<std::ptrdiff_t>(at + own)),
              "reduce_scatter");
}

/// All ranks work until one is killed: the others are told, shrink and go on with symmetric memory.
inline void expect_the_killed_is_named(const world& in) {
  constexpr int n = 3, victim = 1;
  struct told {
    std::array<processes::steps, n> done;
  };
  const processes::shared<told> b;
  weft::rank_communicator_options options;
  options.timeout = samples::only_a_hang;
  team all{n,
           [&](rank_communicator& c, const group&) {
             memory<float> there{c, home::symmetric, 30'000}, plain{c, home::device, 30'000};
             const weft::error e = samples::error_of([&] {
               for (int i = 1;; ++i) {
                 there.with(0, 30'000, [&](auto part) { c.all_reduce(part, reduce_op::max); });
                 plain.with(0, 30'000, [&](auto part) { c.all_reduce(part, reduce_op::max); });
                 b->done[c.self().index()].say(i);
               }
             });
             if (e.code != weft::errc::peer_dead || e.what.find("rank 1 (pid") == std::string::npos)
               return to_string(e);
             auto left = c.shrink(samples::only_a_hang);
             auto again = left.allocate<std::int32_t>(50'000);
             weft::copy(again.span(), std::vector<std::int32_t>(50'000, left.self().value() + 1));
             left.all_reduce(again, reduce_op::sum);
             std::vector<std::int32_t> got(50'000);
             weft::copy(got, again.span());
             return same(got, std::vector<std::int32_t>(50'000, 3), "after shrinking");
           },
           options, in};
  ASSERT_TRUE(b->done[victim].hear(5));
  all[victim].kill(SIGKILL);
  EXPECT_EQ(all[victim].wait(), -SIGKILL);
  EXPECT_EQ(all[0].wait(), 0);
  EXPECT_EQ(all[2].wait(), 0);
}

}  // namespace ranks
