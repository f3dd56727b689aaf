// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/launch_report.hpp"

#include "core/text/readable.hpp"
#include "exec/arrays/interval_set.hpp"
#include "weft/core/bytes.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <utility>
#include <vector>

namespace weft {
namespace {

using detail::interval;
using detail::interval_set;
using detail::readable_count;
using detail::readable_part;
using detail::readable_time;
using std::chrono::nanoseconds;

constexpr double worth_naming = 0.05;     // of the time of the launch: the part below which a loss is not dominant
constexpr std::int64_t many_pieces = 4;   // for each device: above that, waits between pieces are the pieces' doing
constexpr std::size_t width_of_bar = 24;  // characters

double in_seconds(nanoseconds time) { return std::chrono::duration<double>(time).count(); }
double in_ns(nanoseconds time) { return static_cast<double>(time.count()); }

// ---- spans of time --------------------------------------------------------------------------------------------------

using spans_of_time = std::vector<interval>;  // in nanoseconds

/// Sorted first, so that each is put at the end of the set.
interval_set merged(spans_of_time all) {
  std::sort(all.begin(), all.end(), [](const interval& a, const interval& b) { return a.begin < b.begin; });
  interval_set made;
  for (const interval& one : all) made.add(one);
  return made;
}

nanoseconds length(const interval_set& spans) { return nanoseconds{spans.count()}; }

// ---- the time of a device -------------------------------------------------------------------------------------------

/// What happened on one device, within the launch.
struct device_times {
  device_account account;
  bool is_capped = false;
  spans_of_time runs;
  spans_of_time good_runs;  // of pieces that did not fail
  spans_of_time moves;
  spans_of_time queued;  // submitted, or computed, and not yet moving
  nanoseconds end{0};    // of its last work
  bool worked = false;
  double weight = 0;  // its part of all speeds
};

class reader {
 public:
  explicit reader(const launch_record& record)
      : record_(record), begin_(record.submitted), end_(std::max(record.submitted, record.ended)) {
    for (const balance_reason& planned : record.plan.devices) {
      device_times& d = of(planned.device);
      d.is_capped = planned.is_capped;
      d.account.planned_items = planned.items;
      d.account.predicted_seconds = planned.predicted_seconds;
      d.account.why = planned.why;
    }
    for (const piece_record& p : record.pieces) add(p);
    spans_of_time all_moves;
    for (const device_times& d : devices_) all_moves.insert(all_moves.end(), d.moves.begin(), d.moves.end());
    const interval_set moving = merged(std::move(all_moves));
    for (device_times& d : devices_) account_for(d, moving);
    weigh();
  }

  [[nodiscard]] launch_report report() const {
    launch_report made;
    made.kernel = record_.kernel;
    made.strategy = record_.plan.plan.strategy;
    made.why = record_.plan.why;
    made.items = record_.items;
    made.simulated = record_.simulated;
    made.seconds = in_seconds(end_ - begin_);
    made.predicted_seconds = record_.plan.plan.predicted_seconds;
    made.notes = record_.notes;
    for (const device_times& d : devices_) {
      const device_account& a = d.account;
      made.devices.push_back(a);
      made.ideal_seconds += d.weight * in_seconds(a.compute - a.failed);
      made.transfer_seconds += d.weight * in_seconds(a.transfer);
      made.sync_seconds += d.weight * in_seconds(a.synchronisation);
      made.imbalance_seconds += d.weight * in_seconds(done_early(d));
      made.failure_seconds += d.weight * in_seconds(a.failed + (a.is_lost ? idle(d) : nanoseconds{0}));
      if (!a.is_lost) made.idle_seconds += d.weight * in_seconds(idle(d) - done_early(d));
    }
    if (devices_.empty()) made.idle_seconds = made.seconds;
    const std::array<std::pair<launch_loss, double>, 5> losses{{{launch_loss::imbalance, made.imbalance_seconds},
                                                                {launch_loss::transfer, made.transfer_seconds},
                                                                {launch_loss::synchronisation, made.sync_seconds},
                                                                {launch_loss::idle, made.idle_seconds},
                                                                {launch_loss::failure, made.failure_seconds}}};
    const auto largest = std::max_element(losses.begin(), losses.end(),
                                          [](const auto& a, const auto& b) { return a.second < b.second; });
    if (largest->second > worth_naming * made.seconds) made.dominant = largest->first;
    made.advice = advice_for(made.dominant);
    return made;
  }

