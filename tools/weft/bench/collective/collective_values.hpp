// SPDX-License-Identifier: Apache-2.0
// Numbers for collectives: different at each place and on each rank, and small enough that every result is exact in its
// type, whatever the order of combining. So one wrong bit is an error, and none has to be forgiven.
#pragma once

#include "collective_words.hpp"
#include "collective_work.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

namespace weft::tool {

/// Where a rank's elements are: with in-place tasks the input and the output are parts of one piece of memory.
struct rank_places {
  std::size_t in = 0, in_count = 0;
  std::size_t out = 0, out_count = 0;
  std::size_t first_count = 0;   // elements of the memory with the input
  std::size_t second_count = 0;  // of the output's own; 0: it is in the first
};

inline rank_places places_of(const collective_task& task, int rank) {
  rank_places made;
  made.in_count = static_cast<std::size_t>(input_elements(task.shape, rank));
  made.out_count = static_cast<std::size_t>(output_elements(task.shape, rank));
  // a broadcast is one piece of memory in any case
  if (!task.in_place && task.shape.what != collective::broadcast) {
    made.first_count = made.in_count;
    made.second_count = made.out_count;
    return made;
  }
  if (made.in_count > 0 && made.out_count > 0) {
    const std::int64_t offset = in_place_offset(task.shape, rank).value_or(0);
    (offset >= 0 ? made.in : made.out) = static_cast<std::size_t>(offset >= 0 ? offset : -offset);
  }
  made.first_count = std::max(made.in + made.in_count, made.out + made.out_count);
  return made;
}

template <class T>
class collective_values {
 public:
  explicit collective_values(const collective_task& task)
      : task_(task), ranks_(task.shape.ranks), starts_(task.shape.counts.size() + 1) {
    std::partial_sum(task.shape.counts.begin(), task.shape.counts.end(), starts_.begin() + 1);
    const std::int64_t each = exact / ranks_;
    if (combines(task.shape.what) && task.operation == reduction_op::kind::average) {
      range_ = std::max<std::int64_t>(1, each - 1);
    } else {
      // sums of integers wrap around, which is exact, too
      range_ =
          std::is_integral_v<T> ? std::min<std::int64_t>(exact, largest) : std::clamp<std::int64_t>(each, 2, largest);
    }
  }

  [[nodiscard]] T input(int rank, std::size_t at) const { return as_element(number(rank, at)); }

  /// Element `at` of what the rank gets.
  [[nodiscard]] T output(int rank, std::size_t at) const {
    const auto n = static_cast<std::size_t>(ranks_), r = static_cast<std::size_t>(rank);
    switch (task_.shape.what) {
      case collective::all_reduce:
      case collective::reduce:
        return as_element(combined(at));
      case collective::reduce_scatter:
        return as_element(combined(start(r) + at));
      case collective::all_gather:
      case collective::gather: {
        const std::size_t from = block_of(0, at);
        return input(static_cast<int>(from), at - start(from));
      }
      case collective::broadcast:
        return input(task_.shape.root, at);
      case collective::scatter:
        return input(task_.shape.root, start(r) + at);
      case collective::all_to_all:
        break;
    }
    std::size_t from = 0;
    for (std::size_t left = at;; ++from) {
      const auto count = static_cast<std::size_t>(task_.shape.counts[from * n + r]);
      if (left < count) return input(static_cast<int>(from), start(from * n + r) - start(from * n) + left);
      left -= count;
    }
  }

  /// Whether all ranks get the same.
  [[nodiscard]] bool is_same_for_all() const {
    const collective what = task_.shape.what;
    return what == collective::all_reduce || what == collective::all_gather || what == collective::broadcast;
  }

 private:
  /// Up to here every whole number is one of the type.
  static constexpr std::int64_t exact = std::is_same_v<T, half>       ? 2048
                                        : std::is_same_v<T, bfloat16> ? 256
                                        : std::is_same_v<T, float>    ? std::int64_t{1} << 24
                                        : std::is_same_v<T, double> || sizeof(T) == 8
                                            ? std::int64_t{1} << 53
                                            : (std::int64_t{1} << (8 * sizeof(T) - 1)) - 1;
  static constexpr std::int64_t largest = 65521;

  static std::uint64_t mixed(std::size_t at, std::uint64_t salt) {
    std::uint64_t x = (at + 1) * 0x9E3779B97F4A7C15ULL + salt * 0xD6E8FEB86659FD93ULL;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ULL;
    return x ^ (x >> 29);
  }
  static T as_element(std::int64_t value) {
    if constexpr (std::is_same_v<T, half> || std::is_same_v<T, bfloat16>) {
      return T{static_cast<float>(value)};
    } else {
      return static_cast<T>(value);
    }
  }

  [[nodiscard]] std::size_t start(std::size_t block) const { return static_cast<std::size_t>(starts_[block]); }
  [[nodiscard]] std::size_t block_of(std::size_t first, std::size_t at) const {
    std::size_t block = first;
    while (start(block + 1) <= at) ++block;
    return block;
  }

