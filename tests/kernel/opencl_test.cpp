// SPDX-License-Identifier: Apache-2.0
// The text for OpenCL C, compiled and run on whatever OpenCL device there is (PoCL needs no GPU), against the host.

#include "backend/kernels/kernel_text.hpp"
#include "backend/kernels/reduction_grid.hpp"
#include "function_error.hpp"
#include "portable_kernels.hpp"
#include "support/paths.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <dlfcn.h>

#if __has_include(<CL/cl.h>)
#undef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 120  // what PoCL's text may assume, and the calls that go with it
#include <CL/cl.h>

#include <algorithm>
#include <array>

// PoCL keeps what it allocates when it is loaded; that is not a leak of ours.
extern "C" const char* __lsan_default_suppressions() { return "leak:libpocl\nleak:libOpenCL\n"; }

namespace {

std::int32_t known_to_the_host_alone(std::int32_t number) { return number + 1; }

WEFT_KERNEL(calls_the_host, (WEFT_INOUT(int32_t) numbers), { numbers[i] = known_to_the_host_alone(numbers[i]); });

class opencl {
 public:
  opencl() {
    // PoCL would else fill the cache of the user who runs the tests.
    setenv("POCL_CACHE_DIR", (samples::build_folder() + "/pocl_cache").c_str(), 0);
    library_ = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) {
      why_absent_ = "libOpenCL.so.1 is not installed";
      return;
    }
    cl_platform_id platform = nullptr;
    cl_uint count = 0;
    if (call<decltype(clGetPlatformIDs)>("clGetPlatformIDs")(1, &platform, &count) != CL_SUCCESS || count == 0 ||
        call<decltype(clGetDeviceIDs)>("clGetDeviceIDs")(platform, CL_DEVICE_TYPE_ALL, 1, &device_, &count) !=
            CL_SUCCESS ||
        count == 0) {
      why_absent_ = "no OpenCL platform has a device";
      return;
    }
    cl_int status = 0;
    context_ = call<decltype(clCreateContext)>("clCreateContext")(nullptr, 1, &device_, nullptr, nullptr, &status);
    queue_ = call<decltype(clCreateCommandQueue)>("clCreateCommandQueue")(context_, device_, 0, &status);
    if (status != CL_SUCCESS) {
      why_absent_ = "the OpenCL device gives no queue";
    }
  }
  opencl(const opencl&) = delete;
  opencl& operator=(const opencl&) = delete;
  ~opencl() {
    if (queue_ != nullptr) {
      call<decltype(clReleaseCommandQueue)>("clReleaseCommandQueue")(queue_);
    }
    if (context_ != nullptr) {
      call<decltype(clReleaseContext)>("clReleaseContext")(context_);
    }
  }

  [[nodiscard]] const std::string& why_absent() const { return why_absent_; }

  [[nodiscard]] bool has(cl_device_info which, cl_device_fp_config property) const {
    cl_device_fp_config config = 0;
    call<decltype(clGetDeviceInfo)>("clGetDeviceInfo")(device_, which, sizeof config, &config, nullptr);
    return (config & property) != 0;
  }
  [[nodiscard]] bool has_double() const { return has(CL_DEVICE_DOUBLE_FP_CONFIG, CL_FP_FMA); }
  [[nodiscard]] bool rounds_division() const {
    return has(CL_DEVICE_SINGLE_FP_CONFIG, CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT);
  }

  void release(cl_program made) const { call<decltype(clReleaseProgram)>("clReleaseProgram")(made); }

  // An empty answer is success; else it is the build log. The program is to be released either way.
  [[nodiscard]] std::string build(const weft::kernel_code& code, cl_program& made) const {
    const std::string text = weft::kernel_text(code, weft::dialect::opencl);
    const char* source = text.c_str();
    cl_int status = 0;
    made =
        call<decltype(clCreateProgramWithSource)>("clCreateProgramWithSource")(context_, 1, &source, nullptr, &status);
    std::string options;
    for (const std::string& option : weft::kernel_options(weft::dialect::opencl)) {
      options += option + " ";
    }
    if (rounds_division()) {
      options += weft::opencl_correctly_rounded_option;
    }
    status = call<decltype(clBuildProgram)>("clBuildProgram")(made, 1, &device_, options.c_str(), nullptr, nullptr);
    if (status == CL_SUCCESS) {
      return "";
    }
    std::string log(1 << 16, '\0');
    std::size_t length = 0;
    call<decltype(clGetProgramBuildInfo)>("clGetProgramBuildInfo")(made, device_, CL_PROGRAM_BUILD_LOG, log.size(),
                                                                   log.data(), &length);
    log.resize(length);
    return "build failed with " + std::to_string(status) + ": " + log;
  }