 private:
  device_times& of(device_id device) {
    const auto at = std::find_if(devices_.begin(), devices_.end(),
                                 [&](const device_times& d) { return d.account.device == device; });
    if (at != devices_.end()) return *at;
    device_times& made = devices_.emplace_back();
    made.account.device = device;
    made.account.why = "not in the plan: it took what others left";
    return made;
  }

  [[nodiscard]] interval within(nanoseconds begin, nanoseconds end) const {
    return {std::clamp(begin, begin_, end_).count(), std::clamp(end, begin_, end_).count()};
  }

  void add(const piece_record& p) {
    device_times& d = of(p.what.device);
    ++d.account.pieces;
    d.account.is_lost = p.failed;
    d.account.bytes_in += p.bytes_in;
    d.account.bytes_out += p.bytes_out;
    d.runs.push_back(within(p.run_begin, p.run_end));
    if (p.failed) {
      ++d.account.failed_pieces;
    } else {
      d.account.items += std::max<std::int64_t>(0, p.what.count);
      d.good_runs.push_back(d.runs.back());
    }
    if (p.in_begin < p.in_end) {
      d.moves.push_back(within(p.in_begin, p.in_end));
      d.queued.push_back(within(p.submitted, p.in_begin));
    }
    if (p.out_begin < p.out_end) {
      d.moves.push_back(within(p.out_begin, p.out_end));
      d.queued.push_back(within(p.run_end, p.out_begin));
    }
  }

  void account_for(device_times& d, const interval_set& all_moves) const {
    device_account& a = d.account;
    const interval_set runs = merged(std::move(d.runs));
    a.compute = length(runs);
    a.failed = a.compute - length(merged(std::move(d.good_runs)));
    // Waiting while others' data moves is waiting for a link that they share: it is named after its cause.
    spans_of_time parts = runs.runs();
    parts.insert(parts.end(), d.moves.begin(), d.moves.end());
    const interval_set queued = merged(std::move(d.queued));
    for (const interval& wait : queued.runs()) std::ranges::copy(all_moves.inside(wait), std::back_inserter(parts));
    const interval_set busy = merged(std::move(parts));
    a.transfer = length(busy) - a.compute;
    d.worked = !busy.empty();
    d.end = d.worked ? nanoseconds{busy.runs().back().end} : begin_;
    a.idle_before = d.worked ? nanoseconds{busy.runs().front().begin} - begin_ : end_ - begin_;
    a.idle_after = d.worked ? end_ - d.end : nanoseconds{0};
    a.synchronisation = (end_ - begin_) - a.idle_before - a.idle_after - length(busy);
  }

  /// Items per nanosecond: shown, else expected by the plan, else 0.
  static double speed_of(const device_times& d) {
    const double good = in_ns(d.account.compute - d.account.failed);
    if (d.account.items > 0 && good > 0) return static_cast<double>(d.account.items) / good;
    if (d.account.planned_items > 0 && d.account.predicted_seconds > 0 && std::isfinite(d.account.predicted_seconds)) {
      return static_cast<double>(d.account.planned_items) / (d.account.predicted_seconds * 1e9);
    }
    return 0;
  }

  void weigh() {
    double sum = 0;
    for (device_times& d : devices_) sum += d.weight = speed_of(d);
    if (sum <= 0) {  // nobody's speed can be told: all who worked are equal, and where none did, all
      const bool any = std::any_of(devices_.begin(), devices_.end(), [](const device_times& d) { return d.worked; });
      for (device_times& d : devices_) sum += d.weight = d.worked || !any ? 1 : 0;
    }
    for (device_times& d : devices_) {
      d.weight /= sum;
      if (d.worked) {
        ++workers_;
        last_ = last_ == nullptr || d.end > last_->end ? &d : last_;
      }
    }
  }

