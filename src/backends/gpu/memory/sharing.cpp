// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/memory/sharing.hpp"

#include "backend/address.hpp"
#include "backends/gpu/driver/device_pointer.hpp"
#include "core/fnv.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <unistd.h>

namespace weft::gpu {
namespace {

constexpr std::size_t granule = std::size_t{2} << 20;  // of the driver's own blocks, which an export hands over whole

result<shared_page> map_last_page(int file, std::size_t offset, bool writes) {
  void* const base =
      ::mmap(nullptr, page_size(), PROT_READ | (writes ? PROT_WRITE : 0), MAP_SHARED, file, static_cast<off_t>(offset));
  if (base == MAP_FAILED) return make_error(errc::resource_exhausted, "no page could be mapped for what is shared");
  return shared_page{base};
}

/// Does it in a stream that nothing else is in, and waits: the default stream waits for the program's others, and may
/// not be used while one of these is captured.
template <class F>
CUresult in_own_stream(const driver& cu, F&& work) {
  CUstream order = nullptr;
  CUresult status = cu.cuStreamCreateWithPriority(&order, stream_non_blocking, 0);
  if (status != CUDA_SUCCESS) return status;
  status = work(order);
  if (status == CUDA_SUCCESS) status = cu.cuStreamSynchronize(order);
  static_cast<void>(cu.cuStreamDestroy(order));
  return status;
}

/// Not waiting. Locks are those of the open file, and go with it.
bool lock_file(int file, int kind) noexcept {
  struct flock whole{};
  whole.l_type = static_cast<short>(kind);
  whole.l_whence = SEEK_SET;
  return ::fcntl(file, F_OFD_SETLK, &whole) == 0;
}

/// Keeps the exporter from giving the memory back for as long as it lives.
class use_mark {
 public:
  explicit use_mark(int file) : file_(file) {}
  use_mark(const use_mark&) = delete;
  use_mark& operator=(const use_mark&) = delete;
  ~use_mark() {
    if (file_) lock_file(file_.get(), F_UNLCK);  // a child that was forked has the file, too
  }
  [[nodiscard]] int get() const noexcept { return file_.get(); }

