// SPDX-License-Identifier: Apache-2.0
// Where the elements of an array are: instances on devices and on the host, which elements of each are valid, and the
// work that still uses them. Validity is that after everything submitted; events say when that is.
// A place before 0 or behind the last is a turn away from an element: it is one more copy of it, for a periodic halo.
#pragma once

#include "exec/arrays/instance_list.hpp"
#include "exec/split_launch/lane.hpp"
#include "runtime/machine_state.hpp"
#include "weft/exec/array.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/route.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <source_location>
#include <span>
#include <string>
#include <vector>

namespace weft::detail {

class launch_job;

/// What one piece of a launch asks of an array.
struct array_need {
  device_id device;
  interval range;
  bool reads = false;
  bool writes = false;
  /// Elements that it leaves alone stay: they are brought from where they are, if they are anywhere.
  bool keeps = false;
  interval own{};  // in a launch over several devices: the part of range that no other piece has
};

/// What copies for a piece came to.
struct array_moves {
  std::uint64_t bytes = 0;
  std::vector<event> copies;
};

/// Thread: with `mutex` held, unless said otherwise. Nobody may wait while holding it: launches decide under it.
class array_body {
 public:
  array_body(std::shared_ptr<machine_state> machine, const array_shape& shape)
      : machine_(std::move(machine)), shape_(shape) {}

  mutable std::mutex mutex;

  [[nodiscard]] const std::shared_ptr<machine_state>& machine() const { return machine_; }
  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(shape_.count); }
  [[nodiscard]] std::size_t element() const { return shape_.element; }
  [[nodiscard]] interval all() const { return {0, count()}; }

  /// The caller's memory is where the elements are, and where results go.
  void borrow(const memory_ref& home);
  /// The caller's host memory, used by every device where it is.
  void adopt(const device& by, const memory_ref& home);
  void set(std::span<const std::byte> pattern);
  /// A launch reads, or is likely to read, this many elements on either side of a part, and so many beyond the ends of
  /// the array: new memory has room for them. Beyond an end are at most as many as there are.
  void expect_halo(std::int64_t elements, std::int64_t beyond) {
    halo_ = std::max(halo_, elements);
    beyond_ = std::max(beyond_, beyond);
    if (beyond_ > 0) turns_ = {0, count(), -count(), 2 * count(), -2 * count()};
  }
  [[nodiscard]] std::int64_t halo() const { return halo_; }

  /// Its memory on devices comes from a pool: it stands for memory of the caller's, or for a slice, for one launch.
  void pass_through() { passes_through_ = true; }

  /// Makes a part usable on a device: finds or allocates an instance and submits the copies that it lacks. The kernel
  /// then waits for order().
  /// Errors: out_of_memory; invalid_argument for elements that nothing has written.
  array_instance& acquire(const array_need& need, const lane& by, const route_wish& route, array_moves& moves);
  /// Makes `stream` wait for what conflicts with a use of `range`.
  static void order(const stream& stream, array_instance& where, const interval& range, bool writes);
  /// The use that acquire() was for has been submitted.
  void commit(array_instance& where, const array_need& need, const event& done);
  /// Copies a part to its home and makes that valid, in the lane's output stream. Null when there is nothing to do.
  [[nodiscard]] event bring_home(const interval& range, const lane& by, const route_wish& route, array_moves& moves);
  /// The elements that a piece may begin again with.
  struct held_before {
    interval_set at_home, constant;
    std::vector<array_use> pending;  // writes of others to the home
  };
  [[nodiscard]] held_before before(const interval& range) const;
  /// Drops what lost devices held of `range`, and what failed to come anywhere. What there was before the piece with
  /// the events `own` began counts again, but for what another one has failed to write. False, and nothing changes,
  /// when that leaves nothing to start from, or no home to write to.
  [[nodiscard]] bool abandon(const interval& range, bool reads, bool writes, const held_before& before,
                             std::span<const event> own);
  /// A launch that fails did not write `range`: who reads that waits for `failed`, and fails with it.
  void leave_unwritten(const interval& range, const event& failed);
  /// The events of such launches, where nothing has written `range` since.
  [[nodiscard]] std::vector<event> unwritten(const interval& range) const;
  /// Drops instances on a device (none: on all) that hold nothing which is not valid elsewhere.
  void drop_replicas(device_id device);
  /// Drops instances whose elements lie on the same device in a memory with more room too. Not between acquire() and
  /// commit().
  void drop_duplicates();

