// SPDX-License-Identifier: Apache-2.0
// The text for CUDA against the real compiler, which needs no GPU. The few functions it takes are declared here.

#include "backend/kernels/kernel_text.hpp"
#include "portable_kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <dlfcn.h>
#include <iostream>

namespace nvrtc_test {

std::int32_t known_to_the_host_alone(std::int32_t number) { return number + 1; }

constexpr int line_before = __LINE__;
WEFT_KERNEL(calls_the_host, (WEFT_INOUT(int32_t) numbers), { numbers[i] = known_to_the_host_alone(numbers[i]); });
constexpr int line_behind = __LINE__;

// Receives, adds up and sends on, until the other end closes: all that a body may call.
WEFT_KERNEL(adds_and_sends_on, (WEFT_RING in, WEFT_RING out, WEFT_OUT(uint64_t, whole) sum, uint64_t polls), {
  struct tick {
    uint32_t number;
    float price;
    uint32_t rest[2];
  };
  struct tick message;
  uint64_t prices = 0;
  int came_to = weft_ring_receive(in, &message, polls);
  while (came_to == WEFT_RING_OK) {
    prices += (uint64_t)message.price;
    message.number += 1;
    came_to = weft_ring_send(out, &message, polls);
    if (came_to == WEFT_RING_OK) {
      came_to = weft_ring_receive(in, &message, polls);
    }
  }
  if (weft_ring_try_receive(in, &message) == WEFT_RING_CLOSED) {
    weft_ring_close_writer(out);
  } else if (weft_ring_try_send(out, &message) == WEFT_RING_CLOSED) {
    weft_ring_close_reader(in);
  }
  sum[i] = prices;
});

/// Of a text of PTX: ".version 8.3" is 803.
int version_of(const std::string& ptx) {
  int major = 0, minor = 0;
  const std::size_t at = ptx.find(".version ");
  if (at == std::string::npos || std::sscanf(ptx.c_str() + at, ".version %d.%d", &major, &minor) != 2) return 0;
  return 100 * major + minor;
}

struct compiled {
  int status = -1;
  std::string log;
  std::string ptx;
};

class nvrtc {
 public:
  nvrtc() {
    for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so.13",
                             "/usr/local/cuda/lib64/libnvrtc.so.12"}) {
      library_ = library_ == nullptr ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : library_;
    }
    if (library_ != nullptr) {
      load(create_, "nvrtcCreateProgram");
      load(compile_, "nvrtcCompileProgram");
      load(destroy_, "nvrtcDestroyProgram");
      load(log_size_, "nvrtcGetProgramLogSize");
      load(log_, "nvrtcGetProgramLog");
      load(ptx_size_, "nvrtcGetPTXSize");
      load(ptx_, "nvrtcGetPTX");
      load(architecture_count_, "nvrtcGetNumSupportedArchs");
      load(architectures_, "nvrtcGetSupportedArchs");
    }
  }

  [[nodiscard]] bool is_present() const { return library_ != nullptr; }

  /// Whether it compiles for compute capability major.minor, given as 10 times major + minor.
  [[nodiscard]] bool knows(int architecture) const {
    int count = 0;
    if (architecture_count_ == nullptr || architecture_count_(&count) != 0) {
      return false;
    }
    std::vector<int> known(static_cast<std::size_t>(count));
    architectures_(known.data());
    return std::find(known.begin(), known.end(), architecture) != known.end();
  }

  [[nodiscard]] compiled compile(const weft::kernel_code& code, int architecture = 90) const {
    compiled result;
    program made = nullptr;
    const std::string text = weft::kernel_text(code, weft::dialect::cuda);
    if (create_(&made, text.c_str(), (code.name + ".cu").c_str(), 0, nullptr, nullptr) != 0) {
      return result;
    }
    std::vector<std::string> options = weft::kernel_options(code, weft::dialect::cuda, 0);
    options.push_back("--gpu-architecture=compute_" + std::to_string(architecture));
    std::vector<const char*> pointers;
    for (const std::string& option : options) {
      pointers.push_back(option.c_str());
    }
    result.status = compile_(made, static_cast<int>(pointers.size()), pointers.data());
    result.log = text_of(made, log_size_, log_);
    if (result.status == 0) {
      result.ptx = text_of(made, ptx_size_, ptx_);
    }
    destroy_(&made);
    return result;
  }

 private:
  using program = struct program_tag*;
  using size_function = int (*)(program, std::size_t*);
  using text_function = int (*)(program, char*);

  template <class Function>
  void load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
  }

  static std::string text_of(program from, size_function size, text_function get) {
    std::size_t length = 0;
    size(from, &length);
    std::string text(length, '\0');
    get(from, text.data());
    return text;
  }

  void* library_ = nullptr;
  int (*create_)(program*, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
  int (*compile_)(program, int, const char* const*) = nullptr;
  int (*destroy_)(program*) = nullptr;
  size_function log_size_ = nullptr;
  text_function log_ = nullptr;
  size_function ptx_size_ = nullptr;
  text_function ptx_ = nullptr;
  int (*architecture_count_)(int*) = nullptr;
  int (*architectures_)(int*) = nullptr;
};