  // Runs over a grid rounded up past the range, so that the guard has something to do; a reduction over `grid`. Null
  // after a failure.
  [[nodiscard]] std::optional<std::vector<portable::value>> run(portable::run one, std::string& log,
                                                                weft::reduction_grid grid = {}) const {
    cl_program made = nullptr;
    log = build(*one.code, made);
    if (!log.empty()) {
      release(made);
      return std::nullopt;
    }
    cl_int status = 0;
    const cl_kernel kernel =
        call<decltype(clCreateKernel)>("clCreateKernel")(made, weft::kernel_entry(*one.code).c_str(), &status);
    bool is_good = status == CL_SUCCESS;
    std::vector<cl_mem> buffers(one.values.size(), nullptr);
    cl_uint position = 0;
    const auto set = call<decltype(clSetKernelArg)>("clSetKernelArg");
    for (std::size_t n = 0; n < one.values.size(); ++n) {
      portable::value& value = one.values[n];
      if (value.direction == weft::parameter_direction::scalar) {
        is_good = is_good && set(kernel, position++, value.bytes.size(), value.bytes.data()) == CL_SUCCESS;
      } else {
        buffers[n] = call<decltype(clCreateBuffer)>("clCreateBuffer")(
            context_, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, value.bytes.size(), value.bytes.data(), &status);
        is_good = is_good && status == CL_SUCCESS &&
                  set(kernel, position++, sizeof(cl_mem), static_cast<const void*>(&buffers[n])) == CL_SUCCESS;
      }
    }
    const auto dimensions = static_cast<std::size_t>(one.code->dimensions);
    std::array<std::size_t, 3> items{};
    for (std::size_t d = 0; d < dimensions; ++d) {
      is_good = is_good && set(kernel, position++, sizeof(std::int64_t), &one.range.begin[d]) == CL_SUCCESS &&
                set(kernel, position++, sizeof(std::int64_t), &one.range.end[d]) == CL_SUCCESS;
      items[d] = (static_cast<std::size_t>(one.range.end[d] - one.range.begin[d]) + 7) / 8 * 8;
    }
    if (weft::has_reduction(*one.code)) {
      is_good = is_good && reduce(made, kernel, position, one, buffers, grid);
    } else {
      is_good = is_good && call<decltype(clEnqueueNDRangeKernel)>("clEnqueueNDRangeKernel")(
                               queue_, kernel, static_cast<cl_uint>(dimensions), nullptr, items.data(), nullptr, 0,
                               nullptr, nullptr) == CL_SUCCESS;
    }
    for (std::size_t n = 0; n < buffers.size(); ++n) {
      if (buffers[n] != nullptr) {
        std::vector<std::byte>& bytes = one.values[n].bytes;
        is_good = is_good &&
                  call<decltype(clEnqueueReadBuffer)>("clEnqueueReadBuffer")(
                      queue_, buffers[n], CL_TRUE, 0, bytes.size(), bytes.data(), 0, nullptr, nullptr) == CL_SUCCESS;
        call<decltype(clReleaseMemObject)>("clReleaseMemObject")(buffers[n]);
      }
    }
    call<decltype(clReleaseKernel)>("clReleaseKernel")(kernel);
    release(made);
    if (!is_good) {
      log = "an OpenCL call failed";
      return std::nullopt;
    }
    return one.values;
  }

