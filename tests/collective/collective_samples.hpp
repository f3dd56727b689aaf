// SPDX-License-Identifier: Apache-2.0
// A collective with its memory and what must come out of it, computed plainly.
#pragma once

#include "support/samples.hpp"
#include "weft/collective/communicator.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace collectives {

using weft::collective;

/// Elements in the order of ranks with room on both sides, so that what is written beside them is seen.
template <class T>
class guarded {
 public:
  guarded(const weft::device& on, std::int64_t count)
      : memory_(on, static_cast<std::size_t>(count) + 2 * room), count_(static_cast<std::size_t>(count)) {
    fill(std::vector<T>(count_, T{}));
  }
  [[nodiscard]] weft::device_span<T> span() const { return memory_.subspan(room, count_); }
  void fill(const std::vector<T>& values) {
    std::vector<T> all(memory_.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = guard(i);
    std::copy(values.begin(), values.end(), all.begin() + room);
    weft::copy(memory_, all);
  }
  /// What is in it; adds a failure when the room beside it changed.
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> all(memory_.size());
    weft::copy(all, memory_);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool inside = i >= room && i < room + count_;
      if (!inside && !(all[i] == guard(i))) {
        ADD_FAILURE() << "element " << static_cast<std::int64_t>(i) - static_cast<std::int64_t>(room) << " beside "
                      << count_ << " elements was overwritten";
        break;
      }
    }
    return {all.begin() + room, all.begin() + static_cast<std::ptrdiff_t>(room + count_)};
  }

 private:
  static constexpr std::size_t room = 16;
  static T guard(std::size_t i) { return static_cast<T>(static_cast<float>(i % 50 + 50)); }

  weft::buffer<T> memory_;
  std::size_t count_;
};

/// What a rank hands in: differs by rank and place, and is small enough for sums to be exact in every type.
template <class T>
T sample(int rank, std::int64_t place) {
  return static_cast<T>(static_cast<float>((place * 7 + rank * 3 + place / 11) % 8));
}

/// A number of any type that can be printed.
template <class T>
double shown(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<double>(value);
  } else {
    return static_cast<double>(static_cast<float>(value));
  }
}

template <class T>
testing::AssertionResult same(const std::vector<T>& got, const std::vector<T>& expected) {
  if (got.size() != expected.size())
    return testing::AssertionFailure() << got.size() << " elements, expected " << expected.size();
  if (got == expected) return testing::AssertionSuccess();
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    return testing::AssertionFailure() << "first bad offset " << i << ": expected " << shown(expected[i]) << ", got "
                                       << shown(got[i]);
  }
  return testing::AssertionSuccess();
}

/// One collective of 32-bit integers, with sums.
struct exchange_case {
  collective what;
  weft::collective_algorithm algorithm;
  int ranks;
  int root;
  std::vector<std::int64_t> counts;
  bool in_place = false;
  weft::reduction_order order = weft::reduction_order::any;

  [[nodiscard]] weft::collective_shape shape() const {
    const bool rooted = what == collective::reduce || what == collective::broadcast || what == collective::scatter ||
                        what == collective::gather;
    return {what, ranks, rooted ? root : 0, counts};
  }

  [[nodiscard]] std::string text() const {
    std::ostringstream out;
    out << to_string(what) << " by " << to_string(algorithm) << " over " << ranks << " ranks, root " << root
        << (in_place ? ", in place" : "") << ", counts";
    for (const std::int64_t c : counts) out << ' ' << c;
    return out.str();
  }

