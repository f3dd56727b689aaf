// SPDX-License-Identifier: Apache-2.0
// The common part of an allocation, an adopted range, a peer mapping or a mapping of a block. A backend's own
// `allocation` adds where its devices find the bytes, and what has to go back.
#pragma once

#include "backends/common/access_list.hpp"
#include "weft/core/error.hpp"
#include "weft/core/ids.hpp"
#include "weft/core/memory_description.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <sys/mman.h>
#include <utility>
#include <vector>

namespace weft::common {

struct unmapper {
  std::size_t size = 0;
  void operator()(std::byte* base) const noexcept { ::munmap(base, size); }
};
/// Address space without memory, so that an address names one thing and nothing else of this process.
using reserved_addresses = std::unique_ptr<std::byte, unmapper>;

/// Null where none is left.
[[nodiscard]] inline reserved_addresses reserve_addresses(std::size_t size) {
  void* const base = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return {base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base), unmapper{size}};
}

/// `A` is the backend's allocation, which derives from this. It lives while the table or an operation holds it.
template <class A>
struct known_range {
  // what every operation looks at
  std::byte* user = nullptr;  // the address that users know
  std::size_t size = 0;       // bytes
  device_id owner;            // where the bytes are
  device_id by;               // mapped: who may use it
  memory_kind kind = memory_kind::device;
  std::atomic<bool> revoked{false};       // ended: a mapping, or memory that went with a reset
  std::atomic<std::uint64_t> pending{0};  // operations submitted with it
  std::shared_ptr<A> source;              // peer mapping: the memory behind it …
  std::size_t source_offset = 0;          // … and where in it the mapping starts
  std::shared_ptr<access_list> only;      // who may use it, where peer access does not decide
  std::uint64_t serial = 0;               // of the table: no two have one

  std::size_t charged = 0;                // bytes that count against the owner's limit
  std::set<std::uintptr_t> windows;       // where peer mappings of it start; guarded by the table
  const void* reservation = nullptr;      // block: where it is mapped; mappings of one reservation touch
  std::shared_ptr<void> mapped;           // block: what is mapped, from its start on
  std::vector<std::shared_ptr<A>> parts;  // block: mappings that touch, seen as one for one range

  ~known_range() {
    for (const auto& part : parts) part->pending.fetch_sub(1, std::memory_order_release);  // as ~pin
  }

  /// In a device's own memory; what is not lies in the host's.
  [[nodiscard]] bool on_device() const { return kind != memory_kind::pinned && kind != memory_kind::unified; }
  /// Becomes what a copy or launch sees of mappings that touch: it begins as the first of them does.
  void begin_as(const A& first) {
    kind = first.kind;
    owner = first.owner;
    user = first.user;
  }
  /// Why nobody may use it any more, once it was revoked.
  [[nodiscard]] std::string why_revoked() const { return "the memory was freed, or its mapping has ended"; }

  /// The error of memory of another process that has ended or freed it; none else.
  [[nodiscard]] std::optional<error> broken() const { return std::nullopt; }

  /// It has ended, and its address alone is kept.
  void hide() const noexcept {}

  struct nothing {};
  using last_use = nothing;  // made by a pin around the release of what it held

 private:
  known_range() = default;  // as the base of A only; its atomics keep it from being copied
  friend A;
};

/// The allocation behind peer mappings, and where in it an address lies.
template <class A>
[[nodiscard]] std::pair<const A*, std::size_t> root_of(const A& memory, const void* address) {
  auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(address) - memory.user);
  const A* root = &memory;
  while (root->source) {
    offset += root->source_offset;
    root = root->source.get();
  }
  return {root, offset};
}

/// Keeps memory while an operation uses it.
template <class A>
class pin {
 public:
  pin() = default;
  explicit pin(std::shared_ptr<A> memory) : memory_(std::move(memory)) {
    // sequentially consistent with `revoked`: who revokes sees this, or this operation sees that it was revoked
    if (memory_) memory_->pending.fetch_add(1);
  }
  pin(pin&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  pin& operator=(pin&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~pin() {
    if (!memory_) return;
    memory_->pending.fetch_sub(1, std::memory_order_release);  // pairs with the acquire of who reuses the memory
    [[maybe_unused]] const typename A::last_use here;
    memory_ = nullptr;
  }
  [[nodiscard]] A* get() const noexcept { return memory_.get(); }
  explicit operator bool() const noexcept { return memory_ != nullptr; }

 private:
  std::shared_ptr<A> memory_;
};

}  // namespace weft::common