  [[nodiscard]] static nanoseconds idle(const device_times& d) { return d.account.idle_before + d.account.idle_after; }

  /// How long before the last device it was done. Of a lost device that is no imbalance.
  [[nodiscard]] nanoseconds done_early(const device_times& d) const {
    return d.worked && !d.account.is_lost ? last_->end - d.end : nanoseconds{0};
  }

  // ---- what to do

  [[nodiscard]] std::string advice_for(launch_loss loss) const {
    switch (loss) {
      case launch_loss::none:
        return {};
      case launch_loss::imbalance:
        return against_imbalance();
      case launch_loss::transfer:
        return against_transfer();
      case launch_loss::synchronisation:
        return against_synchronisation();
      case launch_loss::idle:
        return against_idle();
      case launch_loss::failure:
        return against_failure();
    }
    return {};
  }

  [[nodiscard]] bool is_chunked() const {
    return record_.plan.plan.strategy == balance::guided || record_.plan.plan.strategy == balance::work_stealing;
  }

  [[nodiscard]] std::string against_imbalance() const {
    const auto loss = [&](const device_times& d) { return d.weight * in_ns(done_early(d)); };
    const device_times& first =
        *std::max_element(devices_.begin(), devices_.end(),
                          [&](const device_times& a, const device_times& b) { return loss(a) < loss(b); });
    const std::string name = to_string(first.account.device);
    const std::string what = name + " was done " + readable_time(in_seconds(done_early(first))) + " before " +
                             to_string(last_->account.device) + ": ";
    if (first.is_capped) {
      return what +
             "its memory held it to its part; a larger `.memory_limits` for it, or `.keep_on_device = false`, so "
             "that data leaves between pieces";
    }
    switch (record_.plan.plan.strategy) {
      case balance::static_equal:
        return what + "`.strategy = balance::guided`, or `balance::dynamic` for a kernel that runs often";
      case balance::weighted: {
        const std::string shown = weights_shown();
        return what + (shown.empty() ? "other `.weights`" : "`.weights = {" + shown + "}`, as the devices showed") +
               ", or `.strategy = balance::guided`";
      }
      case balance::guided:
      case balance::work_stealing:
        return what +
               "a smaller `.granularity` for smaller last pieces, or `.strategy = balance::weighted` with what "
               "only you know of them";
      case balance::automatic:
      case balance::dynamic:
      case balance::memory_aware:
        break;
    }
    return what + "`.strategy = balance::guided`, which follows what nobody knew before";
  }

  /// In the order of the plan, out of 100; empty when a device showed none.
  [[nodiscard]] std::string weights_shown() const {
    std::string text;
    for (std::size_t i = 0; i < record_.plan.devices.size(); ++i) {
      if (devices_[i].account.items == 0) return {};
      std::array<char, 32> number{};
      std::snprintf(number.data(), number.size(), "%.3g", 100 * devices_[i].weight);
      text += (i == 0 ? "" : ", ") + std::string{number.data()};
    }
    return text;
  }

  [[nodiscard]] std::string against_transfer() const {
    std::uint64_t moved = 0;
    for (const device_times& d : devices_) moved += d.account.bytes_in + d.account.bytes_out;
    std::string text = to_string(bytes{moved}) + " moved: ";
    if (record_.plan.plan.in_passes) {
      return text +
             "the devices together do not hold the data, which comes and goes in passes; larger "
             "`.memory_limits` or more devices hold it";
    }
    if (record_.holds_borrowed) {
      text += "from and to host memory; in an `array<T>` it stays on the devices between launches";
      if (!is_chunked()) text += ", and with `.strategy = balance::guided` it moves while other pieces are computed";
    } else {
      text +=
          "arrays stay where they are with `.keep_on_device = true` and the same split for launches that follow "
          "each other";
      if (workers_ > 1) text += "; `.peer_to_peer = true` takes the direct way between devices";
    }
    if (workers_ > 1) text += "; fewer devices (`.devices.at_most`) share a link less";
    return text;
  }

