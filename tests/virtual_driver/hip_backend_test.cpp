// SPDX-License-Identifier: Apache-2.0
// What the HIP backend does of its own: which library it takes, what it makes of HIP's answers, and how it ends after a
// fault. What it shares with CUDA the conformance suite holds.
#include "backends/gpu/hip/amd_management.hpp"
#include "backends/gpu/hip/hip.hpp"
#include "backends/gpu/hip/hip_attributes.hpp"
#include "backends/gpu/hip/hiprtc.hpp"
#include "runtime/machine_state.hpp"
#include "support/samples.hpp"
#include "virtual_driver/loaded_driver.hpp"
#include "virtual_driver/virtual_machine.hpp"
#include "weft/backend/kernel_code.hpp"
#include "weft/channel/message_queue.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <unistd.h>

namespace hip_backend_test {

namespace amd = weft::gpu::amd;
using virtual_cuda::environment;
using virtual_cuda::in_child;
using virtual_cuda::open_hip_machine;
using weft::errc;

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Why a library cannot be used.
std::string reason(const std::string& library) {
  const auto opened = amd::load_hip(library);
  if (opened) {
    ADD_FAILURE() << "it was opened";
    return {};
  }
  EXPECT_EQ(opened.error().code, errc::unsupported);
  return opened.error().what;
}

/// What opening a machine fails with.
std::string refusal() {
  try {
    static_cast<void>(open_hip_machine());
  } catch (const weft::error_exception& refused) {
    return refused.cause().what;
  }
  ADD_FAILURE() << "it was opened";
  return {};
}

// ---- the library ----------------------------------------------------------------------------------------------------

TEST(hip_library, a_missing_library_is_absent_with_the_reason_and_a_remedy) {
  in_child({}, [] {
    const std::string why = reason("/nowhere/libamdhip64.so.7");
    EXPECT_TRUE(says(why, "/nowhere/libamdhip64.so.7") && says(why, "install") && says(why, "WEFT_HIP_DRIVER")) << why;
  });
}

TEST(hip_library, is_not_opened_where_the_kernel_shows_no_gpu) {
  const bool is_there = ::access("/dev/kfd", F_OK) == 0 || ::access("/dev/dxg", F_OK) == 0;
  if (is_there) GTEST_SKIP() << "this computer has /dev/kfd or /dev/dxg";
  in_child({}, [] {
    const std::string why = reason("");
    EXPECT_TRUE(says(why, "/dev/kfd") && says(why, "amdgpu") && says(why, "container")) << why;
    EXPECT_EQ(::dlopen("libamdhip64.so.5", RTLD_LAZY | RTLD_NOLOAD), nullptr);
  });
}

TEST(hip_library, another_library_is_said_to_be_no_hip_runtime) {
  in_child({}, [] {
    const std::string why = reason("libm.so.6");
    EXPECT_TRUE(says(why, "it is no HIP runtime")) << why;
  });
}

TEST(hip_library, too_old_a_library_is_refused_with_both_versions) {
  in_child({{"WEFT_VIRTUAL_HIP_VERSION", "50221153"}}, [] {
    const std::string why = reason(samples::virtual_hip_library());
    EXPECT_TRUE(says(why, "HIP 5.2") && says(why, "6.2 or newer")) << why;
  });
}

TEST(hip_library, without_a_gpu_says_what_shows_them_and_what_hides_them) {
  in_child({{"WEFT_VIRTUAL_CUDA_DEVICES", "0"}}, [] {
    const std::string why = refusal();
    EXPECT_TRUE(says(why, "it finds no GPU: rocminfo shows")) << why;
  });
  in_child({{"WEFT_VIRTUAL_CUDA_DEVICES", "0"}, {"ROCR_VISIBLE_DEVICES", "7"}}, [] {
    const std::string why = refusal();
    EXPECT_TRUE(says(why, "ROCR_VISIBLE_DEVICES is \"7\"")) << why;
  });
}

TEST(hip_library, refuses_a_misspelt_setting_of_the_virtual_runtime) {
  in_child({{"WEFT_VIRTUAL_HIP_UUID", "0"}}, [] {
    testing::internal::CaptureStderr();
    const std::string why = refusal();
    const std::string told = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(says(why, "hipErrorInvalidValue")) << why;
    EXPECT_TRUE(says(told, "WEFT_VIRTUAL_HIP_UUID is no setting; did you mean WEFT_VIRTUAL_HIP_UUIDS?")) << told;
  });
}

TEST(hip_library, is_one_for_a_process) {
  in_child({}, [] {
    const std::string copy = testing::TempDir() + "weft_hip_" + std::to_string(::getpid()) + ".so";
    std::filesystem::copy_file(samples::virtual_hip_library(), copy);
    ASSERT_TRUE(amd::load_hip(samples::virtual_hip_library()));
    EXPECT_TRUE(amd::load_hip(samples::virtual_hip_library())) << "the same again";
    const std::string why = reason(copy);
    EXPECT_TRUE(says(why, "this process uses another HIP library already")) << why;
    std::filesystem::remove(copy);
  });
}

TEST(hip_library, has_a_version_of_two_numbers) {
  in_child({{"WEFT_VIRTUAL_HIP_VERSION", "71452802"}}, [] {
    const auto opened = amd::load_hip(samples::virtual_hip_library());
    ASSERT_TRUE(opened) << opened.error().what;
    EXPECT_EQ((*opened)->version, 7140);
    EXPECT_EQ(weft::gpu::version_text((*opened)->version), "7.14");
  });
}

// ---- what differs ---------------------------------------------------------------------------------------------------

TEST(hip_attribute, has_one_number_for_each_of_ours) {
  std::set<int> ours;
  for (const amd::attribute_pair& one : amd::hip_attributes) EXPECT_TRUE(ours.insert(one.ours).second) << one.ours;
  EXPECT_EQ(amd::hip_attribute_of(weft::gpu::warp_size), amd::hip_warp_size);
  EXPECT_EQ(amd::hip_attribute_of(weft::gpu::multicast_supported), std::nullopt);
}

TEST(hip_architecture, is_the_number_in_its_name) {
  EXPECT_EQ(amd::gfx_number("gfx90a:sramecc+:xnack-"), 0x90a);
  EXPECT_EQ(amd::gfx_number("gfx1100"), 0x1100);
  EXPECT_EQ(amd::gfx_name(0x90a), "gfx90a");
  for (const char* const none : {"", "gfx", "gfx:", "gfx90q", "sm_90", "gfx9-4-generic"})
    EXPECT_EQ(amd::gfx_number(none), 0) << none;
}

TEST(hip_device, is_described_and_its_links_are_ranked) {
  in_child({{"WEFT_VIRTUAL_CUDA_TOPOLOGY", "mi300x_8"}}, [] {
    const weft::machine m = open_hip_machine();
    EXPECT_EQ(m[0].kind(), weft::backend_kind::hip);
    EXPECT_EQ(m.device_count(), 8);
    const auto pair = weft::capability_between(m, weft::device_id{0}, weft::device_id{1});
    ASSERT_TRUE(pair);
    EXPECT_EQ(pair->native_rank, 4) << "the link's type, which is XGMI";
    EXPECT_EQ(pair->performance_rank, 0) << "and so the best there is";
    EXPECT_EQ(pair->link, weft::peer_link::infinity_fabric);
  });
}

TEST(hip_device, without_waits_for_values_says_so_and_does_the_rest) {
  in_child({{"WEFT_VIRTUAL_HIP_WAIT_VALUES", "0"}}, [] {
    const weft::machine m = open_hip_machine();
    const weft::buffer<std::uint32_t> word{m[0], 1};
    const weft::stream order{m[0]};
    try {
      static_cast<void>(order.write_value(word.data(), 1U));
      FAIL() << "it was written";
    } catch (const weft::error_exception& refused) {
      EXPECT_EQ(refused.code(), errc::unsupported);
      EXPECT_TRUE(says(refused.cause().what, "has no stream memory operations")) << refused.cause().what;
    }
  });
}

TEST(hip_stream, the_default_stream_is_adopted_where_it_has_a_name) {
  in_child({{"WEFT_VIRTUAL_HIP_VERSION", "60443482"}}, [] {
    const weft::machine m = open_hip_machine();
    try {
      static_cast<void>(weft::stream::over(m[0], nullptr));
      FAIL() << "it was adopted";
    } catch (const weft::error_exception& refused) {
      EXPECT_EQ(refused.code(), errc::unsupported);
      EXPECT_TRUE(says(refused.cause().what, "no name before HIP 7.0")) << refused.cause().what;
    }
  });
  in_child({}, [] {
    const weft::machine m = open_hip_machine();
    const weft::stream order = weft::stream::over(m[0], nullptr);
    const weft::buffer<int> memory{m[0], 1};
    int read = 0;
    weft::fill(memory, 7);
    weft::copy(std::span{&read, 1}, memory);
    order.synchronize();
    EXPECT_EQ(read, 7);
  });
}

unsigned long long calls_of(const char* function) {
  virtual_cuda::library_path() = samples::virtual_hip_library();
  return virtual_cuda::find<unsigned long long(const char*)>("weft_virtual_calls")(function);
}

TEST(hip_memory, memory_shared_by_running_kernels_is_in_no_cache) {
  in_child({}, [] {
    const auto calls = [] { return calls_of("hipExtMallocWithFlags uncached"); };
    const weft::machine m = open_hip_machine();
    const weft::buffer<int> plain{m[0], 100};
    EXPECT_EQ(calls(), 0U);
    const weft::buffer<int> shared{m[0], 100, weft::for_running_kernels};
    EXPECT_EQ(calls(), 1U);
    EXPECT_EQ(weft::address_range(m[0], shared.data()).kind, weft::memory_kind::device);
    const weft::message_queue<std::uint64_t> queue{
        m, weft::device_id{0}, weft::device_id{1}, {.mode = weft::transfer_mode::direct, .for_kernels = true}};
    EXPECT_GT(calls(), 1U) << "the ring of a queue between two GPUs";
  });
}

TEST(hip_memory, memory_shared_by_running_kernels_is_fine_grained_in_releases_without_uncached_memory) {
  in_child({{"WEFT_VIRTUAL_HIP_UNCACHED", "0"}}, [] {
    const weft::machine m = open_hip_machine();
    const weft::buffer<int> shared{m[0], 100, weft::for_running_kernels};
    EXPECT_EQ(calls_of("hipExtMallocWithFlags fine-grained"), 1U);
  });
}

TEST(hip_memory, pinned_memory_is_coherent_with_running_kernels) {
  in_child({{"WEFT_VIRTUAL_CUDA_FAIL", "cuMemHostRegister@1=801"}}, [] {  // pages of the process are so by themselves
    const weft::machine m = open_hip_machine();
    const weft::pinned_buffer<int> mine{m[0], 100};
    EXPECT_EQ(calls_of("hipHostMalloc coherent"), 1U);
  });
}

TEST(hip_memory, memory_from_the_runtime_is_adopted) {
  in_child({}, [] {
    const weft::machine m = open_hip_machine();
    const auto library = ::dlopen(samples::virtual_hip_library().c_str(), RTLD_NOW | RTLD_NOLOAD);
    const auto allocate = reinterpret_cast<int (*)(void**, std::size_t)>(::dlsym(library, "hipMalloc"));
    void* theirs = nullptr;
    ASSERT_EQ(allocate(&theirs, 4096), 0);
    const weft::adopted_memory<std::uint8_t> mine{m[0], std::span{static_cast<std::uint8_t*>(theirs), 4096}};
    weft::fill(mine.span(), std::uint8_t{7});
  });
}

TEST(hip_devices, have_the_names_that_rocminfo_shows_or_those_of_their_places) {
  in_child({}, [] {
    const weft::machine m = open_hip_machine();
    EXPECT_TRUE(m[0].uuid().starts_with("GPU-")) << m[0].uuid();
    EXPECT_EQ(m[0].uuid().size(), 20U);
  });
  in_child({{"WEFT_VIRTUAL_HIP_UUIDS", "0"}}, [] {
    const weft::machine m = open_hip_machine();
    EXPECT_NE(m[0].uuid(), m[1].uuid());
  });
}

TEST(hip_events, are_looked_at_while_another_thread_waits_for_them) {
  in_child({}, [] {
    virtual_cuda::be_bounded();
    const weft::machine m = open_hip_machine();
    const weft::stream order{m[0]};
    const weft::pinned_buffer<std::uint32_t> word{m[0], 1};
    std::atomic_ref<std::uint32_t> mine{word.host()[0]};
    const weft::event reached = order.wait_value(word.data(), 1, weft::word_comparison::equal);
    std::jthread waiting{[&] { reached.wait(); }};
    for (int n = 0; n < 200; ++n) {
      EXPECT_FALSE(reached.ready());
      EXPECT_EQ(reached.wait_for(std::chrono::microseconds{100}), weft::wait_outcome::timed_out);
    }
    mine.store(1);
  });
}

TEST(hip_blocks, are_of_the_device_that_was_asked_whatever_device_the_thread_has) {
  in_child({}, [] {
    const weft::machine m = open_hip_machine();
    const weft::device_id second{1};
    weft::backend& driver = weft::detail::state_of(m[0])->backend_of(second);
    const weft::bytes size = weft::value_or_raise(driver.granularity(second)).minimum;
    virtual_cuda::library_path() = samples::virtual_hip_library();
    const auto used = virtual_cuda::find<unsigned long long(int)>("weft_virtual_used");
    const auto before = used(1);
    const weft::block_id block = weft::value_or_raise(driver.create_block(second, size, true));
    EXPECT_EQ(used(1), before + size.value()) << "the block is on another device";
    const int descriptor = weft::value_or_raise(driver.export_block(block));
    const auto taken = driver.import_block(second, descriptor);
    EXPECT_TRUE(taken) << taken.error().what;
    const auto anywhere = driver.import_block(std::nullopt, descriptor);
    ASSERT_FALSE(anywhere) << "HIP does not tell where a block was made";
    EXPECT_TRUE(says(anywhere.error().what, "say on which device")) << anywhere.error().what;
    ::close(descriptor);
  });
}

TEST(hip_blocks, are_taken_from_a_descriptor_in_the_form_that_the_release_takes) {
  for (const char* const form : {"address", "value"}) {
    in_child({{"WEFT_VIRTUAL_HIP_IMPORT", form}}, [form] {
      const weft::machine m = open_hip_machine();
      const weft::device_id id{0};
      weft::backend& driver = weft::detail::state_of(m[0])->backend_of(id);
      const weft::bytes size = weft::value_or_raise(driver.granularity(id)).minimum;
      const weft::block_id block = weft::value_or_raise(driver.create_block(id, size, true));
      const int descriptor = weft::value_or_raise(driver.export_block(block));
      for (const int again : {1, 2}) {
        const auto taken = driver.import_block(id, descriptor);
        ASSERT_TRUE(taken) << form << ", " << again << ": " << taken.error().what;
        EXPECT_EQ(weft::value_or_raise(driver.describe_block(*taken)).size, size);
        EXPECT_TRUE(driver.release_block(*taken));
      }
      EXPECT_FALSE(driver.import_block(id, STDERR_FILENO)) << "a descriptor of something else";
      ::close(descriptor);
      EXPECT_TRUE(driver.release_block(block));
    });
  }
}

// ---- faults ---------------------------------------------------------------------------------------------------------

void a_fault_loses_every_device(const environment& runtime) {
  in_child(runtime, [] {
    const weft::machine m = open_hip_machine();
    const weft::buffer<int> one{m[0], 1}, other{m[1], 1};
    weft::fill(one, 1);
    weft::fill(other, 1);
    m.synchronize();
    virtual_cuda::library_path() = samples::virtual_hip_library();
    virtual_cuda::find<void(int, int)>("weft_virtual_lose")(0, weft::gpu::CUDA_ERROR_ILLEGAL_ADDRESS);
    for (const weft::buffer<int>* memory : {&one, &other}) {
      EXPECT_THROW(
          {
            weft::fill(*memory, 2);
            m.synchronize();
          },
          weft::error_exception);
    }
    for (const weft::device& device : m.devices()) {
      try {
        device.reset();
        ADD_FAILURE() << "it was reset";
      } catch (const weft::error_exception& refused) {
        EXPECT_EQ(refused.code(), errc::device_lost);
        EXPECT_TRUE(says(refused.cause().what, "restart the process")) << refused.cause().what;
      }
    }
  });
}

TEST(hip_fault, loses_every_device_of_the_process_for_good) { a_fault_loses_every_device({}); }

TEST(hip_fault, is_known_where_the_runtime_calls_it_an_unknown_error) {
  a_fault_loses_every_device({{"WEFT_VIRTUAL_HIP_FAULTS", "unknown"}});
}

TEST(hip_fault, is_no_reset_that_the_library_itself_asks_for) {
  in_child({}, [] {
    const weft::machine m = open_hip_machine();
    m[0].reset();
    const weft::buffer<int> memory{m[0], 4};
    weft::fill(memory, 3);
    std::vector<int> read(4);
    weft::copy(read, memory);
    EXPECT_EQ(read, std::vector<int>(4, 3));
  });
}

TEST(hip_fault, ends_waits_for_values_at_once) {
  in_child({}, [] {
    virtual_cuda::be_bounded();
    weft::machine m = open_hip_machine();
    virtual_cuda::library_path() = samples::virtual_hip_library();
    const weft::stream order{m[0]};
    const weft::buffer<std::uint32_t> word{m[0], 1};
    weft::fill(order, word, 0U).wait();
    const weft::event never = order.wait_value(word.data(), 1, weft::word_comparison::equal);
    EXPECT_FALSE(never.ready());
    virtual_cuda::find<void(const char*)>("weft_virtual_fail")("cuEventQuery@1=700");
    while (!m[0].is_lost()) static_cast<void>(samples::error_of([&] { EXPECT_TRUE(never.ready()); }));
    // a bound for a hang: waits that may yet end are given ten seconds, and these are in a runtime that answers no more
    const auto before = std::chrono::steady_clock::now();
    m.close();
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds{10});
  });
}