  /// Runs it and compares every rank's memory.
  testing::AssertionResult run(weft::communicator& all, weft::collective_options with = {}) const {
    const weft::collective_shape s = shape();
    std::vector<guarded<int>> memory;
    std::vector<weft::device_span<int>> in, out;
    std::vector<std::vector<int>> given;
    memory.reserve(2 * static_cast<std::size_t>(ranks));
    for (int r = 0; r < ranks; ++r) {
      const std::int64_t ins = input_elements(s, r), outs = output_elements(s, r);
      given.emplace_back(static_cast<std::size_t>(ins));
      for (std::int64_t i = 0; i < ins; ++i) given.back()[static_cast<std::size_t>(i)] = sample<int>(r, i);
      const auto offset = in_place_offset(s, r);
      if ((in_place || what == collective::broadcast) && ins > 0 && outs > 0 && offset) {
        const bool in_is_inside = ins <= outs;
        auto& whole = memory.emplace_back(all.on(weft::rank{r}), std::max(ins, outs));
        std::vector<int> content(static_cast<std::size_t>(std::max(ins, outs)), -1);
        std::copy(given.back().begin(), given.back().end(), content.begin() + (in_is_inside ? *offset : 0));
        whole.fill(content);
        const auto at = static_cast<std::size_t>(in_is_inside ? *offset : -*offset);
        in.push_back(in_is_inside ? whole.span().subspan(at, static_cast<std::size_t>(ins)) : whole.span());
        out.push_back(in_is_inside ? whole.span() : whole.span().subspan(at, static_cast<std::size_t>(outs)));
        continue;
      }
      auto& source = memory.emplace_back(all.on(weft::rank{r}), ins);
      source.fill(given.back());
      in.push_back(source.span());
      out.push_back(memory.emplace_back(all.on(weft::rank{r}), outs).span());
    }
    with.algorithm = algorithm;
    with.root = weft::rank{root};
    with.order = order;
    start(all, in, out, with).wait();
    const auto expected = reference(s, given);
    for (int r = 0; r < ranks; ++r) {
      std::vector<int> got(out[static_cast<std::size_t>(r)].size());
      weft::copy(got, out[static_cast<std::size_t>(r)]);
      if (auto fine = same(got, expected[static_cast<std::size_t>(r)]); !fine)
        return testing::AssertionFailure() << "rank " << r << ", " << fine.message();
    }
    for (const auto& one : memory) static_cast<void>(one.read());
    // without in place, what was handed in stays
    std::size_t m = 0;
    for (int r = 0; r < ranks && !in_place && what != collective::broadcast; ++r, m += 2) {
      if (auto fine = same(memory[m].read(), given[static_cast<std::size_t>(r)]); !fine)
        return testing::AssertionFailure() << "the input of rank " << r << " changed: " << fine.message();
    }
    return testing::AssertionSuccess();
  }

  weft::collective_run start(weft::communicator& all, const std::vector<weft::device_span<int>>& in,
                             const std::vector<weft::device_span<int>>& out, weft::collective_options with) const {
    const auto r = static_cast<std::size_t>(root);
    switch (what) {
      case collective::all_reduce:
        return in_place ? all.all_reduce(in, weft::reduce_op::sum, with)
                        : all.all_reduce(in, out, weft::reduce_op::sum, with);
      case collective::reduce:
        return all.reduce(in, out[r], weft::reduce_op::sum, with);
      case collective::reduce_scatter:
        return all.reduce_scatter(in, out, weft::reduce_op::sum, with);
      case collective::all_gather:
        return all.all_gather(in, out, with);
      case collective::broadcast:
        return all.broadcast(out, with);
      case collective::scatter:
        return all.scatter(in[r], out, with);
      case collective::gather:
        return all.gather(in, out[r], with);
      case collective::all_to_all:
        with.counts = counts;
        return all.all_to_all(in, out, with);
    }
    return {};
  }

  static std::vector<std::vector<int>> reference(const weft::collective_shape& s,
                                                 const std::vector<std::vector<int>>& given) {
    const auto n = static_cast<std::size_t>(s.ranks);
    std::vector<std::vector<int>> made(n);
    std::vector<int> sum(given[static_cast<std::size_t>(s.root)].size()), joined;
    for (const auto& one : given) {
      for (std::size_t i = 0; i < one.size() && i < sum.size(); ++i) sum[i] += one[i];
      joined.insert(joined.end(), one.begin(), one.end());
    }
    const auto block = [&](const std::vector<int>& of, std::size_t r) {
      std::size_t at = 0;
      for (std::size_t i = 0; i < r; ++i) at += static_cast<std::size_t>(s.counts[i]);
      const auto first = of.begin() + static_cast<std::ptrdiff_t>(at);
      return std::vector<int>{first, first + s.counts[r]};
    };
    const auto root = static_cast<std::size_t>(s.root);
    for (std::size_t r = 0; r < n; ++r) {
      switch (s.what) {
        case collective::all_reduce:
          made[r] = sum;
          break;
        case collective::reduce:
          if (r == root) made[r] = sum;
          break;
        case collective::reduce_scatter:
          made[r] = block(sum, r);
          break;
        case collective::all_gather:
          made[r] = joined;
          break;
        case collective::broadcast:
          made[r] = given[root];
          break;
        case collective::scatter:
          made[r] = block(given[root], r);
          break;
        case collective::gather:
          if (r == root) made[r] = joined;
          break;
        case collective::all_to_all:
          for (std::size_t from = 0; from < n; ++from) {
            std::int64_t at = 0;
            for (std::size_t to = 0; to < r; ++to) at += s.counts[from * n + to];
            const auto first = given[from].begin() + at;
            made[r].insert(made[r].end(), first, first + s.counts[from * n + r]);
          }
          break;
      }
    }
    return made;
  }
};

}  // namespace collectives
