// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/memory_map.hpp"

#include "backend/address.hpp"
#include "backend/memory_shortage.hpp"
#include "backends/gpu/blocks.hpp"
#include "backends/gpu/device_pointer.hpp"
#include "backends/gpu/sharing.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <sys/mman.h>

namespace weft::gpu {
namespace {

std::size_t whole_pages(std::size_t size) { return (size + page_size() - 1) / page_size() * page_size(); }

/// Address space that nothing lies in: a name.
std::byte* reserve(std::size_t size) {
  void* const base = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base);
}

/// How long memory may be on its way back where nothing goes on without it.
constexpr std::chrono::milliseconds patience{1000};

error known_already(const void* base) {
  return make_error(errc::invalid_argument, "the memory at " + hex(base) + " is known already");
}

}  // namespace

allocation::~allocation() {
  if (reserved != nullptr) ::munmap(reserved, reserved_size);
  if (home == nullptr) return;
  if (exported) exported->end(share_state::freed);
  if (exported) {  // the driver gives freed memory to others at once, whoever still has it open
    home->later_when([record = exported] { return record->claim(); },
                     [to = home, whose = owner, count = charged, f = std::move(give_back)] {
                       if (f) f();
                       to->uncharge(whose, count);
                     });
    return;
  }
  if (give_back) home->later(std::move(give_back));
  if (charged != 0) home->uncharge(owner, charged);
}

memory_map::memory_map(std::shared_ptr<const driver> cu, const discovery& found, std::shared_ptr<contexts> places,
                       device_id first)
    : cu_(std::move(cu)),
      found_(found),
      places_(std::move(places)),
      first_(first),
      used_(found.devices.size()),
      enabled_(found.devices.size() * found.devices.size()),
      joints_(found.gpus.size() * found.gpus.size()) {}

memory_map::~memory_map() { clear(); }

void memory_map::clear() {
  state_.clear();
  std::map<std::uintptr_t, std::shared_ptr<allocation>> gone;
  {
    const std::unique_lock lock{table_mutex_};
    for (const auto& [base, a] : table_) {
      if (a->exported) a->exported->end(share_state::closed);
    }
    gone.swap(table_);
  }
  // a window that is still held keeps the pages, and not what the context has of them
  for (const auto& [base, a] : gone) {
    if (a->is_registered && a->give_back) later(std::exchange(a->give_back, nullptr));
  }
  gone.clear();
  settle(patience);
}

// ---- what goes back -------------------------------------------------------------------------------------------------

void memory_map::settle(std::chrono::milliseconds limit) noexcept {
  if (!driver_thread::is_this() && !freed_elsewhere::is_this() && !here_.forked()) late_.settle(limit);
}

std::function<void()> memory_map::in_context(std::size_t device, std::function<void(const driver&)> f) const {
  return [places = places_, cu = cu_, device, since = places_->generation(device), f = std::move(f)] {
    const CUcontext context = places->made(device);
    if (context == nullptr || places->generation(device) != since) return;  // it went with its context
    const current_context here{*cu, context};
    if (here.status() == CUDA_SUCCESS) f(*cu);
  };
}

// ---- allocation -----------------------------------------------------------------------------------------------------

error memory_map::out_of_memory(device_id device, std::size_t asked) {
  weft::detail::memory_shortage found{device, use(device), asked};
  const std::shared_lock lock{table_mutex_};
  for (const auto& [base, a] : table_) {
    if (a->owner == device && a->charged != 0) found.look(a->user, a->size);
  }
  return found.cause();
}

result<void> memory_map::charge(device_id device, std::size_t size) {
  const std::uint64_t total = found_.devices[local(device)].description.memory.value();
  std::atomic<std::uint64_t>& used = used_[local(device)];
  std::uint64_t before = used.load(std::memory_order_relaxed);
  do {
    if (size > total || before > total - size) return out_of_memory(device, size);
  } while (!used.compare_exchange_weak(before, before + size, std::memory_order_relaxed));
  return {};
}

void memory_map::uncharge(device_id device, std::size_t size) noexcept {
  used_[local(device)].fetch_sub(size, std::memory_order_relaxed);
}

