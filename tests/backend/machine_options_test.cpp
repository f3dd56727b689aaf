// SPDX-License-Identifier: Apache-2.0
// Each option of a machine on each backend: it has an effect, or somebody says that it has none.
#include "support/option_rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace machine_options_test {

using weft::errc;
using weft::machine;
using weft::machine_options;

struct option {
  const char* name;
  std::function<void(machine_options&)> set;
  enum class elsewhere : std::uint8_t { refused, noted, has_effect } on_gpus;
};

/// Those that are the host backend's, or limit devices.
const std::vector<option>& options() {
  using enum option::elsewhere;
  static const std::vector<option> all{
      {"sim", [](machine_options& o) { o.sim = "pair_nvlink"; }, refused},
      {"machine", [](machine_options& o) { o.machine = weft::value_or_raise(weft::load_topology("pair_nvlink")); },
       refused},
      {"devices", [](machine_options& o) { o.devices = 3; }, noted},
      {"memory_per_device", [](machine_options& o) { o.memory_per_device = weft::bytes{1U << 20}; }, has_effect},
      {"logical_devices", [](machine_options& o) { o.logical_devices = 2; }, has_effect},
      {"clock", [](machine_options& o) { o.clock = weft::clock_kind::virtual_time; }, refused},
      {"strict", [](machine_options& o) { o.strict = false; }, noted},
      {"check_access", [](machine_options& o) { o.check_access = true; }, refused},
      {"check_order", [](machine_options& o) { o.check_order = true; }, refused},
      {"fill_new_memory", [](machine_options& o) { o.fill_new_memory = std::byte{7}; }, refused},
      {"max_in_flight", [](machine_options& o) { o.max_in_flight = 1; }, refused},
      {"model", [](machine_options& o) { o.model.seed = 5; }, noted},
  };
  return all;
}

std::string notes_of(const machine& m) {
  std::string all;
  for (const std::string& note : m.notes()) all += note + "\n";
  return all;
}

void expect_words_for_each(const machine_options& plain) {
  const machine as_it_is{plain};
  for (const option& one : options()) {
    machine_options asked = plain;
    one.set(asked);
    std::string said;
    const weft::error cause = samples::error_of([&] {
      const machine m{asked};
      said = notes_of(m);
      if (one.on_gpus == option::elsewhere::has_effect) {
        EXPECT_TRUE(m.device_count() != as_it_is.device_count() || m[0].total_memory() < as_it_is[0].total_memory() ||
                    said.find("not split") != std::string::npos)
            << one.name;
      }
    });
    if (one.on_gpus == option::elsewhere::refused) {
      EXPECT_TRUE(cause.code == errc::unsupported || cause.code == errc::invalid_argument) << one.name << cause.what;
    } else if (one.on_gpus == option::elsewhere::noted) {
      EXPECT_NE(said.find(one.name), std::string::npos) << one.name << ": " << said << cause.what;
    }
  }
}

TEST(machine_options, options_that_cuda_lacks_are_refused_or_noted) {
  expect_words_for_each(samples::virtual_cuda_options());
}

TEST(machine_options, options_that_opencl_lacks_are_refused_or_noted) {
  if (const std::string why = samples::why_no_opencl(); !why.empty()) GTEST_SKIP() << why;
  expect_words_for_each(samples::opencl_options());
}

TEST(machine_options, options_that_gpus_lack_open_the_host_where_no_backend_is_named) {
  machine_options asked = samples::virtual_cuda_options();
  asked.backend.reset();
  EXPECT_EQ(machine{asked}[0].kind(), weft::backend_kind::cuda);
  asked.max_in_flight = 1;
  const machine m{asked};
  EXPECT_EQ(m[0].kind(), weft::backend_kind::host);
  const auto& tried = m.backends();
  const auto cuda = std::find_if(tried.begin(), tried.end(), [](const auto& b) { return b.name == "virtual_cuda"; });
  ASSERT_NE(cuda, tried.end());
  EXPECT_NE(cuda->why.find("max_in_flight has no effect on the backend 'virtual_cuda'"), std::string::npos)
      << cuda->why;
}

TEST(machine_options, options_of_the_host_in_a_mixed_machine_are_noted_for_the_others) {
  machine_options asked = samples::virtual_cuda_options();
  asked.backend = "virtual_cuda,host";
  asked.check_access = true;
  const machine m{asked};
  EXPECT_NE(notes_of(m).find("check_access has no effect on the devices of the backend 'virtual_cuda'"),
            std::string::npos)
      << notes_of(m);
}

TEST(machine, says_of_a_backend_that_was_not_built_that_it_is_not_there) {
  machine_options asked;
  asked.backend = "host";
  asked.more_backends = {{weft::backend_kind::hip, "unbuilt",
                          [](const weft::backend_options&) noexcept -> weft::result<std::unique_ptr<weft::backend>> {
                            return weft::make_error(errc::unsupported, "this build has no such backend");
                          },
                          false}};
  const machine m{asked};
  EXPECT_EQ(m.backends().front().name, "unbuilt");
  EXPECT_TRUE(m.backends().front().looked_at);
  EXPECT_NE(m.backends().front().why.find("this build has no such backend"), std::string::npos);
}

TEST(machine_options, contradictory_options_are_refused) {
  const auto code = [](const std::function<void(machine_options&)>& set) {
    machine_options asked;
    asked.backend = "host";
    set(asked);
    return samples::error_of([&] { const machine m{asked}; }).code;
  };
  EXPECT_EQ(code([](machine_options& o) { o.sim = "dgx_h100", o.machine = weft::host_topology(2, weft::bytes{4096}); }),
            errc::invalid_argument);
  EXPECT_EQ(code([](machine_options& o) { o.sim = "dgx_h100", o.devices = 2; }), errc::invalid_argument);
  EXPECT_EQ(code([](machine_options& o) { o.max_in_flight = -1; }), errc::invalid_argument);
  EXPECT_EQ(code([](machine_options& o) { o.model.delay = std::chrono::nanoseconds{5}; }), errc::invalid_argument);
}

}  // namespace machine_options_test