// ---- the compiler ---------------------------------------------------------------------------------------------------

TEST(hip_compiler, refuses_an_architecture_that_would_end_the_process) {
  const amd::hiprtc of_six{amd::hiprtc_functions{}, "libhiprtc.so.6", 6000, 0};
  EXPECT_TRUE(of_six.knows(0x90a));
  EXPECT_TRUE(of_six.knows(0x942));
  EXPECT_FALSE(of_six.knows(0x950)) << "is of ROCm 7";
  EXPECT_FALSE(of_six.knows(0x9999));
  const amd::hiprtc of_five{amd::hiprtc_functions{}, "libamdhip64.so.5", 5020, 0};
  EXPECT_FALSE(of_five.knows(0x942));
  const amd::hiprtc beside_its_runtime{amd::hiprtc_functions{}, "libhiprtc.so.8", 8000, 8010};
  EXPECT_TRUE(beside_its_runtime.knows(0x1300)) << "a GPU that the runtime of its release shows";
  in_child({{"WEFT_VIRTUAL_HIP_ARCH", "gfx9999"}}, [] {
    weft::raw_kernel raw;
    raw.name = raw.entry = "nothing";
    raw.hip_source = "extern \"C\" __global__ void nothing(long long begin, long long end) {}";
    raw.dimensions = 1;
    const auto code = weft::make_kernel_code(raw);
    const auto compiler = amd::load_hiprtc(samples::virtual_hip_library(), 0);
    ASSERT_TRUE(compiler);
    const auto made = (*compiler)->compile(*code, 0x9999);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, errc::incompatible);
    EXPECT_TRUE(says(made.error().what, "gfx9999") && says(made.error().what, "would then end the process"))
        << made.error().what;
  });
}

