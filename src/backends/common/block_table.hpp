// SPDX-License-Identifier: Apache-2.0
// Blocks without an address, reservations without memory, and where one stands in the other: what every backend checks
// and keeps. A backend adds how a block is made, mapped and given away, and what its devices are told of rights.
#pragma once

#include "backend/address.hpp"
#include "backends/common/access_list.hpp"
#include "core/errors/make_error.hpp"
#include "core/text/hex.hpp"
#include "weft/core/access_right.hpp"
#include "weft/core/block_description.hpp"
#include "weft/core/bytes.hpp"
#include "weft/core/memory_description.hpp"
#include "weft/core/result.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace weft::common {

/// "2 MiB at 0x7f…"
[[nodiscard]] inline std::string extent_of(const void* address, std::size_t size) {
  return to_string(bytes{size}) + " at " + hex(address);
}

/// Memory without an address. A backend's block derives from this, and lives while a reference or a mapping holds it.
struct known_block {
  block_id id{};
  device_id device;
  std::size_t size = 0;
  bool shareable = false;
  bool imported = false;
  bool charged = false;
  std::uint64_t references = 0;  // guarded by the table
};

/// Address space without memory. A backend's reservation derives from this.
struct known_reservation {
  std::byte* base = nullptr;
  std::size_t size = 0;  // as it was asked for
  std::mutex mutex;
  std::map<std::size_t, std::size_t> busy;  // offset → size: mapped, or still used by work that has not ended
};

/// `Model` is the backend's memory_map, `Block` and `Range` derive from the two above. Thread: any.
template <class Model, class Block, class Range>
class block_table {
 public:
  using allocation_ref = typename Model::ref;

  [[nodiscard]] result<void> release(block_id block) {
    std::shared_ptr<Block> gone;
    const std::lock_guard lock{mutex_};
    const auto it = blocks_.find(block);
    if (it == blocks_.end()) return no_block(block);
    if (--it->second->references != 0) return {};
    gone = std::move(it->second);
    blocks_.erase(it);
    return {};
  }
  /// Empty when no reference to it is left.
  [[nodiscard]] std::shared_ptr<Block> find(block_id block) {
    const std::lock_guard lock{mutex_};
    const auto it = blocks_.find(block);
    return it == blocks_.end() ? nullptr : it->second;
  }
  [[nodiscard]] result<block_description> describe(block_id block) {
    const auto known = find(block);
    if (!known) return no_block(block);
    return block_description{known->device, bytes{known->size}, known->shareable, known->imported};
  }
  /// A new reference to what is mapped at an address.
  [[nodiscard]] result<block_id> block_of(const void* address) {
    const auto found = mapped_at(address);
    if (!found) return nothing_mapped(address);
    return again(std::static_pointer_cast<Block>(found->mapped));
  }
  [[nodiscard]] result<access_right> access_of(device_id device, const void* address) {
    const auto found = mapped_at(address);
    if (!found) return nothing_mapped(address);
    return found->only->of(memory_.local(device));
  }

  [[nodiscard]] result<void> free(void* base, std::size_t size) {
    std::shared_ptr<Range> gone;
    const std::lock_guard lock{mutex_};
    const auto it = reservations_.find(number(base));
    if (it == reservations_.end())
      return make_error(errc::not_found, "no reservation starts at " + hex(base) + "; was it freed before?");
    Range& range = *it->second;
    if (range.size != size) {
      return make_error(errc::invalid_argument, "the reservation at " + hex(base) + " has " +
                                                    to_string(bytes{range.size}) + ", not " + to_string(bytes{size}) +
                                                    ": it is freed as a whole");
    }
    std::map<std::size_t, std::size_t> busy;
    {
      const std::lock_guard looking{range.mutex};
      busy = range.busy;
    }
    for (const auto& [offset, length] : busy) {
      if (!mapped_at(range.base + offset)) continue;
      return make_error(errc::invalid_argument, "the reservation at " + hex(base) + " still has " +
                                                    to_string(bytes{length}) + " mapped at offset " +
                                                    std::to_string(offset) + ": unmap it first");
    }
    // what work still uses keeps the address space until that has ended
    gone = std::move(it->second);
    reservations_.erase(it);
    return {};
  }
  [[nodiscard]] result<void> unmap(void* address, std::size_t size) {
    std::vector<allocation_ref> ended;  // goes without the lock: the end of memory may call a driver
    const std::lock_guard lock{mutex_};
    if (size != 0) ended = memory_.blocks_in(address, size);
    if (ended.empty()) {
      const auto there = mapped_at(address);
      if (!there)
        return make_error(errc::not_found, "no block is mapped at " + hex(address) + "; was it unmapped before?");
      return make_error(errc::invalid_argument, "unmapping " + extent_of(address, size) +
                                                    ": mappings end as a whole; the one there is " +
                                                    extent_of(there->user, there->size));
    }
    for (const auto& one : ended) memory_.remove(one);
    return {};
  }