 private:
  // The two kernels of a reduction. Its own scratch is freed when they have ended.
  [[nodiscard]] bool reduce(cl_program made, cl_kernel kernel, cl_uint position, const portable::run& one,
                            const std::vector<cl_mem>& buffers, const weft::reduction_grid& grid) const {
    const auto set = call<decltype(clSetKernelArg)>("clSetKernelArg");
    cl_int status = 0;
    const cl_kernel second =
        call<decltype(clCreateKernel)>("clCreateKernel")(made, weft::combine_entry(*one.code).c_str(), &status);
    if (status != CL_SUCCESS) return false;
    std::vector<std::byte> garbage(grid.scratch, std::byte{0xdb});  // nothing may count on what is there
    cl_mem scratch = call<decltype(clCreateBuffer)>("clCreateBuffer")(
        context_, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, garbage.size(), garbage.data(), &status);
    bool is_good = status == CL_SUCCESS;
    cl_uint behind = 0;
    const auto add = [&](cl_kernel to, cl_uint& at, std::int64_t value) {
      is_good = is_good && set(to, at++, sizeof value, &value) == CL_SUCCESS;
    };
    const auto add_memory = [&](cl_kernel to, cl_uint& at, const cl_mem& memory) {
      is_good = is_good && set(to, at++, sizeof(cl_mem), static_cast<const void*>(&memory)) == CL_SUCCESS;
    };
    add_memory(kernel, position, scratch);
    add_memory(second, behind, scratch);
    add(second, behind, grid.groups);
    add(second, behind, grid.group);
    for (std::size_t n = 0; n < one.values.size(); ++n) {
      if (one.code->parameters[n].access.kind != weft::access_kind::reduce) continue;
      const auto count = static_cast<std::int64_t>(one.values[n].bytes.size() / weft::size_of(one.values[n].type));
      add(kernel, position, count);
      add_memory(second, behind, buffers[n]);
      add(second, behind, 0);
      add(second, behind, count);
    }
    add(kernel, position, grid.step);
    const auto start = [&](cl_kernel which, std::int64_t all, std::int64_t group) {
      const auto items = static_cast<std::size_t>(all);
      const auto side = static_cast<std::size_t>(group);
      is_good = is_good && call<decltype(clEnqueueNDRangeKernel)>("clEnqueueNDRangeKernel")(
                               queue_, which, 1, nullptr, &items, &side, 0, nullptr, nullptr) == CL_SUCCESS;
    };
    start(kernel, grid.lanes(), grid.group);
    start(second, (grid.elements + 3) / 4 * 4, 4);
    is_good = call<decltype(clFinish)>("clFinish")(queue_) == CL_SUCCESS && is_good;
    call<decltype(clReleaseMemObject)>("clReleaseMemObject")(scratch);
    call<decltype(clReleaseKernel)>("clReleaseKernel")(second);
    return is_good;
  }

  template <class Function>
  [[nodiscard]] Function* call(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }

  void* library_ = nullptr;
  std::string why_absent_;
  cl_device_id device_ = nullptr;
  cl_context context_ = nullptr;
  cl_command_queue queue_ = nullptr;
};

class opencl_text : public testing::Test {
 protected:
  static void SetUpTestSuite() { device_ = new opencl; }
  static void TearDownTestSuite() {
    delete device_;
    device_ = nullptr;
  }
  void SetUp() override {
    if (!device_->why_absent().empty()) {
      GTEST_SKIP() << device_->why_absent();
    }
  }

  static void expect_the_bits_of_the_host(const portable::run& one, const weft::reduction_grid& grid = {}) {
    const std::vector<portable::value> expected = portable::on_host(one);
    std::string log;
    const auto got = device_->run(one, log, grid);
    ASSERT_TRUE(got) << one.code->name << ": " << log;
    for (std::size_t n = 0; n < expected.size(); ++n) {
      EXPECT_EQ((*got)[n].bytes, expected[n].bytes) << one.code->name << ", '" << one.code->parameters[n].name << "', "
                                                    << grid.groups << " groups of " << grid.group;
    }
  }

  static weft::reduction_grid grid_of(const portable::run& one, const weft::reduction_device& device) {
    portable::run copy = one;
    return weft::reduction_grid_for(*one.code, one.range, portable::arguments_of(copy), device);
  }

  static inline opencl* device_ = nullptr;
};

TEST_F(opencl_text, integers_products_and_sums_have_the_bits_of_the_host) {
  // those of collectives are tried through the backend, which compiles the same text: opencl_kernel_of_each_memory
  for (const portable::run& one : portable::exact_runs(false)) {
    const bool needs_double = std::any_of(one.values.begin(), one.values.end(), [](const portable::value& v) {
      return v.type == weft::element_type::float64;
    });
    if (!needs_double || device_->has_double()) {
      expect_the_bits_of_the_host(one);
    }
  }
}

