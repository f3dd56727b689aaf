// SPDX-License-Identifier: Apache-2.0
// The blur as an OpenCL device runs it (PoCL needs no GPU), against the same reference as everywhere.
#if defined(WEFT_OPENCL_TESTS)

#include "backend/kernels/kernel_text.hpp"
#include "image_pipeline/gaussian.hpp"
#include "image_pipeline/sample_images.hpp"
#include "support/paths.hpp"
#include "weft/backend/kernel_code.hpp"

#include <gtest/gtest.h>

#include <CL/cl.h>

#include <cstdlib>
#include <string>

// PoCL keeps what it allocates when it is loaded; that is not a leak of ours.
extern "C" const char* __lsan_default_suppressions() { return "leak:libpocl\nleak:libOpenCL\n"; }

namespace gaussian_opencl_test {

using namespace weft::images;

TEST(gaussian, an_opencl_device_blurs_as_the_reference_does) {
  ::setenv("POCL_CACHE_DIR", (samples::build_folder() + "/pocl_cache").c_str(), 0);
  cl_platform_id platform = nullptr;
  cl_device_id device = nullptr;
  if (clGetPlatformIDs(1, &platform, nullptr) != CL_SUCCESS ||
      clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, nullptr) != CL_SUCCESS) {
    GTEST_SKIP() << "no OpenCL platform has a device";
  }
  cl_int status = 0;
  cl_context context = clCreateContext(nullptr, 1, &device, nullptr, nullptr, &status);
  cl_command_queue queue = clCreateCommandQueueWithProperties(context, device, nullptr, &status);
  const auto code = weft::make_kernel_code<gaussian_blur>();
  const std::string text = weft::kernel_text(*code, weft::dialect::opencl);
  const char* source = text.c_str();
  std::string options;
  for (const auto& option : weft::kernel_options(weft::dialect::opencl)) options += option + " ";
  cl_program program = clCreateProgramWithSource(context, 1, &source, nullptr, &status);
  ASSERT_EQ(clBuildProgram(program, 1, &device, options.c_str(), nullptr, nullptr), CL_SUCCESS) << text;
  cl_kernel kernel = clCreateKernel(program, weft::kernel_entry(*code).c_str(), &status);
  ASSERT_EQ(status, CL_SUCCESS);

  auto weights = blur_weights();
  for (const named_image& sample : sample_images()) {
    const image& original = sample.picture;
    image blurred = original;
    const auto memory = [&](void* data, std::size_t size) {
      return clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, size, data, &status);
    };
    const std::array<cl_mem, 3> buffers{memory(blurred.pixels.data(), blurred.pixels.size()),
                                        memory(blurred.pixels.data(), blurred.pixels.size()),
                                        memory(weights.data(), sizeof weights)};
    cl_uint position = 0;
    for (const cl_mem& buffer : buffers) {
      ASSERT_EQ(clSetKernelArg(kernel, position++, sizeof(cl_mem), static_cast<const void*>(&buffer)), CL_SUCCESS);
    }
    for (const std::int64_t number :
         {std::int64_t{original.width}, std::int64_t{original.height}, std::int64_t{original.channels}, std::int64_t{0},
          std::int64_t{original.width}, std::int64_t{0}, std::int64_t{original.height}}) {
      ASSERT_EQ(clSetKernelArg(kernel, position++, sizeof number, &number), CL_SUCCESS);
    }
    const std::array<std::size_t, 2> items{static_cast<std::size_t>(original.width),
                                           static_cast<std::size_t>(original.height)};
    ASSERT_EQ(clEnqueueNDRangeKernel(queue, kernel, 2, nullptr, items.data(), nullptr, 0, nullptr, nullptr),
              CL_SUCCESS);
    ASSERT_EQ(clEnqueueReadBuffer(queue, buffers[1], CL_TRUE, 0, blurred.pixels.size(), blurred.pixels.data(), 0,
                                  nullptr, nullptr),
              CL_SUCCESS);
    EXPECT_EQ(count_wrong_pixels(original, blurred), 0U) << sample.name;
    for (const cl_mem& buffer : buffers) clReleaseMemObject(buffer);
  }
  clReleaseKernel(kernel);
  clReleaseProgram(program);
  clReleaseCommandQueue(queue);
  clReleaseContext(context);
}

}  // namespace gaussian_opencl_test

#endif
