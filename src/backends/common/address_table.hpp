// SPDX-License-Identifier: Apache-2.0
// Every address of a machine, and the allocation it lies in.
#pragma once

#include "backend/address.hpp"
#include "backends/common/allocation.hpp"
#include "weft/core/result.hpp"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

namespace weft::common {

/// An allocation lost in a reset, and a mapping whose memory was freed, leave a stale address: it is found no more, and
/// stays taken until its owner gives it back. An owner has nothing but the address to name what it
/// frees, so that another allocation at the same address would be freed in its place.
/// Thread: any. Cost: logarithmic in what is in the table; freeing, in the number of mappings of what is freed.
template <class A>
class address_table {
 public:
  using ref = std::shared_ptr<A>;
  /// Allocations that have left the table. They end without its lock, since that may call a driver. Taking them out
  /// needs no memory.
  using taken = std::map<std::uintptr_t, ref>;

  /// Throws std::bad_alloc, and then nothing has changed.
  void add(ref made) {
    const std::unique_lock lock{mutex_};
    insert(std::move(made));
  }
  /// Errors: invalid_argument where a byte of it is in the table already.
  [[nodiscard]] result<void> add_alone(ref made) {
    const std::unique_lock lock{mutex_};
    if (meets(made->user, made->size)) return known_already(made->user);
    insert(std::move(made));
    return {};
  }
  /// The same question before something is made. Errors: invalid_argument.
  [[nodiscard]] result<void> may_add(const void* base, std::size_t size) const {
    const std::shared_lock lock{mutex_};
    if (meets(base, size)) return known_already(base);
    return {};
  }
  /// Whether a byte of it has a stale address.
  [[nodiscard]] bool is_stale(const void* base, std::size_t size) const {
    const std::shared_lock lock{mutex_};
    return meets(stale_, base, size);
  }

  /// The allocation that an address lies in; empty when there is none.
  [[nodiscard]] ref find(const void* address) const {
    const std::shared_lock lock{mutex_};
    const auto it = at(table_, address);
    return it == table_.end() ? nullptr : it->second;
  }
  /// The same for a range. One that reaches over mappings of blocks that touch finds them as one allocation.
  [[nodiscard]] ref find(const void* address, std::uint64_t extent) const {
    ref first = find(address);
    if (!first || first->kind != memory_kind::block) return first;
    const std::uint64_t end = number(address) - number(first->user) + extent;
    if (end <= first->size) return first;
    auto whole = std::make_shared<A>();
    whole->begin_as(*first);
    const std::shared_lock lock{mutex_};
    for (auto it = table_.find(number(first->user)); it != table_.end() && whole->size < end; ++it) {
      if (!follows(*it->second, *first, whole->size)) break;
      whole->parts.push_back(it->second);
      it->second->pending.fetch_add(1);
      whole->size += it->second->size;
    }
    if (whole->parts.empty()) return nullptr;  // unmapped meanwhile
    return whole;
  }
  /// The mappings of blocks that make up exactly this range; empty when there is none, or a gap, or a part of one.
  [[nodiscard]] std::vector<ref> blocks_in(const void* address, std::uint64_t size) const {
    std::vector<ref> found;
    const std::shared_lock lock{mutex_};
    std::uint64_t reached = 0;
    const auto first = table_.find(number(address));
    for (auto it = first; it != table_.end() && reached < size; ++it) {
      if (!follows(*it->second, *first->second, reached)) break;
      found.push_back(it->second);
      reached += it->second->size;
    }
    if (reached != size) found.clear();
    return found;
  }
  /// Shows the allocation while nothing changes in the table; false when there is none.
  template <class F>
  bool visit(const void* address, F&& f) const {
    const std::unique_lock lock{mutex_};
    const auto it = at(table_, address);
    if (it == table_.end()) return false;
    f(it->second);
    return true;
  }
  /// Calls `f(allocation)` for each, while nothing changes in the table.
  template <class F>
  void for_each(F&& f) const {
    const std::unique_lock lock{mutex_};
    for (const auto& [base, one] : table_) f(one);
  }
  /// Calls `f(mapping)` for each peer mapping of a pair, looking at no other memory.
  template <class F>
  void for_each_window(device_id by, device_id owner, F&& f) const {
    const std::shared_lock lock{mutex_};
    const auto of_pair = windows_.find({by, owner});
    if (of_pair == windows_.end()) return;
    for (const auto& [base, one] : of_pair->second) f(*one);
  }

