// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/kernels/module_cache.hpp"

#include "backend/kernels/kernel_text.hpp"
#include "backends/common/compiler_words.hpp"
#include "backends/gpu/driver/error.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace weft::gpu {
namespace {

/// Threads of a block in each dimension: rows of memory lie along x, and a warp has 32 threads.
std::array<unsigned, 3> block_of(int dimensions, unsigned largest) {
  std::array<unsigned, 3> block{256, 1, 1};
  if (dimensions == 2) block = {32, 8, 1};
  if (dimensions == 3) block = {32, 4, 2};
  for (const std::size_t d : {std::size_t{2}, std::size_t{1}, std::size_t{0}}) {
    while (block[d] > 1 && block[0] * block[1] * block[2] > largest) block[d] /= 2;
  }
  return block;
}

}  // namespace

module_cache::module_cache(std::shared_ptr<contexts> places, const discovery& found, std::string compiler)
    : places_(std::move(places)), found_(found), library_(std::move(compiler)) {}

module_cache::~module_cache() { clear(); }

template <class T>
std::shared_ptr<module_cache::entry<T>> module_cache::entry_of(table<T>& in, const key& at) {
  const std::lock_guard lock{mutex_};
  auto& found = in[at];
  if (!found) found = std::make_shared<entry<T>>();
  return found;
}

result<std::shared_ptr<const run_time_compiler>> module_cache::compiler() {
  const std::lock_guard lock{compiler_mutex_};
  if (!compiler_) {
    auto made = places_->cu().by->compiler(library_, places_->cu().version);
    if (!made) return made;
    compiler_ = std::move(*made);
  }
  return compiler_;
}

result<std::shared_ptr<const compiled_image>> module_cache::image_of(const kernel_code& code, int architecture) {
  const auto place = entry_of(images_, key{code.hash, static_cast<std::size_t>(architecture)});
  const std::lock_guard lock{place->mutex};
  if (place->made) return place->made;
  auto with = compiler();
  if (!with) return std::move(with).error();
  auto made = (*with)->compile(code, architecture);
  if (!made) return std::move(made).error();
  place->made = std::make_shared<const compiled_image>(std::move(*made));
  return place->made;
}

result<CUmodule> module_cache::load_module(const kernel_code& code, const std::string& bytes, std::size_t device,
                                           std::uint64_t generation) {
  const driver& cu = places_->cu();
  std::array<char, 2048> words{};
  std::array<int, 2> options{jit_error_log_buffer, jit_error_log_size};
  std::array<void*, 2> values{words.data(), reinterpret_cast<void*>(words.size())};
  CUmodule made = nullptr;
  const CUresult status =
      cu.cuModuleLoadDataEx(&made, bytes.data(), static_cast<unsigned>(options.size()), options.data(), values.data());
  if (status != CUDA_SUCCESS) {
    const gpu_place& gpu = found_.gpu_of(device);
    error cause = cu_error(cu, status,
                           common::title_of(code) + " cannot be loaded on " + gpu.name + " (" +
                               cu.by->architecture_text(gpu.architecture) + ")",
                           errc::incompatible);
    words.back() = '\0';
    if (words.front() != '\0') cause.what += std::string{"\n"} + words.data();
    return cause;
  }
  const std::lock_guard lock{mutex_};
  modules_.push_back({places_->gpu_of(device), made, generation});
  return made;
}

result<CUfunction> module_cache::function_of(const kernel_code& code, CUmodule module, const std::string& name) const {
  CUfunction made = nullptr;
  const CUresult status = places_->cu().cuModuleGetFunction(&made, module, name.c_str());
  if (status == CUDA_SUCCESS) return made;
  return cu_error(places_->cu(), status,
                  common::title_of(code) + ": what was compiled or given defines no kernel " + name +
                      (code.raw ? " (declare it extern \"C\" __global__)" : ""),
                  errc::incompatible);
}

