// SPDX-License-Identifier: Apache-2.0
// Kernels and host functions, in streams.
#pragma once

#include "weft/backend/facets/move_facet.hpp"
#include "weft/backend/kernel_code.hpp"
#include "weft/core/kernel_cost.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <stop_token>
#include <vector>

namespace weft {

struct launch_request {
  std::shared_ptr<const kernel_code> kernel;
  kernel_range range;
  std::vector<kernel_argument> arguments;
  std::stop_token stop;
  std::optional<kernel_cost> model;  // virtual clock; without it the bytes of the arguments say what it costs
  std::array<int, 3> block{};        // work items of a block in each dimension; all 0: the backend's choice
  std::uint64_t launch = 0;          // number of the launch over devices that this is a piece of; for the trace
  std::source_location where{};
};

class run_facet : public move_facet {
 protected:
  using move_facet::move_facet;
  ~run_facet() = default;

  /// Compiles and loads a kernel for a device, so that its first launch does not: a driver may do that only once all
  /// work of the device has ended. Errors: those of do_launch().
  [[nodiscard]] virtual result<void> do_prepare(device_id, const kernel_code&) { return {}; }
  // NOLINTNEXTLINE(performance-unnecessary-value-param): an override keeps it
  [[nodiscard]] virtual result<event_ref> do_launch(stream_handle, launch_request) { return not_offered("kernels"); }
  /// Runs a host function in stream order. The function must not call the library.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): an override keeps it
  [[nodiscard]] virtual result<event_ref> do_call(stream_handle, std::function<result<void>()>) {
    return not_offered("host functions");
  }
};

}  // namespace weft
