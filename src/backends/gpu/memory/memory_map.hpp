// SPDX-License-Identifier: Apache-2.0
// Whose each address is, and who may use it. An address of a device is that of the GPU, the same on every GPU and in no
// other use on the host. A peer mapping has a name of its own instead, which is translated: CUDA shows a peer's memory
// at the owner's address, and that could not be taken back for one range.
#pragma once

#include "backends/common/memory_model.hpp"
#include "backends/gpu/devices/contexts.hpp"
#include "backends/gpu/memory/late_work.hpp"
#include "os/fork_watch.hpp"
#include "weft/backend/backend.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft::gpu {

class memory_map;
struct export_record;
struct import_record;

/// While it lives, memory that goes on this thread goes back to the driver on another: that may wait for all work of
/// the GPU, and who ends an operation takes others forward.
class freed_elsewhere {
 public:
  freed_elsewhere() noexcept : outer_(std::exchange(is_here, true)) {}
  freed_elsewhere(const freed_elsewhere&) = delete;
  freed_elsewhere& operator=(const freed_elsewhere&) = delete;
  ~freed_elsewhere() { is_here = outer_; }
  [[nodiscard]] static bool is_this() noexcept { return is_here; }

 private:
  static inline thread_local bool is_here = false;
  bool outer_;
};

/// One allocation, adopted memory, a mapping of device memory by another device, a mapped block, or memory of another
/// process.
struct allocation : common::known_range<allocation> {
  allocation() = default;
  ~allocation();
  void begin_as(const allocation& first) {
    known_range::begin_as(first);
    gpu = first.gpu;
  }
  [[nodiscard]] bool on_device() const;
  [[nodiscard]] std::string why_revoked() const;
  [[nodiscard]] std::optional<error> broken() const;

  memory_map* home = nullptr;
  CUdeviceptr gpu = 0;                        // where GPUs find it
  std::byte* host = nullptr;                  // where the host reaches it; null: nowhere
  std::atomic<bool> reset{false};             // went with its device's context, whoever still holds this
  CUmemoryPool pool = nullptr;                // of its own, where it is shareable memory of a pool
  bool own_pages = false;                     // nothing else lies in its pages: it can be exported
  bool coherent = false;                      // with running kernels
  std::unique_ptr<common::access_list> told;  // block: the rights that the driver knows of; guarded by the blocks
  bool is_put_off = false;                    // block: it is to be told more, once no work uses it; guarded as `told`
  std::shared_ptr<export_record> exported;    // guarded by the table
  std::shared_ptr<import_record> imported;    // memory of another process

  std::uint64_t made_in = 0;  // registered or imported: generation of the context; guarded by the table
  // host memory that is registered with the driver: a registration ends with its context, the memory does not
  std::shared_ptr<std::byte> pages;  // pinned memory of our own, for as long as anybody looks into it
  bool is_registered = false;        // give_back ends a registration, and nothing else

  // what has to go back
  std::function<void()> give_back;  // calls the driver; never on its own threads
  bool goes_back_late = false;      // the driver waits for all work of the GPU before it takes this
  common::reserved_addresses reserved;

  using last_use = freed_elsewhere;
};

using pin = common::pin<allocation>;

/// Where GPUs find `address`, which lies inside `memory`.
[[nodiscard]] inline CUdeviceptr gpu_address(const allocation& memory, const void* address) {
  return memory.gpu + static_cast<CUdeviceptr>(static_cast<const std::byte*>(address) - memory.user);
}
/// Where the host reaches it; null where it does not.
[[nodiscard]] inline std::byte* host_address(const allocation& memory, const void* address) {
  return memory.host == nullptr ? nullptr : memory.host + (static_cast<const std::byte*>(address) - memory.user);
}
/// Thread: any.
class memory_map final : public common::memory_model<allocation> {
 public:
  memory_map(std::shared_ptr<const driver> cu, const discovery& found, std::shared_ptr<contexts> places,
             device_id first);
  ~memory_map();

  /// With a granule it is made of whole ones, which nothing else lies in.
  [[nodiscard]] result<void*> allocate(device_id device, std::size_t size, memory_kind kind, std::size_t granule = 0,
                                       bool coherent = false);
  /// Page-locked memory of the backend's own: no call finds it by its address, and nobody's account has it.
  [[nodiscard]] result<ref> landing_block(device_id device, std::size_t size) {
    return new_allocation(device, size, memory_kind::pinned, false);
  }
  [[nodiscard]] result<void> adopt(device_id device, void* base, std::size_t size);
  /// The memory goes with the last operation that uses it.
  [[nodiscard]] result<void> release(void* base);
  [[nodiscard]] memory_use use(device_id device) const override;

  // which device may use the memory of which
  [[nodiscard]] bool can_access(device_id from, device_id to) const;
  [[nodiscard]] result<void> enable(device_id from, device_id to);
  /// From now on the library refuses; the driver's access goes with part(), once no work of `from` uses it.
  [[nodiscard]] result<void> disable(device_id from, device_id to);
  /// Takes from the driver what disable() has ended; `quiet` are GPUs of which no work runs, the others keep it.
  void part(const std::function<bool(std::size_t gpu)>& quiet);
  [[nodiscard]] bool has_to_part() const noexcept { return has_to_part_.load(std::memory_order_acquire); }
  /// What is told to work that was submitted before the memory, or what is behind it, went with a reset.
  [[nodiscard]] static std::optional<error> gone_with_reset(const allocation& memory);

