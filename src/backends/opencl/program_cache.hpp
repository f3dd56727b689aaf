// SPDX-License-Identifier: Apache-2.0
// Kernels as the driver's compiler makes them: one program for a kernel and a device, made when first launched.
#pragma once

#include "backend/kernels/reduction_grid.hpp"
#include "backends/opencl/driver/discovery.hpp"
#include "backends/opencl/grid_order.hpp"
#include "backends/opencl/own_number.hpp"
#include "weft/backend/kernel_code.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

namespace weft::opencl {

/// A kernel of a program, and the order that its launches need: none for most platforms.
struct entry_point {
  kernel_handle kernel;
  std::shared_ptr<grid_order> order;
};

/// A kernel that is ready for one device.
/// Shape: `shifted` takes for each buffer the buffer and the number of elements from its start to element 0, which may
///   be negative; `plain` takes buffers that begin with element 0. Then scalars, begins and ends, as kernel_text says.
/// Thread: whoever sets arguments holds `mutex` until the kernel is in a queue.
struct compiled_kernel {
  std::mutex mutex;
  program_handle program;
  entry_point plain;
  entry_point shifted;  // none for a raw kernel whose wrapper does not compile: why_not_shifted
  std::string why_not_shifted;
  entry_point combine;  // of a reduction: to be launched behind either
  reduction_device units;
  std::size_t largest_group = 1;
  std::array<std::size_t, 3> largest_sides{1, 1, 1};
};

/// Thread: any.
class program_cache {
 public:
  program_cache(std::shared_ptr<const api> cl, const discovery& found) : cl_(std::move(cl)), found_(found) {}

  /// Errors: unsupported for a kernel without a text for OpenCL; incompatible with the compiler's words for one that
  /// does not compile, whose first line names the place in the user's file.
  [[nodiscard]] result<std::shared_ptr<compiled_kernel>> get(const kernel_code& code, std::size_t device);

 private:
  struct entry {
    std::mutex mutex;  // held while it compiles: two launches compile once
    std::shared_ptr<compiled_kernel> made;
    std::atomic<bool> is_made{false};  // and made changes no more
  };
  [[nodiscard]] result<std::shared_ptr<compiled_kernel>> compile(const kernel_code& code, std::size_t device);
  [[nodiscard]] result<program_handle> build(const std::string& text, const kernel_code& code,
                                             const device_place& device) const;
  [[nodiscard]] std::pair<cl_int, entry_point> make_entry(const program_handle& program, const std::string& name,
                                                          const kernel_code& code, std::size_t context);

  std::shared_ptr<const api> cl_;
  const discovery& found_;
  std::mutex mutex_;
  std::map<std::pair<std::uint64_t, std::size_t>, entry> entries_;        // hash, device; never erased
  using order_key = std::tuple<std::uint64_t, std::size_t, std::string>;  // hash, context, name
  std::map<order_key, std::shared_ptr<grid_order>> orders_;
  own_number number_;
};

/// The wrapper of compiled_kernel::shifted, and its name. OpenCL has no pointers into buffers, and an array's piece
/// begins in the middle of one.
[[nodiscard]] std::string shifted_text(const kernel_code& code);
[[nodiscard]] std::string shifted_entry(const kernel_code& code);

}  // namespace weft::opencl
