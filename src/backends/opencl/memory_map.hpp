// SPDX-License-Identifier: Apache-2.0
// Whose each address is. OpenCL names memory by objects and offsets: every buffer gets an address of its own, and what
// is asked by address is translated. Where the memory of the devices is the host's, the addresses are real.
#pragma once

#include "backend/address.hpp"
#include "backends/opencl/discovery.hpp"
#include "weft/backend/backend.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

namespace weft::opencl {

class memory_map;

/// One allocation, adopted memory, or a mapping of either by another device.
struct allocation {
  allocation() = default;
  allocation(const allocation&) = delete;
  allocation& operator=(const allocation&) = delete;
  ~allocation();

  memory_map* home = nullptr;
  memory_kind kind = memory_kind::device;
  device_id owner;
  device_id by;               // of a mapping: who may use it
  std::byte* user = nullptr;  // where users see it
  std::size_t size = 0;
  std::size_t context = 0;             // index
  buffer_handle buffer;                // none: the devices cannot use it, only copies
  std::byte* host = nullptr;           // where the host reaches it; null: nowhere
  std::shared_ptr<allocation> source;  // of a mapping
  std::size_t source_offset = 0;
  std::atomic<bool> revoked{false};  // a mapping whose source is gone
  std::atomic<std::uint64_t> pending{0};

  // what has to go back
  void* shared = nullptr;         // of clSVMAlloc
  std::byte* reserved = nullptr;  // address space without memory
  std::size_t reserved_size = 0;
  bool charged = false;
};

/// Keeps memory while an operation uses it.
class pin {
 public:
  pin() = default;
  explicit pin(std::shared_ptr<allocation> memory) : memory_(std::move(memory)) {
    if (memory_) memory_->pending.fetch_add(1, std::memory_order_relaxed);
  }
  pin(pin&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  pin& operator=(pin&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~pin() {
    if (memory_) memory_->pending.fetch_sub(1, std::memory_order_release);  // pairs with acquire in find
  }
  [[nodiscard]] allocation* get() const noexcept { return memory_.get(); }
  explicit operator bool() const noexcept { return memory_ != nullptr; }

 private:
  std::shared_ptr<allocation> memory_;
};

/// Where bytes lie for OpenCL: in a buffer at an offset, or at an address of the host.
struct place {
  cl_mem buffer = nullptr;
  std::size_t offset = 0;
  std::byte* host = nullptr;
};

/// Where `address`, inside `memory`, lies.
[[nodiscard]] place place_of(const allocation& memory, const void* address);

/// Thread: any.
class memory_map {
 public:
  memory_map(std::shared_ptr<const api> cl, const discovery& found, device_id first);
  ~memory_map();
  memory_map(const memory_map&) = delete;
  memory_map& operator=(const memory_map&) = delete;

  [[nodiscard]] result<void*> allocate(device_id device, std::size_t size, memory_kind kind);
  [[nodiscard]] result<void> adopt(device_id device, void* base, std::size_t size);
  /// The memory goes with the last operation that uses it.
  [[nodiscard]] result<void> release(void* base);
  [[nodiscard]] std::shared_ptr<allocation> find(const void* address) const;
  [[nodiscard]] memory_use use(device_id device) const;

  // which device may use the memory of which
  /// Whether the driver copies between their buffers, which are of one context: access or not.
  [[nodiscard]] bool joined(device_id from, device_id to) const {
    return from != to && context_of(from) == context_of(to);
  }
  [[nodiscard]] bool can_access(device_id from, device_id to) const;
  [[nodiscard]] bool set_enabled(device_id from, device_id to, bool on);  // the state before
  [[nodiscard]] bool enabled(device_id from, device_id to) const;
  [[nodiscard]] std::uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  /// Why device `by` may not use `memory` now; empty if it may.
  [[nodiscard]] std::string denied(device_id by, const allocation& memory) const;

  [[nodiscard]] result<void*> map(device_id by, const std::shared_ptr<allocation>& source, void* address,
                                  std::size_t size);
  [[nodiscard]] result<void> unmap(device_id by, void* mapped);

  /// What belonged to a device is gone, its access to others and theirs to it too.
  void forget(device_id device);
  void clear();
  /// The error for an address that find() does not know.
  template <class What>
  [[nodiscard]] error absent(const What& what) const {
    return state_.absent(what);
  }

  [[nodiscard]] bool shares_memory(device_id device) const { return contexts_[context_of(device)].shared_memory; }
  [[nodiscard]] bool shares_atomics(device_id device) const { return contexts_[context_of(device)].atomics; }
  [[nodiscard]] bool adopts_whole(device_id device) const { return contexts_[context_of(device)].adopts_whole; }
  [[nodiscard]] std::size_t context_of(device_id device) const { return devices_[local(device)].context; }

 private:
  table_state state_;
  friend struct allocation;

  struct device_row {
    std::size_t context = 0;
    std::string name;
    std::uint64_t total = 0;
    std::uint64_t largest = 0;
    std::unique_ptr<std::atomic<std::uint64_t>> used = std::make_unique<std::atomic<std::uint64_t>>(0);
  };
  struct context_row {
    cl_context context = nullptr;
    bool shared_memory = false, atomics = false, adopts_whole = false;
  };

  [[nodiscard]] std::size_t local(device_id device) const {
    return static_cast<std::size_t>(device.value() - first_.value());
  }
  [[nodiscard]] result<void> charge(device_id device, std::size_t size);
  [[nodiscard]] error out_of_memory(device_id device, std::size_t asked) const;
  [[nodiscard]] result<void> make_shared_memory(allocation& made, cl_context context, bool atomics) const;
  [[nodiscard]] result<void> make_buffer(allocation& made, cl_context context) const;

  std::shared_ptr<const api> cl_;
  device_id first_;
  std::vector<device_row> devices_;
  std::vector<context_row> contexts_;
  std::vector<std::atomic<bool>> enabled_;  // [from * N + to]
  std::atomic<std::uint64_t> epoch_{0};
  mutable std::shared_mutex table_mutex_;
  std::map<std::uintptr_t, std::shared_ptr<allocation>> table_;  // by address
};

}  // namespace weft::opencl