/// Tells the driver of host memory. Under the table's lock, or before the table knows the allocation.
CUresult memory_map::enroll(allocation& made) {
  const std::size_t device = local(made.owner);
  const CUresult status =
      cu_->cuMemHostRegister(made.host, made.size, host_register_portable | host_register_device_map);
  if (status != CUDA_SUCCESS) return status;
  made.registered_in = places_->generation(device);
  made.give_back = in_context(device, [base = made.host, keep = made.pages](const driver& cu) {
    static_cast<void>(cu.cuMemHostUnregister(base));
  });
  return CUDA_SUCCESS;
}

/// Whether memory of the host that is registered has one address everywhere, as the driver's own has.
bool memory_map::registers_pages() const {
  return std::all_of(found_.gpus.begin(), found_.gpus.end(),
                     [](const gpu_place& gpu) { return gpu.registers_host && gpu.host_pointers; });
}

/// Pages of the process, registered: the driver's own would go with their context under whoever looks into them.
CUresult memory_map::make_pages(allocation& made) {
  const std::size_t length = whole_pages(made.size);
  // shared, so that a fork copies none of them away from the GPU
  void* const base = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  made.pages = {static_cast<std::byte*>(base), [length](std::byte* at) { ::munmap(at, length); }};
  made.user = made.host = made.pages.get();
  const CUresult status = enroll(made);
  made.is_registered = status == CUDA_SUCCESS;
  return status;
}

result<void> memory_map::make_pinned(allocation& made, const std::string& what) {
  const std::size_t device = local(made.owner);
  CUresult status = registers_pages() ? make_pages(made) : CUDA_ERROR_NOT_SUPPORTED;
  if (status == CUDA_ERROR_NOT_SUPPORTED) {
    made.pages = nullptr;
    void* host = nullptr;
    status = cu_->cuMemHostAlloc(&host, made.size, host_alloc_portable | host_alloc_device_map);
    if (status == CUDA_SUCCESS) {
      made.give_back = in_context(device, [host](const driver& cu) { static_cast<void>(cu.cuMemFreeHost(host)); });
      made.user = made.host = static_cast<std::byte*>(host);
    }
  }
  if (status == CUDA_SUCCESS) status = cu_->cuMemHostGetDevicePointer(&made.gpu, made.host, 0);
  if (status != CUDA_SUCCESS) return cu_error(*cu_, status, what);
  return {};
}

/// The driver's part of allocate().
result<void> memory_map::make(allocation& made) {
  const std::size_t device = local(made.owner);
  auto here = places_->enter(device);
  if (!here) return std::move(here).error();
  CUresult status = CUDA_SUCCESS;
  const std::string what =
      to_string(bytes{made.size}) + " of " + std::string{to_string(made.kind)} + " memory on " + to_string(made.owner);
  if (made.kind == memory_kind::pinned) return make_pinned(made, what);
  CUdeviceptr address = 0;
  status = made.kind == memory_kind::unified ? cu_->cuMemAllocManaged(&address, made.size, attach_global)
                                             : cu_->cuMemAlloc(&address, made.size);
  if (status != CUDA_SUCCESS) {
    error cause = cu_error(*cu_, status, what);
    if (cause.code == errc::out_of_memory) cause.what += "; " + out_of_memory(made.owner, made.size).what;
    return cause;
  }
  made.give_back = in_context(device, [address](const driver& cu) { static_cast<void>(cu.cuMemFree(address)); });
  made.gpu = address;
  made.user = pointer(address);
  if (made.kind == memory_kind::unified) made.host = made.user;
  return {};
}

