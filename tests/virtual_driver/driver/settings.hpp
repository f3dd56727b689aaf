// SPDX-License-Identifier: Apache-2.0
// What a test says about the machine to be played, by environment. Read once, when the library is first called.
#pragma once

#include "weft/core/topology.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::virtual_cuda {

/// What the sensors of every device tell; what is empty has no sensor.
struct played_health {
  std::optional<unsigned> celsius = 40;  // of device 0; each further one is a degree warmer
  std::optional<unsigned> watts = 100;
  std::optional<unsigned> busy = 0;               // percent
  std::optional<unsigned long long> reasons = 0;  // of clocks that are held down: NVML's bits
  std::optional<unsigned long long> memory_errors = 0;
  std::optional<unsigned long long> link_errors = 0;  // of each kind, on each link that is there
  std::optional<unsigned> pcie_generation = 4, pcie_lanes = 16;
};

struct settings {
  topology machine;            // devices, memory, who can access whom, links
  std::vector<int> visible;    // devices of the machine that are shown, in order; CUDA_VISIBLE_DEVICES
  int driver_version = 13000;  // WEFT_VIRTUAL_CUDA_VERSION
  int stub_code = 0;           // WEFT_VIRTUAL_CUDA_STUB: what every call answers, as NVIDIA's link stub does
  int missing_code = 0;        // WEFT_VIRTUAL_CUDA_MISSING_CODE: what a search for a function that is not there answers
  std::vector<std::string> missing;                // WEFT_VIRTUAL_CUDA_MISSING
  int capability_major = 9, capability_minor = 0;  // WEFT_VIRTUAL_CUDA_ARCH=90
  int multiprocessors = 8;
  int max_peers = 0;                            // WEFT_VIRTUAL_CUDA_MAX_PEERS; 0 is no limit
  bool native_atomics = true;                   // WEFT_VIRTUAL_CUDA_ATOMICS=0
  bool green_contexts = true;                   // WEFT_VIRTUAL_CUDA_GREEN=0
  std::string gdr = "ordered";                  // WEFT_VIRTUAL_CUDA_GDR: none, unordered
  bool managed = true;                          // WEFT_VIRTUAL_CUDA_MANAGED=0
  bool multicast = true;                        // WEFT_VIRTUAL_CUDA_MULTICAST=0; only from compute capability 9.0 on
  bool memory_operations = true;                // WEFT_VIRTUAL_CUDA_MEMOPS=0
  played_health health;                         // WEFT_VIRTUAL_CUDA_HEALTH
  std::size_t window = std::size_t{128} << 30;  // WEFT_VIRTUAL_CUDA_WINDOW: addresses of device memory, bytes
  std::string cache;                            // WEFT_VIRTUAL_CUDA_CACHE: compiled kernels
  std::string compiler;                         // CXX, else the one that built this
  std::string problem;  // what cannot be read; cuInit answers INVALID_VALUE and says it on stderr
};

/// The settings of this process.
[[nodiscard]] const settings& given();
/// Where compiled kernels lie: as set, or a folder that this process makes at its first kernel and takes away at its
/// end. Empty where none can be made.
[[nodiscard]] std::string cache_folder();

/// What is wrong with a variable that begins so and goes on as none of these; empty where none does. Misspelt, it would
/// play another machine than the test means.
[[nodiscard]] std::string unknown_setting(std::string_view prefix, std::span<const std::string_view> known);

/// "3GiB", "512MiB", "1048576"; 0 when it is no size.
[[nodiscard]] std::size_t size_of_text(const std::string& text);

/// The identifier of a device of the machine, as bytes and as the driver's tools print it.
struct device_uuid {
  unsigned char bytes[16];
  [[nodiscard]] std::string text() const;  // "GPU-77656674-…"
};
[[nodiscard]] device_uuid uuid_of(int physical);

}  // namespace weft::virtual_cuda