  [[nodiscard]] std::string against_synchronisation() const {
    const auto pieces = static_cast<std::int64_t>(record_.pieces.size());
    if (pieces <= many_pieces * workers_) {
      return "devices waited between the steps of " + readable_count(pieces) + (pieces == 1 ? " piece" : " pieces") +
             ": for other work in their streams or on their links, which a trace of the machine shows";
    }
    std::string text = readable_count(pieces) + " pieces of " +
                       readable_count(std::max<std::int64_t>(1, record_.items / pieces)) +
                       " items on average: fewer, larger ones by ";
    if (record_.plan.plan.in_passes) return text + "larger `.memory_limits`, since they are as large as memory allows";
    text += "a larger `.granularity`";
    if (is_chunked()) text += ", or one for each device by `.strategy = balance::dynamic`";
    return text;
  }

  [[nodiscard]] std::string against_idle() const {
    const nanoseconds none_worked = last_ == nullptr ? end_ - begin_ : nobody_worked();
    const std::string waited = "nothing ran for " + readable_time(in_seconds(none_worked)) +
                               ": the launch waited for what came before it, or ";
    if (workers_ < 2) return waited + "is small beside what starting it costs: more items in one launch";
    std::string text = 2 * in_ns(none_worked) > in_ns(end_ - begin_) * idle_part() ? waited : latest_text();
    text += "is too small for so many devices: `.devices.at_most = " + std::to_string(fewer()) + "`";
    if (record_.plan.asked != balance::automatic) {
      text += ", or `.strategy = balance::automatic`, which counts what starting them costs";
    }
    return text;
  }

  [[nodiscard]] std::string against_failure() const {
    std::int64_t failed = 0;
    std::string lost;
    for (const device_times& d : devices_) {
      failed += d.account.failed_pieces;
      if (d.account.is_lost) lost += (lost.empty() ? "" : ", ") + to_string(d.account.device);
    }
    const auto pieces = static_cast<std::int64_t>(record_.pieces.size());
    std::string text =
        readable_count(failed) + " of " + readable_count(pieces) + (pieces == 1 ? " piece" : " pieces") + " failed";
    if (!lost.empty()) text += ", the last of " + lost + " too: `.devices.exclude` leaves out who fails again";
    return text;
  }

  /// Before the first began and after the last was done.
  [[nodiscard]] nanoseconds nobody_worked() const {
    nanoseconds before = end_ - begin_;
    for (const device_times& d : devices_) before = std::min(before, d.account.idle_before);
    return before + (end_ - last_->end);
  }

  /// Of the launch, on the mean of the devices that count.
  [[nodiscard]] double idle_part() const {
    double sum = 0;
    for (const device_times& d : devices_) {
      if (!d.account.is_lost) sum += d.weight * in_ns(idle(d) - done_early(d));
    }
    return sum / in_ns(end_ - begin_);
  }

  /// The device that began last; one that never did, where all others began at once.
  [[nodiscard]] std::string latest_text() const {
    const device_times* latest = last_;
    const device_times* without_work = nullptr;
    for (const device_times& d : devices_) {
      if (!d.worked && !d.account.is_lost) without_work = &d;
      if (d.worked && d.account.idle_before > latest->account.idle_before) latest = &d;
    }
    if (latest->account.idle_before == nanoseconds{0} && without_work != nullptr)
      return to_string(without_work->account.device) + " did nothing of the launch, which ";
    return to_string(latest->account.device) + " began " + readable_time(in_seconds(latest->account.idle_before)) +
           " after the launch, which ";
  }

  /// As many devices as worked on the mean. Only where several did.
  [[nodiscard]] std::int64_t fewer() const {
    double sum = 0;
    for (const device_times& d : devices_) sum += in_ns(d.account.took());
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(sum / in_ns(end_ - begin_)));
  }