result<void*> memory_map::allocate(device_id device, std::size_t size, memory_kind kind, std::size_t granule) {
  if (size == 0) return make_error(errc::invalid_argument, "an allocation of 0 bytes on " + to_string(device));
  if (size > ~std::size_t{0} - granule) return out_of_memory(device, size);
  const std::size_t asked = granule == 0 ? size : (size + granule - 1) / granule * granule;
  auto made = std::make_shared<allocation>();
  made->kind = kind;
  made->owner = device;
  made->size = asked;
  if (kind != memory_kind::pinned) {
    if (auto fits = charge(device, asked); !fits) return std::move(fits).error();
    made->charged = asked;
  }
  made->home = this;
  auto ok = make(*made);
  if (!ok && ok.error().code == errc::out_of_memory) {  // what is still on its way back may be enough
    settle(patience);
    ok = make(*made);
  }
  if (!ok) return std::move(ok).error();
  // all that is said of it, before others find it
  made->size = size;
  made->own_pages = granule != 0;
  void* const base = made->user;
  add(std::move(made));
  return base;
}

result<void> memory_map::adopt(device_id device, void* base, std::size_t size) {
  if (base == nullptr || size == 0 || number(base) + size < number(base))
    return make_error(errc::invalid_argument, "adopting null, empty or endless memory");
  auto here = places_->enter(local(device));
  if (!here) return std::move(here).error();
  auto made = std::make_shared<allocation>();
  made->kind = memory_kind::adopted;
  made->owner = device;
  made->user = static_cast<std::byte*>(base);
  made->size = size;
  {
    const std::shared_lock lock{table_mutex_};
    const auto next = table_.upper_bound(number(base));
    if (next != table_.end() && next->first < number(base) + size) return known_already(base);
    if (next != table_.begin() && std::prev(next)->first + std::prev(next)->second->size > number(base))
      return known_already(base);
  }
  const auto address = static_cast<CUdeviceptr>(number(base));
  unsigned kind = 0;
  int ordinal = -1;
  if (cu_->cuPointerGetAttribute(&kind, pointer_memory_type, address) == CUDA_SUCCESS && kind == memory_type_device &&
      cu_->cuPointerGetAttribute(&ordinal, pointer_device_ordinal, address) == CUDA_SUCCESS) {
    // memory of a GPU that the program has from the driver itself
    if (ordinal != found_.gpu_of(local(device)).id) {
      return make_error(errc::wrong_device, "the memory at " + hex(base) + " is of GPU " + std::to_string(ordinal) +
                                                ", not of " + to_string(device));
    }
    CUcontext home = nullptr;  // none for memory of blocks and pools
    if (cu_->cuPointerGetAttribute(&home, pointer_context, address) == CUDA_SUCCESS && home != nullptr &&
        home != places_->made(local(device))) {
      return make_error(errc::wrong_device, "the memory at " + hex(base) +
                                                " belongs to a context that the program made: weft works in the "
                                                "primary context, as the CUDA runtime does, and cannot use it");
    }
    CUdeviceptr start = 0;
    std::size_t length = 0;
    const CUresult status = cu_->cuMemGetAddressRange(&start, &length, address);
    if (status != CUDA_SUCCESS) return cu_error(*cu_, status, "adopting " + hex(base), errc::not_found);
    if (address - start > length || size > length - (address - start)) {
      return make_error(errc::out_of_range, "adopting " + to_string(bytes{size}) + " at offset " +
                                                std::to_string(address - start) + " of an allocation of " +
                                                to_string(bytes{length}));
    }
    made->kind = memory_kind::device;
    made->gpu = address;
    made->home = this;
    add(std::move(made));
    return {};
  }
  made->host = made->user;
  // what the program has page-locked already (cuMemHostAlloc, cudaMallocHost) is refused with one code or another
  const bool is_locked = kind == memory_type_host;
  const CUresult status = is_locked ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : enroll(*made);
  made->is_registered = status == CUDA_SUCCESS;
  if (status == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
    // that is said of a part, too
    CUdeviceptr start = 0;
    std::size_t length = 0;
    if (cu_->cuPointerGetAttribute(&start, pointer_range_start, address) == CUDA_SUCCESS &&
        cu_->cuPointerGetAttribute(&length, pointer_range_size, address) == CUDA_SUCCESS &&
        (address < start || address - start > length || size > length - (address - start))) {
      return make_error(errc::invalid_argument, "adopting " + to_string(bytes{size}) + " at " + hex(base) +
                                                    ", of which the program has registered a part (" +
                                                    to_string(bytes{length}) + " at " + hex(pointer(start)) +
                                                    "): unregister it, or adopt that part");
    }
  } else if (status != CUDA_SUCCESS) {
    return cu_error(*cu_, status, "adopting " + to_string(bytes{size}) + " for " + to_string(device));
  }
  made->home = this;
  made->gpu = address;
  if (const CUresult seen = cu_->cuMemHostGetDevicePointer(&made->gpu, base, 0); seen != CUDA_SUCCESS)
    return cu_error(*cu_, seen, "the address of adopted memory on " + to_string(device));
  add(std::move(made));
  return {};
}