 private:
  descriptor file_;
};

/// What the exporter sent is its own open file, in which its locks and ours would be one: so it is opened anew.
result<std::shared_ptr<use_mark>> mark_in_use(int file, const std::string& what) {
  const std::string name = "/proc/self/fd/" + std::to_string(file);
  auto mine = std::make_shared<use_mark>(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  if (mine->get() < 0) {
    return make_error(errc::resource_exhausted, what + ": it cannot be marked as in use, since " + name +
                                                    " cannot be opened: " + std::generic_category().message(errno));
  }
  if (!lock_file(mine->get(), F_RDLCK)) return make_error(errc::closed, what + ": it was freed meanwhile");
  return mine;
}

}  // namespace

std::uint64_t share_facts::computed_check() const noexcept {
  detail::fnv hash;
  hash.add_bytes(&magic, sizeof magic);
  hash.add_bytes(&size, sizeof size);
  hash.add_bytes(&gpu, sizeof gpu);
  hash.add_bytes(native.data(), native.size());
  return hash.value();
}

share_facts share_record::told() const noexcept {
  share_facts copy;
  std::memcpy(&copy, &facts, sizeof copy);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // nor may the compiler look a second time
  return copy;
}

shared_page::~shared_page() {
  if (base_ != nullptr) ::munmap(base_, page_size());
}

void export_record::end(share_state why) noexcept {
  server.withdraw(key);
  auto was = static_cast<std::uint64_t>(share_state::live);
  // the first reason stays; pairs with acquire in broken
  page.record()->state.compare_exchange_strong(was, static_cast<std::uint64_t>(why), std::memory_order_release,
                                               std::memory_order_relaxed);
}

bool export_record::claim() const noexcept { return lock_file(file.get(), F_WRLCK); }

// ---- the exporter's side --------------------------------------------------------------------------------------------

std::string sharing::missing(device_id device, handle_family family) const {
  const gpu_place& gpu = memory_.found().gpu_of(memory_.local(device));
  if (family == handle_family::allocation) return gpu.ipc ? "" : gpu.name + " has no memory handles";
  return gpu.pool_descriptors ? "" : gpu.name + " has no pools that are exported as descriptors";
}

result<void*> sharing::allocate(device_id device, std::size_t size, handle_family family) {
  if (const std::string why = missing(device, family); !why.empty())
    return make_error(errc::unsupported, "shareable memory on " + to_string(device) + ": " + why);
  if (family == handle_family::pool) return allocate_pool(device, size);
  // whole blocks of the driver, so that nobody else's memory lies in them
  return memory_.allocate(device, size, memory_kind::device, granule);
}

result<void*> sharing::allocate_pool(device_id device, std::size_t size) {
  if (size == 0) return make_error(errc::invalid_argument, "an allocation of 0 bytes on " + to_string(device));
  memory_.settle();
  auto made = memory_.make_beside_stale([&] { return new_in_pool(device, size); });
  if (!made) return std::move(made).error();
  void* const base = (*made)->user;
  memory_.add(std::move(*made));
  return base;
}

/// Memory in a pool of its own that nothing finds yet.
result<std::shared_ptr<allocation>> sharing::new_in_pool(device_id device, std::size_t size) {
  if (auto fits = memory_.charge(device, size); !fits) return std::move(fits).error();
  auto made = std::make_shared<allocation>();
  made->owner = device;
  made->size = size;
  made->charged = size;
  made->own_pages = true;
  made->home = &memory_;
  made->only = std::make_shared<common::access_list>(memory_.devices());
  made->only->set(memory_.local(device), access_right::read_write);
  auto here = memory_.places().enter(memory_.local(device));
  if (!here) return std::move(here).error();
  const std::string what = to_string(bytes{size}) + " of a pool on " + to_string(device);
  CUmemPoolProps wanted;
  wanted.handle_types = handle_posix_fd;
  wanted.location = {location_device, memory_.found().gpu_of(memory_.local(device)).id};
  // Rights are a pool's: so each allocation has one of its own, which is to reserve no more address space than that
  // needs; without a size a driver takes twice the memory of the GPU.
  if (cu_.version >= cu_.by->knows_pool_sizes) wanted.max_size = (size + granule - 1) / granule * granule;
  CUresult status = cu_.cuMemPoolCreate(&made->pool, &wanted);
  if (status != CUDA_SUCCESS) return cu_error(cu_, status, what);
  made->give_back = memory_.in_context(
      memory_.local(device), [pool = made->pool](const driver& cu) { static_cast<void>(cu.cuMemPoolDestroy(pool)); });
  status = in_own_stream(
      cu_, [&](CUstream order) { return cu_.cuMemAllocFromPoolAsync(&made->gpu, size, made->pool, order); });
  if (status == CUDA_SUCCESS) {
    made->give_back = memory_.in_context(memory_.local(device), [pool = made->pool, at = made->gpu](const driver& cu) {
      static_cast<void>(in_own_stream(cu, [&](CUstream order) { return cu.cuMemFreeAsync(at, order); }));
      static_cast<void>(cu.cuMemPoolDestroy(pool));
    });
  }
  if (status != CUDA_SUCCESS) return cu_error(cu_, status, what);
  made->user = pointer(made->gpu);
  return made;
}

result<void> sharing::prepare(const std::shared_ptr<allocation>& memory, handle_family family) {
  share_facts facts;
  facts.size = memory->size;
  facts.gpu = detail::identity_of(memory_.found().gpu_of(memory_.local(memory->owner)).uuid);
  auto here = memory_.places().enter(memory_.local(memory->owner));
  if (!here) return std::move(here).error();
  CUresult status = CUDA_SUCCESS;
  int pool = -1;
  if (family == handle_family::allocation) {
    CUipcMemHandle native{};
    status = cu_.cuIpcGetMemHandle(&native, memory->gpu);
    std::memcpy(facts.native.data(), &native, sizeof native);
  } else {
    CUmemPoolPtrExportData native{};
    status = cu_.cuMemPoolExportPointer(&native, memory->gpu);
    std::memcpy(facts.native.data(), &native, sizeof native);
    if (status == CUDA_SUCCESS) status = cu_.cuMemPoolExportToShareableHandle(&pool, memory->pool, handle_posix_fd, 0);
  }
  if (status != CUDA_SUCCESS) return cu_error(cu_, status, "exporting " + hex(memory->user));
  descriptor pool_file{pool};
  facts.check = facts.computed_check();
  const std::size_t offset = whole_pages(memory->size);
  auto file = detail::make_memory_file("weft-gpu-share", offset + page_size(), detail::memory_file_pages::any,
                                       "memory to share");
  if (!file) return std::move(file).error();
  auto page = map_last_page(file->get(), offset, true);
  if (!page) return std::move(page).error();
  page->record()->facts = facts;
  memory->exported = std::shared_ptr<export_record>{
      new export_record{server_, detail::random_number(), std::move(*file), std::move(pool_file), std::move(*page)}};
  const std::uint64_t identity = identities_[memory_.local(memory->owner)];
  server_.offer(memory->exported->key, common::kind_of(family),
                [weak = std::weak_ptr{memory->exported}, size = memory->size, identity] {
                  struct held {
                    detail::share_grant grant;
                    std::shared_ptr<export_record> record;
                  };
                  std::shared_ptr<const detail::share_grant> none;
                  auto alive = weak.lock();
                  if (!alive) return none;
                  auto made = std::make_shared<held>();
                  made->grant.file = alive->file.get();
                  made->grant.second = alive->pool ? alive->pool.get() : -1;
                  made->grant.size = size;
                  made->grant.device = identity;
                  made->record = std::move(alive);
                  return std::shared_ptr<const detail::share_grant>{made, &made->grant};
                });
  return {};
}

result<shared_bytes> sharing::give(const void* address, std::uint64_t size, handle_family family) {
  auto ticket = common::new_ticket(server_, family, memory_.cu().by->family, size);
  if (!ticket) return std::move(ticket).error();
  detail::share_ticket& h = *ticket;
  std::optional<error> refused;
  const auto note = [&](const std::shared_ptr<allocation>& memory) {
    refused = common::not_exportable(*memory, address, family, h);
    if (refused) return;
    if (!memory->exported) {
      if (auto made = prepare(memory, family); !made) refused = std::move(made).error();
    }
    if (!refused) h.key = memory->exported->key;
  };
  if (!memory_.visit(address, note)) return not_allocated(address);
  if (refused) return *refused;
  return detail::encode(h);
}

// ---- the importer's side --------------------------------------------------------------------------------------------

device_id sharing::owner_of(std::uint64_t device, std::uint64_t gpu, std::optional<device_id> wish) const {
  const auto it = std::find(identities_.begin(), identities_.end(), device);
  if (it != identities_.end()) return memory_.global(static_cast<std::size_t>(it - identities_.begin()));
  const auto is_on_it = [&](std::size_t d) { return detail::identity_of(memory_.found().gpu_of(d).uuid) == gpu; };
  if (wish && is_on_it(memory_.local(*wish))) return *wish;
  for (std::size_t d = 0; d < memory_.devices(); ++d) {
    if (is_on_it(d)) return memory_.global(d);
  }
  return wish.value_or(memory_.global(0));  // a GPU that is hidden here
}

bool sharing::still_goes_back(std::uint64_t key, device_id by) const {
  const auto it = open_.find({key, memory_.places().gpu_of(memory_.local(by))});
  if (it == open_.end() || it->second.use.expired()) return false;
  const auto known = it->second.memory.lock();
  if (!known) return true;
  const bool went_with_context = known->made_in != memory_.places().generation(memory_.local(known->by));
  return known->revoked.load(std::memory_order_acquire) && !went_with_context;
}

result<opened_memory_description> sharing::again(const detail::share_ticket& h, device_id by) {
  const auto it = open_.find({h.key, memory_.places().gpu_of(memory_.local(by))});
  const auto known = it == open_.end() ? nullptr : it->second.memory.lock();
  auto had = common::open_again(known, h);
  if (had && had->address != nullptr) known->only->set(memory_.local(by), access_right::read_write);
  return had;
}

/// What the driver makes of the exporter's record, in the context of `into.by`.
result<void> sharing::import_native(allocation& into, const share_facts& told, detail::fetched_share& got,
                                    handle_family family) {
  const std::size_t device = memory_.local(into.by);
  auto here = memory_.places().enter(device);
  if (!here) return std::move(here).error();
  const std::string what = "opening memory of process " + std::to_string(got.exporter->pid());
  auto use = mark_in_use(got.file.get(), what);
  if (!use) return std::move(use).error();
  into.imported->use = *use;
  // freed before the mark was there, or it waits for the mark to go
  if (auto cause = into.imported->broken(nullptr)) return *cause;
  CUresult status = CUDA_SUCCESS;
  if (family == handle_family::allocation) {
    CUipcMemHandle native{};
    std::memcpy(&native, told.native.data(), sizeof native);
    status = cu_.cuIpcOpenMemHandle(&into.gpu, native, ipc_lazy_enable_peer_access);
    if (status == CUDA_SUCCESS) {
      into.give_back = memory_.in_context(
          device, [at = into.gpu, use = *use](const driver& cu) { static_cast<void>(cu.cuIpcCloseMemHandle(at)); });
    }
  } else {
    if (!got.second) return make_error(errc::corrupt, what + ": it sent no pool");
    CUmemoryPool pool = nullptr;
    status = cu_.cuMemPoolImportFromShareableHandle(&pool, pointer(static_cast<CUdeviceptr>(got.second.get())),
                                                    handle_posix_fd, 0);
    if (status != CUDA_SUCCESS) return cu_error(cu_, status, what, errc::corrupt);
    into.imported->pool = pool;
    into.give_back = memory_.in_context(
        device, [pool, use = *use](const driver& cu) { static_cast<void>(cu.cuMemPoolDestroy(pool)); });
    const CUmemAccessDesc right{{location_device, memory_.found().gpu_of(device).id}, access_read_write};
    status = cu_.cuMemPoolSetAccess(pool, &right, 1);
    CUmemPoolPtrExportData native{};
    std::memcpy(&native, told.native.data(), sizeof native);
    if (status == CUDA_SUCCESS) status = cu_.cuMemPoolImportPointer(&into.gpu, pool, &native);
    if (status == CUDA_SUCCESS) {
      into.give_back = memory_.in_context(device, [pool, at = into.gpu, use = *use](const driver& cu) {
        static_cast<void>(cu.cuMemFree(at));
        static_cast<void>(cu.cuMemPoolDestroy(pool));
      });
    }
  }
  if (status == CUDA_ERROR_ALREADY_MAPPED) {
    return make_error(errc::not_ready, what + ": " + name_of(cu_, status) +
                                           "; another context of this process has it open, and a GPU opens a handle "
                                           "in one context of a process only: close it there first");
  }
  if (status == CUDA_ERROR_INVALID_VALUE || status == CUDA_ERROR_INVALID_HANDLE || status == CUDA_ERROR_MAP_FAILED)
    return make_error(errc::closed, what + ": " + name_of(cu_, status) + "; was it freed meanwhile?");
  if (status != CUDA_SUCCESS) return cu_error(cu_, status, what);
  into.user = pointer(into.gpu);
  return check_extent(into, what);
}

result<void> sharing::check_extent(const allocation& opened, const std::string& what) const {
  CUdeviceptr start = 0;
  std::size_t length = 0;
  const CUresult status = cu_.cuMemGetAddressRange(&start, &length, opened.gpu);
  // the driver does not promise that it knows the extent of what another process allocated
  if (status != CUDA_SUCCESS) return {};
  const std::uint64_t before = opened.gpu - start;
  const std::uint64_t mapped = before > length ? 0 : length - before;
  if (mapped >= opened.size) return {};
  return make_error(errc::corrupt, what + ": it told of " + to_string(bytes{opened.size}) + ", and the driver maps " +
                                       to_string(bytes{mapped}));
}

result<opened_memory_description> sharing::open(std::optional<device_id> wish, const shared_bytes& handle,
                                                std::chrono::nanoseconds timeout, handle_family family,
                                                const std::function<void()>& see_ends) {
  auto ticket = common::ticket_of(handle, family, memory_.cu().by->family, server_);
  if (!ticket) return std::move(ticket).error();
  const detail::share_ticket& h = *ticket;
  std::shared_ptr<detail::process_watch> known;
  {
    const std::lock_guard lock{mutex_};
    if (const auto it = exporters_.find(h.door); it != exporters_.end()) known = it->second.lock();
    if (wish) {
      auto had = again(h, *wish);
      if (!had || had->address != nullptr) return had;
    }
  }
  auto fetched = detail::fetch_share(h, timeout, known);
  if (!fetched) return std::move(fetched).error();
  const std::uint64_t size = fetched->reply.size;
  struct stat about{};
  if (size == 0 || ::fstat(fetched->file.get(), &about) != 0 ||
      static_cast<std::uint64_t>(about.st_size) != whole_pages(size) + page_size()) {
    return make_error(errc::corrupt, "what process " + std::to_string(h.process) + " shares is not memory of a GPU");
  }
  auto page = map_last_page(fetched->file.get(), whole_pages(size), false);
  if (!page) return std::move(page).error();
  const share_facts told = page->record()->told();
  if (told.magic != share_facts::the_magic || told.size != size || told.check != told.computed_check())
    return make_error(errc::corrupt, "what process " + std::to_string(h.process) + " shares says no sense of itself");
  const device_id owner = owner_of(fetched->reply.device, told.gpu, wish);
  const device_id by = wish.value_or(owner);
  if (by != owner && !memory_.can_access(by, owner)) {
    return make_error(errc::peer_unsupported, to_string(by) + " cannot map the memory of " + to_string(owner) +
                                                  " that process " + std::to_string(h.process) +
                                                  " exported: open it on " + to_string(owner) + " and copy from there");
  }
  if (const std::string why = missing(by, family); !why.empty())
    return make_error(errc::unsupported, "opening memory on " + to_string(by) + ": " + why);
  auto made = std::make_shared<allocation>();
  made->kind = memory_kind::mapped;
  made->owner = owner;
  made->by = by;
  made->size = size;
  made->home = &memory_;
  made->made_in = memory_.places().generation(memory_.local(by));
  made->imported = std::make_shared<import_record>();
  made->imported->key = h.key;
  made->imported->exporter = fetched->exporter;
  made->imported->page = std::move(*page);
  made->only = std::make_shared<common::access_list>(memory_.devices());
  made->only->set(memory_.local(by), access_right::read_write);
  // one at a time: the driver has one address for all, and would count a second opening
  std::unique_lock lock{mutex_};
  // a driver that imports memory of a pool twice unmaps both with the first (NVIDIA's bug 5570902)
  const auto until =
      std::chrono::steady_clock::now() + std::min<std::chrono::nanoseconds>(timeout, std::chrono::hours{1});
  while (family == handle_family::pool && still_goes_back(h.key, by)) {
    lock.unlock();
    if (std::chrono::steady_clock::now() >= until) {
      return make_error(errc::timed_out,
                        "memory of process " + std::to_string(h.process) +
                            " that was closed here is still in use by work from before: wait for that");
    }
    see_ends();
    memory_.settle();
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
    lock.lock();
  }
  auto had = again(h, by);
  if (!had || had->address != nullptr) return had;
  if (auto ok = import_native(*made, told, *fetched, family); !ok) return std::move(ok).error();
  if (memory_.is_stale(made->user, made->size)) {
    return make_error(errc::not_ready, "the driver maps memory of process " + std::to_string(h.process) + " at " +
                                           hex(made->user) +
                                           ", where memory lay that a reset has ended: free or close that first");
  }
  std::erase_if(open_, [](const auto& entry) { return entry.second.memory.expired() && entry.second.use.expired(); });
  std::erase_if(exporters_, [](const auto& entry) { return entry.second.expired(); });
  exporters_[h.door] = made->imported->exporter;
  open_[{h.key, memory_.places().gpu_of(memory_.local(by))}] = {made, made->imported->use};
  const opened_memory_description opened{made->user + h.offset, bytes{h.size}, owner};
  memory_.add(std::move(made));
  return opened;
}

result<void> sharing::close(void* address) {
  const auto memory = memory_.find(address);
  const std::lock_guard lock{mutex_};
  if (!memory) memory_.remove_stale(address);
  const auto is_last = common::close_once(memory, address);
  if (!is_last) return is_last.error();
  if (!*is_last) return {};
  memory_.remove(memory);
  return {};
}

result<void> sharing::set_access(void* address, std::span<const device_right> rights) {
  const auto memory = memory_.find(address);
  if (!memory) return not_allocated(address);
  const CUmemoryPool pool = memory->imported ? memory->imported->pool : memory->pool;
  const device_id home = memory->imported ? memory->by : memory->owner;
  auto wrong = common::not_settable(*memory, address, rights, [&](device_id device) -> std::optional<error> {
    if (!memory_.can_access(device, memory->owner)) {
      return make_error(errc::peer_unsupported, to_string(device) + " cannot map the memory of " +
                                                    to_string(memory->owner) + ": there is no peer path");
    }
    if (pool == nullptr && !memory_.found().same_gpu(memory_.local(device), memory_.local(home))) {
      return make_error(errc::peer_unsupported, "memory opened on " + to_string(home) +
                                                    " has its address there alone: open the handle on " +
                                                    to_string(device) + " too");
    }
    return std::nullopt;
  });
  if (wrong) return std::move(*wrong);
  const discovery& found = memory_.found();
  common::access_list next{memory_.devices()};
  next.copy(*memory->only);
  for (const device_right& r : rights) next.set(memory_.local(r.device), r.right);
  std::vector<CUmemAccessDesc> wanted;
  for (std::size_t gpu = 0; pool != nullptr && gpu < found.gpus.size(); ++gpu) {
    access_right before = access_right::none, after = access_right::none;
    for (std::size_t d = 0; d < memory_.devices(); ++d) {
      if (found.devices[d].gpu != gpu) continue;
      before = std::max(before, memory->only->of(d));
      after = std::max(after, next.of(d));
    }
    // a pool can be read and written, or not at all: the library keeps what is only read from being written
    const auto flags = [](access_right right) { return right == access_right::none ? access_none : access_read_write; };
    const bool is_told = flags(before) < flags(after) || cu_.by->ends_pool_rights;
    if (flags(before) != flags(after) && is_told)
      wanted.push_back({{location_device, found.gpus[gpu].id}, flags(after)});
  }
  if (!wanted.empty()) {
    const CUresult status = cu_.cuMemPoolSetAccess(pool, wanted.data(), wanted.size());
    if (status != CUDA_SUCCESS) return cu_error(cu_, status, "setting rights on " + hex(address));
  }
  for (const device_right& r : rights) memory->only->set(memory_.local(r.device), r.right);
  return {};
}

}  // namespace weft::gpu
