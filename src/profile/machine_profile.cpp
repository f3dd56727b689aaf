// SPDX-License-Identifier: Apache-2.0
#include "weft/profile/machine_profile.hpp"

#include "core/text/readable.hpp"
#include "profile/time_set.hpp"
#include "weft/core/bytes.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <utility>

namespace weft {
namespace {

using detail::one_line;
using std::chrono::nanoseconds;

/// What one device did, before overlaps are taken out.
struct activity {
  std::vector<time_range> compute, transfer, synchronisation;
};

struct kernel_times {
  std::vector<nanoseconds> each;
  std::int64_t items = 0;
};

struct pair_times {
  std::vector<time_range> busy;
  std::uint64_t bytes = 0;
  std::size_t copies = 0;
};

constexpr bool is_device(device_id id) { return id.value() >= 0; }

constexpr bool is_work(trace_kind kind) { return kind != trace_kind::span && kind != trace_kind::mark; }

/// Everything that is collected in one pass over the records.
class collector {
 public:
  collector(machine_profile& into, const std::vector<std::string>& names) : profile_(into), names_(names) {
    for (std::size_t i = 0; i < names.size(); ++i) static_cast<void>(device(device_id{static_cast<int>(i)}));
  }

  void add(const trace_record& r) {
    const time_range when{r.started, std::max(r.started, r.ended)};
    extent_ = any_ ? time_range{std::min(extent_.begin, when.begin), std::max(extent_.end, when.end)} : when;
    any_ = true;
    if (r.failed) ++profile_.failed;
    switch (r.kind) {
      case trace_kind::kernel:
        add_kernel(r, when);
        break;
      case trace_kind::copy:
        add_copy(r, when);
        break;
      case trace_kind::fill:
        if (!is_device(r.device)) break;
        device(r.device).second.transfer.push_back(when);
        device(r.device).first.bytes_within += r.bytes;
        ++device(r.device).first.fills;
        break;
      case trace_kind::host_call:
      case trace_kind::wait:
        if (!is_device(r.device)) break;
        device(r.device).second.synchronisation.push_back(when);
        if (r.kind == trace_kind::wait) ++device(r.device).first.waits;
        break;
      case trace_kind::span:
      case trace_kind::mark:
        break;
    }
  }

  void finish(const std::vector<time_range>& paused) {
    const detail::time_set pauses{paused};
    const detail::time_set window = detail::time_set{{extent_}}.without(pauses);
    profile_.wall = window.length();
    for (auto& [id, entry] : devices_) {
      auto& [d, did] = entry;
      const detail::time_set compute = detail::time_set{std::move(did.compute)}.without(pauses);
      const detail::time_set moving = detail::time_set{std::move(did.transfer)}.without(pauses);
      const detail::time_set exposed = moving.without(compute);
      const detail::time_set waiting =
          detail::time_set{std::move(did.synchronisation)}.without(pauses).without(compute).without(moving);
      d.compute = compute.length();
      d.transfer = exposed.length();
      d.overlapped_transfer = moving.length() - d.transfer;
      d.synchronisation = waiting.length();
      d.idle = window.without(compute).without(moving).without(waiting).length();
      profile_.devices.push_back(std::move(d));
    }
    for (auto& [name, times] : kernels_) {
      std::sort(times.each.begin(), times.each.end());
      kernel_profile k{name,
                       times.each.size(),
                       times.items,
                       nanoseconds{0},
                       times.each.front(),
                       times.each[(times.each.size() - 1) / 2],
                       times.each.back()};
      for (const nanoseconds t : times.each) k.total += t;
      profile_.kernels.push_back(std::move(k));
    }
    std::sort(profile_.kernels.begin(), profile_.kernels.end(), [](const kernel_profile& x, const kernel_profile& y) {
      return x.total != y.total ? x.total > y.total : x.name < y.name;
    });
    for (auto& [ends, times] : pairs_) {
      profile_.pairs.push_back(
          {ends.first, ends.second, times.bytes, times.copies, detail::time_set{std::move(times.busy)}.length()});
    }
    std::sort(profile_.pairs.begin(), profile_.pairs.end(), [](const pair_profile& x, const pair_profile& y) {
      return x.bytes != y.bytes ? x.bytes > y.bytes : std::pair{x.from, x.to} < std::pair{y.from, y.to};
    });
  }

 private:
  /// A map and not an array: an id that no machine has must not size anything.
  std::pair<device_profile, activity>& device(device_id id) {
    const auto [found, added] = devices_.try_emplace(id);
    if (added) {
      found->second.first.device = id;
      found->second.first.name = id.index() < names_.size() ? names_[id.index()] : to_string(id);
    }
    return found->second;
  }

  void add_kernel(const trace_record& r, const time_range& when) {
    kernel_times& times = kernels_[r.name];
    times.each.push_back(when.end - when.begin);
    times.items += r.items;
    if (!is_device(r.device)) return;
    device(r.device).second.compute.push_back(when);
    ++device(r.device).first.kernels;
  }

  void add_copy(const trace_record& r, const time_range& when) {
    pair_times& times = pairs_[{r.from, r.to}];
    times.busy.push_back(when);
    times.bytes += r.bytes;
    ++times.copies;
    // Both ends are busy with it; a third device, in whose stream it was ordered, is not.
    if (is_device(r.from)) touch(r.from, when);
    if (is_device(r.to) && r.to != r.from) touch(r.to, when);
    if (r.from == r.to) {
      if (is_device(r.to)) device(r.to).first.bytes_within += r.bytes;
      return;
    }
    if (is_device(r.from)) device(r.from).first.bytes_out += r.bytes;
    if (is_device(r.to)) device(r.to).first.bytes_in += r.bytes;
  }

