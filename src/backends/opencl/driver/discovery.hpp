// SPDX-License-Identifier: Apache-2.0
// Which platforms and devices there are. What fails is left out with a remark; the others go on.
#pragma once

#include "backends/opencl/driver/api.hpp"
#include "backends/opencl/factory.hpp"
#include "weft/backend/backend.hpp"
#include "weft/core/topology.hpp"

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace weft::opencl {

/// Devices of one platform that share buffers and events.
struct context_place {
  std::string platform;
  context_handle context;
  bool shared_memory = false;  // fine-grained SVM on devices whose memory is the host's: one memory for all of them
  bool atomics = false;        // … with atomics that the host sees
  bool orders_grids = false;   // launches need a grid_order
  bool adopts_whole = false;   // … and it is all of the process's memory, adopted memory too, by the host's addresses
};

struct device_place {
  cl_device_id id = nullptr;
  device_handle part;       // keeps a sub-device
  std::size_t context = 0;  // index
  device_description description;
  std::uint64_t largest_allocation = 0;
  std::size_t largest_group = 1;                      // work items of a group
  std::array<std::size_t, 3> largest_sides{1, 1, 1};  // … and in each dimension
  bool is_processor = false;
  int newest_c = 120;                    // 100 times major + 10 times minor
  bool correctly_rounded_float = false;  // may be asked for correctly rounded division and square root
};

struct discovery {
  std::vector<context_place> contexts;
  std::vector<device_place> devices;
  std::vector<std::string> notes;  // what was left out, and why
};

/// backend_options::leave_out.
using left_out = std::function<bool(const device_description&)>;

/// Each device that can be split is found as `logical_devices` parts of equal size.
/// Errors: unsupported when no device is left, with every reason.
[[nodiscard]] result<discovery> discover(const std::shared_ptr<const api>& cl, const settings& wanted,
                                         int logical_devices = 1, const left_out& leave_out = {});

/// The devices, a socket, the links to it, and links between devices whose memory is one.
/// Errors: invalid_topology for what no machine is.
[[nodiscard]] result<topology> layout_of(const discovery& found);

}  // namespace weft::opencl
