// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/exec/balance.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace weft {

/// Hands out the pieces of one launch: the same for real devices and for simulated ones, since it never asks the time.
///
///   while (auto next = work.next(device)) { seconds = run(*next); work.finished(*next, seconds); }
///
/// Each index is handed out once; a piece given back is handed out again, to whoever asks.
/// Thread: one at a time.
class balancer {
 public:
  /// `plan` is of `request`.
  balancer(const balance_request& request, const balance_plan& plan);
  /// For data that lies somewhere already: these pieces, each for its device; every index in one of them, and borders
  /// as the granularity has them. What a device cannot take after all goes to the others.
  balancer(const balance_request& request, std::span<const piece> placed);

  /// The next piece for a device that is free. Empty: nothing for it now; ask again after give_back(), drop() or
  /// limit() while is_done() is false, and with work_stealing after each finished().
  [[nodiscard]] std::optional<piece> next(device_id device);

  /// A piece is done. Its time refines the device's speed; 0 or less says nothing of it.
  void finished(const piece& done, double seconds);

  /// A piece was handed out and not done: no memory, a lost device.
  void give_back(const piece& undone);

  /// A device was found to hold less. What it cannot hold goes to the others; when together they do not hold all,
  /// pieces are as large as the caps, and data has to leave between them. Less than one granule: as drop(). Order:
  /// after give_back() of the piece that did not fit.
  void limit(device_id device, std::int64_t cap);

  /// No piece is longer, save for one granule, and for one that would not last long beside its start.
  void limit_pieces(std::int64_t items);

  /// A device takes no more pieces; its share goes to the others, and after the last of them to those left out by cost.
  void drop(device_id device);

  [[nodiscard]] bool is_done() const { return finished_ == grid_count_; }
  /// Items that nobody has been given.
  [[nodiscard]] std::int64_t unassigned() const;
  /// Whether somebody is left who could take what is unassigned.
  [[nodiscard]] bool has_taker() const;
  /// The speed that the next chunk is sized by.
  /// Units: items/s; relative to the others only, when none is measured.
  [[nodiscard]] double speed(device_id device) const;

 private:
  /// Granules begin … end−1.
  struct run {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    [[nodiscard]] std::int64_t count() const { return end - begin; }
  };
  struct worker {
    device_id id;
    double rate = 0;  // items/s; 0: not known
    double nominal = 1;
    double chunk_seconds = 0;
    int samples = 0;
    bool was_odd = false;  // the last sample was far off
    bool takes_part = true;
    bool is_spare = false;    // left out by cost: works when all others are lost
    std::int64_t cap = 0;     // granules
    std::int64_t held = 0;    // granules it keeps until the end
    std::int64_t step = 0;    // granules of one piece of `own`
    run own;                  // its share, not begun
    std::vector<run> placed;  // what follows its share; the last is taken first
  };

  [[nodiscard]] worker* find(device_id device);
  [[nodiscard]] double likely_rate(const worker& w) const;
  [[nodiscard]] std::int64_t room(const worker& w) const;
  [[nodiscard]] std::int64_t least_chunk(const worker& w) const;
  [[nodiscard]] std::int64_t chunk_of_pool(const worker& w) const;
  [[nodiscard]] std::int64_t chunk_of_own(const worker& w) const;
  [[nodiscard]] std::int64_t pool_count() const;
  void add_worker(const balance_device& d);
  [[nodiscard]] piece handed(worker& to, run& from, std::int64_t count);
  void steal(worker& thief);
  void return_excess(worker& w);
  void keep_within_caps();

  std::int64_t items_;
  std::int64_t grain_;
  std::int64_t grid_count_;
  std::int64_t finished_ = 0;  // granules
  std::int64_t most_;          // granules in one piece
  balance strategy_;
  bool keeps_data_;
  double divisor_;
  double moved_item_seconds_;
  std::vector<worker> workers_;
  std::size_t found_ = 0;  // the worker that was looked for last
  std::vector<run> pool_;  // for whoever asks; the last is taken first
};

/// What a thief takes of `left` items that a victim has not begun: as many as make both end together, none when that
/// does not end earlier than without.
/// Units: rates in items/s, times in seconds; `moved_item_seconds` is added to each item that moves.
[[nodiscard]] std::int64_t items_to_steal(std::int64_t left, double victim_rate, double thief_rate,
                                          double thief_chunk_seconds, double moved_item_seconds);

}  // namespace weft