  /// Calls `make() -> result<ref>` until what it made has no stale address: a driver gives the addresses of a context
  /// that was reset to others.
  template <class F>
  [[nodiscard]] result<ref> make_beside_stale(F make) const {
    std::vector<ref> aside;
    while (true) {
      result<ref> made = make();
      if (!made || !is_stale((*made)->user, (*made)->size)) return made;
      aside.push_back(std::move(*made));
    }
  }

  /// The address must lie in memory of a device, which `by` may use.
  [[nodiscard]] result<void*> map(device_id by, void* address, std::size_t size);

  /// What belonged to a device is gone, its access to others and theirs to it too; that of a GPU whose context was
  /// reset went with it.
  void forget(device_id device, bool is_whole);
  /// Registers the host's memory again that a reset has taken from the GPU of a device. What the driver does not take
  /// stays the host's, and no device may use it any more.
  void register_again(device_id device);
  /// Host memory that somebody still looks into stays until they end.
  void clear();

  // for blocks and sharing, whose memory is found like any other
  /// Runs unless the context of `device` in which it was made is gone.
  [[nodiscard]] std::function<void()> in_context(std::size_t device, std::function<void(const driver&)> f) const;
  /// Runs it now, or, on a thread of the driver and where operations end, on a thread of its own. Without memory for
  /// that it is left to the end of the context.
  template <class F>
  void later(F f) noexcept {
    if (here_.forked()) return;  // CUDA does not work in the child of a fork; the memory is the parent's
    try {
      if (!driver_thread::is_this() && !freed_elsewhere::is_this()) return f();
      late_.back().add(std::function<void()>{std::move(f)});
    } catch (const std::bad_alloc&) {
    }
  }
  /// Gives an allocation back to the driver, where that may wait on the thread of its GPU: a kernel that stays, there
  /// or on a peer, holds up nothing else.
  template <class F>
  void take_back(const allocation& gone, F f) noexcept {
    if (!gone.goes_back_late) return later(std::move(f));
    if (here_.forked()) return;
    try {
      const std::size_t gpu = found_.devices[local(gone.owner)].gpu;
      std::atomic<std::uint64_t>& returning = returning_[gpu];
      returning.fetch_add(gone.charged, std::memory_order_relaxed);
      late_[gpu].add([&returning, size = gone.charged, f = std::move(f)] {
        f();
        returning.fetch_sub(size, std::memory_order_relaxed);
      });
    } catch (const std::bad_alloc&) {
    }
  }
  /// The same, once `may` says so; never where the machine ends before.
  template <class May, class F>
  void take_back_when(const allocation& gone, May may, F f) noexcept {
    if (here_.forked()) return;
    if (may()) return take_back(gone, std::move(f));
    try {
      (gone.goes_back_late ? late_[found_.devices[local(gone.owner)].gpu] : late_.back())
          .add_when(std::function<bool()>{std::move(may)}, std::function<void()>{std::move(f)});
    } catch (const std::bad_alloc&) {
    }
  }
  /// Runs it on a thread of its own when that looks again; never where the machine ends before. False: for want of
  /// memory it was not taken.
  template <class F>
  bool at_the_next_look(F f) noexcept {
    if (here_.forked()) return false;
    try {
      return late_.back().add_when([] { return true; }, std::function<void()>{std::move(f)});
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
  /// The contexts are about to go: what other processes have open goes with them.
  void end_late_work() noexcept {
    for (late_work& one : late_) one.end();
  }
  /// What was put off is done, if it takes no longer than this.
  void settle(std::chrono::milliseconds timeout = std::chrono::milliseconds{100}) const noexcept;

  [[nodiscard]] const discovery& found() const { return found_; }
  [[nodiscard]] contexts& places() const { return *places_; }
  [[nodiscard]] const driver& cu() const { return *cu_; }

 private:
  friend struct allocation;

  /// What the driver was asked for between two GPUs.
  struct joint {
    std::shared_ptr<const void> made;  // by the library: one for all machines of the process that have it
    bool foreign = false;              // it was there already: the program's own, which we leave
  };
  [[nodiscard]] std::string denied_of_host(device_id by, const allocation& memory) const override;
  [[nodiscard]] result<void> join(std::size_t from, std::size_t to);
  void leave(std::size_t from_gpu, std::size_t to_gpu);
  [[nodiscard]] bool joined_in_vain(std::size_t gpu);
  [[nodiscard]] bool still_used(std::size_t from_gpu, std::size_t to_gpu) const;
  [[nodiscard]] result<ref> new_allocation(device_id device, std::size_t size, memory_kind kind, bool coherent);
  [[nodiscard]] result<void> make(allocation& made);
  [[nodiscard]] result<void> make_pinned(allocation& made, const std::string& what);
  [[nodiscard]] bool registers_pages() const;
  [[nodiscard]] CUresult make_pages(allocation& made);
  [[nodiscard]] CUresult enroll(allocation& made);

  detail::fork_watch here_;
  std::shared_ptr<const driver> cu_;
  const discovery& found_;
  std::shared_ptr<contexts> places_;
  std::mutex peer_mutex_;
  std::atomic<bool> has_to_part_{false};
  std::vector<joint> joints_;                         // [from GPU * GPUs + to GPU], under the mutex
  std::deque<std::atomic<std::uint64_t>> returning_;  // bytes of each GPU that are freed, and not the driver's yet
  mutable std::deque<late_work> late_;  // one of each GPU, and last that of everything that does not wait for one
};

}  // namespace weft::gpu
