// SPDX-License-Identifier: Apache-2.0
// Fills of the gpu backend: the driver's for words of 1, 2 and 4 bytes, else a kernel of the library's own, else
// copies.
#include "backend/address.hpp"
#include "backends/common/copy_checks.hpp"
#include "backends/gpu/gpu_backend.hpp"
#include "backends/gpu/kernels/own_kernels.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace weft::gpu {
namespace {

using driver_command = queued::driver_command<pin>;
using host_command = queued::host_command<pin>;

/// The shortest pattern that says the same: 1, 2, 4, or what was given.
std::uint32_t shortest_period(const std::array<std::byte, 16>& pattern, std::uint32_t size) {
  for (std::uint32_t half = size / 2; half >= 1; half /= 2) {
    if (std::memcmp(pattern.data(), pattern.data() + half, half) != 0) break;
    size = half;
  }
  return size;
}

template <class T>
T word_at(const std::array<std::byte, 16>& pattern, std::size_t at) {
  T word{};
  std::memcpy(&word, pattern.data() + at, sizeof word);
  return word;
}

/// `count` words of 1, 2 or 4 bytes, as their address allows.
CUresult fill_words(const driver& cu, CUdeviceptr at, const std::array<std::byte, 16>& pattern, std::size_t offset,
                    std::uint32_t word, std::size_t count, CUstream stream) {
  if (word == 4) return cu.cuMemsetD32Async(at, word_at<std::uint32_t>(pattern, offset), count, stream);
  if (word == 2) return cu.cuMemsetD16Async(at, word_at<std::uint16_t>(pattern, offset), count, stream);
  return cu.cuMemsetD8Async(at, word_at<std::uint8_t>(pattern, offset), count, stream);
}

/// A pattern that the driver has no fill for: written once, and then what is there is copied behind it.
CUresult fill_by_doubling(const driver& cu, CUdeviceptr at, const fill_request& f, CUstream stream) {
  std::uint32_t word = 4;
  while (at % word != 0 || f.pattern_size % word != 0) word /= 2;
  for (std::uint32_t offset = 0; offset < f.pattern_size; offset += word) {
    const CUresult status = fill_words(cu, at + offset, f.pattern, offset, word, 1, stream);
    if (status != CUDA_SUCCESS) return status;
  }
  const std::size_t size = f.count * f.pattern_size;
  for (std::size_t done = f.pattern_size; done < size; done *= 2) {
    const CUresult status = cu.cuMemcpyAsync(at + done, at, std::min(done, size - done), stream);
    if (status != CUDA_SUCCESS) return status;
  }
  return CUDA_SUCCESS;
}

/// The same as one launch. A line of 16 bytes at a multiple of 16 is the same wherever it is: every pattern divides it.
CUresult fill_by_kernel(const driver& cu, const loaded_kernel& kernel, int units, CUdeviceptr at, const fill_request& f,
                        CUstream stream) {
  std::array<std::byte, 16> line{};
  for (std::size_t i = 0; i < line.size(); ++i)
    line[i] = f.pattern[(i + line.size() - at % line.size()) % f.pattern_size];
  auto low = word_at<std::uint64_t>(line, 0);
  auto high = word_at<std::uint64_t>(line, 8);
  std::uint64_t size = f.count * f.pattern_size;
  std::array<void*, 4> list{&at, &size, &low, &high};
  const unsigned width = kernel.block[0][0];
  const std::uint64_t lines = (at % line.size() + size + line.size() - 1) / line.size();
  const unsigned most = std::min(kernel.largest_grid[0], 16 * static_cast<unsigned>(units));
  const auto blocks = static_cast<unsigned>(std::clamp<std::uint64_t>((lines + width - 1) / width, 1, most));
  return cu.cuLaunchKernel(kernel.function, blocks, 1, 1, width, 1, 1, 0, stream, list.data(), nullptr);
}

/// Whether the driver fills so itself, by words that its address allows.
bool is_of_words(CUdeviceptr at, const fill_request& f) {
  const std::uint32_t word = shortest_period(f.pattern, f.pattern_size);
  return word <= 4 && at % word == 0;
}

CUresult fill_all(const driver& cu, const loaded_kernel* kernel, int units, CUdeviceptr at, const fill_request& f,
                  CUstream stream) {
  if (is_of_words(at, f)) {
    const std::uint32_t word = shortest_period(f.pattern, f.pattern_size);
    return fill_words(cu, at, f.pattern, 0, word, f.count * (f.pattern_size / word), stream);
  }
  if (kernel != nullptr) return fill_by_kernel(cu, *kernel, units, at, f, stream);
  return fill_by_doubling(cu, at, f, stream);
}

}  // namespace