  /// References to blocks of a device go, as its mappings do in the memory_map.
  void forget(device_id device) {
    std::map<block_id, std::shared_ptr<Block>> gone;
    const std::lock_guard lock{mutex_};
    for (auto it = blocks_.begin(); it != blocks_.end();) {
      const auto next = std::next(it);
      if (it->second->device == device) {
        it->second->references = 0;
        gone.insert(blocks_.extract(it));
      }
      it = next;
    }
  }
  void clear() {
    std::map<block_id, std::shared_ptr<Block>> blocks;
    std::map<std::uintptr_t, std::shared_ptr<Range>> reservations;
    const std::lock_guard lock{mutex_};
    blocks.swap(blocks_);
    reservations.swap(reservations_);
  }

 protected:
  explicit block_table(Model& memory) : memory_(memory) {}
  ~block_table() = default;

  [[nodiscard]] static error no_block(block_id block) {
    return make_error(errc::not_found, "there is no block " + std::to_string(static_cast<std::uint64_t>(block)) +
                                           " on this machine; was it released?");
  }
  [[nodiscard]] static result<void> check_size(std::size_t size, std::size_t granule, device_id device) {
    if (size != 0 && size % granule == 0) return {};
    return make_error(errc::invalid_argument, "a block of " + to_string(bytes{size}) + " on " + to_string(device) +
                                                  ": sizes are multiples of " + to_string(bytes{granule}) +
                                                  " there (see granularity)");
  }
  [[nodiscard]] static result<void> check_reservation(std::size_t size, std::size_t alignment) {
    if (size == 0 || size % page_size() != 0) {
      return make_error(errc::invalid_argument, "a reservation of " + to_string(bytes{size}) +
                                                    ": sizes are multiples of a page, " +
                                                    to_string(bytes{page_size()}));
    }
    if (alignment != 0 && !std::has_single_bit(alignment)) {
      return make_error(errc::invalid_argument,
                        "the alignment of a reservation is 0 or a power of two, not " + std::to_string(alignment));
    }
    return {};
  }

  /// With its first reference. mutex_ must not be held.
  [[nodiscard]] block_id added(std::shared_ptr<Block> made) {
    const std::lock_guard lock{mutex_};
    made->id = block_id{++last_id_};
    made->references = 1;
    const block_id id = made->id;
    blocks_.emplace(id, std::move(made));
    return id;
  }
  /// One reference more: the last may have gone while a mapping kept the memory. mutex_ must not be held.
  [[nodiscard]] block_id again(const std::shared_ptr<Block>& block) {
    const std::lock_guard lock{mutex_};
    blocks_.try_emplace(block->id, block);
    ++block->references;
    return block->id;
  }
  [[nodiscard]] void* keep(std::shared_ptr<Range> made) {
    void* const base = made->base;
    const std::lock_guard lock{mutex_};
    reservations_.emplace(number(base), std::move(made));
    return base;
  }

