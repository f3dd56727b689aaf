// SPDX-License-Identifier: Apache-2.0
#include "backends/host/block_map.hpp"

#include "backend/address.hpp"
#include "backend/memory_file.hpp"
#include "core/hex.hpp"
#include "core/make_error.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace weft::host {
namespace {

constexpr int needed_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

error system_error(const std::string& what, int code) {
  const bool memory = code == ENOMEM || code == ENOSPC;
  error cause =
      make_error(memory ? errc::out_of_memory : errc::resource_exhausted,
                 what + ": " + std::strerror(code) +
                     (code == ENOMEM ? "; the process has no address space or too many mappings (vm.max_map_count)"
                      : code == EMFILE || code == ENFILE ? "; raise the limit of open files (ulimit -n)"
                                                         : ""));
  cause.native_code = code;
  return cause;
}

std::string extent(const void* address, std::size_t size) { return to_string(bytes{size}) + " at " + hex(address); }

error no_block(block_id block) {
  return make_error(errc::not_found, "there is no block " + std::to_string(static_cast<std::uint64_t>(block)) +
                                         " on this machine; was it released?");
}

int protection_of(access_right right) {
  switch (right) {
    case access_right::none:
      return PROT_NONE;
    case access_right::read:
      return PROT_READ;
    case access_right::read_write:
      return PROT_READ | PROT_WRITE;
  }
  return PROT_NONE;
}

/// Puts a file at an address, or nothing where `right` is none.
bool place(std::byte* at, std::size_t size, int file, access_right right) noexcept {
  void* done = right == access_right::none
                   ? ::mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0)
                   : ::mmap(at, size, protection_of(right), MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file, 0);
  return done != MAP_FAILED;
}

std::byte* aligned(const window_handle& window, std::size_t alignment) {
  const std::uintptr_t at = number(window.get().base);
  return window.get().base + ((at + alignment - 1) / alignment * alignment - at);
}

std::uint64_t mixed(const void* data, std::size_t size) {
  std::uint64_t sum = 0xcbf29ce484222325;  // FNV-1a
  for (std::size_t i = 0; i < size; ++i) sum = (sum ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3;
  return sum;
}

}  // namespace

// ---- what a file says -----------------------------------------------------------------------------------------------

std::uint64_t block_header::computed_check() const noexcept { return mixed(this, offsetof(block_header, check)); }

result<block_header> read_block_header(const std::byte* data, std::size_t size, std::uint64_t file_size) {
  block_header h;
  if (size < sizeof h) return make_error(errc::corrupt, "what was offered as a block is too short to be one");
  std::memcpy(&h, data, sizeof h);
  if (h.magic != block_header::the_magic) return make_error(errc::corrupt, "what was offered is not a block of weft");
  if (h.version != block_header::the_version) {
    return make_error(errc::incompatible, "the other process speaks version " + std::to_string(h.version) +
                                              " of shared blocks, this one " +
                                              std::to_string(block_header::the_version));
  }
  if (h.check != h.computed_check() || h.reserved != 0 || h.device.back() != '\0')
    return make_error(errc::corrupt, "the header of an offered block is damaged");
  if (h.size == 0 || h.size % block_map::granule() != 0 || file_size < block_header::room ||
      h.size != file_size - block_header::room) {
    return make_error(errc::corrupt, "an offered block says it has " + std::to_string(h.size) +
                                         " bytes, in a file of " + std::to_string(file_size));
  }
  return h;
}

// ---- one mapping ----------------------------------------------------------------------------------------------------

block_mapping::~block_mapping() {
  bool gone = true;
  if (one_address()) {
    if (shown != access_right::none) gone = place(range->base + offset, size, -1, access_right::none);
  } else {
    if (writable_shown) gone = place(writable(), size, -1, access_right::none);
    if (readable_shown) gone = place(readable(), size, -1, access_right::none) && gone;
  }
  // what the system did not give back is never used again
  if (!gone) return;
  const std::lock_guard lock{range->mutex};
  range->busy.erase(offset);
}

std::optional<std::string> block_mapping::denied(device_id by, std::size_t index, device_id owner, bool writes) const {
  // seq_cst: either this operation sees a right withdrawn, or who withdraws it sees the operation pending
  const access_right right = rights[index].load(std::memory_order_seq_cst);
  if (right == access_right::read_write || (right == access_right::read && !writes)) return std::nullopt;
  const std::string what = "a mapping of a block of " + to_string(owner);
  if (right == access_right::read) return to_string(by) + " may only read " + what;
  return to_string(by) + " has no right to " + what + "; grant it one first";
}