result<void> memory_map::release(void* base) {
  std::vector<std::shared_ptr<allocation>> gone;  // ended without the lock
  const std::unique_lock lock{table_mutex_};
  const auto it = table_.find(number(base));
  if (it == table_.end() || it->second->kind == memory_kind::mapped || it->second->kind == memory_kind::block)
    return make_error(errc::not_found, "no allocation starts at " + hex(base) + "; was it freed before?");
  if (it->second->exported) it->second->exported->end(share_state::freed);
  gone.push_back(std::move(it->second));
  table_.erase(it);
  // mappings of it end with it
  for (auto m = table_.begin(); m != table_.end();) {
    if (m->second->source == gone.front()) {
      m->second->revoked.store(true, std::memory_order_release);
      gone.push_back(std::move(m->second));
      m = table_.erase(m);
    } else {
      ++m;
    }
  }
  return {};
}

void memory_map::add(std::shared_ptr<allocation> made) {
  const std::unique_lock lock{table_mutex_};
  const std::uintptr_t base = number(made->user);
  table_.insert_or_assign(base, std::move(made));
}

void memory_map::remove(const std::shared_ptr<allocation>& ended) {
  ended->revoked.store(true, std::memory_order_release);
  const std::unique_lock lock{table_mutex_};
  const auto it = table_.find(number(ended->user));
  if (it != table_.end() && it->second == ended) table_.erase(it);
}

std::shared_ptr<allocation> memory_map::find(const void* address) const {
  const std::shared_lock lock{table_mutex_};
  auto it = table_.upper_bound(number(address));
  if (it == table_.begin()) return nullptr;
  --it;
  if (number(address) - it->first >= it->second->size) return nullptr;
  return it->second;
}

bool memory_map::visit(const void* address, const std::function<void(const std::shared_ptr<allocation>&)>& f) const {
  const std::unique_lock lock{table_mutex_};
  auto it = table_.upper_bound(number(address));
  if (it == table_.begin()) return false;
  --it;
  if (number(address) - it->first >= it->second->size) return false;
  f(it->second);
  return true;
}

std::shared_ptr<allocation> memory_map::find(const void* address, std::uint64_t extent) const {
  auto first = find(address);
  if (!first || first->kind != memory_kind::block) return first;
  if (extent <= first->size - (number(address) - number(first->user))) return first;
  auto whole = std::make_shared<allocation>();
  whole->kind = memory_kind::block;
  whole->owner = first->owner;
  whole->user = first->user;
  whole->gpu = first->gpu;
  const std::shared_lock lock{table_mutex_};
  for (auto it = table_.find(number(first->user)); it != table_.end(); ++it) {
    if (it->second->kind != memory_kind::block || it->first != number(whole->user) + whole->size) break;
    whole->size += it->second->size;
    whole->parts.push_back(it->second);
    if (number(whole->user) + whole->size >= number(address) + extent) break;
  }
  return whole;
}

std::vector<std::shared_ptr<allocation>> memory_map::blocks_in(const void* address, std::uint64_t size) const {
  std::vector<std::shared_ptr<allocation>> found;
  const std::shared_lock lock{table_mutex_};
  std::uintptr_t at = number(address);
  for (auto it = table_.find(at); it != table_.end(); ++it) {
    if (it->second->kind != memory_kind::block || it->first != at) return {};
    found.push_back(it->second);
    at += it->second->size;
    if (at - number(address) == size) return found;
    if (at - number(address) > size) return {};
  }
  return {};
}

