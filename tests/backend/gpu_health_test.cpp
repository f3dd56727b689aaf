// SPDX-License-Identifier: Apache-2.0
// How a GPU is: what the CUDA backend makes of the management library's answers, and of none.
#include "backends/gpu/cuda/nvml.hpp"
#include "support/virtual_gpus.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gpu_health_test {

using namespace weft::gpu;
using weft::device_health;
using weft::device_id;
using weft::errc;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A library that knows every GPU and has no sensors.
nvml_functions without_sensors() {
  nvml_functions t;
  t.nvmlDeviceGetHandleByPciBusId_v2 = [](const char*, nvmlDevice* device) {
    static char somewhere;
    *device = reinterpret_cast<nvmlDevice>(&somewhere);
    return 0;
  };
  return t;
}

TEST(gpu_health, takes_each_sensor_by_itself) {
  nvml_functions t = without_sensors();
  t.nvmlDeviceGetTemperature = [](nvmlDevice, unsigned, unsigned* celsius) {
    *celsius = 61;
    return 0;
  };
  t.nvmlDeviceGetPowerUsage = [](nvmlDevice, unsigned* milliwatts) {
    *milliwatts = 250500;
    return 0;
  };
  t.nvmlDeviceGetUtilizationRates = [](nvmlDevice, nvmlUtilization* rates) {
    *rates = {75, 12};
    return 0;
  };
  t.nvmlDeviceGetTotalEccErrors = [](nvmlDevice, unsigned kind, unsigned counter, unsigned long long* count) {
    *count = kind == nvml_memory_error_uncorrected && counter == nvml_ecc_volatile ? 2 : 1000;
    return 0;
  };
  t.nvmlDeviceGetNvLinkErrorCounter = [](nvmlDevice, unsigned link, unsigned, unsigned long long* count) {
    *count = 1;
    return link < 2 ? 0 : 3;
  };
  t.nvmlDeviceGetCurrPcieLinkGeneration = [](nvmlDevice, unsigned* generation) {
    *generation = 5;
    return 0;
  };
  t.nvmlDeviceGetCurrPcieLinkWidth = [](nvmlDevice, unsigned*) { return 3; };
  const nvml management{t};
  const auto now = management.health("0000:10:00.0");
  ASSERT_TRUE(now) << now.error().what;
  EXPECT_EQ(now->celsius, 61);
  EXPECT_EQ(now->watts, 250.5);
  EXPECT_EQ(now->busy, 0.75);
  EXPECT_EQ(now->memory_errors, 2U);
  EXPECT_EQ(now->link_errors, 2 * nvml_link_error_counters);
  EXPECT_EQ(now->pcie_generation, 5);
  EXPECT_FALSE(now->pcie_lanes) << "a sensor that answers with an error tells nothing";
  EXPECT_FALSE(now->held_down_by) << "nor does one that is not there";
}

TEST(gpu_health, a_gpu_without_links_has_no_count_of_their_errors) {
  nvml_functions t = without_sensors();
  t.nvmlDeviceGetNvLinkErrorCounter = [](nvmlDevice, unsigned, unsigned, unsigned long long*) { return 3; };
  const nvml management{t};
  const auto now = management.health("0000:10:00.0");
  ASSERT_TRUE(now);
  EXPECT_FALSE(now->link_errors);
}

TEST(gpu_health, says_in_words_what_holds_clocks_down) {
  using words = std::vector<std::string>;
  EXPECT_EQ(words_of_clock_reasons(0), words{});
  EXPECT_EQ(words_of_clock_reasons(0x1), words{"no work"});
  EXPECT_EQ(words_of_clock_reasons(0x4 | 0x40), (words{"the power limit", "heat, by the hardware"}));
  EXPECT_EQ(words_of_clock_reasons(0x1ff).size(), 9U);
  EXPECT_EQ(words_of_clock_reasons(0x100 | 0x200 | 0x8000'0000'0000'0000),
            (words{"clocks that were set for displays", "0x200", "0x8000000000000000"}));
}

TEST(gpu_health, asks_for_clocks_by_the_name_that_the_library_has) {
  nvml_functions t = without_sensors();
  t.nvmlDeviceGetCurrentClocksThrottleReasons = [](nvmlDevice, unsigned long long* reasons) {
    *reasons = 0x4;
    return 0;
  };
  EXPECT_EQ(nvml{t}.health("0000:10:00.0")->held_down_by, std::vector<std::string>{"the power limit"});
  t.nvmlDeviceGetCurrentClocksEventReasons = [](nvmlDevice, unsigned long long* reasons) {
    *reasons = 0;
    return 0;
  };
  EXPECT_EQ(nvml{t}.health("0000:10:00.0")->held_down_by, std::vector<std::string>{});
}

TEST(gpu_health, a_gpu_unknown_to_the_library_is_refused) {
  nvml_functions t;
  t.nvmlDeviceGetHandleByPciBusId_v2 = [](const char*, nvmlDevice*) { return 6; };
  const nvml management{t};
  const auto unknown = management.health("0000:10:00.0");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, errc::unsupported);
  EXPECT_TRUE(has(unknown.error().what, "0000:10:00.0")) << unknown.error().what;
  EXPECT_FALSE(management.health(""));
}