// ---- sysfs ----------------------------------------------------------------------------------------------------------

class amd_sysfs : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(gpu_ + "/hwmon/hwmon3"); }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = gpu_ + "/" + name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream{file} << text;
  }
  const std::string root_ = testing::TempDir() + "weft_amd_sys_" + std::to_string(::getpid());
  const std::string gpu_ = root_ + "/bus/pci/devices/0000:03:00.0";
  const amd::amd_management management_{root_};
};

TEST_F(amd_sysfs, tells_how_a_gpu_is) {
  write("hwmon/hwmon3/temp1_input", "61000\n");
  write("hwmon/hwmon3/power1_average", "250500000\n");
  write("gpu_busy_percent", "75\n");
  write("ras/umc_err_count", "ue: 2\nce: 1000\n");
  write("ras/xgmi_wafl_err_count", "ue: 3\nce: 0\n");
  write("current_link_speed", "32.0 GT/s PCIe\n");
  write("current_link_width", "16\n");
  write("mem_info_vram_total", "68702699520\n");
  write("mem_info_vram_used", "702699520\n");
  const auto now = management_.health("0000:03:00.0");
  ASSERT_TRUE(now) << now.error().what;
  EXPECT_EQ(now->celsius, 61);
  EXPECT_EQ(now->watts, 250.5);
  EXPECT_EQ(now->busy, 0.75);
  EXPECT_EQ(now->memory_errors, 2U);
  EXPECT_EQ(now->link_errors, 3U);
  EXPECT_EQ(now->pcie_generation, 5);
  EXPECT_EQ(now->pcie_lanes, 16);
  EXPECT_EQ(management_.free_memory("0000:03:00.0"), 68000000000U);
}

TEST_F(amd_sysfs, leaves_empty_what_no_sensor_tells_and_refuses_a_gpu_that_is_not_there) {
  write("hwmon/hwmon3/power1_input", "5000000\n");
  const auto now = management_.health("0000:03:00.0");
  ASSERT_TRUE(now) << now.error().what;
  EXPECT_EQ(now->watts, 5) << "by its newer name";
  EXPECT_FALSE(now->celsius || now->busy || now->memory_errors || now->link_errors || now->pcie_generation ||
               now->pcie_lanes || now->held_down_by);
  EXPECT_EQ(management_.free_memory("0000:03:00.0"), std::nullopt);
  const auto none = management_.health("0000:99:00.0");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, errc::unsupported);
  EXPECT_TRUE(says(none.error().what, "0000:99:00.0")) << none.error().what;
  EXPECT_FALSE(management_.health(""));
}

}  // namespace hip_backend_test
