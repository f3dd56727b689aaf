// SPDX-License-Identifier: Apache-2.0
// Structs of options for tests: how many fields one has, and a row for each field that shows what it changes.
#pragma once

#include "support/opencl_machines.hpp"
#include "support/samples.hpp"
#include "support/virtual_gpus.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace samples {

/// Of an aggregate.
struct anything {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor): stands for a value of any field
};
template <class T, class... Fields>
consteval std::size_t fields() {
  if constexpr (requires { T{Fields{}..., anything{}}; }) {
    return fields<T, Fields..., anything>();
  } else {
    return sizeof...(Fields);
  }
}

/// One field: what it changes, and whether that is seen on a machine. A field that the machine does not have throws
/// unsupported with the reason.
struct option_row {
  const char* field;
  const char* changes;
  std::function<bool(const weft::machine&)> is_seen;
};

/// A list of rows, one for each field of Options: one field more or less does not compile.
template <class Options, std::size_t Count>
void expect_each(const weft::machine& m, const option_row (&rows)[Count]) {
  static_assert(Count == fields<Options>(), "each field of the options needs a row");
  for (const option_row& row : rows) {
    bool is_seen = false;
    const weft::error said = error_of([&] { is_seen = row.is_seen(m); });
    EXPECT_TRUE(is_seen || said.code == weft::errc::unsupported)
        << row.field << " does not change " << row.changes << ", and nobody says so; " << said.what;
  }
}

/// A test on the host backend, on the virtual driver and on OpenCL; skipped with the reason where that is missing.
class option_test : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    if (GetParam() == "cuda" && virtual_cuda_library().empty()) GTEST_SKIP() << "the virtual CUDA driver is not built";
    if (GetParam() != "opencl") return;
    if (const std::string why = why_no_opencl(); !why.empty()) GTEST_SKIP() << why;
  }
  [[nodiscard]] static weft::machine open() {
    if (GetParam() == "cuda") return weft::machine{virtual_cuda_options()};
    if (GetParam() == "opencl") return weft::machine{opencl_options()};
    weft::machine_options options;
    options.backend = "host";
    options.devices = 4;
    return weft::machine{options};
  }
};
inline const auto each_backend = testing::Values("host", "cuda", "opencl");
inline std::string name_of_backend(const testing::TestParamInfo<std::string_view>& one) {
  return std::string{one.param};
}

}  // namespace samples
