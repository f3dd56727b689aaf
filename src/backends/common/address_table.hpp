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

  /// The allocation that an address lies in; empty when there is none.
  [[nodiscard]] ref find(const void* address) const {
    const std::shared_lock lock{mutex_};
    const auto it = at(address);
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
    const auto it = at(address);
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

  /// Takes an allocation out, with the mappings of it, which end. `ending(allocation)` is called with the lock held.
  /// Errors: not_found.
  template <class F>
  [[nodiscard]] result<taken> release(void* base, F&& ending) {
    const std::unique_lock lock{mutex_};
    const auto it = table_.find(number(base));
    if (it == table_.end() || it->second->kind == memory_kind::mapped || it->second->kind == memory_kind::block)
      return make_error(errc::not_found, "no allocation starts at " + hex(base) + "; was it freed before?");
    A& memory = *it->second;
    ending(memory);
    taken gone;
    while (!memory.windows.empty()) take(table_.find(*memory.windows.begin()), gone);
    gone.insert(table_.extract(it));
    return gone;
  }
  /// Takes a peer mapping out. Errors: not_found; wrong_device.
  [[nodiscard]] result<taken> unmap(device_id by, void* mapped) {
    const std::unique_lock lock{mutex_};
    const auto it = table_.find(number(mapped));
    if (it == table_.end() || !it->second->source)
      return make_error(errc::not_found, "no peer mapping starts at " + hex(mapped) + "; was it unmapped before?");
    if (it->second->by != by) {
      return make_error(errc::wrong_device, "the mapping at " + hex(mapped) + " belongs to " +
                                                to_string(it->second->by) + ", not to " + to_string(by));
    }
    taken gone;
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
  /// Takes out all for which `goes(allocation)` is true; they are revoked.
  template <class F>
  [[nodiscard]] taken take_if(F&& goes) {
    taken gone;
    const std::unique_lock lock{mutex_};
    for (auto it = table_.begin(); it != table_.end();) {
      const auto next = std::next(it);
      if (goes(*it->second)) take(it, gone);
      it = next;
    }
    return gone;
  }
  /// Takes out everything: the machine is closed. `ending` as for release().
  template <class F>
  [[nodiscard]] taken clear(F&& ending) {
    const std::unique_lock lock{mutex_};
    for (const auto& [base, one] : table_) ending(*one);
    windows_.clear();
    return std::exchange(table_, taken{});
  }

 private:
  using place = typename taken::iterator;

  [[nodiscard]] static error known_already(const void* base) {
    return make_error(errc::invalid_argument, "the memory at " + hex(base) + " is known already");
  }
  [[nodiscard]] typename taken::const_iterator at(const void* address) const {
    auto it = table_.upper_bound(number(address));
    if (it == table_.begin()) return table_.end();
    --it;
    return number(address) - it->first < it->second->size ? it : table_.end();
  }
  [[nodiscard]] bool meets(const void* base, std::size_t size) const {
    const auto next = table_.upper_bound(number(base));
    if (next != table_.end() && next->first < number(base) + size) return true;
    return next != table_.begin() && std::prev(next)->first + std::prev(next)->second->size > number(base);
  }
  /// Whether a mapping of a block begins `reached` bytes after the first one, in the same reservation.
  [[nodiscard]] static bool follows(const A& next, const A& first, std::uint64_t reached) {
    return next.kind == memory_kind::block && next.reservation == first.reservation &&
           next.user == first.user + reached;
  }
  void insert(ref made) {
    const std::uintptr_t base = number(made->user);
    A& one = *made;
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

  mutable std::shared_mutex mutex_;
  taken table_;
  // peer mappings by pair, then by where they start: a change of one pair looks at no other memory
  std::map<std::pair<device_id, device_id>, std::map<std::uintptr_t, A*>> windows_;
};

}  // namespace weft::common