result<void> block_mapping::show(access_right right) {
  const std::lock_guard lock{mutex};
  if (one_address()) {
    if (right <= shown) return {};
    if (!place(range->base + offset, size, memory->file.get(), right)) return system_error("mapping a block", errno);
    shown = right;
    return {};
  }
  if (right == access_right::none) return {};
  bool& is_shown = right == access_right::read ? readable_shown : writable_shown;
  if (is_shown) return {};
  std::byte* at = right == access_right::read ? readable() : writable();
  if (!place(at, size, memory->file.get(), right)) return system_error("mapping a block", errno);
  is_shown = true;
  return {};
}

void block_mapping::settle() noexcept {
  const std::lock_guard lock{mutex};
  access_right most = access_right::none;
  bool any_reader = false;
  for (const auto& right : rights) {
    const access_right one = right.load(std::memory_order_seq_cst);
    most = std::max(most, one);
    any_reader = any_reader || one == access_right::read;
  }
  // Where the system refuses, the pages stay; the library refuses all the same.
  if (one_address()) {
    if (most < shown && place(range->base + offset, size, memory->file.get(), most)) shown = most;
    return;
  }
  if (writable_shown && most != access_right::read_write)
    writable_shown = !place(writable(), size, -1, access_right::none);
  if (readable_shown && !any_reader) readable_shown = !place(readable(), size, -1, access_right::none);
}

// ---- blocks ---------------------------------------------------------------------------------------------------------

block_id block_map::added(std::shared_ptr<block_memory> made) {
  const std::lock_guard lock{mutex_};
  made->id = block_id{++last_id_};
  made->references = 1;
  made->place = next_place_;
  next_place_ += made->size;
  const block_id id = made->id;
  blocks_.emplace(id, std::move(made));
  return id;
}