  [[nodiscard]] std::int64_t number(int rank, std::size_t at) const {
    const auto salt = static_cast<std::uint64_t>(rank);
    const auto below = [](std::uint64_t random, std::int64_t end) {
      return static_cast<std::int64_t>(random % static_cast<std::uint64_t>(end));
    };
    if (combines(task_.shape.what) && task_.operation == reduction_op::kind::product) {
      // one factor that is not 1: a product of many would not be exact
      return static_cast<int>(at % static_cast<std::size_t>(ranks_)) == rank ? 2 + below(mixed(at, salt), 2) : 1;
    }
    if (combines(task_.shape.what) && task_.operation == reduction_op::kind::average) {
      // pairs of ranks lie as far above the average as below it
      const std::int64_t off = below(mixed(at, 64), 2);
      const std::int64_t base = average(at);
      if (rank % 2 == 1) return base - off;
      return rank + 1 < ranks_ ? base + off : base;
    }
    return below(mixed(at, salt), range_);
  }
  [[nodiscard]] std::int64_t average(std::size_t at) const {
    return 1 + static_cast<std::int64_t>(mixed(at, 65) % static_cast<std::uint64_t>(range_));
  }

  [[nodiscard]] std::int64_t combined(std::size_t at) const {
    if (task_.operation == reduction_op::kind::average) return average(at);
    std::int64_t made = number(0, at);
    for (int r = 1; r < ranks_; ++r) {
      const std::int64_t more = number(r, at);
      switch (task_.operation) {
        case reduction_op::kind::product:
          made *= more;
          break;
        case reduction_op::kind::min:
          made = std::min(made, more);
          break;
        case reduction_op::kind::max:
          made = std::max(made, more);
          break;
        default:
          made += more;
      }
    }
    return made;
  }

  collective_task task_;
  int ranks_;
  std::vector<std::int64_t> starts_;
  std::int64_t range_ = 2;
};

inline constexpr std::size_t piece_of_values = std::size_t{1} << 20;  // elements on the host at a time

template <class T>
double number_of(T element) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<double>(element);
  } else {
    return static_cast<double>(static_cast<float>(element));
  }
}

template <class T>
void write_input(const collective_values<T>& values, int rank, const device_span<T>& to) {
  std::vector<T> part;
  for (std::size_t begin = 0; begin < to.size(); begin += piece_of_values) {
    part.resize(std::min(piece_of_values, to.size() - begin));
    for (std::size_t i = 0; i < part.size(); ++i) part[i] = values.input(rank, begin + i);
    weft::copy(to.subspan(begin, part.size()).template as<std::byte>(), std::as_bytes(std::span{part}));
  }
}

/// Compares what ranks got, piece by piece: `got` has their memory, `first` is the rank of its first entry.
template <class T>
collective_finding check_outputs(const collective_values<T>& values, std::span<const device_span<T>> got, int first) {
  collective_finding found;
  std::size_t longest = 0;
  for (const device_span<T>& one : got) longest = std::max(longest, one.size());
  std::vector<T> expected, seen;
  for (std::size_t begin = 0; begin < longest; begin += piece_of_values) {
    expected.clear();
    for (std::size_t k = 0; k < got.size(); ++k) {
      if (got[k].size() <= begin) continue;
      const int rank = first + static_cast<int>(k);
      const std::size_t count = std::min(piece_of_values, got[k].size() - begin);
      if (expected.size() != count || !values.is_same_for_all()) {
        expected.resize(count);
        for (std::size_t i = 0; i < count; ++i) expected[i] = values.output(rank, begin + i);
      }
      seen.resize(count);
      weft::copy(std::as_writable_bytes(std::span{seen}), got[k].subspan(begin, count).template as<std::byte>());
      if (std::memcmp(seen.data(), expected.data(), count * sizeof(T)) == 0) continue;
      for (std::size_t i = 0; i < count; ++i) {
        // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): bits are what is compared
        if (std::memcmp(&seen[i], &expected[i], sizeof(T)) == 0) continue;
        if (found.wrong++ == 0) {
          found.first = fmt::format("rank {}, first wrong element at {}: expected {}, got {}", rank, begin + i,
                                    number_of(expected[i]), number_of(seen[i]));
        }
      }
    }
  }
  return found;
}

/// Calls `f` with a value of the type's C++ type.
template <class F>
auto with_type(data_type type, F&& f) {
  switch (type) {
    case data_type::int8:
      return f(std::int8_t{});
    case data_type::int16:
      return f(std::int16_t{});
    case data_type::int32:
      return f(std::int32_t{});
    case data_type::int64:
      return f(std::int64_t{});
    case data_type::uint8:
      return f(std::uint8_t{});
    case data_type::uint16:
      return f(std::uint16_t{});
    case data_type::uint32:
      return f(std::uint32_t{});
    case data_type::uint64:
      return f(std::uint64_t{});
    case data_type::float16:
      return f(half{});
    case data_type::bfloat16:
      return f(bfloat16{});
    case data_type::float64:
      return f(double{});
    case data_type::float32:
      break;
  }
  return f(float{});
}

}  // namespace weft::tool
