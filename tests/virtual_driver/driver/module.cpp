// SPDX-License-Identifier: Apache-2.0
#include "virtual_driver/driver/module.hpp"

#include "virtual_driver/driver/fibers.hpp"
#include "virtual_driver/driver/multicast.hpp"

#include <bit>
#include <cstring>
#include <dlfcn.h>
#include <link.h>
#include <span>

namespace weft::virtual_cuda {
namespace {

thread_local const launch_work* running = nullptr;

std::mutex registered_mutex;
std::vector<kernel_entry>& registered_list() {
  static auto* const list = new std::vector<kernel_entry>;
  return *list;
}

// Ranges that a kernel reached by a pointer that it found in memory: shown in the program's window while it runs.
struct opened_ranges {
  int device;
  std::shared_ptr<memory_range> all[64];
  std::size_t count = 0;

  bool open(std::uint64_t address) {
    machine& m = the();
    const undisturbed looking;
    if (!m.space.holds(address) || count == std::size(all)) return false;
    const std::lock_guard lock{m.mutex};
    const auto range = m.find(address);
    if (range == nullptr || range->memory == nullptr) return false;
    const std::uint8_t right = m.right(device, *range);
    for (std::size_t n = 0; n < count; ++n) {
      if (all[n] == range) return false;  // open already: a store to what may only be read
    }
    if (right == access_none) return false;
    if (!m.space.show(address_space::program, range->base, range->size, range->memory->file, range->memory->offset,
                      right == access_read_write)) {
      return false;
    }
    ++range->open_to_kernels;
    all[count++] = range;
    return true;
  }

  void close() {
    machine& m = the();
    const std::lock_guard lock{m.mutex};
    for (std::size_t n = 0; n < count; ++n) {
      if (--all[n]->open_to_kernels == 0 && m.find(all[n]->base) == all[n]) {
        m.space.hide(address_space::program, all[n]->base, all[n]->size);
      }
      all[n] = nullptr;
    }
    count = 0;
  }
};

// What each thread of the host has of a module's variables: shared ones, which are static to a block.
std::span<std::byte> thread_variables(const module& of) {
  link_map* map = nullptr;
  void* at = nullptr;
  static_cast<void>(of.table->now());  // or this thread has none yet
  if (::dlinfo(of.library, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0 ||
      ::dlinfo(of.library, RTLD_DI_TLS_DATA, static_cast<void*>(&at)) != 0) {
    return {};
  }
  const auto* const head = reinterpret_cast<const ElfW(Ehdr)*>(map->l_addr);
  const auto* const segments = reinterpret_cast<const ElfW(Phdr)*>(map->l_addr + head->e_phoff);
  for (int n = 0; n < head->e_phnum; ++n) {
    if (segments[n].p_type == PT_TLS) return {static_cast<std::byte*>(at), segments[n].p_memsz};
  }
  return {};
}

}  // namespace

module::~module() {
  if (library != nullptr) ::dlclose(library);
  if (globals == nullptr) return;
  const std::lock_guard lock{the().mutex};
  the().end(globals);
}

void machine::forget_code(const context_ref& gone) {
  functions.remove_if([&](const function& f) { return f.home->home == gone; });
  modules.remove_if([&](const module& m) { return m.home == gone; });
}

void register_kernel(std::string name, void (*body)(const weft_virtual_launch*, void**), std::vector<unsigned> sizes,
                     std::vector<unsigned char> is_pointer) {
  kernel_entry made;
  made.name = std::move(name);
  made.registered = body;
  for (const unsigned size : sizes) made.alignments.push_back(std::has_single_bit(size) && size <= 16 ? size : 8);
  made.sizes = std::move(sizes);
  made.is_pointer = std::move(is_pointer);
  const std::lock_guard lock{registered_mutex};
  registered_list().push_back(std::move(made));
}

std::vector<kernel_entry> registered_kernels() {
  const std::lock_guard lock{registered_mutex};
  return registered_list();
}

unsigned multiprocessor(unsigned block) {
  const auto& mine = running->multiprocessors;
  return mine == nullptr ? block % static_cast<unsigned>(the().about.multiprocessors) : (*mine)[block % mine->size()];
}

CUresult run_kernel(launch_work& work) {
  machine& m = the();
  const int device = work.on->device;
  // What is a pointer into the window becomes the same place in the device's own.
  std::vector<void*> arguments(work.kernel->sizes.size() + 1);
  for (std::size_t n = 0; n < work.kernel->sizes.size(); ++n) {
    std::byte* const at = work.values.data() + n * 16;
    std::uint64_t big = 0;
    std::memcpy(&big, at, sizeof big);
    if (work.kernel->sizes[n] > 16) {
      arguments[n] = reinterpret_cast<std::byte*>(big);  // kept elsewhere, see capture()
      continue;
    }
    if (work.kernel->is_pointer[n] != 0 && m.space.holds(big)) {
      std::byte* const there = m.space.at(address_space::device(device), big);
      std::memcpy(at, static_cast<const void*>(&there), sizeof there);
    }
    arguments[n] = at;
  }
  const weft_virtual_table* const table = work.home->table;
  std::vector<std::byte> shared(std::size_t{work.shape.shared_bytes} + 16);
  opened_ranges opened{device, {}, 0};
  guard g;
  g.device = device;
  g.open = [&](std::uint64_t address) { return opened.open(address); };
  run_on(device);
  running = &work;
  if (table != nullptr) table->start(&services());
  const std::span<std::byte> variables =
      work.cooperative && table != nullptr ? thread_variables(*work.home) : std::span<std::byte>{};
  const CUresult code = run_guarded(g, [&] {
    // lost since it was looked at: whoever took the context away found nothing to end yet
    if (const CUresult lost = work.on->lost.load(); lost != 0) end_guarded(lost);
    if (work.kernel->registered != nullptr) {
      lend_shared(shared.data());
      work.kernel->registered(&work.shape, arguments.data());
    } else if (table->has_barriers != 0 || work.cooperative) {
      run_fibers(work.shape, work.cooperative, table->now(), variables, work.kernel->compiled->call, arguments.data());
    } else {
      lend_shared(shared.data());
      work.kernel->compiled->all(&work.shape, arguments.data());
    }
  });
  opened.close();
  return code;
}

}  // namespace weft::virtual_cuda