  const launch_record& record_;
  nanoseconds begin_;
  nanoseconds end_;
  std::vector<device_times> devices_;   // those of the plan first, in its order
  const device_times* last_ = nullptr;  // to be done; empty when nobody worked
  std::int64_t workers_ = 0;
};

// ---- for people -----------------------------------------------------------------------------------------------------

std::string predicted_text(double seconds) { return seconds > 0 ? readable_time(seconds) : "-"; }

/// The parts of a device's time in proportion, in the order of its life. What is not 0 has a character while there are
/// enough.
std::string bar(const device_account& a, double seconds) {
  const std::array<std::pair<char, nanoseconds>, 5> parts{
      {{'.', a.idle_before}, {'>', a.transfer}, {'#', a.compute}, {'~', a.synchronisation}, {'.', a.idle_after}}};
  if (seconds <= 0) return std::string(width_of_bar, '.');
  std::array<std::size_t, 5> widths{};
  std::size_t sum = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const double exact = in_seconds(parts[i].second) / seconds * static_cast<double>(width_of_bar);
    widths[i] =
        parts[i].second.count() > 0 ? std::max<std::size_t>(1, static_cast<std::size_t>(std::lround(exact))) : 0;
    sum += widths[i];
  }
  for (; sum > width_of_bar; --sum) --*std::max_element(widths.begin(), widths.end());
  for (; sum < width_of_bar; ++sum) ++*std::max_element(widths.begin(), widths.end());
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) text.append(widths[i], parts[i].first);
  return text;
}

}  // namespace

std::string_view to_string(launch_loss loss) {
  switch (loss) {
    case launch_loss::none:
      return "none";
    case launch_loss::imbalance:
      return "imbalance";
    case launch_loss::transfer:
      return "transfer";
    case launch_loss::synchronisation:
      return "synchronisation";
    case launch_loss::idle:
      return "idle";
    case launch_loss::failure:
      return "failure";
  }
  return "none";
}

launch_report explain(const launch_record& record) { return reader{record}.report(); }

std::string to_string(const launch_report& report) {
  std::vector<std::string> lines;
  lines.push_back(report.kernel + ": " + readable_count(report.items) + " items in " + readable_time(report.seconds) +
                  "; ideal " + readable_time(report.ideal_seconds) + ", efficiency " +
                  readable_part(report.ideal_seconds, report.seconds) + "; predicted " +
                  predicted_text(report.predicted_seconds));
  lines.push_back(report.why.empty() ? std::string{to_string(report.strategy)} : report.why);

  std::vector<std::vector<std::string>> rows{{"device", "> # ~ .", "planned", "items", "pieces", "predicted", "took",
                                              "transfer >", "compute #", "sync ~", "idle .", "why"}};
  for (const device_account& a : report.devices) {
    rows.push_back({to_string(a.device), bar(a, report.seconds), readable_count(a.planned_items),
                    readable_count(a.items), readable_count(a.pieces), predicted_text(a.predicted_seconds),
                    readable_time(in_seconds(a.took())), readable_time(in_seconds(a.transfer)),
                    readable_time(in_seconds(a.compute)), readable_time(in_seconds(a.synchronisation)),
                    readable_time(in_seconds(a.idle_before + a.idle_after)), a.why});
  }
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const bool is_last = c + 1 == row.size();
      const std::string padding(is_last ? 0 : widths[c] - row[c].size(), ' ');
      line += (c == 0 ? "" : "  ") + (c < 2 || is_last ? row[c] + padding : padding + row[c]);
    }
    lines.push_back(std::move(line));
  }

  std::string lost = "lost:";
  const auto add_loss = [&](std::string_view name, double seconds) {
    lost += (lost.back() == ':' ? " " : ", ") + std::string{name} + " " + readable_time(seconds) + " (" +
            readable_part(seconds, report.seconds) + ")";
  };
  add_loss("imbalance", report.imbalance_seconds);
  add_loss("transfer", report.transfer_seconds);
  add_loss("synchronisation", report.sync_seconds);
  add_loss("idle", report.idle_seconds);
  if (report.failure_seconds > 0) add_loss("failure", report.failure_seconds);
  lines.push_back(std::move(lost));
  if (report.dominant != launch_loss::none) {
    lines.push_back("mostly " + std::string{to_string(report.dominant)} + ": " + report.advice);
  }
  for (const std::string& note : report.notes) lines.push_back("note: " + note);

  std::string text;
  // what a user called a kernel must not break the report
  for (std::string& line : lines)
    text += detail::one_line(std::move(line)) + (report.simulated ? " (simulated)\n" : "\n");
  return text;
}

}  // namespace weft
