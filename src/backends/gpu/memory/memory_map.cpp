// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/memory/memory_map.hpp"

#include "backend/address.hpp"
#include "backends/gpu/driver/device_pointer.hpp"
#include "backends/gpu/memory/blocks.hpp"
#include "backends/gpu/memory/sharing.hpp"

#include <algorithm>
#include <map>
#include <new>
#include <optional>
#include <sys/mman.h>
#include <tuple>

namespace weft::gpu {
namespace {

/// How long memory may be on its way back where nothing goes on without it.
constexpr std::chrono::milliseconds patience{1000};

/// The pairs whose access the library has enabled. Machines of one process share the primary contexts, and a driver
/// does not count the users of an access: the first machine that ended its own would end that of the others.
struct enabled_pairs {
  static enabled_pairs& of_process() {
    static auto* const all = new enabled_pairs;  // never destroyed: machines may outlive main
    return *all;
  }
  /// By the driver, which is one of its functions here, and the GPUs from and to. Under the mutex.
  std::weak_ptr<const void>& between(const driver& cu, CUdevice from, CUdevice to) {
    return made_[{reinterpret_cast<std::uintptr_t>(cu.cuCtxEnablePeerAccess), from, to}];
  }
  std::mutex mutex;  // held while a driver is asked, so that no other machine sees half of it