memory_use memory_map::use(device_id device) {
  settle();
  const std::size_t row = local(device);
  memory_use now;
  now.total = found_.devices[row].description.memory;
  const std::uint64_t used = used_[row].load(std::memory_order_relaxed);
  now.free = bytes{now.total.value() - std::min(used, now.total.value())};
  // a context is asked where there is one; none is made for it
  if (const CUcontext context = places_->made(row); context != nullptr) {
    const current_context here{*cu_, context};
    std::size_t free = 0, total = 0;
    if (here.status() == CUDA_SUCCESS && cu_->cuMemGetInfo(&free, &total) == CUDA_SUCCESS)
      now.free = std::min(now.free, bytes{free});
  }
  return now;
}

// ---- who may --------------------------------------------------------------------------------------------------------

bool memory_map::can_access(device_id from, device_id to) const {
  if (from == to) return false;
  return found_.same_gpu(local(from), local(to)) || found_.pair_of(local(from), local(to)).access;
}

bool memory_map::enabled(device_id from, device_id to) const {
  return enabled_[pair(from, to)].load(std::memory_order_acquire);
}

bool memory_map::still_used(std::size_t from_gpu, std::size_t to_gpu) const {
  for (std::size_t i = 0; i < devices(); ++i) {
    for (std::size_t k = 0; k < devices(); ++k) {
      if (found_.devices[i].gpu == from_gpu && found_.devices[k].gpu == to_gpu &&
          enabled_[i * devices() + k].load(std::memory_order_acquire))
        return true;
    }
  }
  return false;
}

