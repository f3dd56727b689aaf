// SPDX-License-Identifier: Apache-2.0
// What the loader of the CUDA driver says of libraries and tables that cannot be used, and what its errors are to weft.
#include "backends/gpu/cuda/cuda.hpp"
#include "backends/gpu/driver/error.hpp"
#include "support/scripted_gpu.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <tuple>

namespace gpu_driver_test {

using namespace weft::gpu;
using weft::errc;
using weft::test::scripted_gpu;
using weft::test::scripted_table;

/// Why a driver cannot be used; the test fails when it can.
template <class Result>
std::string reason(const Result& opened) {
  if (opened) {
    ADD_FAILURE() << "it was opened";
    return {};
  }
  EXPECT_EQ(opened.error().code, errc::unsupported);
  return opened.error().what;
}

bool says(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

/// CUDA_VISIBLE_DEVICES while it lives.
class visible {
 public:
  explicit visible(const char* value) {
    if (const char* had = std::getenv("CUDA_VISIBLE_DEVICES"); had != nullptr) before_ = had;
    if (value == nullptr) {
      ::unsetenv("CUDA_VISIBLE_DEVICES");
    } else {
      ::setenv("CUDA_VISIBLE_DEVICES", value, 1);
    }
  }
  visible(const visible&) = delete;
  visible& operator=(const visible&) = delete;
  ~visible() {
    if (before_.empty()) {
      ::unsetenv("CUDA_VISIBLE_DEVICES");
    } else {
      ::setenv("CUDA_VISIBLE_DEVICES", before_.c_str(), 1);
    }
  }

 private:
  std::string before_;
};

TEST(gpu_driver, a_missing_driver_is_absent_with_the_reason_and_a_remedy) {
  const std::string why = reason(load_cuda("/nowhere/libcuda.so.1"));
  EXPECT_TRUE(says(why, "/nowhere/libcuda.so.1")) << why;
  EXPECT_TRUE(says(why, "install") && says(why, "WEFT_CUDA_DRIVER")) << why;
}

TEST(gpu_driver, a_library_that_is_none_is_said_to_be_none) {
  const std::string why = reason(load_cuda("libm.so.6"));
  EXPECT_TRUE(says(why, "cuGetProcAddress")) << why;
}

TEST(gpu_driver, the_toolkits_stub_is_told_from_a_driver) {
  const char* const stub = "/usr/local/cuda/lib64/stubs/libcuda.so";
  if (!std::filesystem::exists(stub)) GTEST_SKIP() << "there is no " << stub;
  const std::string why = reason(load_cuda(stub));
  EXPECT_TRUE(says(why, "stub") && says(why, "LD_LIBRARY_PATH")) << why;
}

TEST(gpu_driver, a_table_that_answers_starts) {
  const auto started = start_driver(scripted_table(2), "a table", cuda());
  ASSERT_TRUE(started) << started.error().what;
  EXPECT_EQ((*started)->version, 13000);
  EXPECT_EQ((*started)->library, "a table");
  EXPECT_EQ(scripted_gpu::get().count("cuDevicePrimaryCtxRetain"), 0) << "starting touches no GPU";
}

TEST(gpu_driver, one_that_is_too_old_is_refused_before_it_is_started) {
  auto table = scripted_table();
  scripted_gpu::get().version = 11080;
  table.cuMemAlloc = nullptr;  // what it lacks is not worth a word
  const std::string why = reason(start_driver(table, "libcuda.so.1", cuda()));
  EXPECT_TRUE(says(why, "11.8") && says(why, "12.0") && says(why, "update")) << why;
  EXPECT_EQ(scripted_gpu::get().count("cuInit"), 0);
}

TEST(gpu_driver, the_oldest_that_serves_is_taken) {
  const auto table = scripted_table();
  scripted_gpu::get().version = oldest_cuda;
  EXPECT_TRUE(start_driver(table, "a table", cuda()));
}

TEST(gpu_driver, a_function_that_is_missing_is_named) {
  auto table = scripted_table();
  table.cuMemcpyPeerAsync = nullptr;
  const std::string why = reason(start_driver(table, "libcuda.so.1", cuda()));
  EXPECT_TRUE(says(why, "cuMemcpyPeerAsync")) << why;
  auto without = scripted_table();
  without.cuMulticastCreate = nullptr;
  EXPECT_TRUE(start_driver(without, "a table", cuda())) << "what is optional may be missing";
  auto no_start = scripted_table();
  no_start.cuInit = nullptr;
  EXPECT_TRUE(says(reason(start_driver(no_start, "x", cuda())), "cuInit"));
}

TEST(gpu_driver, what_it_refuses_at_the_start_is_said_with_what_to_do) {
  const visible all{nullptr};
  for (const auto& [code, words] :
       {std::pair{CUDA_ERROR_STUB_LIBRARY, "stub"}, std::pair{CUDA_ERROR_NO_DEVICE, "no GPU"},
        std::pair{CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "reboot"},
        std::pair{CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "cuda-compat"},
        std::pair{CUDA_ERROR_SYSTEM_NOT_READY, "fabric manager"},
        std::pair{CUDA_ERROR_UNKNOWN, "in the driver's own words"}}) {
    const auto table = scripted_table();
    scripted_gpu::get().fails["cuInit"] = code;
    const auto opened = start_driver(table, "libcuda.so.1", cuda());
    EXPECT_TRUE(says(reason(opened), words)) << code << ": " << opened.error().what;
    EXPECT_EQ(opened.error().native_code, code);
  }
}

TEST(gpu_driver, a_variable_that_hides_every_gpu_is_named) {
  const visible none{"-1"};
  const auto table = scripted_table();
  scripted_gpu::get().fails["cuInit"] = CUDA_ERROR_NO_DEVICE;
  const std::string why = reason(start_driver(table, "libcuda.so.1", cuda()));
  EXPECT_TRUE(says(why, "CUDA_VISIBLE_DEVICES") && says(why, "\"-1\"")) << why;
}

TEST(gpu_driver, one_that_counts_no_device_is_absent) {
  EXPECT_TRUE(says(reason(start_driver(scripted_table(0), "libcuda.so.1", cuda())), "GPU"));
}

TEST(gpu_error, has_the_drivers_words_number_and_what_is_lost) {
  const auto cu = *start_driver(scripted_table(), "a table", cuda());
  const weft::error cause = cu_error(*cu, CUDA_ERROR_OUT_OF_MEMORY, "4 KiB on gpu0");
  EXPECT_EQ(cause.code, errc::out_of_memory);
  EXPECT_EQ(cause.native_code, 2);
  EXPECT_EQ(cause.scope, weft::error_scope::call);
  EXPECT_EQ(cause.what, "4 KiB on gpu0: SCRIPTED_2 (2): in the driver's own words");
}

TEST(gpu_error, a_sticky_error_concerns_its_device_and_any_other_its_call_alone) {
  const auto cu = *start_driver(scripted_table(), "a table", cuda());
  for (const int code : {214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719}) {
    EXPECT_TRUE(is_sticky(*cu, code)) << code;
    EXPECT_EQ(cu_error(*cu, code, "x").scope, weft::error_scope::device) << code;
  }
  for (const int code :
       {0, 1, 2, 3, 101, 201, 205, 208, 217, 400, 401, 500, 600, 704, 705, 711, 712, 800, 801, 802, 999}) {
    EXPECT_FALSE(is_sticky(*cu, code)) << code;
    EXPECT_EQ(cu_error(*cu, code, "x").scope, weft::error_scope::call) << code;
  }
}

TEST(gpu_error, an_error_of_the_driver_is_one_of_wefts) {
  for (const auto& [native, code] :
       {std::pair{2, errc::out_of_memory}, std::pair{209, errc::incompatible}, std::pair{217, errc::peer_unsupported},
        std::pair{600, errc::not_ready}, std::pair{700, errc::illegal_access}, std::pair{704, errc::already_enabled},
        std::pair{705, errc::not_enabled}, std::pair{709, errc::device_lost}, std::pair{711, errc::too_many_peers},
        std::pair{719, errc::kernel_failed}, std::pair{801, errc::unsupported}, std::pair{214, errc::device_lost}}) {
    EXPECT_EQ(errc_of(native, errc::io_failed), code) << native;
  }
  EXPECT_EQ(errc_of(CUDA_ERROR_INVALID_VALUE, errc::copy_failed), errc::copy_failed) << "as whoever asks knows better";
}

TEST(gpu_error, an_error_of_a_driver_without_words_still_has_its_number) {
  driver cu;
  cu.by = &cuda();
  EXPECT_EQ(name_of(cu, 719), "CUDA error (719)");
}

}  // namespace gpu_driver_test