/// Null where there is no compiler, or it makes none: copies do it then.
std::shared_ptr<const loaded_kernel> gpu_backend::fill_kernel(device_id device) noexcept {
  if (no_fill_kernel_.load(std::memory_order_relaxed)) return nullptr;
  auto loaded = modules_.get(*own_kernels::fill(), local(device));
  if (loaded) return std::move(*loaded);
  // no compiler: it is not looked for again
  if (loaded.error().code == errc::unsupported) no_fill_kernel_.store(true, std::memory_order_relaxed);
  return nullptr;  // a device that is lost says so to the copies too
}

result<event_ref> gpu_backend::do_fill(stream_handle handle, const fill_request& request) {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  const std::uint64_t extent = request.total();
  const auto memory = memory_.find(request.dst, extent);
  if (!memory) {
    return not_allocated("the destination " + hex(request.dst) + " of a fill");
  }
  if (auto wrong = beyond_end("a fill", extent, request.dst, memory->user, memory->size)) return std::move(*wrong);
  const device_id by = (*order)->device();
  if (auto cause = memory->broken()) return std::move(*cause);
  if (memory->kind == memory_kind::block) {
    if (const std::string why = memory_.denied(by, *memory, true); !why.empty())
      return make_error(errc::invalid_argument, "a fill of a mapping of a block: " + why);
  }
  const auto submit = [&](auto made) {
    made->stop = request.stop;
    made->note.kind = trace_kind::fill;
    made->note.bytes = extent;
    made->memory.emplace_back(memory);
    return submitted(**order, std::move(made));
  };
  const CUdeviceptr at = gpu_address(*memory, request.dst);
  // Another GPU's memory is its own to fill; that of another process is reached where it was opened, and a block by
  // whoever has a right to it.
  const device_id owner = !memory->on_device() || memory->kind == memory_kind::block ? by
                          : memory->imported                                         ? memory->by
                                                                                     : memory->owner;
  // what the driver refuses is an error, and what a kernel may not touch is a lost device
  const bool is_safe = !memory->imported && !memory->revoked.load(std::memory_order_acquire) &&
                       (memory->kind == memory_kind::mapped || memory_.denied(owner, *memory, true).empty());
  const bool by_kernel = is_safe && request.count > 1 && !is_of_words(at, request);
  const int units = found_.gpu_of(local(owner)).compute_units;
  if (found_.same_gpu(local(owner), local(by))) {
    return submit(std::make_unique<driver_command>(
        [this, memory, by, at, request, kernel = by_kernel ? fill_kernel(by) : nullptr, units](
            queued::native_queue queue, queued::native_event* last) -> result<void> {
          if (auto cause = memory_map::gone_with_reset(*memory)) return std::move(*cause);
          if (auto cause = common::refused_fill(memory_, *memory)) return std::move(*cause);
          if (memory->kind == memory_kind::block) {
            if (const std::string why = memory_.denied(by, *memory, true); !why.empty())
              return make_error(errc::not_enabled,
                                "a fill of a mapping of a block: " + why + "; the right was withdrawn before it ran");
          }
          auto into = streams_->begin(queue);
          if (!into) return std::move(into).error();
          // without one it is done otherwise
          const bool is_loaded = kernel != nullptr && kernel->generation == places_->generation(local(by));
          if (const CUresult status =
                  fill_all(*cu_, is_loaded ? kernel.get() : nullptr, units, at, request, into->stream());
              status != CUDA_SUCCESS)
            return cu_error(*cu_, status, "a fill of " + to_string(bytes{request.count * request.pattern_size}));
          auto ended = into->finish();
          if (!ended) return std::move(ended).error();
          *last = *ended;
          return {};
        }));
  }
  return submit(std::make_unique<host_command>(
      [this, memory, at, request, owner, by_kernel, units]() -> std::shared_ptr<const error> {
        if (auto cause = memory_map::gone_with_reset(*memory)) return shared_error(std::move(*cause));
        if (auto cause = common::refused_fill(memory_, *memory)) return shared_error(std::move(*cause));
        const auto kernel = by_kernel ? fill_kernel(owner) : nullptr;
        auto done = streams_->run_aside(owner, "a fill on " + to_string(owner), [&](CUstream stream) {
          return fill_all(*cu_, kernel.get(), units, at, request, stream);
        });
        return done ? nullptr : shared_error(std::move(done).error());
      }));
}

}  // namespace weft::gpu