/// Asks the driver for access between the GPUs of two devices. Under the mutex.
result<void> memory_map::join(std::size_t from, std::size_t to) {
  joint& state = joints_[found_.devices[from].gpu * found_.gpus.size() + found_.devices[to].gpu];
  if (state.made || state.foreign) return {};
  auto peer = places_->of(to);
  if (!peer) return std::move(peer).error();
  auto here = places_->enter(from);
  if (!here) return std::move(here).error();
  const CUresult status = cu_->cuCtxEnablePeerAccess(*peer, 0);
  if (status != CUDA_SUCCESS && status != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    return cu_error(*cu_, status, "access of " + to_string(global(from)) + " to " + to_string(global(to)));
  state.made = status == CUDA_SUCCESS;
  state.foreign = !state.made;
  return {};
}

result<void> memory_map::enable(device_id from, device_id to) {
  const std::lock_guard lock{peer_mutex_};
  if (enabled(from, to)) {
    return make_error(errc::already_enabled,
                      "access of " + to_string(from) + " to " + to_string(to) + " is enabled already");
  }
  if (!found_.same_gpu(local(from), local(to))) {
    if (auto joined = join(local(from), local(to)); !joined) return joined;
  }
  enabled_[pair(from, to)].store(true, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  return {};
}

result<void> memory_map::disable(device_id from, device_id to) {
  const std::lock_guard lock{peer_mutex_};
  if (!enabled_[pair(from, to)].exchange(false, std::memory_order_acq_rel)) {
    return make_error(errc::not_enabled, "access of " + to_string(from) + " to " + to_string(to) + " is not enabled");
  }
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  has_to_part_.store(true, std::memory_order_release);
  return {};
}

void memory_map::part(const std::function<bool(std::size_t gpu)>& quiet) {
  if (!has_to_part_.exchange(false, std::memory_order_acq_rel)) return;
  const std::size_t gpus = found_.gpus.size();
  const std::uint64_t before = epoch();
  std::vector<bool> is_quiet;
  try {
    is_quiet.resize(gpus);
  } catch (const std::bad_alloc&) {
    has_to_part_.store(true, std::memory_order_release);
    return;
  }
  // Without the mutex: who asks takes streams forward, and with them calls of the program, which may end access too.
  for (std::size_t gpu = 0; gpu < gpus; ++gpu) is_quiet[gpu] = !joined_in_vain(gpu) || quiet(gpu);
  const std::lock_guard lock{peer_mutex_};
  const auto device_of = [&](std::size_t gpu) {
    std::size_t d = 0;
    while (found_.devices[d].gpu != gpu) ++d;
    return d;
  };
  for (std::size_t from = 0; from < gpus; ++from) {
    for (std::size_t to = 0; to < gpus; ++to) {
      joint& state = joints_[from * gpus + to];
      if (still_used(from, to)) continue;
      state.foreign = false;
      if (!state.made) continue;
      // what was enabled and ended once more since may have served work that runs now
      if (!is_quiet[from] || epoch() != before) {
        has_to_part_.store(true, std::memory_order_release);
        continue;
      }
      const CUcontext owner = places_->made(device_of(to));
      const CUcontext user = places_->made(device_of(from));
      state.made = false;
      if (owner == nullptr || user == nullptr) continue;  // it went with a context
      const current_context here{*cu_, user};
      // 705: somebody else in this process has ended it
      if (here.status() == CUDA_SUCCESS) static_cast<void>(cu_->cuCtxDisablePeerAccess(owner));
    }
  }
}

/// Whether the driver gives a GPU access that the library has ended.
bool memory_map::joined_in_vain(std::size_t gpu) {
  const std::lock_guard lock{peer_mutex_};
  for (std::size_t to = 0; to < found_.gpus.size(); ++to) {
    if (joints_[gpu * found_.gpus.size() + to].made && !still_used(gpu, to)) return true;
  }
  return false;
}

std::optional<error> memory_map::gone_with_reset(const allocation& memory) {
  for (const auto& part : memory.parts) {
    if (auto cause = gone_with_reset(*part)) return cause;
  }
  for (const allocation* at = &memory; at != nullptr; at = at->source.get()) {
    if (!at->reset.load(std::memory_order_acquire)) continue;
    return make_error(errc::not_found, "the memory at " + hex(memory.user) + " went with a reset of " +
                                           to_string(at->kind == memory_kind::mapped ? at->by : at->owner) +
                                           " before this ran");
  }
  return std::nullopt;
}

std::string memory_map::denied(device_id by, const allocation& memory, bool writes) const {
  for (const auto& part : memory.parts) {
    if (std::string why = denied(by, *part, writes); !why.empty()) return why;
  }
  if (!memory.parts.empty()) return {};
  if (memory.revoked.load(std::memory_order_acquire) && memory.is_registered)
    return "the driver did not take this memory of the host again after a reset: free it, and allocate it anew";
  if (memory.revoked.load(std::memory_order_acquire))
    return "the memory behind a mapping was freed, or the mapping has ended";
  if (memory.imported) {
    if (const auto why = memory.imported->broken(memory.user)) return why->what;
  }
  if (memory.only) {
    const access_right right = memory.only->of(local(by));
    if (right == access_right::none)
      return to_string(by) + " has no right to this memory, which peer access does not cover: set its access";
    if (right == access_right::read && writes) return to_string(by) + " may read this memory, but not write it";
    return {};
  }
  switch (memory.kind) {
    case memory_kind::mapped:
      if (by != memory.by) return "the mapping is that of " + to_string(memory.by) + ", not of " + to_string(by);
      if (!enabled(by, memory.owner))
        return to_string(by) + " has no access to " + to_string(memory.owner) + ": it was disabled";
      return {};
    case memory_kind::pinned:
    case memory_kind::unified:
      return {};
    case memory_kind::adopted:
      if (places_->gpu_of(local(by)) == places_->gpu_of(local(memory.owner)) || found_.gpu_of(local(by)).host_pointers)
        return {};
      return to_string(by) + " knows memory that was adopted for " + to_string(memory.owner) + " by no address";
    default:
      if (memory.owner == by || enabled(by, memory.owner)) return {};
      return to_string(by) + " has no access to the memory of " + to_string(memory.owner);
  }
}

// ---- peer mappings --------------------------------------------------------------------------------------------------

result<void*> memory_map::map(device_id by, const std::shared_ptr<allocation>& source, void* address,
                              std::size_t size) {
  if (auto wrong = beyond_end("a mapping", size, address, source->user, source->size)) return std::move(*wrong);
  auto made = std::make_shared<allocation>();
  made->home = this;
  made->kind = memory_kind::mapped;
  made->owner = source->owner;
  made->by = by;
  made->size = size;
  made->source = source;
  made->gpu = gpu_address(*source, address);
  // a name of its own with the offset of the source in its page, as an alias of it would have
  made->reserved_size = whole_pages(size + page_size());
  made->reserved = reserve(made->reserved_size);
  if (made->reserved == nullptr)
    return make_error(errc::resource_exhausted, "there is no address space left for a mapping");
  made->user = made->reserved + number(address) % page_size();
  void* const base = made->user;
  add(std::move(made));
  return base;
}

result<void> memory_map::unmap(device_id by, void* mapped) {
  std::shared_ptr<allocation> gone;
  const std::unique_lock lock{table_mutex_};
  const auto it = table_.find(number(mapped));
  if (it == table_.end() || it->second->kind != memory_kind::mapped || it->second->imported)
    return make_error(errc::not_found, "no peer mapping starts at " + hex(mapped) + "; was it unmapped before?");
  if (it->second->by != by) {
    return make_error(errc::wrong_device, "the mapping at " + hex(mapped) + " belongs to " + to_string(it->second->by) +
                                              ", not to " + to_string(by));
  }
  it->second->revoked.store(true, std::memory_order_release);
  gone = std::move(it->second);
  table_.erase(it);
  return {};
}

void memory_map::forget(device_id device) {
  const std::size_t row = local(device), gpu = places_->gpu_of(row);
  {
    const std::lock_guard lock{peer_mutex_};
    for (std::size_t other = 0; other < devices(); ++other) {
      enabled_[row * devices() + other].store(false, std::memory_order_release);
      enabled_[other * devices() + row].store(false, std::memory_order_release);
    }
    // with the context went what the driver was asked for
    if (places_->made(row) == nullptr) {
      for (std::size_t other = 0; other < found_.gpus.size(); ++other)
        joints_[gpu * found_.gpus.size() + other] = joints_[other * found_.gpus.size() + gpu] = {};
    }
    epoch_.fetch_add(1, std::memory_order_acq_rel);
    has_to_part_.store(true, std::memory_order_release);
  }
  const bool is_whole = places_->made(row) == nullptr;
  std::vector<std::shared_ptr<allocation>> gone;
  const std::unique_lock lock{table_mutex_};
  for (auto it = table_.begin(); it != table_.end();) {
    allocation& a = *it->second;
    if (a.is_registered) {  // the host's memory
      ++it;
    } else if (a.owner == device || (a.kind == memory_kind::mapped && a.by == device)) {
      if (a.exported) a.exported->end(share_state::freed);
      if (is_whole) a.exported = nullptr;  // it went with the context, whoever has it open
      a.revoked.store(true, std::memory_order_release);
      a.reset.store(true, std::memory_order_release);
      gone.push_back(std::move(it->second));
      it = table_.erase(it);
    } else {
      ++it;
    }
  }
}

void memory_map::register_again(device_id device) {
  const std::size_t gpu = places_->gpu_of(local(device));
  const std::unique_lock lock{table_mutex_};
  for (const auto& [base, a] : table_) {
    const std::size_t owner = local(a->owner);
    if (!a->is_registered || places_->gpu_of(owner) != gpu || a->registered_in == places_->generation(owner)) continue;
    a->give_back = nullptr;
    CUdeviceptr now = 0;
    auto here = places_->enter(owner);
    const CUresult known = here ? enroll(*a) : CUDA_ERROR_INVALID_CONTEXT;
    // a portable registration may have stayed by another GPU's context
    const bool is_known = known == CUDA_SUCCESS || known == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    const bool is_there = is_known && cu_->cuMemHostGetDevicePointer(&now, a->host, 0) == CUDA_SUCCESS && now == a->gpu;
    a->revoked.store(!is_there, std::memory_order_release);
  }
}

}  // namespace weft::gpu