  void touch(device_id id, const time_range& when) {
    device(id).second.transfer.push_back(when);
    ++device(id).first.copies;
  }

  machine_profile& profile_;
  const std::vector<std::string>& names_;
  std::map<device_id, std::pair<device_profile, activity>> devices_;
  std::map<std::string, kernel_times> kernels_;
  std::map<std::pair<device_id, device_id>, pair_times> pairs_;
  time_range extent_;
  bool any_ = false;
};

template <class Part>
nanoseconds sum_of(const std::vector<device_profile>& devices, Part part) {
  nanoseconds sum{0};
  for (const device_profile& d : devices) sum += d.*part;
  return sum;
}

// ---- for people -----------------------------------------------------------------------------------------------------

/// Four significant digits, and the unit that fits.
std::string number(double value, const char* unit) {
  const int digits = value < 9.9995 ? 3 : value < 99.995 ? 2 : value < 999.95 ? 1 : 0;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f %s", digits, value, unit);
  return text.data();
}

std::string time_text(nanoseconds time) {
  const double ns = static_cast<double>(time.count());
  if (time.count() < 1000) return std::to_string(time.count()) + " ns";
  if (ns < 999.95e3) return number(ns / 1e3, "us");
  if (ns < 999.95e6) return number(ns / 1e6, "ms");
  return number(ns / 1e9, "s");
}

std::string share_text(nanoseconds part, nanoseconds whole) {
  return detail::readable_part(static_cast<double>(part.count()), static_cast<double>(whole.count()));
}

std::string place_text(device_id id) { return is_device(id) ? to_string(id) : "host"; }

using table_rows = std::vector<std::vector<std::string>>;

/// Columns as wide as their widest cell, the first ones `left` to the left and the others to the right.
std::string table(const table_rows& rows, std::size_t left) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      line += (c == 0 ? "" : "  ") + (c < left ? row[c] + padding : padding + row[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace

double pair_profile::bytes_per_second() const {
  return busy.count() > 0 ? static_cast<double>(bytes) * 1e9 / static_cast<double>(busy.count()) : 0.0;
}

nanoseconds machine_profile::compute() const { return sum_of(devices, &device_profile::compute); }
nanoseconds machine_profile::transfer() const { return sum_of(devices, &device_profile::transfer); }
nanoseconds machine_profile::synchronisation() const { return sum_of(devices, &device_profile::synchronisation); }
nanoseconds machine_profile::idle() const { return sum_of(devices, &device_profile::idle); }

machine_profile summarise(std::span<const trace_record> records, const profile_context& context) {
  machine_profile profile;
  profile.simulated = context.simulated;
  profile.dropped = context.dropped;
  collector all{profile, context.device_names};
  for (const trace_record& r : records) {
    // spans and marks do not stretch the time that is looked at: a span may hold the whole run of the program
    if (is_work(r.kind)) all.add(r);
  }
  all.finish(context.paused);
  return profile;
}

std::string to_string(const machine_profile& profile) {
  std::string text = "profile of " + time_text(profile.wall) +
                     (profile.simulated ? ", simulated: a virtual clock, not a measurement\n" : "\n");
  if (profile.dropped > 0) text += std::to_string(profile.dropped) + " records did not fit, and are not in here\n";
  if (profile.failed > 0) text += std::to_string(profile.failed) + " operations failed\n";

  table_rows rows{{"device", "compute", "transfer", "synchronisation", "idle", "hidden transfer", "in", "out",
                   "kernels", "copies"}};
  for (const device_profile& d : profile.devices) {
    std::vector<std::string> row{d.name == to_string(d.device) ? d.name : to_string(d.device) + " " + one_line(d.name)};
    for (const nanoseconds part : {d.compute, d.transfer, d.synchronisation, d.idle}) {
      row.push_back(time_text(part) + " (" + share_text(part, profile.wall) + ")");
    }
    row.insert(row.end(), {time_text(d.overlapped_transfer), to_string(bytes{d.bytes_in}),
                           to_string(bytes{d.bytes_out}), std::to_string(d.kernels), std::to_string(d.copies)});
    rows.push_back(std::move(row));
  }
  text += "\n" + table(rows, 1);

  if (!profile.kernels.empty()) {
    rows = {{"kernel", "runs", "total", "shortest", "median", "longest"}};
    for (const kernel_profile& k : profile.kernels) {
      rows.push_back({one_line(k.name), std::to_string(k.count), time_text(k.total), time_text(k.shortest),
                      time_text(k.median), time_text(k.longest)});
    }
    text += "\n" + table(rows, 1);
  }
  if (!profile.pairs.empty()) {
    rows = {{"from", "to", "bytes", "copies", "rate"}};
    for (const pair_profile& p : profile.pairs) {
      rows.push_back({place_text(p.from), place_text(p.to), to_string(bytes{p.bytes}), std::to_string(p.copies),
                      p.busy.count() > 0 ? number(p.bytes_per_second() / 1e9, "GB/s") : "-"});
    }
    text += "\n" + table(rows, 2);
  }
  return text;
}

}  // namespace weft
