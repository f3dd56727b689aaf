// SPDX-License-Identifier: Apache-2.0
// Memory handles of this backend: what this process exports, and what it has open of others. A handle of the driver
// says nothing of its age or origin, and is as large as one of ours; so ours names the exporting process, which is
// asked for the driver's.
#pragma once

#include "backends/common/sharing_checks.hpp"
#include "backends/gpu/memory/memory_map.hpp"
#include "processes/share_server.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace weft::gpu {

using common::share_state;
using common::share_word;

/// What an exporter says of its memory once.
struct share_facts {
  std::uint64_t magic = the_magic;
  std::uint64_t size = 0;              // of the whole allocation
  std::uint64_t gpu = 0;               // identity of the GPU, of which the exporting device may be a part
  std::array<std::byte, 64> native{};  // CUipcMemHandle or CUmemPoolPtrExportData
  std::uint64_t check = 0;             // of what is above

  static constexpr std::uint64_t the_magic = 0x3252485355434657;  // "WFCUSHR2"
  [[nodiscard]] std::uint64_t computed_check() const noexcept;
};

/// What the exporter's file says in its last page; the pages before it are the size of the memory, and hold nothing.
struct share_record {
  share_word state{static_cast<std::uint64_t>(share_state::live)};
  share_facts facts;

  /// What another process says, read once: it may change behind our back.
  [[nodiscard]] share_facts told() const noexcept;
};

/// A page that two processes see.
class shared_page {
 public:
  shared_page() = default;
  explicit shared_page(void* base) : base_(base) {}
  shared_page(shared_page&& other) noexcept : base_(std::exchange(other.base_, nullptr)) {}
  shared_page& operator=(shared_page&& other) noexcept {
    std::swap(base_, other.base_);
    return *this;
  }
  ~shared_page();
  [[nodiscard]] share_record* record() const noexcept { return static_cast<share_record*>(base_); }

 private:
  void* base_ = nullptr;
};

/// Memory that other processes may open.
struct export_record {
  detail::share_server& server;
  std::uint64_t key = 0;
  descriptor file;
  descriptor pool;  // descriptor of the driver's pool; none for memory of no pool
  shared_page page;

  /// Nobody opens it any more, and who has it open learns why.
  void end(share_state why) noexcept;
  /// Whether no process has it open, or will. A process that has keeps a lock on the file, which ends with it.
  [[nodiscard]] bool claim() const noexcept;
};

/// Memory of another process.
struct import_record {
  std::uint64_t key = 0;
  std::uint64_t opens = 1;  // guarded by the table of what is open
  shared_page page;
  std::shared_ptr<detail::process_watch> exporter;
  CUmemoryPool pool = nullptr;    // of the driver, for memory of one
  std::weak_ptr<const void> use;  // alive until the driver has it back

  /// Why it must not be used any more, if it must not.
  [[nodiscard]] std::optional<error> broken(const void* address) const {
    return common::broken_share(page.record()->state, *exporter, address);
  }
};

/// Thread: any.
class sharing {
 public:
  /// `identities` name the devices for every process.
  sharing(memory_map& memory, std::vector<std::uint64_t> identities)
      : memory_(memory), cu_(memory.cu()), identities_(std::move(identities)) {}

  [[nodiscard]] result<void*> allocate(device_id device, std::size_t size, handle_family family);
  [[nodiscard]] result<shared_bytes> give(const void* address, std::uint64_t size, handle_family family);
  /// `see_ends` has it seen what work has ended: what was closed before goes back with the work that used it.
  [[nodiscard]] result<opened_memory_description> open(std::optional<device_id> by, const shared_bytes& handle,
                                                       std::chrono::nanoseconds timeout, handle_family family,
                                                       const std::function<void()>& see_ends);
  [[nodiscard]] result<void> close(void* address);
  [[nodiscard]] result<void> set_access(void* address, std::span<const device_right> rights);
  /// Joins the server's thread.
  void end() noexcept { server_.stop(); }

 private:
  /// Whether memory that was closed here is still on its way back to the driver. Under the mutex.
  [[nodiscard]] bool still_goes_back(std::uint64_t key, device_id by) const;
  /// What is open already, counted once more; empty if it is not. Under the mutex.
  [[nodiscard]] result<opened_memory_description> again(const detail::share_ticket& h, device_id by);
  [[nodiscard]] result<void*> allocate_pool(device_id device, std::size_t size);
  [[nodiscard]] result<std::shared_ptr<allocation>> new_in_pool(device_id device, std::size_t size);
  /// Makes what is handed out for an allocation. Under the table's lock.
  [[nodiscard]] result<void> prepare(const std::shared_ptr<allocation>& memory, handle_family family);
  [[nodiscard]] result<void> import_native(allocation& into, const share_facts& told, detail::fetched_share& got,
                                           handle_family family);
  /// Whether the driver has mapped as much as the exporter said.
  [[nodiscard]] result<void> check_extent(const allocation& opened, const std::string& what) const;
  /// Of memory that was exported, as this process has its devices: perhaps fewer or more parts of the GPU.
  [[nodiscard]] device_id owner_of(std::uint64_t device, std::uint64_t gpu, std::optional<device_id> wish) const;
  /// Why a device's GPU has no handles of the family; empty if it has.
  [[nodiscard]] std::string missing(device_id device, handle_family family) const;

  memory_map& memory_;
  const driver& cu_;
  std::vector<std::uint64_t> identities_;
  detail::share_server server_;
  std::mutex mutex_;
  struct open_place {
    std::weak_ptr<allocation> memory;
    std::weak_ptr<const void> use;  // until the driver has it back
  };
  std::map<std::pair<std::uint64_t, std::size_t>, open_place> open_;         // by key and GPU
  std::map<std::uint64_t, std::weak_ptr<detail::process_watch>> exporters_;  // by door
};

}  // namespace weft::gpu
