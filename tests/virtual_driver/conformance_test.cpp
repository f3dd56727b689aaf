// SPDX-License-Identifier: Apache-2.0
// The conformance suite on the backends of GPUs over the virtual driver: machines of many kinds.
#include "conformance/conformance.hpp"

#include "support/rounds.hpp"
#include "virtual_driver/loaded_driver.hpp"
#include "virtual_driver/virtual_machine.hpp"

#include <string>
#include <utility>
#include <vector>

namespace conformance_test {

using virtual_cuda::be_bounded;
using virtual_cuda::environment;
using virtual_cuda::open_hip_machine;
using virtual_cuda::open_machine;

struct machine_case {
  int devices;
  std::string p2p;
  std::string memory;
};

std::string name_of(const testing::TestParamInfo<machine_case>& one) {
  return std::to_string(one.param.devices) + "_devices_" + one.param.p2p + "_" + one.param.memory;
}

/// Each number of devices, kind of access and size once with each other of few devices; all of them by night.
std::vector<machine_case> machine_cases() {
  if (!samples::by_night()) {
    return {{1, "all", "4GiB"},     {1, "all", "64MiB"},     {2, "all", "4GiB"},  {2, "chain", "64MiB"},
            {2, "one_way", "4GiB"}, {2, "none", "64MiB"},    {4, "all", "64MiB"}, {4, "none", "4GiB"},
            {4, "chain", "4GiB"},   {4, "one_way", "64MiB"}, {8, "all", "4GiB"},  {8, "one_way", "64MiB"}};
  }
  std::vector<machine_case> all;
  for (const int devices : {1, 2, 4, 8}) {
    for (const char* const p2p : {"all", "none", "chain", "one_way"}) {
      for (const char* const memory : {"4GiB", "64MiB"}) {
        if (devices == 1 && std::string{p2p} != "all") continue;  // one device has no pairs
        all.push_back({devices, p2p, memory});
      }
    }
  }
  return all;
}

class virtual_cuda_conformance : public testing::TestWithParam<machine_case> {};

void expect_that_nothing_falls_short(const environment& variables, weft::machine (*open)() = &open_machine) {
  virtual_cuda::in_child(variables, [open] {
    be_bounded();
    weft::run_options options;
    options.after_each = [](const weft::case_result& result) {
      be_bounded();
      EXPECT_NE(result.verdict, weft::verdict_kind::falls_short)
          << result.group << ": " << result.name << "\n  " << result.why;
      if (result.verdict == weft::verdict_kind::not_offered) {
        EXPECT_FALSE(result.why.empty()) << result.group << ": " << result.name;
      }
    };
    options.fault = weft::live_through_fault(open);
    EXPECT_EQ(options.fault->kind, weft::verdict_kind::holds) << options.fault->why;
    const auto results = weft::run_conformance(open, options);
    EXPECT_EQ(results.size(), weft::conformance_cases().size());
  });
}

TEST_P(virtual_cuda_conformance, nothing_falls_short_and_what_is_not_offered_has_a_reason) {
  const machine_case& one = GetParam();
  expect_that_nothing_falls_short({{"WEFT_VIRTUAL_CUDA_DEVICES", std::to_string(one.devices)},
                                   {"WEFT_VIRTUAL_CUDA_P2P", one.p2p},
                                   {"WEFT_VIRTUAL_CUDA_MEMORY", one.memory}});
}

INSTANTIATE_TEST_SUITE_P(machines, virtual_cuda_conformance, testing::ValuesIn(machine_cases()), name_of);

class virtual_cuda_drivers : public testing::TestWithParam<std::pair<std::string, environment>> {};

TEST_P(virtual_cuda_drivers, nothing_falls_short_where_the_driver_or_the_device_has_less) {
  expect_that_nothing_falls_short(GetParam().second);
}

INSTANTIATE_TEST_SUITE_P(
    drivers, virtual_cuda_drivers,
    testing::Values(
        std::pair<std::string, environment>{"a_published_machine",
                                            environment{{"WEFT_VIRTUAL_CUDA_TOPOLOGY", "dgx_h100"}}},
        std::pair<std::string, environment>{"peers_by_pairs_only",
                                            environment{{"WEFT_VIRTUAL_CUDA_TOPOLOGY", "pcie_2x2_switches"}}},
        std::pair<std::string, environment>{"a_table_of_peers_with_just_enough_places",
                                            environment{{"WEFT_VIRTUAL_CUDA_MAX_PEERS", "3"}}},
        std::pair<std::string, environment>{"no_native_atomics", environment{{"WEFT_VIRTUAL_CUDA_ATOMICS", "0"}}},
        std::pair<std::string, environment>{"no_managed_memory", environment{{"WEFT_VIRTUAL_CUDA_MANAGED", "0"}}},
        std::pair<std::string, environment>{"no_memory_operations", environment{{"WEFT_VIRTUAL_CUDA_MEMOPS", "0"}}},
        std::pair<std::string, environment>{"one_gpu_as_four_devices", environment{{"WEFT_VIRTUAL_CUDA_DEVICES", "1"},
                                                                                   {"WEFT_VIRTUAL_CUDA_SMS", "32"},
                                                                                   {"WEFT_LOGICAL_DEVICES", "4"}}},
        std::pair<std::string, environment>{"one_gpu_as_four_devices_with_little_memory",
                                            environment{{"WEFT_VIRTUAL_CUDA_DEVICES", "1"},
                                                        {"WEFT_VIRTUAL_CUDA_SMS", "32"},
                                                        {"WEFT_LOGICAL_DEVICES", "4"},
                                                        {"WEFT_VIRTUAL_CUDA_MEMORY", "256MiB"}}},
        std::pair<std::string, environment>{"the_oldest_driver", environment{{"WEFT_VIRTUAL_CUDA_VERSION", "12000"}}},
        std::pair<std::string, environment>{"an_older_device", environment{{"WEFT_VIRTUAL_CUDA_ARCH", "75"}}},
        std::pair<std::string, environment>{
            "no_blocks_and_no_pools",
            environment{{"WEFT_VIRTUAL_CUDA_MISSING", "cuMemCreate,cuMemMap,cuMemPoolCreate,cuMemFreeAsync"},
                        {"WEFT_VIRTUAL_CUDA_MISSING_CODE", "500"}}}),
    [](const testing::TestParamInfo<std::pair<std::string, environment>>& one) { return one.param.first; });

// ---- the same devices as a HIP runtime shows them -------------------------------------------------------------------

class virtual_hip_conformance : public testing::TestWithParam<std::pair<std::string, environment>> {};

TEST_P(virtual_hip_conformance, nothing_falls_short_and_what_is_not_offered_has_a_reason) {
  expect_that_nothing_falls_short(GetParam().second, &open_hip_machine);
}

INSTANTIATE_TEST_SUITE_P(
    machines, virtual_hip_conformance,
    testing::Values(
        std::pair<std::string, environment>{"one_device", environment{{"WEFT_VIRTUAL_CUDA_DEVICES", "1"}}},
        std::pair<std::string, environment>{"four_devices", environment{{"WEFT_VIRTUAL_CUDA_MEMORY", "64MiB"}}},
        std::pair<std::string, environment>{
            "access_one_way", environment{{"WEFT_VIRTUAL_CUDA_DEVICES", "2"}, {"WEFT_VIRTUAL_CUDA_P2P", "one_way"}}},
        std::pair<std::string, environment>{"access_in_a_chain", environment{{"WEFT_VIRTUAL_CUDA_P2P", "chain"}}},
        std::pair<std::string, environment>{"no_access", environment{{"WEFT_VIRTUAL_CUDA_P2P", "none"}}},
        std::pair<std::string, environment>{"no_managed_memory", environment{{"WEFT_VIRTUAL_CUDA_MANAGED", "0"}}},
        std::pair<std::string, environment>{"no_waits_for_values", environment{{"WEFT_VIRTUAL_HIP_WAIT_VALUES", "0"}}},
        std::pair<std::string, environment>{"the_oldest_runtime",
                                            environment{{"WEFT_VIRTUAL_HIP_VERSION", "60240091"}}},
        std::pair<std::string, environment>{"one_gpu_as_four_devices", environment{{"WEFT_VIRTUAL_CUDA_DEVICES", "1"},
                                                                                   {"WEFT_VIRTUAL_CUDA_SMS", "32"},
                                                                                   {"WEFT_LOGICAL_DEVICES", "4"}}},
        std::pair<std::string, environment>{
            "one_gpu_as_four_devices_that_share_its_compute_units",
            environment{
                {"WEFT_VIRTUAL_CUDA_DEVICES", "1"}, {"WEFT_LOGICAL_DEVICES", "4"}, {"WEFT_HIP_PARTITIONS", "0"}}}),
    [](const testing::TestParamInfo<std::pair<std::string, environment>>& one) { return one.param.first; });

}  // namespace conformance_test