  /// A place in a reservation, busy until it is freed.
  struct place {
    std::shared_ptr<Range> range;
    std::size_t offset = 0;
    void free() const noexcept {
      const std::lock_guard lock{range->mutex};
      range->busy.erase(offset);
    }
  };
  /// Takes the place where a block of at least `size` bytes is to be mapped. Under mutex_.
  [[nodiscard]] result<place> take_place(const Block& block, void* address, std::size_t size, std::size_t granule) {
    const auto refused = [](std::string why) { return make_error(errc::invalid_argument, std::move(why)); };
    if (size == 0 || size % granule != 0 || size > block.size) {
      return refused("mapping " + to_string(bytes{size}) + " of a block of " + to_string(bytes{block.size}) +
                     ": a mapping is not longer than its block, and a multiple of " + to_string(bytes{granule}));
    }
    auto it = reservations_.upper_bound(number(address));
    const bool is_after_one = it != reservations_.begin();
    if (is_after_one) --it;
    const std::size_t offset = is_after_one ? number(address) - it->first : 0;
    if (!is_after_one || offset >= it->second->size || size > it->second->size - offset)
      return refused("mapping " + extent_of(address, size) + ": no reservation covers that; reserve it first");
    place made{it->second, offset};
    if (made.offset % granule != 0) {
      return refused("mapping at offset " + std::to_string(made.offset) +
                     " of a reservation: offsets are multiples of " + to_string(bytes{granule}));
    }
    std::optional<std::size_t> there;  // where the first one begins that is in the way
    {
      auto& busy = made.range->busy;
      const std::lock_guard looking{made.range->mutex};
      const auto next = busy.lower_bound(made.offset);
      if (next != busy.end() && next->first < made.offset + size) there = next->first;
      if (next != busy.begin() && std::prev(next)->first + std::prev(next)->second > made.offset)
        there = std::prev(next)->first;
      if (!there) busy.emplace(made.offset, size);
    }
    if (!there) return made;
    if (memory_.find(made.range->base + *there))
      return refused("mapping " + extent_of(address, size) + ": something is mapped there already; unmap it first");
    return make_error(errc::not_ready, "mapping " + extent_of(address, size) +
                                           ": work still uses what was mapped there before; wait for it first");
  }
  /// Says of an allocation what it maps: `size` bytes from the start of `block`, which nobody has a right to yet.
  void describe_mapping(typename Model::allocation_type& made, const std::shared_ptr<Block>& block, void* address,
                        std::size_t size) const {
    made.kind = memory_kind::block;
    made.owner = block->device;
    made.user = static_cast<std::byte*>(address);
    made.size = size;
    made.mapped = block;
    made.only = std::make_shared<access_list>(memory_.devices());
  }
  /// The mappings that rights are to be set on, once all of them are possible. Under mutex_. `refused(device, owner)`
  /// is the error where a device cannot reach memory of another, if it cannot.
  template <class F>
  [[nodiscard]] result<std::vector<allocation_ref>> to_be_set(void* address, std::size_t size,
                                                              std::span<const device_right> rights, F&& refused) {
    if (rights.empty()) return make_error(errc::invalid_argument, "setting rights for no device");
    std::vector<allocation_ref> mappings;
    if (size != 0) mappings = memory_.blocks_in(address, size);
    if (mappings.empty()) {
      return make_error(errc::invalid_argument, "setting rights on " + extent_of(address, size) +
                                                    ": that must be one or several whole mappings that touch");
    }
    for (const device_right& one : rights) {
      if (one.right > access_right::read_write) {
        return make_error(errc::invalid_argument,
                          "a right is none, read or read_write, not " + std::to_string(static_cast<int>(one.right)));
      }
      if (one.right == access_right::none) continue;
      for (const auto& mapping : mappings) {
        if (one.device == mapping->owner) continue;
        if (std::optional<error> why = refused(one.device, mapping->owner)) return std::move(*why);
      }
    }
    return mappings;
  }
  /// The block, if it may be given to another process. Errors: not_found; invalid_argument.
  [[nodiscard]] result<std::shared_ptr<Block>> to_be_given(block_id block) {
    auto memory = find(block);
    if (!memory) return no_block(block);
    if (!memory->shareable) {
      return make_error(errc::invalid_argument, "a block of " + to_string(bytes{memory->size}) + " on " +
                                                    to_string(memory->device) +
                                                    " was not made to be shared: ask for that when it is made");
    }
    return memory;
  }

  Model& memory_;
  std::mutex mutex_;
  std::map<block_id, std::shared_ptr<Block>> blocks_;  // with references

 private:
  [[nodiscard]] allocation_ref mapped_at(const void* address) const {
    auto found = memory_.find(address);
    return found && found->kind == memory_kind::block ? found : nullptr;
  }
  [[nodiscard]] static error nothing_mapped(const void* address) {
    return make_error(errc::not_found, "no block is mapped at " + hex(address));
  }

  std::map<std::uintptr_t, std::shared_ptr<Range>> reservations_;  // by base
  std::uint64_t last_id_ = 0;
};

}  // namespace weft::common
