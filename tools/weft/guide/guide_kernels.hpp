// SPDX-License-Identifier: Apache-2.0
// What the guide's tables run, simulated and measured: its own first kernel, and small ones.
#pragma once

#include "command_line/output.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/scatter.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tool {

WEFT_KERNEL(guide_line, (WEFT_IN(float) x, WEFT_OUT(float) y), { y[i] = x[i] * 2.0f + 1.0f; });
WEFT_KERNEL(guide_touch, (WEFT_INOUT(uint8_t) visits), { visits[i] = (uint8_t)(visits[i] + 1); });

/// Ends the command: what was timed was not right, and so its time says nothing.
inline void guide_check(bool right, const std::string& what) {
  if (!right) throw failure{exit_code::falls_short, what + ": the data is wrong, and its time would say nothing"};
}

/// 0, 1, 2, … as far as a float counts.
inline std::vector<float> guide_ramp(std::int64_t count) {
  std::vector<float> made(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<float>(i % 1'000'000);
  return made;
}

inline bool is_guide_line(std::span<const float> y) {
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (y[i] != static_cast<float>(i % 1'000'000) * 2.0F + 1.0F) return false;
  }
  return true;
}

/// 4,000 KiB from a device in a thousand copies, in one, and in one batch: each timed by `time(row, bytes, copies)`,
/// and checked.
template <class Time>
void guide_small_copies(const machine& m, Time&& time) {
  constexpr std::size_t count = 1000;
  constexpr std::size_t size = 4096;
  const stream order{m[0]};
  std::vector<std::uint8_t> data(count * size);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint8_t>(i / 7);
  buffer<std::uint8_t> on{m[0], data.size()};
  copy(on, data);
  std::vector<std::uint8_t> got(data.size());
  const auto put = [&](std::string_view row, auto&& copies) {
    std::ranges::fill(got, std::uint8_t{0});
    time(row, data.size(), copies);
    guide_check(got == data, std::string{row});
  };
  put("1,000 copies of 4 KiB", [&] {
    for (std::size_t k = 0; k < count; ++k) {
      copy(order, std::span{got}.subspan(k * size, size), on.span().subspan(k * size, size)).wait();
    }
  });
  put("one copy of 4,000 KiB", [&] { copy(order, got, on).wait(); });
  put("1,000 copies of 4 KiB as one batch", [&] {
    std::vector<copy_part> parts;
    parts.reserve(count);
    for (std::size_t k = 0; k < count; ++k)
      parts.push_back(part(std::span{got}.subspan(k * size, size), on.span().subspan(k * size, size)));
    copy_batch(order, parts).wait();
  });
}

inline std::vector<device_id> first_devices(int count) {
  std::vector<device_id> made;
  made.reserve(static_cast<std::size_t>(count));
  for (int d = 0; d < count; ++d) made.emplace_back(d);
  return made;
}

/// Shares of x on the first devices, computed there, and back: y.
class scatter_gather_run {
 public:
  scatter_gather_run(const machine& m, int devices, std::int64_t count)
      : machine_(m), shares_(even_split(static_cast<std::size_t>(count), static_cast<std::size_t>(devices))) {
    for (int d = 0; d < devices; ++d) {
      in_.emplace_back(m[d], shares_[static_cast<std::size_t>(d)]);
      out_.emplace_back(m[d], shares_[static_cast<std::size_t>(d)]);
      orders_.emplace_back(m[d]);
    }
  }

  void once(std::span<float> y, std::span<const float> x, const launch_options& how) {
    scatter(std::span{in_}, x);
    std::vector<event> done;
    done.reserve(in_.size());
    for (std::size_t d = 0; d < in_.size(); ++d) {
      done.push_back(
          launch<guide_line>(orders_[d], how, range(static_cast<std::int64_t>(shares_[d])), in_[d], out_[d]));
    }
    for (const event& e : done) e.wait();
    gather(y, std::span{out_});
  }

 private:
  machine machine_;
  std::vector<std::size_t> shares_;
  std::vector<buffer<float>> in_, out_;
  std::vector<stream> orders_;
};

}  // namespace weft::tool