  /// What is on the devices counts as other elements, `by` further on, so that a window passes over a long array in the
  /// same memory. Nothing may be using it.
  void shift(std::int64_t by);
  [[nodiscard]] bool has_home() const;
  /// The streams of a launch that used it on a device, has not failed and is still on its way, or null.
  [[nodiscard]] std::shared_ptr<lane> lane_on(device_id device) const;
  void used_by(const std::shared_ptr<lane>& way);
  /// A launch has found that another division of the data would pay, or that this one is good. True when several in a
  /// row have found so, and twice as many each time: data must not follow every disturbance of a measured time.
  [[nodiscard]] bool should_move() {
    if (++better_ < patience_) return false;
    better_ = 0;
    patience_ *= 2;
    return true;
  }
  void lies_well() { better_ = 0; }
  /// Launches since the last divided_anew().
  [[nodiscard]] int launches() const { return launches_; }
  void launched() { ++launches_; }
  void divided_anew() { launches_ = 0; }
  /// Every device and the host use it where it is.
  [[nodiscard]] bool is_shared() const { return instances_.size() == 1 && instances_.front().is_shared; }
  /// Of the caller's, which pins it; what adopt() made goes back to the caller's own memory.
  [[nodiscard]] bool borrows_device_memory() const {
    return instances_.size() == 1 && !instances_.front().is_foreign && !instances_.front().owned;
  }
  /// Gives the array a home on the host: results of a launch that may not stay on the devices go there.
  void ensure_home();
  /// Bytes of `range` that a device lacks.
  [[nodiscard]] std::uint64_t missing(device_id device, const interval& range) const;
  /// Every element of `wanted` once, in order, in pieces that lie in one memory of a device each; empty when some are
  /// on no device, or on several and nobody's share.
  [[nodiscard]] std::vector<array_part> distribution(const interval& wanted) const;
  [[nodiscard]] std::vector<array_part> parts() const;
  /// What uses `range` and has not ended.
  [[nodiscard]] std::vector<event> pending(const interval& range, bool writes_only) const;
  [[nodiscard]] array_traffic traffic() const { return traffic_; }

  // without the mutex
  void write(std::uint64_t first, std::span<const std::byte> from, std::source_location where);
  void read(std::uint64_t first, std::span<std::byte> to, std::source_location where);

  /// The last launch that uses it and may still submit work; under the mutex.
  std::weak_ptr<launch_job> last_job;

 private:
  /// A part of what is wanted, and how far from there an instance has these elements.
  struct held_part {
    interval range;
    std::int64_t turn = 0;
  };
  /// Between two places of one element: nothing but 0 where there is no periodic halo.
  [[nodiscard]] std::span<const std::int64_t> turns() const {
    return std::span{turns_}.first(beyond_ == 0 ? 1 : turns_.size());
  }
  /// Instances that have a place of an element of `range`; one that has several may come several times.
  template <class F>
  void reaching(const interval& range, F&& f) const {
    for (const std::int64_t by : turns()) instances_.overlapping({range.begin + by, range.end + by}, f);
  }
  /// Whether two ranges of places have elements in common.
  [[nodiscard]] bool share_elements(const interval& a, const interval& b) const;
  [[nodiscard]] std::vector<held_part> held(const array_instance& place, const interval& wanted) const;
  [[nodiscard]] std::vector<interval> elements_of(const interval_set& places) const;
  [[nodiscard]] std::vector<interval> constant_at(const interval& wanted) const;
  [[nodiscard]] array_instance* find(const array_need& need);
  [[nodiscard]] interval with_room(const interval& range) const;
  [[nodiscard]] memory_ref reference(const array_instance& in, const interval& range) const;
  /// Brings a range from wherever it is. Gives what is nowhere.
  interval_set fetch(array_instance& to, const interval& range, const lane& by, const route_wish& route,
                     array_moves& moves);
  static void make_room(array_instance& to, array_instance& from, array_moves& moves);
  event copy_part(const stream& order, array_instance& to, array_instance& from, const held_part& part,
                  const route_wish& route, array_moves& moves);
  void wrote(array_instance& to, const interval& range);
  void settle_uses();
  [[nodiscard]] interval_set only_on(const array_instance& place) const;
  [[nodiscard]] static bool replaces(const array_instance& other, const array_instance& one);
  [[nodiscard]] bool is_lost(device_id device) const;  // the host never is
  [[nodiscard]] device somebody() const;
  void wait_for_job();
  /// Errors: out_of_range.
  [[nodiscard]] interval range_of(std::uint64_t first, std::size_t elements, std::source_location where) const;

  std::shared_ptr<machine_state> machine_;
  array_shape shape_;
  instance_list instances_;
  std::vector<std::byte> pattern_;  // of elements in constant_
  interval_set constant_;
  std::vector<array_use> unwritten_;  // of different launches no two overlap
  std::vector<interval_set> had_;     // unchanged since it was there; by device, behind the host's
  interval_set& had_by(device_id device) {
    const std::size_t at = device.index() + 1;  // of none, the host, 0
    if (at >= had_.size()) had_.resize(at + 1);
    return had_[at];
  }
  array_traffic traffic_;
  std::map<device_id, std::weak_ptr<lane>> lanes_;
  bool passes_through_ = false;
  bool is_untidy_ = false;  // an instance may hold nothing, or nothing that another one on its device does not hold
  std::int64_t halo_ = 0;
  std::int64_t beyond_ = 0;
  std::array<std::int64_t, 5> turns_{};
  int better_ = 0;
  int patience_ = 3;
  int launches_ = 0;
};

}  // namespace weft::detail
