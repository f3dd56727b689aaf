// SPDX-License-Identifier: Apache-2.0
// The text for CUDA against the real compiler, which needs no GPU. The few functions it takes are declared here.

#include "portable_kernels.hpp"
#include "weft/backend/kernel_text.hpp"

#include <gtest/gtest.h>

#include <dlfcn.h>

namespace {

std::int32_t known_to_the_host_alone(std::int32_t number) { return number + 1; }

constexpr int line_before = __LINE__;
WEFT_KERNEL(calls_the_host, (WEFT_INOUT(int32_t) numbers), { numbers[i] = known_to_the_host_alone(numbers[i]); });
constexpr int line_behind = __LINE__;

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
    }
  }

  [[nodiscard]] bool is_present() const { return library_ != nullptr; }

  [[nodiscard]] compiled compile(const weft::kernel_code& code) const {
    compiled result;
    program made = nullptr;
    const std::string text = weft::kernel_text(code, weft::dialect::cuda);
    if (create_(&made, text.c_str(), (code.name + ".cu").c_str(), 0, nullptr, nullptr) != 0) {
      return result;
    }
    std::vector<std::string> options = weft::kernel_options(weft::dialect::cuda);
    options.emplace_back("--gpu-architecture=compute_90");
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
  for (const portable::run& one : runs) {
    const compiled result = compiler_.compile(*one.code);
    EXPECT_EQ(result.status, 0) << result.log;
    EXPECT_LE(result.log.size(), 1U) << result.log;
    EXPECT_NE(result.ptx.find(".visible .entry " + weft::kernel_entry(*one.code)), std::string::npos);
  }
}

TEST_F(nvrtc_text, a_multiply_and_an_add_stay_two_instructions) {
  const compiled result = compiler_.compile(*weft::make_kernel_code<portable::saxpy>());
  ASSERT_EQ(result.status, 0) << result.log;
  EXPECT_NE(result.ptx.find("mul.rn.f32"), std::string::npos) << result.ptx;
  EXPECT_EQ(result.ptx.find("fma.rn.f32"), std::string::npos) << result.ptx;
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

}  // namespace
