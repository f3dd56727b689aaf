// SPDX-License-Identifier: Apache-2.0
#include "copy_patterns.hpp"

#include "copy_ways.hpp"
#include "weft/core/host_memory.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace weft::tool {

namespace {

using std::chrono::nanoseconds;

/// Between two devices, or a device and pinned host memory: a stream of its own, so that copies of others go beside it.
class one_copy {
 public:
  one_copy(const machine& m, std::optional<device_id> src, std::optional<device_id> dst, std::uint64_t size)
      : order_(m[dst ? *dst : *src]) {
    if (src) from_ = buffer<std::byte>{m[*src], size};
    if (dst) to_ = buffer<std::byte>{m[*dst], size};
    if (!src || !dst) host_ = pinned_buffer<std::byte>{m[dst ? *dst : *src], size};
    if (dst) fill(to_, std::byte{0xEE});
  }
  void write(std::uint64_t seed) const {
    if (!from_.empty()) {
      write_pattern(from_.span(), seed);
    } else {
      const buffer<std::byte> there{to_.on(), to_.size()};
      write_pattern(there.span(), seed);
      copy(host_, there);
    }
  }
  [[nodiscard]] event start() const {
    if (from_.empty()) return copy(order_, to_, host_);
    if (to_.empty()) return copy(order_, host_, from_);
    return copy(order_, to_, from_);
  }
  [[nodiscard]] std::string check(std::uint64_t seed) const {
    if (!to_.empty()) return check_pattern(device_span<const std::byte>{to_}, seed);
    const buffer<std::byte> there{from_.on(), from_.size()};
    copy(there, host_);
    return check_pattern(device_span<const std::byte>{there}, seed);
  }

 private:
  buffer<std::byte> from_, to_;
  pinned_buffer<std::byte> host_;
  stream order_;
};

using ends = std::pair<std::optional<device_id>, std::optional<device_id>>;  // source and destination; none: the host

std::vector<ends> copies_of(const machine& m, const pattern_row& row) {
  std::vector<ends> list;
  switch (row.what) {
    case copy_pattern::from_host:
      return {{std::nullopt, row.first}};
    case copy_pattern::to_host:
      return {{row.first, std::nullopt}};
    case copy_pattern::both_ways:
      return {{row.first, row.second}, {row.second, row.first}};
    case copy_pattern::all_to_one:
    case copy_pattern::one_to_all:
      for (const device& d : m.devices()) {
        if (d.id() == row.first) continue;
        list.push_back(row.what == copy_pattern::all_to_one ? ends{d.id(), row.first} : ends{row.first, d.id()});
      }
  }
  return list;
}

std::vector<pattern_row> planned(const machine& m, std::uint64_t size) {
  std::vector<pattern_row> rows;
  const auto add = [&](copy_pattern what, device_id first, std::optional<device_id> second = {}) {
    pattern_row row;
    row.what = what;
    row.first = first;
    row.second = second;
    row.size = size;
    row.copies = copies_of(m, row).size();
    row.name = fmt::format("copy/{}/{}/{}{}", to_string(what), size_name(size), to_string(first),
                           second ? "-" + to_string(*second) : std::string{});
    rows.push_back(std::move(row));
  };
  const auto devices = m.devices();
  for (const copy_pattern what : {copy_pattern::from_host, copy_pattern::to_host}) {
    for (const device& d : devices) add(what, d.id());
  }
  for (const device& a : devices) {
    for (const device& b : devices) {
      if (a.id() < b.id()) add(copy_pattern::both_ways, a.id(), b.id());
    }
  }
  if (devices.size() > 2) {  // of two, it is one copy
    for (const copy_pattern what : {copy_pattern::all_to_one, copy_pattern::one_to_all}) {
      for (const device& d : devices) add(what, d.id());
    }
  }
  return rows;
}

/// A device holds a buffer for each copy that it takes part in, and on the host backend all of them are in one memory.
std::string too_large(const machine& m, const pattern_row& row) {
  const std::uint64_t on_one = times(row.size, row.copies);
  const std::uint64_t all = times(on_one, 2);
  std::uint64_t free = ~std::uint64_t{0};
  for (const device& d : m.devices()) free = std::min(free, d.free_memory().value());
  const std::uint64_t on_host = memory_of_host().free.value();
  if (on_one > free / 4 || (on_host != 0 && all > on_host / 4))
    return fmt::format("{} need more than a quarter of the free memory", to_string(bytes{all}));
  return {};
}

void measure(const machine& m, pattern_row& row, int samples, std::uint64_t seed) {
  if (row.why = too_large(m, row); !row.why.empty()) {
    row.state = row_state::skipped;
    return;
  }
  std::vector<one_copy> all;
  for (const auto& [src, dst] : copies_of(m, row)) all.emplace_back(m, src, dst, row.size);
  for (const one_copy& one : all) one.write(++seed);
  const auto once = [&] {
    std::vector<event> ended;
    ended.reserve(all.size());
    const nanoseconds start = m.now();
    for (const one_copy& one : all) ended.push_back(one.start());
    for (const event& one : ended) one.wait();
    return seconds_of(m.now() - start);
  };
  once();  // the first has to find its way
  std::vector<double> times;
  for (int i = 0; i < samples && !interrupted(); ++i) times.push_back(once());
  if (times.empty()) times.push_back(once());
  row.seconds = summarise(std::move(times));
  row.verified = true;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string wrong = all[all.size() - 1 - i].check(seed - i);
    if (wrong.empty()) continue;
    row.verified = false;
    row.why = wrong;
  }
}

}  // namespace