  /// Takes an allocation out; the mappings of it end. `ending(allocation)` is called with the lock held. Errors:
  /// not_found, also for a stale address, which is given back.
  template <class F>
  [[nodiscard]] result<taken> release(void* base, F&& ending) {
    taken gone;  // it ends after the lock
    const std::unique_lock lock{mutex_};
    const auto it = table_.find(number(base));
    if (it == table_.end() || it->second->kind == memory_kind::mapped || it->second->kind == memory_kind::block) {
      if (give_back(base, false, gone))
        return make_error(errc::not_found, "the memory at " + hex(base) + " went with a reset of its device");
      return make_error(errc::not_found, "no allocation starts at " + hex(base) + "; was it freed before?");
    }
    A& memory = *it->second;
    ending(memory);
    for (const std::uintptr_t window : std::exchange(memory.windows, {})) {
      if (const auto mapping = table_.find(window); mapping != table_.end()) end(mapping);
    }
    gone.insert(table_.extract(it));
    return gone;
  }
  /// Takes a peer mapping out. Errors: not_found, also for a stale address, which is given back; wrong_device.
  [[nodiscard]] result<taken> unmap(device_id by, void* mapped) {
    taken gone;
    const std::unique_lock lock{mutex_};
    const auto it = table_.find(number(mapped));
    if (it == table_.end() || !it->second->source) {
      if (give_back(mapped, true, gone)) {
        return make_error(errc::not_found, "the peer mapping at " + hex(mapped) +
                                               " has ended: the memory was freed, or a device was reset");
      }
      return make_error(errc::not_found, "no peer mapping starts at " + hex(mapped) + "; was it unmapped before?");
    }
    if (it->second->by != by) {
      return make_error(errc::wrong_device, "the mapping at " + hex(mapped) + " belongs to " +
                                                to_string(it->second->by) + ", not to " + to_string(by));
    }
    take(it, gone);
    return gone;
  }
  /// Takes one out; operations that hold it may still end.
  void remove(const ref& ended) {
    taken gone;
    const std::unique_lock lock{mutex_};
    ended->revoked.store(true);
    const auto it = table_.find(number(ended->user));
    if (it != table_.end() && it->second == ended) take(it, gone);
  }
  /// Gives back the stale address of memory of another process that `address` lies in, if it is one, once for each time
  /// that it was opened. Under the lock of what is open.
  void remove_stale(const void* address) {
    taken gone;
    const std::unique_lock lock{mutex_};
    const auto it = at(stale_, address);
    if (it != stale_.end() && it->second->imported && --it->second->imported->opens == 0)
      gone.insert(stale_.extract(it));
  }
  /// Ends all for which `goes(allocation)` is true. Their addresses are stale, but for those of mappings of blocks,
  /// which are their reservation's.
  template <class F>
  [[nodiscard]] taken end_if(F&& goes) {
    taken gone;
    const std::unique_lock lock{mutex_};
    for (auto it = table_.begin(); it != table_.end();) {
      const auto next = std::next(it);
      if (goes(*it->second)) it->second->kind == memory_kind::block ? take(it, gone) : end(it);
      it = next;
    }
    return gone;
  }
  /// Takes out everything: the machine is closed. `ending` as for release().
  template <class F>
  [[nodiscard]] taken clear(F&& ending) {
    taken left;  // at an address that is taken again, as a reservation's may be
    const std::unique_lock lock{mutex_};
    for (const auto& [base, one] : table_) ending(*one);
    windows_.clear();
    table_.merge(stale_);
    left.swap(stale_);
    return std::exchange(table_, taken{});
  }

 private:
  using place = typename taken::iterator;

  [[nodiscard]] static error known_already(const void* base) {
    return make_error(errc::invalid_argument, "the memory at " + hex(base) + " is known already");
  }
  [[nodiscard]] static typename taken::const_iterator at(const taken& any, const void* address) {
    auto it = any.upper_bound(number(address));
    if (it == any.begin()) return any.end();
    --it;
    return number(address) - it->first < it->second->size ? it : any.end();
  }
  [[nodiscard]] static bool meets(const taken& any, const void* base, std::size_t size) {
    const auto next = any.upper_bound(number(base));
    if (next != any.end() && next->first < number(base) + size) return true;
    return next != any.begin() && std::prev(next)->first + std::prev(next)->second->size > number(base);
  }
  [[nodiscard]] bool meets(const void* base, std::size_t size) const {
    return meets(table_, base, size) || meets(stale_, base, size);
  }
  /// Whether a mapping of a block begins `reached` bytes after the first one, in the same reservation.
  [[nodiscard]] static bool follows(const A& next, const A& first, std::uint64_t reached) {
    return next.kind == memory_kind::block && next.reservation == first.reservation &&
           next.user == first.user + reached;
  }
  void insert(ref made) {
    const std::uintptr_t base = number(made->user);
    A& one = *made;
    one.serial = ++last_serial_;
    table_.insert_or_assign(base, std::move(made));
    if (!one.source) return;
    try {
      one.source->windows.insert(base);
      windows_[{one.by, one.owner}].emplace(base, &one);
    } catch (...) {
      one.source->windows.erase(base);
      table_.erase(base);
      throw;
    }
  }
  void take(place it, taken& into) {
    A& one = *it->second;
    one.revoked.store(true);
    if (one.source) {
      one.source->windows.erase(it->first);
      const auto of_pair = windows_.find({one.by, one.owner});
      of_pair->second.erase(it->first);
      if (of_pair->second.empty()) windows_.erase(of_pair);
    }
    into.insert(table_.extract(it));
  }
  /// Ends it, but for its address.
  void end(place it) {
    const ref one = it->second;
    take(it, stale_);
    // where no operation holds the mapping, nothing keeps the memory behind it, which the caller or the table holds
    if (one.use_count() == 2) one->source = nullptr;
    one->hide();
  }
  bool give_back(const void* address, bool mapping, taken& into) {
    const auto it = stale_.find(number(address));
    if (it == stale_.end() || (it->second->kind == memory_kind::mapped) != mapping) return false;
    into.insert(stale_.extract(it));
    return true;
  }

  mutable std::shared_mutex mutex_;
  taken table_;
  taken stale_;
  std::uint64_t last_serial_ = 0;
  // peer mappings by pair, then by where they start: a change of one pair looks at no other memory
  std::map<std::pair<device_id, device_id>, std::map<std::uintptr_t, A*>> windows_;
};

}  // namespace weft::common