class nvrtc_text : public testing::Test {
 protected:
  void SetUp() override {
    if (!compiler_.is_present()) {
      GTEST_SKIP() << "libnvrtc.so.13 and libnvrtc.so.12 are not installed";
    }
  }
  nvrtc compiler_;
};

TEST_F(nvrtc_text, every_portable_kernel_compiles_without_a_word) {
  std::vector<portable::run> runs = portable::exact_runs();
  runs.push_back(portable::float_division_run());
  runs.push_back(portable::float_function_run());
  runs.push_back(portable::double_function_run());
  for (portable::run& one : portable::reduce_runs()) runs.push_back(std::move(one));
  runs.push_back(portable::float_adding_run(10));
  for (const portable::run& one : runs) {
    const compiled result = compiler_.compile(*one.code);
    EXPECT_EQ(result.status, 0) << result.log;
    EXPECT_LE(result.log.size(), 1U) << result.log;
    EXPECT_NE(result.ptx.find(".visible .entry " + weft::kernel_entry(*one.code)), std::string::npos);
  }
}

TEST_F(nvrtc_text, a_reduction_has_both_kernels_and_neither_atomics_nor_memory_of_a_block) {
  for (const portable::run& one : portable::reduce_runs()) {
    const compiled result = compiler_.compile(*one.code);
    ASSERT_EQ(result.status, 0) << result.log;
    for (const std::string& entry : {weft::kernel_entry(*one.code), weft::combine_entry(*one.code)})
      EXPECT_NE(result.ptx.find(".visible .entry " + entry + "("), std::string::npos) << entry;
    for (const char* const unwanted : {"atom.", "red.", ".shared"})
      EXPECT_EQ(result.ptx.find(unwanted), std::string::npos) << one.code->name << ": " << unwanted;
    EXPECT_NE(result.ptx.find("bar.sync"), std::string::npos) << one.code->name;
  }
}

TEST_F(nvrtc_text, a_multiply_and_an_add_stay_two_instructions) {
  const compiled result = compiler_.compile(*weft::make_kernel_code<portable::saxpy>());
  ASSERT_EQ(result.status, 0) << result.log;
  EXPECT_NE(result.ptx.find("mul.rn.f32"), std::string::npos) << result.ptx;
  EXPECT_EQ(result.ptx.find("fma.rn.f32"), std::string::npos) << result.ptx;
}

TEST_F(nvrtc_text, a_kernel_with_rings_compiles_without_a_word_and_orders_by_the_whole_system) {
  const auto code = weft::make_kernel_code<adds_and_sends_on>();
  std::string without;
  for (const int architecture : {75, 90, 100}) {
    if (!compiler_.knows(architecture)) {
      without += " compute_" + std::to_string(architecture);
      continue;
    }
    const compiled result = compiler_.compile(*code, architecture);
    ASSERT_EQ(result.status, 0) << result.log;
    EXPECT_LE(result.log.size(), 1U) << result.log;
    EXPECT_NE(result.ptx.find(".target sm_" + std::to_string(architecture)), std::string::npos);
    // stamps of slots, words of packed lines, credits and fin; the stop word is 32 bits
    for (const char* needed :
         {"ld.acquire.sys.u32", "ld.acquire.sys.u64", "st.release.sys.u32", "st.release.sys.u64"}) {
      EXPECT_NE(result.ptx.find(needed), std::string::npos) << needed << " for compute_" << architecture;
    }
    // a piece of a message and its stamp are one access, and only one of a message waits
    if (version_of(result.ptx) >= 803) {
      for (const char* needed :
           {"ld.acquire.sys.b128", "ld.relaxed.sys.b128", "st.release.sys.b128", "st.relaxed.sys.b128"})
        EXPECT_NE(result.ptx.find(needed), std::string::npos) << needed << " for compute_" << architecture;
    }
    for (std::size_t at = result.ptx.find("call.uni"); at != std::string::npos;
         at = result.ptx.find("call.uni", at + 1))
      EXPECT_NE(result.ptx.substr(at, result.ptx.find(';', at) - at).find("weft_ring_fetch"), std::string::npos)
          << "all else is inlined";
  }
  std::cout << (without.empty() ? "" : "this NVRTC does not offer" + without + "\n");
}

TEST_F(nvrtc_text, an_error_in_the_body_names_the_file_and_line_of_the_kernel) {
  const auto code = weft::make_kernel_code<calls_the_host>();
  EXPECT_GT(code->line, line_before);  // g++ takes the first line of the definition, clang the last
  EXPECT_LT(code->line, line_behind);
  const compiled result = compiler_.compile(*code);
  EXPECT_NE(result.status, 0);
  EXPECT_NE(result.log.find(code->file + "(" + std::to_string(code->line) + "): error"), std::string::npos)
      << result.log;
  EXPECT_NE(result.log.find("known_to_the_host_alone"), std::string::npos) << result.log;
}

}  // namespace nvrtc_test
