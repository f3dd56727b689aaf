// SPDX-License-Identifier: Apache-2.0
// Machines of two backends for tests: host devices and OpenCL devices together, in both ways in which OpenCL keeps
// memory and in both orders.
#pragma once

#include "support/opencl_machines.hpp"
#include "weft/runtime/machine.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace samples {

struct mixture {
  opencl_memory memory = opencl_memory::shared;
  bool host_first = true;
};

/// Two devices of the host and those of OpenCL.
inline weft::machine_options mixed_options(mixture how = {}) {
  weft::machine_options options = opencl_options(how.memory);
  options.devices = 2;
  options.backend = how.host_first ? "host," + *options.backend : *options.backend + ",host";
  return options;
}

/// A test over all mixtures; skipped with the reason where there is no OpenCL.
class mixed_test : public testing::TestWithParam<mixture> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_opencl(); !why.empty()) GTEST_SKIP() << why;
  }
  [[nodiscard]] static weft::machine open() { return weft::machine{mixed_options(GetParam())}; }
};

/// At most two devices of each kind, in the order of their ids.
inline std::vector<weft::device_id> two_of_each(const weft::machine& m) {
  std::vector<weft::device_id> found;
  int host = 0, others = 0;
  for (const weft::device& d : m.devices()) {
    if ((d.kind() == weft::backend_kind::host ? host : others)++ < 2) found.push_back(d.id());
  }
  return found;
}
/// The first device of the host, and the first of OpenCL.
inline std::pair<weft::device, weft::device> one_of_each(const weft::machine& m) {
  const auto first = [&](bool host) {
    for (const weft::device& d : m.devices()) {
      if ((d.kind() == weft::backend_kind::host) == host) return d;
    }
    return m[0];
  };
  return {first(true), first(false)};
}

inline const auto mixtures = testing::Values(
    mixture{opencl_memory::shared, true}, mixture{opencl_memory::buffers, true}, mixture{opencl_memory::shared, false});
inline std::string name_of_mixture(const testing::TestParamInfo<mixture>& one) {
  return std::string{one.param.host_first ? "host_first_" : "host_last_"} +
         (one.param.memory == opencl_memory::shared ? "shared_memory" : "buffers");
}

}  // namespace samples