std::string_view to_string(copy_pattern what) {
  static constexpr std::string_view names[] = {"from_host", "to_host", "both_ways", "all_to_one", "one_to_all"};
  return names[static_cast<std::size_t>(what)];
}

std::optional<double> pattern_row::bytes_per_second() const {
  if (!seconds || seconds->median <= 0) return std::nullopt;
  return static_cast<double>(size * copies) / seconds->median;
}

std::vector<pattern_row> run_patterns(session& run, const machine& m, std::uint64_t size, int samples,
                                      nanoseconds budget) {
  std::vector<pattern_row> rows = planned(m, size);
  const std::vector<peer_access> leases = enable_all_peers(m);
  progress shown{run, "copies at the same time", rows.size()};
  row_budget time_left{budget};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    shown.step(i, rows[i].name);
    try {
      if (!time_left.leaves_out(rows[i])) measure(m, rows[i], samples, 0x2545F4914F6CDD1DULL * (i + 1));
    } catch (const error_exception& e) {
      end_row(rows[i], e.cause());
    }
  }
  return rows;
}

json patterns_json(const std::vector<pattern_row>& rows) {
  json list = json::array();
  for (const pattern_row& row : rows) {
    list.push_back({{"name", row.name},
                    {"pattern", to_string(row.what)},
                    {"first", row.first.value()},
                    {"second", row.second ? json(row.second->value()) : json(nullptr)},
                    {"bytes", row.size},
                    {"copies", row.copies},
                    {"seconds", seconds_json(row.seconds)},
                    {"bytes_per_second", or_null(row.bytes_per_second())},
                    {"verified", or_null(row.verified)},
                    {"why", row.why.empty() ? json(nullptr) : json(row.why)}});
  }
  return list;
}

std::string patterns_text(const session& run, const std::vector<pattern_row>& rows) {
  if (rows.empty()) return {};
  text_table table{{run.simulated() ? "at the same time (simulated)" : "at the same time", "device", "copies", "time",
                    "p5..p95", "rate of all", "data"},
                   {false, false, true, true, true, true, false}};
  for (const pattern_row& row : rows) {
    std::string words{to_string(row.what)};
    std::ranges::replace(words, '_', ' ');
    const auto rate = row.bytes_per_second();
    const std::string data = verified_text<pattern_row>({&row});
    table.row({words, to_string(row.first) + (row.second ? "-" + to_string(*row.second) : std::string{}),
               std::to_string(row.copies), median_text(row.seconds), spread_text(row.seconds),
               rate ? rate_text(*rate) : "-", data},
              style_of_verified(data));
  }
  return table.render(run);
}

}  // namespace weft::tool
