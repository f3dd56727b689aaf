// SPDX-License-Identifier: Apache-2.0
#include "backends/host/memory/block_map.hpp"

#include "backend/address.hpp"
#include "core/errors/make_error.hpp"
#include "core/fnv.hpp"
#include "os/memory_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace weft::host {
namespace {

constexpr int needed_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

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

}  // namespace

// ---- what a file says -----------------------------------------------------------------------------------------------

std::uint64_t block_header::computed_check() const noexcept {
  detail::fnv hash;
  hash.add_bytes(this, offsetof(block_header, check));
  return hash.value();
}

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
  if (!range) return;
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
  for (std::size_t d = 0; d < devices; ++d) {
    const access_right one = rights->of(d);
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
  made->place = next_place_.fetch_add(made->size, std::memory_order_relaxed);
  return block_table::added(std::move(made));
}

result<block_id> block_map::create(device_id device, std::string_view uuid, std::size_t size, bool shareable) {
  if (auto ok = check_size(size, granule(), device); !ok) return std::move(ok).error();
  auto made = std::make_shared<block_memory>();
  if (auto fits = memory_.charge(device, size); !fits) return std::move(fits).error();
  made->home = &memory_;
  made->device = device;
  made->size = size;
  made->shareable = shareable;
  made->charged = true;
  auto file =
      detail::make_memory_file("weft-block", size + block_header::room, detail::memory_file_pages::any, "a block");
  if (!file) return std::move(file).error();
  made->file = std::move(*file);
  block_header header;
  header.magic = block_header::the_magic;
  header.version = block_header::the_version;
  header.size = size;
  header.creator = ::getpid();
  std::copy_n(uuid.begin(), std::min(uuid.size(), header.device.size() - 1), header.device.begin());
  header.check = header.computed_check();
  if (shareable && ::pwrite(made->file.get(), &header, sizeof header, static_cast<off_t>(size)) != sizeof header)
    return system_error("writing the header of a block of " + to_string(bytes{size}), errno);
  if (memory_.options().fill_new) {
    auto seen = map_file(made->file.get(), 0, size, true);
    if (!seen) return std::move(seen).error();
    memory_.fill_new(seen->get().base, size);
  }
  return added(std::move(made));
}

// ---- reservations ---------------------------------------------------------------------------------------------------

result<void*> block_map::reserve(std::size_t size, std::size_t alignment, void* hint) {
  if (auto ok = check_reservation(size, alignment); !ok) return std::move(ok).error();
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
  return keep(std::move(made));
}

// ---- mappings -------------------------------------------------------------------------------------------------------

result<void> block_map::map(void* address, std::size_t size, block_id block) {
  const std::lock_guard lock{mutex_};
  const auto known = blocks_.find(block);
  if (known == blocks_.end()) return no_block(block);
  auto made = std::make_shared<allocation>();
  describe_mapping(*made, known->second, address, size);
  made->home = &memory_;
  made->mapping = std::make_unique<block_mapping>();
  block_mapping& mapping = *made->mapping;
  mapping.memory = known->second;
  mapping.size = size;
  mapping.rights = made->only;
  mapping.devices = memory_.devices();
  auto at = take_place(*known->second, address, size, granule());
  if (!at) return std::move(at).error();
  mapping.range = std::move(at->range);
  mapping.offset = at->offset;
  made->reservation = mapping.range.get();
  made->device_side = mapping.writable();
  memory_.add(std::move(made));
  return {};
}

result<void> block_map::set_access(void* address, std::size_t size, std::span<const device_right> rights,
                                   const std::function<std::optional<error>(device_id, device_id)>& refused) {
  const std::lock_guard lock{mutex_};
  auto found = to_be_set(address, size, rights, refused);
  if (!found) return std::move(found).error();
  const std::vector<allocation_ref>& mappings = *found;
  // pages first: what fails leaves the rights as they were
  for (const auto& one : mappings) {
    for (const device_right& wanted : rights) {
      auto shown = one->mapping->show(wanted.right);
      if (shown) continue;
      for (const auto& undo : mappings) {
        if (undo->pending.load() == 0) undo->mapping->settle();
      }
      return shown;
    }
  }
  for (const auto& one : mappings) {
    for (const device_right& wanted : rights) one->only->set(memory_.local(wanted.device), wanted.right);
    // work that has looked already keeps its pages: it started before
    if (one->pending.load() == 0) one->mapping->settle();
  }
  return {};
}

// ---- between processes ----------------------------------------------------------------------------------------------

result<int> block_map::give(block_id block) {
  auto found = to_be_given(block);
  if (!found) return std::move(found).error();
  const std::shared_ptr<block_memory> memory = std::move(*found);
  const std::lock_guard lock{mutex_};
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
  offered made{weft::descriptor{::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)}, *header, {about.st_dev, about.st_ino}};
  if (!made.file) return system_error("keeping the descriptor of a block", errno);
  return made;
}

result<block_id> block_map::take(device_id device, offered what) {
  std::shared_ptr<block_memory> same;
  {
    const std::lock_guard lock{mutex_};
    std::erase_if(shared_, [](const auto& known) { return known.expired(); });
    for (const auto& one : shared_) {
      auto known = one.lock();
      if (known && known->inode == what.inode) same = std::move(known);
    }
  }
  // the same memory: two names for it would hide from us that copies overlap
  if (same) return again(same);
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

}  // namespace weft::host
