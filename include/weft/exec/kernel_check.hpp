// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/exec/kernels.hpp"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace weft {

/// The verdict of one compiler on one kernel.
struct kernel_check {
  std::string kernel;
  std::string backend;    // whose devices the compiler is for: "cuda"
  bool is_tried = false;  // false: `why` says what is missing here, or that the kernel has no text for this backend
  std::string why;        // tried: the compiler's words where the kernel does not compile; empty if it does

  [[nodiscard]] bool failed() const { return is_tried && !why.empty(); }
};

/// Compiles the text of each kernel for every kind of device of this build whose compiler is on this computer, whether
/// or not such a device is: the driver's, or without a device NVRTC for CUDA and libclang for OpenCL. A kernel that
/// calls a function of the host alone runs on the host backend, and would fail on the first GPU. Order: a row for each
/// kernel and backend but the host's, kernels first. Errors: invalid_argument for a null pointer.
/// Thread: any. Cost: some ten milliseconds for each row that is tried, and drivers are opened.
[[nodiscard]] std::vector<kernel_check> check_kernels(std::span<const std::shared_ptr<const kernel_code>> kernels);
/// The same for all that are registered with a machine.
[[nodiscard]] std::vector<kernel_check> check_kernels(const machine& m);
/// The same for kernels by type.
template <class... Kernels>
  requires(sizeof...(Kernels) > 0)
[[nodiscard]] std::vector<kernel_check> check_kernels() {
  const std::shared_ptr<const kernel_code> all[] = {make_kernel_code<Kernels>()...};
  return check_kernels(std::span{all});
}

namespace detail {
/// For a test program: tells what fails and what is missing on the standard output. Returns 0 if all that was tried
/// compiles, 1 if something does not, 77 if nothing was tried.
[[nodiscard]] int report_kernel_checks(std::span<const kernel_check> checks);
}  // namespace detail

}  // namespace weft
