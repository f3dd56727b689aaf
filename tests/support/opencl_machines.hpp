// SPDX-License-Identifier: Apache-2.0
// Machines of OpenCL devices for tests: four of PoCL unless the environment says otherwise; and why there are none.
#pragma once

#include "backends/opencl/factory.hpp"
#include "support/paths.hpp"
#include "weft/runtime/machine.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace samples {

/// How the backend keeps device memory: one memory with the host where the platform has it, or buffers of the driver's.
enum class opencl_memory : bool { shared, buffers };

inline weft::result<std::unique_ptr<weft::backend>> open_opencl_buffers(const weft::backend_options& options) noexcept {
  weft::opencl::settings wanted;
  wanted.shared_memory = false;
  return weft::opencl::open_with(options, wanted);
}

inline weft::machine_options opencl_options(opencl_memory how = opencl_memory::shared) {
  // NOLINTBEGIN(concurrency-mt-unsafe): before PoCL is loaded, in the one thread of a test
  setenv("POCL_DEVICES", "pthread pthread pthread pthread", 0);
  // PoCL would else fill the cache of the user who runs the tests.
  setenv("POCL_CACHE_DIR", (samples::build_folder() + "/pocl_cache").c_str(), 0);
  // NOLINTEND(concurrency-mt-unsafe)
  weft::machine_options options;
  options.more_backends = {
      {weft::backend_kind::opencl, "opencl_shared", &weft::opencl::open},
      {weft::backend_kind::opencl, "opencl_buffers", &open_opencl_buffers},
  };
  options.backend = how == opencl_memory::shared ? "opencl_shared" : "opencl_buffers";
  return options;
}

/// Why there is no OpenCL machine here; empty if there is one.
inline std::string why_no_opencl() {
  static const std::string why = [] {
    try {
      const weft::machine m{opencl_options()};
      return std::string{};
    } catch (const weft::error_exception& absent) {
      return absent.cause().what;
    }
  }();
  return why;
}

/// A test over both ways to keep memory; skipped with the reason where there is no OpenCL.
class opencl_test : public testing::TestWithParam<opencl_memory> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_opencl(); !why.empty()) GTEST_SKIP() << why;
  }
  [[nodiscard]] static weft::machine open() { return weft::machine{opencl_options(GetParam())}; }
};

inline const auto both_memories = testing::Values(opencl_memory::shared, opencl_memory::buffers);
inline std::string name_of_memory(const testing::TestParamInfo<opencl_memory>& one) {
  return one.param == opencl_memory::shared ? "shared_memory" : "buffers";
}

}  // namespace samples
