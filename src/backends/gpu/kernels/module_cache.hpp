// SPDX-License-Identifier: Apache-2.0
// Kernels as a GPU runs them: compiled once for an architecture, loaded once into each GPU's context, when first
// launched.
#pragma once

#include "backends/gpu/devices/contexts.hpp"
#include "backends/gpu/devices/discovery.hpp"
#include "backends/gpu/kernels/run_time_compiler.hpp"
#include "weft/backend/kernel_code.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace weft::gpu {

/// A kernel that is ready for one GPU. Stays until its context is reset, or the cache is cleared.
struct loaded_kernel {
  CUfunction function = nullptr;
  CUfunction combine = nullptr;  // the second kernel of a reduction
  std::array<unsigned, 3> largest_grid{};
  std::array<std::array<unsigned, 3>, 3> block{};  // by dimensions: threads of a block
  int largest_block = 1;                           // threads, of both kernels
  unsigned item_lanes = 1;                         // threads that share an item: a block has whole items
  std::uint64_t generation = 0;                    // of the context that it is in
};

/// Thread: any. Devices are counted from 0 here.
class module_cache {
 public:
  /// `compiler` names a library, see vendor::compiler; it is opened with the first kernel that needs it.
  module_cache(std::shared_ptr<contexts> places, const discovery& found, std::string compiler);
  ~module_cache();
  module_cache(const module_cache&) = delete;
  module_cache& operator=(const module_cache&) = delete;

  /// Errors: unsupported for a kernel without anything for this vendor, and without its compiler; incompatible with the
  /// compiler's or the driver's words for one that does not compile, load or fit this GPU. Cost: a look into a table,
  /// but for the first time.
  [[nodiscard]] result<std::shared_ptr<const loaded_kernel>> get(const kernel_code& code, std::size_t device);

  /// The context of the device's GPU is about to go, and what is loaded there with it.
  void forget(std::size_t device);
  /// Unloads everything.
  void clear() noexcept;

 private:
  struct key {
    std::uint64_t hash = 0;
    std::size_t place = 0;  // a GPU, or an architecture
    friend bool operator==(const key&, const key&) = default;
  };
  struct key_hash {
    std::size_t operator()(const key& one) const noexcept { return one.hash + one.place * 0x9e3779b97f4a7c15U; }
  };
  template <class T>
  struct entry {
    std::mutex mutex;  // held while it is made: other kernels go on, equal ones are made once
    std::shared_ptr<const T> made;
    CUmodule module = nullptr;     // of a kernel: loaded, and kept where the kernel was not found or measured in it
    std::uint64_t generation = 0;  // of the context that it is in
  };
  template <class T>
  using table = std::unordered_map<key, std::shared_ptr<entry<T>>, key_hash>;

  [[nodiscard]] result<std::shared_ptr<const compiled_image>> image_of(const kernel_code& code, int architecture);
  [[nodiscard]] result<std::shared_ptr<const run_time_compiler>> compiler();
  [[nodiscard]] result<std::shared_ptr<const loaded_kernel>> load(const kernel_code& code, std::size_t device,
                                                                  CUmodule& module, std::uint64_t generation);
  [[nodiscard]] result<CUmodule> load_module(const kernel_code& code, const std::string& bytes, std::size_t device,
                                             std::uint64_t generation);
  [[nodiscard]] result<CUfunction> function_of(const kernel_code& code, CUmodule module, const std::string& name) const;
  [[nodiscard]] result<void> measure(const kernel_code& code, std::size_t device, loaded_kernel& made) const;
  void unload(std::size_t device) noexcept;
  template <class T>
  [[nodiscard]] std::shared_ptr<entry<T>> entry_of(table<T>& in, const key& at);

  std::shared_ptr<contexts> places_;
  const discovery& found_;
  std::string library_;
  std::mutex compiler_mutex_;
  std::shared_ptr<const run_time_compiler> compiler_;

  std::shared_mutex mutex_;  // what follows
  table<compiled_image> images_;
  table<loaded_kernel> kernels_;
  struct loaded_module {
    std::size_t gpu;
    CUmodule module;
    std::uint64_t generation;  // of the context that it is in, and goes with
  };
  std::vector<loaded_module> modules_;
};

}  // namespace weft::gpu
