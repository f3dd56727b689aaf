// SPDX-License-Identifier: Apache-2.0
// A driver of OpenCL with faults: the table of the real one, in which a test replaces what is to go wrong.
#pragma once

#include "backends/opencl/opencl_backend.hpp"
#include "support/opencl_machines.hpp"

#include <memory>
#include <utility>

namespace samples {

/// Opened by machines of options that name the backend "played"; one at a time, which is all that a test needs.
inline std::shared_ptr<weft::opencl::api>& played_driver() {
  static std::shared_ptr<weft::opencl::api> driver;
  return driver;
}
inline weft::opencl::settings& played_settings() {
  static weft::opencl::settings wanted;
  return wanted;
}

inline weft::result<std::unique_ptr<weft::backend>> open_played(const weft::backend_options& options) noexcept {
  return weft::opencl::open_on(played_driver(), options, played_settings());
}

/// Machines of a driver of a test's own, in one of the ways to keep memory.
inline weft::machine_options played_options(weft::opencl::api driver, opencl_memory how = opencl_memory::shared) {
  weft::machine_options options = opencl_options();
  played_driver() = std::make_shared<weft::opencl::api>(driver);
  played_settings() = {};
  played_settings().shared_memory = how == opencl_memory::shared;
  options.more_backends = {{weft::backend_kind::opencl, "played", &open_played}};
  options.backend = "played";
  return options;
}

/// The functions of the driver that is there.
inline weft::opencl::api real_driver() {
  static_cast<void>(opencl_options());  // the environment of PoCL, before it is loaded
  return *weft::value_or_raise(weft::opencl::load_api("libOpenCL.so.1"));
}

}  // namespace samples