TEST(gpu_management, tells_in_words_why_two_gpus_are_no_peers) {
  nvml_functions t = without_sensors();
  EXPECT_EQ(nvml{t}.p2p_refusal("0000:10:00.0", "0000:20:00.0"), "") << "a library that does not say";
  static unsigned answer = 0;
  t.nvmlDeviceGetP2PStatus = [](nvmlDevice, nvmlDevice, unsigned what, unsigned* status) {
    *status = what == nvml_p2p_read ? answer : 0;
    return 0;
  };
  const nvml management{t};
  EXPECT_EQ(management.p2p_refusal("0000:10:00.0", "0000:20:00.0"), "");
  answer = 4;
  EXPECT_EQ(management.p2p_refusal("0000:10:00.0", "0000:20:00.0"), "a setting of the driver turns it off");
  answer = 4000;
  EXPECT_EQ(management.p2p_refusal("0000:10:00.0", "0000:20:00.0"), "the driver does not know");
  EXPECT_EQ(management.p2p_refusal("", "0000:20:00.0"), "");
}

TEST(gpu_management, a_missing_library_is_absent_with_the_reason) {
  const auto opened = load_nvml("/nowhere/libnvidia-ml.so.1");
  ASSERT_FALSE(opened);
  EXPECT_TRUE(has(opened.error().what, "/nowhere/libnvidia-ml.so.1")) << opened.error().what;
  EXPECT_TRUE(has(opened.error().what, "WEFT_CUDA_NVML")) << opened.error().what;
  EXPECT_FALSE(load_nvml("libm.so.6"));
}

// ---- on the virtual driver ------------------------------------------------------------------------------------------

/// With the virtual driver's own management library, or another.
weft::result<std::unique_ptr<weft::backend>> open_managed(const weft::backend_options& options,
                                                          const std::string& management) noexcept {
  weft::gpu::settings wanted;
  wanted.driver = wanted.compiler = samples::virtual_cuda_library();
  wanted.management = management.empty() ? wanted.driver : management;
  return open_with(options, wanted);
}

class gpu_health_of_devices : public samples::virtual_cuda_test {
 protected:
  static std::unique_ptr<weft::backend> open(const std::string& management = "", int parts = 1) {
    weft::backend_options options;
    options.logical_devices = parts;
    auto made = open_managed(options, management);
    EXPECT_TRUE(made) << made.error().what;
    return std::move(*made);
  }
};

TEST_F(gpu_health_of_devices, is_told_without_a_context) {
  const auto cuda = open();
  const auto now = cuda->health(device_id{1});
  ASSERT_TRUE(now) << now.error().what;
  EXPECT_EQ(now->celsius, 41);
  EXPECT_EQ(now->watts, 100);
  EXPECT_EQ(now->busy, 0);
  EXPECT_EQ(now->held_down_by, std::vector<std::string>{});
  EXPECT_EQ(now->memory_errors, 0U);
  EXPECT_EQ(now->pcie_generation, 4);
  EXPECT_EQ(now->pcie_lanes, 16);
  EXPECT_EQ(driver.calls("cuDevicePrimaryCtxRetain"), 0U);
}

TEST_F(gpu_health_of_devices, is_that_of_the_gpu_for_each_part_of_it) {
  const auto cuda = open("", 2);
  EXPECT_EQ(cuda->health(device_id{0})->celsius, 40);
  EXPECT_EQ(cuda->health(device_id{1})->celsius, 40);
  EXPECT_EQ(cuda->health(device_id{2})->celsius, 41);
}

TEST_F(gpu_health_of_devices, leaves_out_a_sensor_that_fails) {
  const auto cuda = open();
  driver.fail("nvmlDeviceGetPowerUsage@0=999");
  const auto now = cuda->health(device_id{0});
  ASSERT_TRUE(now);
  EXPECT_FALSE(now->watts);
  EXPECT_EQ(now->celsius, 40);
}

TEST_F(gpu_health_of_devices, without_the_management_library_is_refused_with_the_reason) {
  const auto absent = open("/nowhere/libnvidia-ml.so.1")->health(device_id{0});
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, errc::unsupported);
  EXPECT_TRUE(has(absent.error().what, "gpu0")) << absent.error().what;
  EXPECT_TRUE(has(absent.error().what, "/nowhere/libnvidia-ml.so.1 cannot be used")) << absent.error().what;
  const auto unwanted = open("none")->health(device_id{0});
  ASSERT_FALSE(unwanted);
  EXPECT_EQ(unwanted.error().code, errc::unsupported);
  EXPECT_TRUE(has(unwanted.error().what, "says none")) << unwanted.error().what;
}

TEST_F(gpu_health_of_devices, is_refused_for_a_device_that_is_not_there) {
  EXPECT_EQ(open()->health(device_id{9}).error().code, errc::invalid_device);
}

TEST_F(gpu_health_of_devices, the_health_of_a_lost_device_is_still_told) {
  const auto cuda = open();
  ASSERT_TRUE(cuda->allocate(device_id{0}, weft::bytes{4096}, weft::memory_kind::device));
  driver.lose(0, 700);
  EXPECT_TRUE(cuda->health(device_id{0}));
}

TEST_F(gpu_health_of_devices, is_told_by_the_device_of_a_machine_of_several_backends) {
  weft::machine_options options = samples::virtual_cuda_options();
  options.more_backends = {{weft::backend_kind::cuda, "virtual_cuda",
                            [](const weft::backend_options& how) noexcept { return open_managed(how, ""); }}};
  options.backend = "host,virtual_cuda";
  options.devices = 1;
  const weft::machine m{options};
  ASSERT_GT(m.device_count(), 1);
  EXPECT_EQ(m[1].health().celsius, 40);
  try {
    static_cast<void>(m[0].health());
    FAIL() << "the host has no sensors";
  } catch (const weft::error_exception& e) {
    EXPECT_EQ(e.code(), errc::unsupported);
  }
}

}  // namespace gpu_health_test
