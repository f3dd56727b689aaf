// SPDX-License-Identifier: Apache-2.0
// Modules, functions, and launches.
#include "virtual_driver/driver/call.hpp"
#include "virtual_driver/driver/module.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <iterator>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

namespace weft::virtual_cuda {
namespace {

// Of `extra`: a list of names and values.
void* const launch_end = nullptr;
void* const launch_buffer = reinterpret_cast<void*>(std::uintptr_t{1});
void* const launch_buffer_size = reinterpret_cast<void*>(std::uintptr_t{2});

unsigned most_threads_of(const function& f) {
  const std::lock_guard lock{shapes().mutex};
  const unsigned device = shapes().threads_per_block;
  return f.kernel->most_threads == 0 ? device : std::min(device, f.kernel->most_threads);
}

constexpr std::string_view registered_image = "weft:registered";
// Bytes of the __shared__ variables that stand in a function: thread-local symbols of the object, whose names begin
// with the function's.
std::size_t shared_bytes_of(const std::byte* object, std::string_view function) {
  const std::string encoded{function.substr(0, 2) == "_Z" ? function.substr(2)
                                                          : std::to_string(function.size()) + std::string{function}};
  const std::string begin = "_ZZ" + encoded + "E";
  const auto* const head = reinterpret_cast<const ElfW(Ehdr)*>(object);
  const auto* const sections = reinterpret_cast<const ElfW(Shdr)*>(object + head->e_shoff);
  std::size_t sum = 0;
  for (int n = 0; n < head->e_shnum; ++n) {
    if (sections[n].sh_type != SHT_SYMTAB) continue;
    const auto* const names = reinterpret_cast<const char*>(object + sections[sections[n].sh_link].sh_offset);
    const auto* const symbols = reinterpret_cast<const ElfW(Sym)*>(object + sections[n].sh_offset);
    for (std::size_t k = 0; k < sections[n].sh_size / sizeof *symbols; ++k) {
      if (ELF64_ST_TYPE(symbols[k].st_info) != STT_TLS ||
          std::strncmp(names + symbols[k].st_name, begin.c_str(), begin.size()) != 0)
        continue;
      sum = up(sum, 16) + symbols[k].st_size;
    }
  }
  return sum;
}

// A variable of a module, by its symbol; null where there is none.
const ElfW(Sym) * variable_of(const module& m, const char* name, std::uint64_t& at) {
  void* const found = m.library == nullptr ? nullptr : ::dlsym(m.library, name);
  Dl_info about{};
  void* entry = nullptr;
  if (found == nullptr || ::dladdr1(found, &about, &entry, RTLD_DL_SYMENT) == 0) return nullptr;
  const auto* const symbol = static_cast<const ElfW(Sym)*>(entry);
  at = reinterpret_cast<std::uint64_t>(found);
  const bool is_variable =
      symbol != nullptr && ELF64_ST_TYPE(symbol->st_info) == STT_OBJECT && about.dli_saddr == found;
  return is_variable ? symbol : nullptr;
}

// Makes the variables of a module memory of its device: the pages that its code has them in are those of an allocation.
CUresult place_globals(module& m) {
  link_map* map = nullptr;
  if (::dlinfo(m.library, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0) return CUDA_ERROR_INVALID_IMAGE;
  const auto* const head = reinterpret_cast<const ElfW(Ehdr)*>(map->l_addr);
  const auto* const segments = reinterpret_cast<const ElfW(Phdr)*>(map->l_addr + head->e_phoff);
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  for (int n = 0; n < head->e_phnum; ++n) {
    const std::uint64_t last = segments[n].p_vaddr + segments[n].p_memsz;
    if (segments[n].p_type == PT_GNU_RELRO) begin = map->l_addr + last / page * page;  // to be read only since
    if (segments[n].p_type == PT_LOAD && (segments[n].p_flags & PF_W) != 0) {
      begin = std::max(begin, map->l_addr + segments[n].p_vaddr / page * page);
      end = map->l_addr + up(last, page);
    }
  }
  if (begin >= end) return CUDA_SUCCESS;
  machine& all = the();
  const std::lock_guard lock{all.mutex};
  CUresult code = 0;
  const auto range = all.allocate(m.home->device, end - begin, range_kind::global, code);
  if (range == nullptr) return code;
  all.show(*range);
  std::memcpy(all.space.at(address_space::engine, range->base), reinterpret_cast<void*>(begin), end - begin);
  all.ranges.emplace(range->base, range);
  m.globals = range;
  m.globals_here = begin;
  const bool placed =
      ::mmap(reinterpret_cast<void*>(begin), end - begin, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
             range->memory->file, static_cast<off_t>(range->memory->offset)) != MAP_FAILED;
  return placed ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// A file with a name of its own for each module: the loader tells libraries apart by name and by file, and each module
// has its own globals. The name goes at once.
CUresult load_object(module& m, const std::byte* bytes, std::size_t size) {
  static std::atomic<std::uint64_t> number{0};
  const std::string path =
      cache_folder() + "/module_" + std::to_string(::getpid()) + "_" + std::to_string(number.fetch_add(1)) + ".so";
  std::ofstream file{path, std::ios::binary};
  file.write(reinterpret_cast<const char*>(bytes), static_cast<std::streamsize>(size));
  file.close();
  if (!file) return CUDA_ERROR_OUT_OF_MEMORY;
  m.library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ::unlink(path.c_str());
  if (m.library == nullptr) {
    std::fprintf(stderr, "weft virtual CUDA driver: %s\n", ::dlerror());
    return CUDA_ERROR_INVALID_IMAGE;
  }
  m.table = static_cast<const weft_virtual_table*>(::dlsym(m.library, "weft_virtual_module_"));
  if (m.table == nullptr) return CUDA_ERROR_INVALID_IMAGE;
  for (unsigned n = 0; n < m.table->count; ++n) {
    const weft_virtual_entry& e = m.table->entries[n];
    kernel_entry made;
    made.compiled = &e;
    Dl_info about{};
    if (e.name != nullptr) {
      made.name = e.name;
    }
    const bool has_symbol = ::dladdr(e.address, &about) != 0 && about.dli_saddr == e.address;
    if (has_symbol && e.name == nullptr) made.name = about.dli_sname;
    made.sizes.assign(e.sizes, e.sizes + e.count);
    made.alignments.assign(e.alignments, e.alignments + e.count);
    made.most_threads = e.most_threads;
    if (has_symbol) made.shared_bytes = shared_bytes_of(bytes, about.dli_sname);
    made.is_pointer.assign(e.is_pointer, e.is_pointer + e.count);
    m.kernels.push_back(std::move(made));
  }
  return CUDA_SUCCESS;
}

std::string read_file(const char* path) {
  std::ifstream file{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}

}  // namespace

CUresult load_image(module& m, const void* image) {
  const auto* const text = static_cast<const char*>(image);
  if (std::strncmp(text, registered_image.data(), registered_image.size()) == 0) {
    m.kernels = registered_kernels();
    return CUDA_SUCCESS;
  }
  if (std::memcmp(text,
                  "\x7f"
                  "ELF",
                  4) == 0 ||
      std::memcmp(text, "\x50\xed\x55\xba", 4) == 0) {
    return CUDA_ERROR_NO_BINARY_FOR_GPU;  // made for hardware
  }
  if (std::strncmp(text, image_magic, 4) != 0) {
    const bool looks_like_text = std::strncmp(text, "//", 2) == 0 || std::strstr(text, ".version") != nullptr;
    return looks_like_text ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_INVALID_IMAGE;
  }
  image_header header;
  std::memcpy(&header, image, sizeof header);
  if (std::memcmp(header.magic, image_magic, sizeof image_magic) != 0 || header.version != 1) {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  const auto have = static_cast<std::uint32_t>(given().capability_major * 10 + given().capability_minor);
  const bool fits = header.is_text != 0 ? header.architecture <= have
                                        : header.architecture / 10 == have / 10 && header.architecture <= have;
  if (!fits) return header.is_text != 0 ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_NO_BINARY_FOR_GPU;
  const CUresult code = load_object(m, static_cast<const std::byte*>(image) + sizeof header, header.size);
  const bool has_place =
      m.home != nullptr && m.table != nullptr && m.table->has_variables != 0;  // a library has none yet
  return code == CUDA_SUCCESS && has_place ? place_globals(m) : code;
}

std::string copy_of_image(const void* image) {
  const auto* const text = static_cast<const char*>(image);
  if (std::strncmp(text, image_magic, sizeof image_magic) != 0) return text;
  image_header header;
  std::memcpy(&header, image, sizeof header);
  return {text, sizeof header + header.size};
}

CUresult load_module(const context_ref& c, const void* image, CUmodule& handle) {
  auto made = std::make_shared<module>();
  made->home = c;
  if (const CUresult code = load_image(*made, image); code != CUDA_SUCCESS) return code;
  handle = the().modules.add(made);
  return CUDA_SUCCESS;
}

void unload_module(CUmodule handle) {
  const auto gone = the().modules.take(handle);
  if (gone != nullptr) the().functions.remove_if([&](const function& f) { return f.home == gone; });
}

std::shared_ptr<function> find_function(const std::shared_ptr<module>& from, std::string_view name) {
  for (const kernel_entry& k : from->kernels) {
    if (k.name != name) continue;
    auto made = std::make_shared<function>();
    made->home = from;
    made->kernel = &k;
    made->dynamic_shared -= static_cast<unsigned>(std::min<std::size_t>(made->dynamic_shared, k.shared_bytes));
    return made;
  }
  return nullptr;
}

namespace {

struct shape3 {
  unsigned x, y, z;
  [[nodiscard]] std::uint64_t product() const { return std::uint64_t{x} * y * z; }
};

// Where each argument is in a buffer that holds them all, as a structure of them does. False when it does not.
bool find_in_buffer(const kernel_entry& k, void** extra, std::vector<void*>& found) {
  std::byte* buffer = nullptr;
  const std::size_t* size = nullptr;
  for (; *extra != launch_end; extra += 2) {
    if (*extra == launch_buffer) {
      buffer = static_cast<std::byte*>(extra[1]);
    } else if (*extra == launch_buffer_size) {
      size = static_cast<const std::size_t*>(extra[1]);
    } else {
      return false;
    }
  }
  std::size_t at = 0;
  for (std::size_t n = 0; n < k.sizes.size(); ++n) {
    at = up(at, k.alignments[n]);
    if (buffer == nullptr || size == nullptr || at + k.sizes[n] > *size) return false;
    found[n] = buffer + at;
    at += k.sizes[n];
  }
  return true;
}

// Blocks of a kernel that a multiprocessor holds at once; registers are no limit here.
int occupancy(const function& f, std::uint64_t threads, std::size_t dynamic_shared) {
  const multiprocessor_limits most = limits();
  const std::size_t own = f.kernel->shared_bytes + dynamic_shared;
  if (threads > most_threads_of(f) || own > std::max<std::size_t>(most.shared_per_block, 48U << 10U)) return 0;
  const std::size_t warps = up(threads, 32) / 32;
  const std::size_t by_threads = static_cast<std::size_t>(most.threads) / 32 / warps;
  const std::size_t taken = up(own, 128) + most.shared_of_driver;
  const std::size_t by_shared = taken == 0 ? by_threads : most.shared / taken;
  return static_cast<int>(std::min({by_threads, by_shared, static_cast<std::size_t>(most.blocks)}));
}

// The values of the arguments, as they are at the call. What is large lies behind the rest and is pointed at.
CUresult capture(launch_work& work, void** parameters, void** extra) {
  const kernel_entry& k = *work.kernel;
  if (extra != nullptr && parameters != nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<void*> in_buffer(k.sizes.size());
  if (extra != nullptr) {
    if (!find_in_buffer(k, extra, in_buffer)) return CUDA_ERROR_INVALID_VALUE;
    parameters = in_buffer.data();
  }
  if (parameters == nullptr && !k.sizes.empty()) return CUDA_ERROR_INVALID_VALUE;
  std::size_t large = k.sizes.size() * 16;
  std::vector<std::size_t> at(k.sizes.size());
  std::size_t whole = large;
  for (std::size_t n = 0; n < k.sizes.size(); ++n) {
    at[n] = whole;
    if (k.sizes[n] > 16) whole += up(k.sizes[n], 16);
  }
  work.values.resize(whole + 16);
  for (std::size_t n = 0; n < k.sizes.size(); ++n) {
    if (parameters[n] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::byte* const slot = work.values.data() + n * 16;
    if (k.sizes[n] <= 16) {
      std::memcpy(slot, parameters[n], k.sizes[n]);
      continue;
    }
    std::byte* const place = work.values.data() + at[n];
    std::memcpy(place, parameters[n], k.sizes[n]);
    std::memcpy(slot, static_cast<const void*>(&place), sizeof place);
  }
  return CUDA_SUCCESS;
}

CUresult launch(const char* name, CUfunction handle, shape3 grid, shape3 block, unsigned shared, CUstream stream,
                void** parameters, void** extra, bool cooperative) {
  return stream_call(name, stream, true, [&](const stream_ref& s) -> CUresult {
    auto f = the().functions.find(handle);
    if (f == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult code = resolve(s->home(), f); code != CUDA_SUCCESS) return code;
    const unsigned most_threads = most_threads_of(*f);
    const weft_virtual_launch shape{{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared};
    {
      const std::lock_guard lock{shapes().mutex};
      if (grid.product() == 0 || block.product() == 0 || block.product() > shapes().threads_per_block || block.z > 64 ||
          grid.x > shapes().blocks_along_x || grid.y > 65535 || grid.z > 65535 || shared > f->dynamic_shared) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      if (block.product() > most_threads) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
      shapes().last = shape;
    }
    auto work = std::make_shared<launch_work>();
    if (cooperative) {
      const auto each = static_cast<std::uint64_t>(occupancy(*f, block.product(), shared));
      const std::uint64_t all = s->multiprocessors() == nullptr ? static_cast<std::uint64_t>(given().multiprocessors)
                                                                : s->multiprocessors()->size();
      if (grid.product() > each * all) return 720;  // CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    }
    work->home = f->home;
    work->kernel = f->kernel;
    work->on = s->home().get();
    work->multiprocessors = s->multiprocessors();
    work->shape = shape;
    work->cooperative = cooperative;
    if (const CUresult code = capture(*work, parameters, extra); code != 0) return code;
    submit(s, {.run =
                   [work] {
                     if (const CUresult code = begin_kernel(); code != 0) return code;
                     return run_kernel(*work);
                   },
               .guarded = false});
    return CUDA_SUCCESS;
  });
}

}  // namespace

multiprocessor_limits limits() {
  constexpr std::size_t kib = 1024;
  switch (given().capability_major * 10 + given().capability_minor) {
    case 75:
      return {1024, 16, 64 * kib, 64 * kib, 0};
    case 80:
      return {2048, 32, 164 * kib, 163 * kib, kib};
    case 86:
      return {1536, 16, 100 * kib, 99 * kib, kib};
    case 89:
      return {1536, 24, 100 * kib, 99 * kib, kib};
    case 120:
      return {1536, 24, 100 * kib, 99 * kib, kib};
    default:  // 9.0, 10.0
      return {2048, 32, 228 * kib, 227 * kib, kib};
  }
}

launch_shapes& shapes() {
  static launch_shapes one;
  return one;
}

WEFT_VIRTUAL_API CUresult cuModuleLoadDataEx(CUmodule* handle, const void* image, unsigned count, int* options,
                                             void** values) {
  const bool arguments =
      handle != nullptr && image != nullptr && (count == 0 || (options != nullptr && values != nullptr));
  return context_call("cuModuleLoadDataEx", arguments,
                      [&](const context_ref& c) { return load_module(c, image, *handle); });
}

WEFT_VIRTUAL_API CUresult cuModuleLoadData(CUmodule* handle, const void* image) {
  return context_call("cuModuleLoadData", handle != nullptr && image != nullptr,
                      [&](const context_ref& c) { return load_module(c, image, *handle); });
}

WEFT_VIRTUAL_API CUresult cuModuleLoad(CUmodule* handle, const char* path) {
  return context_call("cuModuleLoad", handle != nullptr && path != nullptr, [&](const context_ref& c) -> CUresult {
    if (::access(path, R_OK) != 0) return 301;  // CUDA_ERROR_FILE_NOT_FOUND
    const std::string image = read_file(path);
    image_header header;
    if (image.compare(0, sizeof image_magic, image_magic, sizeof image_magic) == 0) {
      if (image.size() < sizeof header) return CUDA_ERROR_INVALID_IMAGE;
      std::memcpy(&header, image.data(), sizeof header);
      if (image.size() - sizeof header < header.size) return CUDA_ERROR_INVALID_IMAGE;
    }
    return load_module(c, image.data(), *handle);
  });
}

WEFT_VIRTUAL_API CUresult cuModuleUnload(CUmodule handle) {
  return context_call("cuModuleUnload", true, [&](const context_ref& c) -> CUresult {
    if (the().modules.find(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    machine::drain(c);
    unload_module(handle);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuModuleGetFunction(CUfunction* handle, CUmodule from, const char* name) {
  return context_call("cuModuleGetFunction", handle != nullptr && name != nullptr, [&](const context_ref&) -> CUresult {
    const auto m = the().modules.find(from);
    if (m == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    auto made = find_function(m, name);
    if (made == nullptr) return CUDA_ERROR_NOT_FOUND;
    *handle = the().functions.add(std::move(made));
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, std::size_t* size, CUmodule from,
                                               const char* name) {
  const bool arguments = name != nullptr && (address != nullptr || size != nullptr);
  return context_call("cuModuleGetGlobal", arguments, [&](const context_ref&) -> CUresult {
    const auto m = the().modules.find(from);
    if (m == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    std::uint64_t at = 0;
    const ElfW(Sym)* const found = variable_of(*m, name, at);
    if (found == nullptr || m->globals == nullptr || at - m->globals_here >= m->globals->size) {
      return CUDA_ERROR_NOT_FOUND;
    }
    if (address != nullptr) *address = m->globals->base + (at - m->globals_here);
    if (size != nullptr) *size = found->st_size;
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                         unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                         CUstream stream, void** parameters, void** extra) {
  return launch("cuLaunchKernel", function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream,
                parameters, extra, false);
}

WEFT_VIRTUAL_API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                                    unsigned grid_z, unsigned block_x, unsigned block_y,
                                                    unsigned block_z, unsigned shared_bytes, CUstream stream,
                                                    void** parameters) {
  return launch("cuLaunchCooperativeKernel", function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                shared_bytes, stream, parameters, nullptr, true);
}

WEFT_VIRTUAL_API CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                                           void** extra) {
  const bool arguments = config != nullptr && (config->attribute_count == 0 || config->attributes != nullptr);
  if (!arguments) return plain_call("cuLaunchKernelEx", false, [] { return CUDA_SUCCESS; });
  constexpr int ignored = 0, cooperative = 2, cluster = 4, priority = 8;
  bool is_cooperative = false;
  bool is_known = true;
  for (unsigned n = 0; is_known && n < config->attribute_count; ++n) {
    const CUlaunchAttribute& one = config->attributes[n];
    if (one.id == cooperative) is_cooperative = one.cooperative != 0;
    const bool alone = one.id == cluster && one.cluster[0] * one.cluster[1] * one.cluster[2] == 1;
    is_known = one.id == ignored || one.id == cooperative || one.id == priority || alone;
  }
  if (!is_known) return plain_call("cuLaunchKernelEx", true, [] { return CUDA_ERROR_NOT_SUPPORTED; });
  return launch("cuLaunchKernelEx", function, {config->grid_x, config->grid_y, config->grid_z},
                {config->block_x, config->block_y, config->block_z}, config->shared_bytes, config->stream, parameters,
                extra, is_cooperative);
}

CUresult attribute_of(const function& f, int attribute, int* value) {
  const int arch = given().capability_major * 10 + given().capability_minor;
  switch (attribute) {
    case function_max_threads_per_block:
      *value = static_cast<int>(most_threads_of(f));
      return CUDA_SUCCESS;
    case function_shared_bytes:
      *value = static_cast<int>(f.kernel->shared_bytes);
      return CUDA_SUCCESS;
    case function_registers:
      *value = 32;
      return CUDA_SUCCESS;
    case function_ptx_version:
    case function_binary_version:
      *value = arch;
      return CUDA_SUCCESS;
    case function_max_dynamic_shared_bytes:
      *value = static_cast<int>(f.dynamic_shared);
      return CUDA_SUCCESS;
    default:
      *value = 0;
      return attribute >= 0 && attribute < 16 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
}

WEFT_VIRTUAL_API CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction handle) {
  return plain_call("cuFuncGetAttribute", value != nullptr, [&]() -> CUresult {
    const auto f = the().functions.find(handle);
    return f == nullptr ? CUDA_ERROR_INVALID_HANDLE : attribute_of(*f, attribute, value);
  });
}

WEFT_VIRTUAL_API CUresult cuFuncSetAttribute(CUfunction handle, int attribute, int value) {
  return plain_call("cuFuncSetAttribute", value >= 0, [&]() -> CUresult {
    const auto f = the().functions.find(handle);
    if (f == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (attribute != function_max_dynamic_shared_bytes) return CUDA_SUCCESS;
    // with what it has of its own, as much as a block of this device can have
    if (static_cast<std::size_t>(value) + f->kernel->shared_bytes > limits().shared_per_block)
      return CUDA_ERROR_INVALID_VALUE;
    f->dynamic_shared = static_cast<unsigned>(value);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction handle, int block,
                                                                      std::size_t dynamic_shared) {
  return plain_call("cuOccupancyMaxActiveBlocksPerMultiprocessor", blocks != nullptr && block > 0, [&]() -> CUresult {
    const auto f = the().functions.find(handle);
    if (f == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *blocks = occupancy(*f, static_cast<std::uint64_t>(block), dynamic_shared);
    return CUDA_SUCCESS;
  });
}

WEFT_VIRTUAL_API CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction handle,
                                                           CUoccupancyB2DSize shared_of_block,
                                                           std::size_t dynamic_shared, int limit) {
  const bool arguments = grid != nullptr && block != nullptr && limit >= 0;
  return plain_call("cuOccupancyMaxPotentialBlockSize", arguments, [&]() -> CUresult {
    const auto f = the().functions.find(handle);
    if (f == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const int most = static_cast<int>(most_threads_of(*f));
    *grid = *block = 0;
    // the most threads at once, in the fewest blocks
    int threads = 0;
    for (int size = limit == 0 ? most : std::min(limit, most); size > 0; size = (size - 1) / 32 * 32) {
      const int blocks = occupancy(*f, static_cast<std::uint64_t>(size),
                                   shared_of_block == nullptr ? dynamic_shared : shared_of_block(size));
      if (blocks * size <= threads) continue;
      threads = blocks * size;
      *block = size;
      *grid = blocks * given().multiprocessors;
    }
    return CUDA_SUCCESS;
  });
}

}  // namespace weft::virtual_cuda