result<block_id> block_map::create(device_id device, std::string_view uuid, std::size_t size, bool shareable) {
  if (size == 0 || size % granule() != 0) {
    return make_error(errc::invalid_argument, "a block of " + to_string(bytes{size}) + " on " + to_string(device) +
                                                  ": sizes are multiples of " + to_string(bytes{granule()}) +
                                                  " there (see granularity)");
  }
  if (auto fits = memory_.charge(device, size); !fits) return std::move(fits).error();
  auto made = std::make_shared<block_memory>();
  made->home = &memory_;
  made->device = device;
  made->size = size;
  made->shareable = shareable;
  made->charged = true;
  made->file = file_handle{::memfd_create("weft-block", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (!made->file) return system_error("creating a block of " + to_string(bytes{size}), errno);
  if (::ftruncate(made->file.get(), static_cast<off_t>(size + block_header::room)) != 0)
    return system_error("sizing a block of " + to_string(bytes{size}), errno);
  block_header header;
  header.magic = block_header::the_magic;
  header.version = block_header::the_version;
  header.size = size;
  header.creator = ::getpid();
  std::copy_n(uuid.begin(), std::min(uuid.size(), header.device.size() - 1), header.device.begin());
  header.check = header.computed_check();
  if (shareable && (::pwrite(made->file.get(), &header, sizeof header, static_cast<off_t>(size)) != sizeof header ||
                    ::fcntl(made->file.get(), F_ADD_SEALS, needed_seals) != 0)) {
    return system_error("sealing a block of " + to_string(bytes{size}), errno);
  }
  if (memory_.options().fill_new) {
    auto seen = map_file(made->file.get(), 0, size, true);
    if (!seen) return std::move(seen).error();
    memory_.fill_new(seen->get().base, size);
  }
  return added(std::move(made));
}

result<void> block_map::retain(block_id block) {
  const std::lock_guard lock{mutex_};
  const auto it = blocks_.find(block);
  if (it == blocks_.end()) return no_block(block);
  ++it->second->references;
  return {};
}

result<void> block_map::release(block_id block) {
  std::shared_ptr<block_memory> gone;
  const std::lock_guard lock{mutex_};
  const auto it = blocks_.find(block);
  if (it == blocks_.end()) return no_block(block);
  if (--it->second->references != 0) return {};
  gone = std::move(it->second);
  blocks_.erase(it);
  return {};
}

std::shared_ptr<block_memory> block_map::find(block_id block) {
  const std::lock_guard lock{mutex_};
  const auto it = blocks_.find(block);
  return it == blocks_.end() ? nullptr : it->second;
}

result<block_description> block_map::describe(block_id block) {
  const auto known = find(block);
  if (!known) return no_block(block);
  return block_description{known->device, bytes{known->size}, known->shareable, known->imported};
}

result<block_id> block_map::block_of(const void* address) {
  const auto found = memory_.find(address);
  if (!found || found->kind != memory_kind::block)
    return make_error(errc::not_found, "no block is mapped at " + hex(address));
  const std::shared_ptr<block_memory>& block = found->mapping->memory;
  const std::lock_guard lock{mutex_};
  // the last reference may have gone while a mapping kept the memory
  if (++block->references == 1) blocks_.emplace(block->id, block);
  return block->id;
}

// ---- reservations ---------------------------------------------------------------------------------------------------

result<void*> block_map::reserve(std::size_t size, std::size_t alignment, void* hint) {
  if (size == 0 || size % page_size() != 0) {
    return make_error(errc::invalid_argument, "a reservation of " + to_string(bytes{size}) +
                                                  ": sizes are multiples of a page, " + to_string(bytes{page_size()}));
  }
  if (alignment != 0 && !std::has_single_bit(alignment)) {
    return make_error(errc::invalid_argument,
                      "the alignment of a reservation is 0 or a power of two, not " + std::to_string(alignment));
  }
  const std::size_t to = std::max(alignment, granule());
  if (size > (std::size_t{1} << 62) || to > (std::size_t{1} << 62))
    return system_error("reserving " + to_string(bytes{size}), ENOMEM);
  auto made = std::make_shared<reserved_range>();
  made->size = size;
  const auto window = [&](void* wish) -> result<window_handle> {
    void* got = ::mmap(wish, size + to, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) return system_error("reserving " + to_string(bytes{size}), errno);
    return window_handle{weft::host::window{static_cast<std::byte*>(got), size + to}};
  };
  auto user = window(hint);
  if (!user) return std::move(user).error();
  made->user_window = std::move(*user);
  made->base = made->writable = made->readable = aligned(made->user_window, to);
  if (memory_.options().strict) {
    auto writable = window(nullptr);
    if (!writable) return std::move(writable).error();
    made->writable_window = std::move(*writable);
    made->writable = aligned(made->writable_window, to);
    auto readable = window(nullptr);
    if (!readable) return std::move(readable).error();
    made->readable_window = std::move(*readable);
    made->readable = aligned(made->readable_window, to);
  }
  void* base = made->base;
  const std::lock_guard lock{mutex_};
  reservations_.emplace(number(base), std::move(made));
  return base;
}

result<void> block_map::free(void* base, std::size_t size) {
  std::shared_ptr<reserved_range> gone;
  const std::lock_guard lock{mutex_};
  const auto it = reservations_.find(number(base));
  if (it == reservations_.end())
    return make_error(errc::not_found, "no reservation starts at " + hex(base) + "; was it freed before?");
  if (it->second->size != size) {
    return make_error(errc::invalid_argument, "the reservation at " + hex(base) + " has " +
                                                  to_string(bytes{it->second->size}) + ", not " +
                                                  to_string(bytes{size}) + ": it is freed as a whole");
  }
  {
    const std::lock_guard range{it->second->mutex};
    for (const auto& [offset, length] : it->second->busy) {
      const auto still = memory_.find(it->second->base + offset);
      if (still && still->kind == memory_kind::block) {
        return make_error(errc::invalid_argument, "the reservation at " + hex(base) + " still has " +
                                                      to_string(bytes{length}) + " mapped at offset " +
                                                      std::to_string(offset) + ": unmap it first");
      }
    }
  }
  // what work still uses keeps the address space until that has ended
  gone = std::move(it->second);
  reservations_.erase(it);
  return {};
}

std::shared_ptr<reserved_range> block_map::range_of(const void* address, std::size_t size) {
  auto it = reservations_.upper_bound(number(address));
  if (it == reservations_.begin()) return nullptr;
  --it;
  const std::size_t offset = number(address) - it->first;
  if (offset >= it->second->size || size > it->second->size - offset) return nullptr;
  return it->second;
}

// ---- mappings -------------------------------------------------------------------------------------------------------

result<void> block_map::map(void* address, std::size_t size, block_id block) {
  const std::lock_guard lock{mutex_};
  const auto known = blocks_.find(block);
  if (known == blocks_.end()) return no_block(block);
  const std::shared_ptr<block_memory>& memory = known->second;
  if (size == 0 || size % granule() != 0 || size > memory->size) {
    return make_error(errc::invalid_argument,
                      "mapping " + to_string(bytes{size}) + " of a block of " + to_string(bytes{memory->size}) +
                          ": a mapping is not longer than its block, and a multiple of " + to_string(bytes{granule()}));
  }
  auto range = range_of(address, size);
  if (!range) {
    return make_error(errc::invalid_argument,
                      "mapping " + extent(address, size) + ": no reservation covers that; reserve it first");
  }
  const std::size_t offset = number(address) - number(range->base);
  if (offset % granule() != 0) {
    return make_error(errc::invalid_argument, "mapping at offset " + std::to_string(offset) +
                                                  " of a reservation: offsets are multiples of " +
                                                  to_string(bytes{granule()}));
  }
  auto made = std::make_shared<allocation>();
  {
    const std::lock_guard busy{range->mutex};
    const auto next = range->busy.lower_bound(offset);
    const bool hits_next = next != range->busy.end() && next->first < offset + size;
    const bool hits_before = next != range->busy.begin() && std::prev(next)->first + std::prev(next)->second > offset;
    if (hits_next || hits_before) {
      std::byte* at = range->base + (hits_before ? std::prev(next)->first : next->first);
      if (memory_.find(at)) {
        return make_error(errc::invalid_argument,
                          "mapping " + extent(address, size) + ": something is mapped there already; unmap it first");
      }
      return make_error(errc::not_ready, "mapping " + extent(address, size) +
                                             ": work still uses what was mapped there before; wait for it first");
    }
    range->busy.emplace(offset, size);
  }
  try {
    made->mapping = std::make_unique<block_mapping>(memory_.devices());
  } catch (const std::bad_alloc&) {
    const std::lock_guard busy{range->mutex};
    range->busy.erase(offset);
    return make_error(errc::out_of_memory, "the host has no memory left for a mapping");
  }
  block_mapping& mapping = *made->mapping;
  mapping.memory = memory;
  mapping.range = std::move(range);
  mapping.offset = offset;
  mapping.size = size;
  made->home = &memory_;
  made->kind = memory_kind::block;
  made->owner = memory->device;
  made->user = static_cast<std::byte*>(address);
  made->device_side = mapping.writable();
  made->size = size;
  memory_.add(std::move(made));
  return {};
}

result<void> block_map::unmap(void* address, std::size_t size) {
  std::vector<std::shared_ptr<allocation>> ended;
  const std::lock_guard lock{mutex_};
  if (size != 0) ended = memory_.blocks_in(address, size);
  if (ended.empty()) {
    const auto there = memory_.find(address);
    if (!there || there->kind != memory_kind::block)
      return make_error(errc::not_found, "no block is mapped at " + hex(address) + "; was it unmapped before?");
    return make_error(errc::invalid_argument, "unmapping " + extent(address, size) +
                                                  ": mappings end as a whole; the one there is " +
                                                  extent(there->user, there->size));
  }
  memory_.remove(ended);
  return {};
}

result<void> block_map::set_access(void* address, std::size_t size, std::span<const device_right> rights,
                                   const std::function<std::optional<std::string>(device_id, device_id)>& refused) {
  if (rights.empty()) return make_error(errc::invalid_argument, "setting rights for no device");
  const std::lock_guard lock{mutex_};
  const auto mappings = size == 0 ? std::vector<std::shared_ptr<allocation>>{} : memory_.blocks_in(address, size);
  if (mappings.empty()) {
    return make_error(errc::invalid_argument, "setting rights on " + extent(address, size) +
                                                  ": that must be one or several whole mappings that touch");
  }
  for (const device_right& one : rights) {
    if (one.right > access_right::read_write)
      return make_error(errc::invalid_argument,
                        "a right is none, read or read_write, not " + std::to_string(static_cast<int>(one.right)));
    if (one.right == access_right::none) continue;
    for (const auto& mapping : mappings) {
      if (auto why = refused(one.device, mapping->owner)) return make_error(errc::peer_unsupported, std::move(*why));
    }
  }
  // pages first: what fails leaves the rights as they were
  for (const auto& one : mappings) {
    for (const device_right& wanted : rights) {
      auto shown = one->mapping->show(wanted.right);
      if (shown) continue;
      for (const auto& undo : mappings) {
        if (undo->pending.load(std::memory_order_seq_cst) == 0) undo->mapping->settle();
      }
      return shown;
    }
  }
  for (const auto& one : mappings) {
    for (const device_right& wanted : rights)
      one->mapping->rights[memory_.local(wanted.device)].store(wanted.right, std::memory_order_seq_cst);
    // work that has looked already keeps its pages: it started before
    if (one->pending.load(std::memory_order_seq_cst) == 0) one->mapping->settle();
  }
  return {};
}

result<access_right> block_map::access_of(device_id device, const void* address) {
  const auto found = memory_.find(address);
  if (!found || found->kind != memory_kind::block)
    return make_error(errc::not_found, "no block is mapped at " + hex(address));
  return found->mapping->rights[memory_.local(device)].load(std::memory_order_seq_cst);
}

// ---- between processes ----------------------------------------------------------------------------------------------

result<int> block_map::give(block_id block) {
  const std::lock_guard lock{mutex_};
  const auto it = blocks_.find(block);
  if (it == blocks_.end()) return no_block(block);
  const std::shared_ptr<block_memory>& memory = it->second;
  if (!memory->shareable) {
    return make_error(errc::invalid_argument, "a block of " + to_string(bytes{memory->size}) + " on " +
                                                  to_string(memory->device) +
                                                  " was not made to be shared: ask for that when it is made");
  }
  if (memory->inode == std::pair<std::uint64_t, std::uint64_t>{}) {
    struct stat about{};
    if (::fstat(memory->file.get(), &about) != 0) return system_error("looking at a block's file", errno);
    std::erase_if(shared_, [](const auto& known) { return known.expired(); });
    shared_.push_back(memory);
    memory->inode = {about.st_dev, about.st_ino};
  }
  const int given = ::fcntl(memory->file.get(), F_DUPFD_CLOEXEC, 0);
  if (given < 0) return system_error("a descriptor for a block", errno);
  return given;
}

result<block_map::offered> block_map::inspect(int descriptor) {
  struct stat about{};
  if (::fstat(descriptor, &about) != 0)
    return make_error(errc::invalid_argument, std::to_string(descriptor) + " is not an open descriptor");
  if (auto checked =
          detail::check_memory_file(descriptor, block_header::room, detail::memory_file_pages::any, "a block");
      !checked) {
    return std::move(checked).error();
  }
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  if ((seals & needed_seals) != needed_seals) {
    return make_error(errc::corrupt, "what was offered as a block is not sealed: its owner could move its header");
  }
  if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0 || (::fcntl(descriptor, F_GETFL) & O_ACCMODE) != O_RDWR) {
    return make_error(errc::corrupt, "what was offered as a block cannot be written");
  }
  const auto file_size = static_cast<std::uint64_t>(about.st_size);
  std::array<std::byte, sizeof(block_header)> raw{};
  if (file_size < block_header::room ||
      ::pread(descriptor, raw.data(), raw.size(), static_cast<off_t>(file_size - block_header::room)) !=
          static_cast<ssize_t>(raw.size())) {
    return make_error(errc::corrupt, "what was offered as a block is too short to be one");
  }
  auto header = read_block_header(raw.data(), raw.size(), file_size);
  if (!header) return std::move(header).error();
  offered made{file_handle{::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)}, *header, {about.st_dev, about.st_ino}};
  if (!made.file) return system_error("keeping the descriptor of a block", errno);
  return made;
}

