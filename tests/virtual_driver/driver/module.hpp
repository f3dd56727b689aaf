// SPDX-License-Identifier: Apache-2.0
// Code of a virtual device: what the virtual compiler made, and host functions that a test registered.
#pragma once

#include "virtual_driver/driver/device_side.h"
#include "virtual_driver/driver/machine.hpp"

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace weft::virtual_cuda {

/// A kernel as its image describes it.
struct kernel_entry {
  std::string name;
  const weft_virtual_entry* compiled = nullptr;
  void (*registered)(const weft_virtual_launch*, void**) = nullptr;
  std::vector<unsigned> sizes;
  std::vector<unsigned> alignments;
  std::vector<unsigned char> is_pointer;
  unsigned most_threads = 0;     // of a block, by its launch bounds; 0: as many as the device takes
  std::size_t shared_bytes = 0;  // of its own __shared__ variables
};

struct module {
  context_ref home;
  void* library = nullptr;
  const weft_virtual_table* table = nullptr;
  std::vector<kernel_entry> kernels;
  std::shared_ptr<memory_range> globals;  // its variables, as memory of its device
  std::uint64_t globals_here = 0;         // where its code finds them
  ~module();
};

/// Code for any context: what its image holds, and the module of it that a context has.
struct library {
  std::string image;
  std::shared_ptr<module> described;  // of no context, never run
  std::mutex mutex;
  std::map<std::uint64_t, CUmodule> modules;  // by the context's generation

  CUresult in(const context_ref& c, CUmodule& found);
};

struct function {
  std::shared_ptr<module> home;
  const kernel_entry* kernel = nullptr;
  unsigned dynamic_shared = 48U << 10;
  std::shared_ptr<library> whole;  // of a kernel that belongs to no context
};

[[nodiscard]] CUresult load_image(module& m, const void* image);
/// An image says how long it is.
[[nodiscard]] std::string copy_of_image(const void* image);
[[nodiscard]] CUresult load_module(const context_ref& c, const void* image, CUmodule& made);
void unload_module(CUmodule handle);
/// Null where there is none of that name.
[[nodiscard]] std::shared_ptr<function> find_function(const std::shared_ptr<module>& from, std::string_view name);
[[nodiscard]] CUresult attribute_of(const function& f, int attribute, int* value);
/// What runs in a context: a function of it, or a kernel of a library there.
[[nodiscard]] CUresult resolve(const context_ref& c, std::shared_ptr<function>& f);

/// What nvrtcGetCUBIN answers: this, then the bytes of a shared object. A module for an architecture of one device.
struct image_header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t architecture;  // 90
  std::uint32_t is_text;       // PTX: for this architecture and every later one
  std::uint32_t reserved;
  std::uint64_t size;
};
inline constexpr char image_magic[8] = {'W', 'E', 'F', 'T', 'V', 'C', 'U', 'B'};

/// Registered functions: found in every module loaded from the image "weft:registered".
void register_kernel(std::string name, void (*body)(const weft_virtual_launch*, void**), std::vector<unsigned> sizes,
                     std::vector<unsigned char> is_pointer);
[[nodiscard]] std::vector<kernel_entry> registered_kernels();

/// Runs a kernel on this thread, guarded, as a device of a context: answers 0 or the code of its fault.
struct launch_work {
  std::shared_ptr<module> home;
  const kernel_entry* kernel = nullptr;
  context* on = nullptr;
  std::shared_ptr<const std::vector<unsigned>> multiprocessors;  // null: all of the device's
  weft_virtual_launch shape{};
  bool cooperative = false;
  std::vector<std::byte> values;  // arguments, each at a multiple of 16
};
[[nodiscard]] CUresult run_kernel(launch_work& work);

/// What a multiprocessor of the played architecture holds: of the table of technical specifications in CUDA's
/// programming guide.
struct multiprocessor_limits {
  int threads, blocks;
  std::size_t shared, shared_per_block;  // bytes; per block where the program asked for as much as there is
  std::size_t shared_of_driver;          // that it takes of each block
};
[[nodiscard]] multiprocessor_limits limits();

/// The largest block and the longest grid that a kernel may have, and the shape of the last launch that was taken.
struct launch_shapes {
  std::mutex mutex;
  unsigned threads_per_block = 1024;
  unsigned blocks_along_x = 2147483647U;
  weft_virtual_launch last{};
};
[[nodiscard]] launch_shapes& shapes();

/// Of weft_virtual_services: the one that a block of the kernel of this thread runs on.
[[nodiscard]] unsigned multiprocessor(unsigned block);

}  // namespace weft::virtual_cuda
