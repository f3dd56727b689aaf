// SPDX-License-Identifier: Apache-2.0
// The state of the driver: devices, contexts, memory, and the tables that handles are looked up in. One lock guards it,
// which is never held while anything is waited for.
#pragma once

#include "backends/gpu/driver/driver_functions.hpp"
#include "virtual_driver/driver/address_space.hpp"
#include "virtual_driver/driver/settings.hpp"
#include "virtual_driver/driver/stream.hpp"

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace weft::virtual_cuda {

using namespace weft::gpu;

inline constexpr int most_devices = 16;

/// Objects by handle. A handle is never used twice: a stale one names nothing.
template <class Handle, class Object>
class handle_table {
 public:
  Handle add(std::shared_ptr<Object> object) {
    static std::atomic<std::uint64_t> next{0x5e000000000000ULL};
    const std::uint64_t number = next.fetch_add(64);
    const std::lock_guard lock{mutex_};
    objects_.emplace(number, std::move(object));
    return (Handle)number;  // NOLINT: handles are pointers or integers
  }
  [[nodiscard]] std::shared_ptr<Object> find(Handle handle) const {
    const std::lock_guard lock{mutex_};
    const auto it = objects_.find((std::uint64_t)handle);  // NOLINT
    return it == objects_.end() ? nullptr : it->second;
  }
  std::shared_ptr<Object> take(Handle handle) {
    const std::lock_guard lock{mutex_};
    const auto it = objects_.find((std::uint64_t)handle);  // NOLINT
    if (it == objects_.end()) return nullptr;
    auto object = std::move(it->second);
    objects_.erase(it);
    return object;
  }
  template <class Gone>
  void remove_if(const Gone& gone) {
    const std::lock_guard lock{mutex_};
    std::erase_if(objects_, [&](const auto& one) { return gone(*one.second); });
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Object>> objects_;
};

/// Of a wait for a value: numbers do not wrap around, as HIP compares them. No driver of CUDA's has such a flag.
inline constexpr unsigned wait_value_plain = 1U << 29;

/// Memory of a device, whatever addresses it has.
struct physical {
  int file = -1;
  std::uint64_t offset = 0;
  std::size_t size = 0;
  int device = -1;          // −1: the host's
  std::size_t charged = 0;  // against the device's memory
  bool own_file = false;
  int handle_types = 0;
  CUmemAllocationProp properties{};
  ~physical();
};

enum class range_kind { device, global, pinned, registered, managed, mapping, pool, imported, multicast };

/// Whether peers with access to its device may use it.
[[nodiscard]] constexpr bool follows_access(range_kind kind) {
  return kind == range_kind::device || kind == range_kind::global;
}

/// What lies at an address.
struct memory_range {
  range_kind kind = range_kind::device;
  std::uint64_t base = 0;
  std::size_t size = 0;
  std::uint64_t id = 0;
  int device = 0;                                   // whose memory it is; of host memory, where it was made
  std::uint64_t generation = 0;                     // of the context that made it
  std::shared_ptr<physical> memory;                 // of the window's ranges
  std::array<std::uint8_t, most_devices> rights{};  // access_…; of mappings and pools
  CUmemGenericAllocationHandle handle = 0;          // of a mapping
  std::shared_ptr<struct multicast_object> group;   // of a multicast's: nothing is shown anywhere
  std::shared_ptr<struct pool> home;                // of a pool's
  int opened = 0;                                   // of an imported one; −1: a stream will free it
  std::weak_ptr<stream> freed_in;                   // which
  std::string origin;                               // of an imported one
  int open_to_kernels = 0;                          // kernels that have it in the program's window now
};

struct pool {
  CUmemoryPool handle = nullptr;
  int device = 0;
  CUmemPoolProps properties{};
  std::array<std::uint8_t, most_devices> rights{};
  std::size_t used = 0, used_high = 0, reserved = 0, reserved_high = 0;
  std::uint64_t threshold = 0;
  bool imported = false;
  bool is_default = false;
  std::uint64_t id = 0;
  std::string origin;  // of an imported one
};

inline constexpr std::size_t granularity = std::size_t{2} << 20;  // of blocks and multicast objects

struct context {
  int device = 0;
  std::uint64_t generation = 0;
  CUcontext handle = nullptr;
  std::set<std::uint64_t> peers;  // generations of the contexts whose memory it may use
  unsigned flags = 0;
  std::size_t charged = 0;   // of its device's memory
  std::atomic<int> lost{0};  // the code that every later call answers
  std::atomic<bool> dead{false};
  std::mutex submit_mutex;  // order of submission across its streams
  std::vector<std::weak_ptr<stream>> streams;
  connections shared;

  context();
  void lose(CUresult code);
  /// Null once the context is destroyed: the stream holds its context, and each would keep the other.
  [[nodiscard]] stream_ref null_stream() const {
    const std::lock_guard lock{null_mutex_};
    return null_stream_;
  }
  void set_null_stream(stream_ref made) {
    const std::lock_guard lock{null_mutex_};
    null_stream_.swap(made);
  }
  /// Its implicit streams of threads; null once the context is destroyed.
  stream_ref stream_of_thread(const std::shared_ptr<context>& self);
  void forget_thread(std::thread::id gone);
  void forget_threads();

 private:
  mutable std::mutex null_mutex_;
  stream_ref null_stream_;
  std::map<std::thread::id, stream_ref> of_threads_;
};
using context_ref = std::shared_ptr<context>;

struct event {
  context_ref home;
  unsigned flags = 0;
  std::mutex mutex;
  mark_ref newest;                        // null: not recorded yet
  struct shared_event* shared = nullptr;  // between processes
  bool imported = false;
  ~event();
};

struct device {
  int physical_index = 0;
  std::size_t memory = 0;
  std::size_t used = 0;
  context_ref primary;
  std::vector<context_ref> created;  // by the program
  CUresult fault = CUDA_SUCCESS;     // of a created context that is gone: what it left of the process stays
  int references = 0;
  unsigned flags = 0;
  CUmemoryPool default_pool = nullptr;
  std::atomic<CUmemoryPool> current_pool{nullptr};  // null: never set
  std::array<bool, most_devices> peers{};           // whose memory one of its contexts may use

  [[nodiscard]] std::vector<context_ref> contexts() const;
};

struct machine {
  explicit machine(const settings& s);

  const settings& about;
  address_space space;
  std::vector<device> devices;
  std::mutex mutex;
  std::map<std::uint64_t, std::shared_ptr<memory_range>> ranges;  // by base
  std::map<std::uint64_t, std::size_t> reservations;              // by base
  std::uint64_t next_id = 1;
  std::array<std::array<std::atomic<unsigned>, most_devices>, most_devices> lost_ways{};  // from, to: see way_into()

  handle_table<CUcontext, context> contexts;
  handle_table<CUstream, stream> streams;
  handle_table<CUevent, event> events;
  handle_table<CUmodule, struct module> modules;
  handle_table<CUfunction, struct function> functions;
  handle_table<CUmemoryPool, pool> pools;
  handle_table<CUmemGenericAllocationHandle, struct block_handle> blocks;

  [[nodiscard]] int count() const { return static_cast<int>(devices.size()); }
  [[nodiscard]] bool valid(int ordinal) const { return ordinal >= 0 && ordinal < count(); }
  [[nodiscard]] bool can_access(int from, int to) const;
  /// −1: of a device that this process does not see.
  [[nodiscard]] int ordinal_of(int physical) const;

  // with the lock held
  [[nodiscard]] std::shared_ptr<memory_range> find(std::uint64_t address) const;
  [[nodiscard]] std::uint8_t right(int by, const memory_range& range) const;
  void show(const memory_range& range);
  void show(int by, const memory_range& range);
  void hide(const memory_range& range);
  [[nodiscard]] bool charge(int ordinal, std::size_t size);
  void uncharge(int ordinal, std::size_t size);
  /// Memory of the heap at a new address. Empty with `code` set when there is none.
  std::shared_ptr<memory_range> allocate(int ordinal, std::size_t size, range_kind kind, CUresult& code);
  void end(const std::shared_ptr<memory_range>& range);
  /// The context that made a range, or the primary one; null where that is gone.
  [[nodiscard]] context_ref maker_of(const memory_range& range) const;
  /// What a device may use of another's is what one of its contexts may.
  void settle_peers(int from, int to);
  /// Out of the books, with its relations to other contexts.
  void forget_context(const context_ref& gone);

  // without it
  context_ref make_context(int ordinal, unsigned flags);
  /// Whose memory cuMemAllocAsync gives.
  [[nodiscard]] CUmemoryPool pool_of(int ordinal) const;
  /// A stream becomes one of its context.
  CUstream add(const stream_ref& made);
  /// The primary context of a device, made when nobody had it. Whoever took it gives it back.
  context_ref retain_primary(int ordinal);
  [[nodiscard]] bool release_primary(int ordinal);
  void destroy_context(const context_ref& gone);
  /// Its modules and functions end with it.
  void forget_code(const context_ref& gone);
  /// Waits for all work of a context.
  static void drain(const context_ref& c);
  /// Waits for all work of a device.
  void drain(int ordinal);
};

/// The bit of weft_virtual_drop() for what kernels write into memory of a kind.
[[nodiscard]] constexpr unsigned way_into(range_kind kind) {
  return kind == range_kind::pool ? 4U : kind == range_kind::mapping ? 8U : 2U;
}

/// A reference to a block; the number of references is that of the driver's handle.
struct block_handle {
  std::shared_ptr<physical> memory;
  int references = 1;
  std::shared_ptr<multicast_object> group;  // of a multicast, which has no memory of its own
};

/// The machine of this process, made by cuInit.
[[nodiscard]] machine& the();
[[nodiscard]] bool is_open();
[[nodiscard]] CUresult open_machine();

/// Contexts of this thread, the current one last.
[[nodiscard]] std::vector<CUcontext>& context_stack();
[[nodiscard]] context_ref current();

/// A stream by its handle: of the current context, 0 and 1 are the null stream, and 2 is the one of this thread. Null
/// when there is none.
[[nodiscard]] stream_ref stream_of(CUstream handle);

/// Queues work with the order that the null stream has with the others of its context.
mark_ref submit(const stream_ref& to, operation work);
/// What must have ended for a stream to be idle.
[[nodiscard]] std::vector<mark_ref> pending_of(const stream_ref& s);

}  // namespace weft::virtual_cuda
