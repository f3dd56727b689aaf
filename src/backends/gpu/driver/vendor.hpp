// SPDX-License-Identifier: Apache-2.0
// All that differs between the vendors whose drivers fill the table of functions. What is shared asks this value and
// never which vendor it is: cuda/ has one of them, hip/ the other.
#pragma once

#include "backends/gpu/driver/driver_types.hpp"
#include "backends/gpu/driver/management.hpp"
#include "backends/gpu/kernels/run_time_compiler.hpp"
#include "processes/share_ticket.hpp"
#include "weft/backend/kernel_code.hpp"
#include "weft/core/device_description.hpp"
#include "weft/core/result.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <string>

namespace weft::gpu {

struct driver;
struct gpu_place;

/// A library of the vendor that is opened at run time.
struct library_name {
  const char* variable;  // of the environment, which names another; "none" where it need not be there. Empty: none does
  const char* usual;
};

struct vendor {
  backend_kind kind;
  const char* name;  // "CUDA"
  detail::share_family family;
  library_name driver, management, bus_windows;
  const char* partitions_variable;    // "0": the parts of a GPU share its compute units
  std::array<const char*, 4> hiding;  // variables that hide GPUs; null behind the last
  const char* list_command;           // shows what GPUs the system has
  int oldest_driver;                  // 1000 times major + 10 times minor
  int knows_pool_sizes;               // the driver from which a pool may have a size
  int names_default_stream;           // … and from which the handle 1 is the default stream
  bool names_faults;                  // otherwise a fault may be an unknown error, which every later call repeats
  bool has_short_words;               // every GPU has stream memory operations of 4 bytes
  bool wraps_words;                   // its waits compare by greater_equal as weft does, cyclically
  bool descriptors_have_sizes;        // lseek() tells how long a block is; otherwise a mapping that is too long fails
  bool blocks_name_gpus;              // otherwise a block is made, and said to be, where the thread is
  bool ends_pool_rights;              // a right on the memory of a pool can be taken away
  bool host_atomics_beat_pcie;        // a GPU with atomics to the host hangs on something better than PCIe
  bool reset_ends_code;               // events and modules go with a reset
  std::uint64_t most_threads;         // of a grid along one dimension
  std::string raw_kernel::* image;    // compiled by the vendor's compiler
  void* (*raw_kernel::*function)();   // … into the program

  /// Errors: unsupported, with the reason and what to do.
  result<std::shared_ptr<const struct driver>> (*load)(const std::string& library);
  management_library (*manage)(const struct driver& cu, const std::string& library, const std::string& system_root);
  /// `library` may be empty: then what the environment says, else what is found.
  result<std::shared_ptr<const run_time_compiler>> (*compiler)(const std::string& library, int driver_version);
  /// Whether that fault leaves the process nothing but to be started anew; after another a reset brings the GPU back.
  bool (*ends_process)(CUresult fault);
  /// Memory that running kernels share with others.
  CUresult (*allocate_coherent)(const struct driver& cu, CUdeviceptr* address, std::size_t size);
  /// Of a GPU, as run_time_compiler counts them.
  int (*architecture)(const struct driver& cu, const gpu_place& gpu);
  std::string (*architecture_text)(int architecture);  // "compute capability 9.0"
  /// Of a GPU, for people and other programs; empty where it has none of its own.
  std::string (*uuid_text)(const CUuuid& uuid);
  /// Advice for a code of an error; empty for none.
  std::string (*advice)(CUresult status);
};

}  // namespace weft::gpu