result<void> module_cache::measure(const kernel_code& code, std::size_t device, loaded_kernel& made) const {
  const driver& cu = places_->cu();
  made.largest_block = found_.gpu_of(device).largest_block;
  for (const CUfunction one : {made.function, made.combine}) {
    if (one == nullptr) continue;
    int most = 0;
    const CUresult status = cu.cuFuncGetAttribute(&most, function_max_threads_per_block, one);
    if (status != CUDA_SUCCESS) return cu_error(cu, status, common::title_of(code) + ", asked for its size of blocks");
    made.largest_block = std::min(made.largest_block, std::max(most, 1));
  }
  if (code.on_gpus) {
    made.item_lanes = static_cast<unsigned>(code.on_gpus->item_lanes);
    if (made.largest_block < code.on_gpus->item_lanes) {
      return make_error(errc::incompatible, common::title_of(code) + " needs blocks of " +
                                                std::to_string(made.item_lanes) + " threads, and " +
                                                found_.gpu_of(device).name + " runs it in blocks of " +
                                                std::to_string(made.largest_block));
    }
  }
  for (int dimensions = 1; dimensions <= 3; ++dimensions) {
    made.block[static_cast<std::size_t>(dimensions - 1)] =
        block_of(dimensions, static_cast<unsigned>(made.largest_block));
  }
  for (std::size_t d = 0; d < 3; ++d) {
    made.largest_grid[d] = static_cast<unsigned>(std::max(found_.gpu_of(device).largest_grid[d], 1));
  }
  return {};
}

result<std::shared_ptr<const loaded_kernel>> module_cache::load(const kernel_code& code, std::size_t device,
                                                                CUmodule& module, std::uint64_t generation) {
  loaded_kernel made;
  std::shared_ptr<const compiled_image> image;
  const vendor& by = *places_->cu().by;
  void* (*const function)() = code.raw ? (*code.raw).*by.function : nullptr;
  const bool is_given = function != nullptr || (code.raw && !((*code.raw).*by.image).empty());
  if (!is_given) {
    auto compiled = image_of(code, found_.gpu_of(device).architecture);
    if (!compiled) return std::move(compiled).error();
    image = std::move(*compiled);
  }
  auto inside = places_->enter(device);
  if (!inside) return std::move(inside).error();
  made.generation = generation;
  if (function != nullptr) {
    made.function = static_cast<CUfunction>(function());
    if (made.function == nullptr) {
      return make_error(errc::incompatible, common::title_of(code) + " has no function for " +
                                                found_.gpu_of(device).name + ": was it compiled for its architecture?");
    }
  } else {
    // Loaded once, though this be tried again: to unload it waits for all work of the GPU.
    if (module == nullptr) {
      auto loaded = load_module(code, is_given ? (*code.raw).*by.image : image->bytes, device, generation);
      if (!loaded) return std::move(loaded).error();
      module = *loaded;
    }
    auto found = function_of(code, module, kernel_entry(code));
    if (!found) return std::move(found).error();
    made.function = *found;
    if (has_reduction(code)) {
      auto second = function_of(code, module, combine_entry(code));
      if (!second) return std::move(second).error();
      made.combine = *second;
    }
  }
  if (auto ok = measure(code, device, made); !ok) return std::move(ok).error();
  return std::make_shared<const loaded_kernel>(made);
}

result<std::shared_ptr<const loaded_kernel>> module_cache::get(const kernel_code& code, std::size_t device) {
  const key at{code.hash, places_->gpu_of(device)};
  std::shared_ptr<entry<loaded_kernel>> place;
  {
    const std::shared_lock lock{mutex_};
    if (const auto found = kernels_.find(at); found != kernels_.end()) place = found->second;
  }
  if (!place) place = entry_of(kernels_, at);
  const std::lock_guard lock{place->mutex};
  const std::uint64_t now = places_->generation(device);
  if (std::exchange(place->generation, now) != now) {  // what is there went with its context, during a reset
    place->made = nullptr;
    place->module = nullptr;
  }
  if (place->made) return place->made;
  auto made = load(code, device, place->module, now);
  if (made) place->made = *made;
  return made;
}

void module_cache::forget(std::size_t device) {
  const std::size_t gpu = places_->gpu_of(device);
  const std::lock_guard lock{mutex_};
  if (!places_->cu().by->reset_ends_code && places_->made(device) != nullptr) unload(device);
  std::erase_if(kernels_, [&](const auto& one) { return one.first.place == gpu; });
  std::erase_if(modules_, [&](const auto& one) { return one.gpu == gpu; });
}

/// Under the mutex.
void module_cache::unload(std::size_t device) noexcept {
  auto inside = places_->enter(device);
  if (!inside) return;
  std::erase_if(modules_, [&](const auto& one) {
    if (one.gpu != places_->gpu_of(device)) return false;
    if (one.generation == places_->generation(device))
      static_cast<void>(places_->cu().cuModuleUnload(one.module));  // of a lost device: gone anyway
    return true;
  });
}

void module_cache::clear() noexcept {
  const std::lock_guard lock{mutex_};
  for (std::size_t device = 0; device < found_.devices.size() && !modules_.empty(); ++device) unload(device);
  kernels_.clear();
  modules_.clear();
}

}  // namespace weft::gpu