 private:
  std::map<std::tuple<std::uintptr_t, CUdevice, CUdevice>, std::weak_ptr<const void>> made_;
};

}  // namespace

allocation::~allocation() {
  if (home == nullptr) return;
  if (exported) exported->end(share_state::freed);
  if (exported) {  // the driver gives freed memory to others at once, whoever still has it open
    home->take_back_when(
        *this, [record = exported] { return record->claim(); },
        [to = home, whose = owner, count = charged, f = std::move(give_back)] {
          if (f) f();
          to->uncharge(whose, count);
        });
    return;
  }
  if (give_back) home->take_back(*this, std::move(give_back));
  if (charged != 0) home->uncharge(owner, charged);
}

// Whatever names it: a mapping lies where its source does.
bool allocation::on_device() const {
  const allocation* root = this;
  while (root->source) root = root->source.get();
  return root->host == nullptr && root->known_range::on_device();
}

std::optional<error> allocation::broken() const { return imported ? imported->broken(user) : std::nullopt; }

std::string allocation::why_revoked() const {
  if (!is_registered) return known_range::why_revoked();
  return "the driver did not take this memory of the host again after a reset: free it, and allocate it anew";
}

memory_map::memory_map(std::shared_ptr<const driver> cu, const discovery& found, std::shared_ptr<contexts> places,
                       device_id first)
    : memory_model(first, found.devices, [](const device_place& one) { return one.description.memory; }),
      cu_(std::move(cu)),
      found_(found),
      places_(std::move(places)),
      joints_(found.gpus.size() * found.gpus.size()),
      returning_(found.gpus.size()),
      late_(found.gpus.size() + 1) {}

memory_map::~memory_map() { clear(); }

void memory_map::clear() {
  auto gone = table_.clear([](allocation& one) {
    if (one.exported) one.exported->end(share_state::closed);
  });
  // a window that is still held keeps the pages, and not what the context has of them
  for (const auto& [base, a] : gone) {
    if (a->is_registered && a->give_back) take_back(*a, std::exchange(a->give_back, nullptr));
  }
  gone.clear();
  if (!here_.forked()) {
    // the driver's access would stay for as long as another machine, or the program, has the context
    const std::lock_guard lock{peer_mutex_};
    for (std::size_t from = 0; from < found_.gpus.size(); ++from) {
      for (std::size_t to = 0; to < found_.gpus.size(); ++to) leave(from, to);
    }
  }
  settle(patience);
}

// ---- what goes back -------------------------------------------------------------------------------------------------

void memory_map::settle(std::chrono::milliseconds timeout) const noexcept {
  if (driver_thread::is_this() || freed_elsewhere::is_this() || here_.forked()) return;
  const auto until = std::chrono::steady_clock::now() + timeout;
  for (late_work& one : late_) {
    const auto left = until - std::chrono::steady_clock::now();
    one.settle(std::max(std::chrono::milliseconds{0}, std::chrono::ceil<std::chrono::milliseconds>(left)));
  }
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

/// Tells the driver of host memory. Under the table's lock, or before the table knows the allocation.
CUresult memory_map::enroll(allocation& made) {
  const std::size_t device = local(made.owner);
  const CUresult status =
      cu_->cuMemHostRegister(made.host, made.size, host_register_portable | host_register_device_map);
  if (status != CUDA_SUCCESS) return status;
  made.made_in = places_->generation(device);
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
  ::madvise(base, length, MADV_HUGEPAGE);  // a wish: fewer entries in the tables of the GPU
  made.pages = {static_cast<std::byte*>(base), [length](std::byte* at) { ::munmap(at, length); }};
  made.user = made.host = made.pages.get();
  const CUresult status = enroll(made);
  made.is_registered = made.goes_back_late = status == CUDA_SUCCESS;
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
      made.goes_back_late = true;
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
  if (made.kind == memory_kind::unified) {
    status = cu_->cuMemAllocManaged(&address, made.size, attach_global);
  } else {
    status =
        made.coherent ? cu_->by->allocate_coherent(*cu_, &address, made.size) : cu_->cuMemAlloc(&address, made.size);
  }
  if (status != CUDA_SUCCESS) {
    error cause = cu_error(*cu_, status, what);
    if (cause.code == errc::out_of_memory) cause.what += "; " + out_of_memory(made.owner, made.size).what;
    return cause;
  }
  made.give_back = in_context(device, [address](const driver& cu) { static_cast<void>(cu.cuMemFree(address)); });
  made.goes_back_late = true;
  made.gpu = address;
  made.user = pointer(address);
  if (made.kind == memory_kind::unified) made.host = made.user;
  return {};
}

result<memory_map::ref> memory_map::new_allocation(device_id device, std::size_t size, memory_kind kind,
                                                   bool coherent) {
  auto made = std::make_shared<allocation>();
  made->coherent = coherent;
  made->kind = kind;
  made->owner = device;
  made->size = size;
  if (kind != memory_kind::pinned) {
    if (auto fits = charge(device, size); !fits) return std::move(fits).error();
    made->charged = size;
  }
  made->home = this;
  auto ok = make(*made);
  if (!ok && ok.error().code == errc::out_of_memory) {  // what is still on its way back may be enough
    settle(patience);
    ok = make(*made);
  }
  if (!ok) return std::move(ok).error();
  return made;
}

result<void*> memory_map::allocate(device_id device, std::size_t size, memory_kind kind, std::size_t granule,
                                   bool coherent) {
  if (size == 0) return make_error(errc::invalid_argument, "an allocation of 0 bytes on " + to_string(device));
  if (size > ~std::size_t{0} - granule) return out_of_memory(device, size);
  const std::size_t asked = granule == 0 ? size : (size + granule - 1) / granule * granule;
  auto made = make_beside_stale([&] { return new_allocation(device, asked, kind, coherent); });
  if (!made) return std::move(made).error();
  // all that is said of it, before others find it
  (*made)->size = size;
  (*made)->own_pages = granule != 0;
  void* const base = (*made)->user;
  add(std::move(*made));
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
  if (auto ok = table_.may_add(base, size); !ok) return ok;
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
                                                "primary context, as the vendor's runtime does, and cannot use it");
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
  const auto gone = table_.release(base, [](allocation& one) {
    if (one.exported) one.exported->end(share_state::freed);
  });
  if (!gone) return gone.error();
  return {};
}

memory_use memory_map::use(device_id device) const {
  settle();
  const std::size_t row = local(device);
  memory_use now = memory_model::use(device);
  // a context is asked where there is one; none is made for it
  if (const CUcontext context = places_->made(row); context != nullptr) {
    const current_context here{*cu_, context};
    std::size_t free = 0, total = 0;
    // read first: what goes back meanwhile counts twice, which the account above bounds, and not too little
    const std::uint64_t returning = returning_[places_->gpu_of(row)].load(std::memory_order_relaxed);
    if (here.status() == CUDA_SUCCESS && cu_->cuMemGetInfo(&free, &total) == CUDA_SUCCESS)
      now.free = std::min(now.free, bytes{free + returning});
  }
  return now;
}

// ---- who may --------------------------------------------------------------------------------------------------------

bool memory_map::can_access(device_id from, device_id to) const {
  if (from == to) return false;
  return found_.same_gpu(local(from), local(to)) || found_.pair_of(local(from), local(to)).access;
}

bool memory_map::still_used(std::size_t from_gpu, std::size_t to_gpu) const {
  for (std::size_t i = 0; i < devices(); ++i) {
    for (std::size_t k = 0; k < devices(); ++k) {
      if (found_.devices[i].gpu == from_gpu && found_.devices[k].gpu == to_gpu && enabled(global(i), global(k)))
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
  auto& process = enabled_pairs::of_process();
  const std::lock_guard lock{process.mutex};
  auto& made = process.between(*cu_, found_.gpu_of(from).id, found_.gpu_of(to).id);
  auto fresh = std::make_shared<char>();  // before the driver is asked: what it enables must be known
  const CUresult status = cu_->cuCtxEnablePeerAccess(*peer, 0);
  if (status != CUDA_SUCCESS && status != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    return cu_error(*cu_, status, "access of " + to_string(global(from)) + " to " + to_string(global(to)));
  state.made = made.lock();
  // A token that another machine holds counts on, also where its context was reset: all share one, and so the last to
  // leave is the last that uses the access.
  if (!state.made && status == CUDA_SUCCESS) made = state.made = std::move(fresh);
  state.foreign = !state.made;
  return {};
}

/// Gives the access between two GPUs up; the last machine of the process takes it from the driver. Under the mutex.
void memory_map::leave(std::size_t from_gpu, std::size_t to_gpu) {
  joint& state = joints_[from_gpu * found_.gpus.size() + to_gpu];
  state.foreign = false;
  if (!state.made) return;
  const auto context_of = [&](std::size_t gpu) {
    std::size_t d = 0;
    while (found_.devices[d].gpu != gpu) ++d;
    return places_->made(d);
  };
  const CUcontext owner = context_of(to_gpu);
  const CUcontext user = context_of(from_gpu);
  auto& process = enabled_pairs::of_process();
  const std::lock_guard lock{process.mutex};
  const std::weak_ptr<const void> mine = std::exchange(state.made, nullptr);
  // another machine has it still, or it went with a context
  if (!mine.expired() || owner == nullptr || user == nullptr) return;
  const current_context here{*cu_, user};
  // 705: somebody else in this process has ended it
  if (here.status() == CUDA_SUCCESS) static_cast<void>(cu_->cuCtxDisablePeerAccess(owner));
}

result<void> memory_map::enable(device_id from, device_id to) {
  const std::lock_guard lock{peer_mutex_};
  if (!enabled(from, to) && !found_.same_gpu(local(from), local(to))) {
    if (auto joined = join(local(from), local(to)); !joined) return joined;
  }
  return peers_.enable(from, to);
}

result<void> memory_map::disable(device_id from, device_id to) {
  const std::lock_guard lock{peer_mutex_};
  if (auto done = peers_.disable(from, to); !done) return done;
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
  for (std::size_t from = 0; from < gpus; ++from) {
    for (std::size_t to = 0; to < gpus; ++to) {
      if (still_used(from, to)) continue;
      // what was enabled and ended once more since may have served work that runs now
      if (joints_[from * gpus + to].made && (!is_quiet[from] || epoch() != before)) {
        has_to_part_.store(true, std::memory_order_release);
        continue;
      }
      leave(from, to);
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

std::string memory_map::denied_of_host(device_id by, const allocation& memory) const {
  if (memory.kind != memory_kind::adopted || found_.same_gpu(local(by), local(memory.owner)) ||
      found_.gpu_of(local(by)).host_pointers)
    return {};
  return to_string(by) + " knows memory that was adopted for " + to_string(memory.owner) + " by no address";
}

// ---- peer mappings --------------------------------------------------------------------------------------------------

result<void*> memory_map::map(device_id by, void* address, std::size_t size) {
  auto made = named_mapping(by, address, size);
  if (!made) return std::move(made).error();
  (*made)->home = this;
  (*made)->gpu = gpu_address(*(*made)->source, address);
  void* const base = (*made)->user;
  add(std::move(*made));
  return base;
}

void memory_map::forget(device_id device, bool is_whole) {
  const std::size_t row = local(device), gpu = places_->gpu_of(row);
  {
    const std::lock_guard lock{peer_mutex_};
    peers_.forget(device);
    // with the context went what the driver was asked for
    if (is_whole) {
      for (std::size_t other = 0; other < found_.gpus.size(); ++other)
        joints_[gpu * found_.gpus.size() + other] = joints_[other * found_.gpus.size() + gpu] = {};
    }
    has_to_part_.store(true, std::memory_order_release);
  }
  end_if([&](allocation& one) {
    // what is registered is the host's memory, and so is all that no device alone has, as long as the context stays
    const bool is_hosts =
        one.kind == memory_kind::pinned || one.kind == memory_kind::unified || one.kind == memory_kind::adopted;
    if (one.is_registered || (is_hosts && !is_whole) ||
        (one.owner != device && (one.kind != memory_kind::mapped || one.by != device)))
      return false;
    if (one.exported) one.exported->end(share_state::freed);
    if (is_whole) one.exported = nullptr;  // it went with the context, whoever has it open
    one.reset.store(true, std::memory_order_release);
    return true;
  });
}

void memory_map::register_again(device_id device) {
  const std::size_t gpu = places_->gpu_of(local(device));
  table_.for_each([&](const ref& a) {
    const std::size_t owner = local(a->owner);
    if (!a->is_registered || places_->gpu_of(owner) != gpu || a->made_in == places_->generation(owner)) return;
    a->give_back = nullptr;
    CUdeviceptr now = 0;
    auto here = places_->enter(owner);
    const CUresult known = here ? enroll(*a) : CUDA_ERROR_INVALID_CONTEXT;
    // a portable registration may have stayed by another GPU's context
    const bool is_known = known == CUDA_SUCCESS || known == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    const bool is_there = is_known && cu_->cuMemHostGetDevicePointer(&now, a->host, 0) == CUDA_SUCCESS && now == a->gpu;
    a->revoked.store(!is_there);
  });
}

}  // namespace weft::gpu