TEST_F(opencl_text, float_quotients_and_square_roots_have_the_bits_of_the_host) {
  if (!device_->rounds_division()) {
    GTEST_SKIP() << "the device does not round float division correctly";
  }
  expect_the_bits_of_the_host(portable::float_division_run());
}

/// As a processor of so many units is given it, and as a GPU is, with groups that are no power of two.
std::vector<weft::reduction_device> reduction_devices() {
  return {{1, true, 1}, {4, true, 64}, {2, false, 64}, {3, false, 13}, {64, false, 256}};
}

TEST_F(opencl_text, a_reduction_of_any_grid_gives_what_the_host_does) {
  if (!device_->has_double()) {
    GTEST_SKIP() << "the device has no double";
  }
  for (const portable::run& one : portable::reduce_runs()) {
    for (const weft::reduction_device& device : reduction_devices())
      expect_the_bits_of_the_host(one, grid_of(one, device));
  }
}

TEST_F(opencl_text, a_reduction_of_a_range_that_starts_later_takes_only_that) {
  portable::run one = portable::adding_run(1000);
  one.range.begin[0] = 37;
  one.range.end[0] = 905;
  for (const weft::reduction_device& device : reduction_devices())
    expect_the_bits_of_the_host(one, grid_of(one, device));
}

TEST_F(opencl_text, a_float_reduction_gives_the_same_bits_every_time_and_is_near_the_exact_sum) {
  const portable::run one = portable::float_adding_run(200'003);
  double exact = static_cast<double>(one.values[1].as<float>()[0]);
  for (const float value : one.values[0].as<float>()) exact += static_cast<double>(value);
  for (const weft::reduction_device& device : reduction_devices()) {
    const weft::reduction_grid grid = grid_of(one, device);
    std::optional<float> first;
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::string log;
      const auto got = device_->run(one, log, grid);
      ASSERT_TRUE(got) << log;
      const float sum = (*got)[1].as<float>()[0];
      if (!first) first = sum;
      ASSERT_EQ(sum, *first) << "run " << repeat;
    }
    // a rounding for each item of a lane, and for each step that joins two results
    const double steps = static_cast<double>(200'003 / grid.lanes() + grid.groups + 10);
    EXPECT_NEAR(static_cast<double>(*first), exact, exact * steps * 6e-8) << grid.lanes() << " lanes";
  }
}

TEST_F(opencl_text, a_range_that_starts_later_leaves_the_elements_before_it) {
  portable::run one = portable::saxpy_run(100);
  one.range.begin[0] = 37;
  one.range.end[0] = 91;
  expect_the_bits_of_the_host(one);
}

TEST_F(opencl_text, float_functions_keep_the_errors_that_the_documentation_states) {
  std::string log;
  const auto got = device_->run(portable::float_function_run(), log);
  ASSERT_TRUE(got) << log;
  const auto errors = portable::errors_of<float, double>(*got);
  for (std::size_t f = 0; f < portable::function_count; ++f) {
    EXPECT_LE(errors[f], portable::functions[f].opencl_float) << portable::functions[f].name;
  }
}

TEST_F(opencl_text, double_functions_keep_the_errors_that_the_documentation_states) {
  if (!device_->has_double()) {
    GTEST_SKIP() << "the device has no double";
  }
  std::string log;
  const auto got = device_->run(portable::double_function_run(), log);
  ASSERT_TRUE(got) << log;
  const auto errors = portable::errors_of<double, long double>(*got);
  for (std::size_t f = 0; f < portable::function_count; ++f) {
    EXPECT_LE(errors[f], portable::functions[f].opencl_double + 0.01) << portable::functions[f].name;
  }
}

TEST_F(opencl_text, an_error_in_the_body_names_the_file_and_line_of_the_kernel) {
  const auto code = weft::make_kernel_code<calls_the_host>();
  cl_program made = nullptr;
  const std::string log = device_->build(*code, made);
  device_->release(made);
  EXPECT_NE(log.find(code->file + ":" + std::to_string(code->line) + ":"), std::string::npos) << log;
  EXPECT_NE(log.find("known_to_the_host_alone"), std::string::npos) << log;
}

}  // namespace

#else

TEST(opencl_text, compiles_and_runs) { GTEST_SKIP() << "built without the OpenCL headers"; }

#endif