result<block_id> block_map::take(device_id device, offered what) {
  {
    const std::lock_guard lock{mutex_};
    std::erase_if(shared_, [](const auto& known) { return known.expired(); });
    for (const auto& one : shared_) {
      auto known = one.lock();
      if (!known || known->inode != what.inode) continue;
      // the same memory: two names for it would hide from us that copies overlap
      if (++known->references == 1) blocks_.emplace(known->id, known);
      return known->id;
    }
  }
  auto made = std::make_shared<block_memory>();
  made->home = &memory_;
  made->device = device;
  made->size = what.header.size;
  made->shareable = made->imported = true;
  made->file = std::move(what.file);
  made->inode = what.inode;
  const block_id id = added(made);
  const std::lock_guard lock{mutex_};
  shared_.push_back(made);
  return id;
}

void block_map::forget(device_id device) {
  std::vector<std::shared_ptr<block_memory>> gone;
  const std::lock_guard lock{mutex_};
  for (auto it = blocks_.begin(); it != blocks_.end();) {
    if (it->second->device == device) {
      it->second->references = 0;
      gone.push_back(std::move(it->second));
      it = blocks_.erase(it);
    } else {
      ++it;
    }
  }
}

void block_map::clear() {
  std::map<block_id, std::shared_ptr<block_memory>> blocks;
  std::map<std::uintptr_t, std::shared_ptr<reserved_range>> reservations;
  const std::lock_guard lock{mutex_};
  blocks.swap(blocks_);
  reservations.swap(reservations_);
}

}  // namespace weft::host
