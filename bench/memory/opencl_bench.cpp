// SPDX-License-Identifier: Apache-2.0
// copy/opencl/…: 64 MiB between two devices of one OpenCL context, as weft copies them and staged through the host,
// against clEnqueueCopyBuffer. reduce/opencl/…: a kernel with a reduce() parameter against the same loop in one work
// item. With POCL_DEVICES="pthread pthread": processors, not a GPU figure.

#if __has_include(<CL/cl.h>)

#include "backends/opencl/driver/api.hpp"
#include "backends/opencl/factory.hpp"
#include "paired.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"
#include "weft/runtime/machine.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr std::size_t size = std::size_t{64} << 20;

WEFT_KERNEL(adds_up, (WEFT_IN(int32_t) values, WEFT_INOUT(int64_t, reduce(sum)) total), { total[0] += values[i]; });
WEFT_KERNEL(adds_up_alone, (WEFT_IN(int32_t, whole) values, WEFT_INOUT(int64_t) total, int64_t count), {
  int64_t sum = 0;
  for (int64_t k = 0; k < count; ++k) {
    sum += values[k];
  }
  total[i] += sum;
});

/// Two buffers and a queue of the plain interface.
class plain_copies {
 public:
  plain_copies() : cl_(weft::value_or_raise(weft::opencl::load_api("libOpenCL.so.1"))) {
    cl_platform_id platform = nullptr;
    std::array<cl_device_id, 2> devices{};
    cl_int status = cl_->clGetPlatformIDs(1, &platform, nullptr);
    cl_uint count = 0;
    if (status == CL_SUCCESS) status = cl_->clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 2, devices.data(), &count);
    if (status == CL_SUCCESS && count >= 2) {
      context_ = {cl_, cl_->clCreateContext(nullptr, 2, devices.data(), nullptr, nullptr, &status)};
      for (std::size_t i = 0; i < 2; ++i) {
        queues_[i] = {cl_, cl_->clCreateCommandQueue(context_.get(), devices[i], 0, &status)};
        buffers_[i] = {cl_, cl_->clCreateBuffer(context_.get(), CL_MEM_READ_WRITE, size, nullptr, &status)};
      }
    }
    good_ = status == CL_SUCCESS && count >= 2;
    const std::vector<char> data(size, 1);
    for (std::size_t i = 0; i < 2 && good_; ++i) {
      good_ = cl_->clEnqueueWriteBuffer(queues_[i].get(), buffers_[i].get(), CL_TRUE, 0, size, data.data(), 0, nullptr,
                                        nullptr) == CL_SUCCESS;
    }
  }
  [[nodiscard]] bool good() const { return good_; }
  void copy() const {
    static_cast<void>(cl_->clEnqueueCopyBuffer(queues_[1].get(), buffers_[0].get(), buffers_[1].get(), 0, 0, size, 0,
                                               nullptr, nullptr));
    static_cast<void>(cl_->clFinish(queues_[1].get()));
  }

 private:
  std::shared_ptr<const weft::opencl::api> cl_;
  weft::opencl::context_handle context_;
  std::array<weft::opencl::queue_handle, 2> queues_;
  std::array<weft::opencl::buffer_handle, 2> buffers_;
  bool good_ = false;
};

weft::result<std::unique_ptr<weft::backend>> open_buffers(const weft::backend_options& options) noexcept {
  weft::opencl::settings wanted;
  wanted.shared_memory = false;
  return weft::opencl::open_with(options, wanted);
}

}  // namespace

int main(int argc, char** argv) try {
  using namespace weft::bench;
  const options how = parse(argc, argv);
  print_machine(how);
  setenv("POCL_DEVICES", "pthread pthread", 0);  // NOLINT(concurrency-mt-unsafe): no thread yet
  weft::machine_options chosen;
  chosen.more_backends = {{weft::backend_kind::opencl, "buffers", &open_buffers}};
  chosen.backend = "buffers";
  const weft::machine m{chosen};
  const plain_copies plain;
  if (m.device_count() < 2 || !plain.good()) {
    std::fprintf(stderr, "there are no two OpenCL devices in one context\n");
    return EXIT_SUCCESS;
  }
  const auto timed = [](auto work) { return [work] { return seconds_of(1, work); }; };

  const weft::buffer<std::int32_t> src{m[0], size / 4}, dst{m[1], size / 4};
  weft::fill(src, 1);
  weft::fill(dst, 2);
  weft::copy_options staged;
  staged.route.path = weft::copy_path::staged;
  if (weft::copy(dst, src).path != weft::copy_path::direct) std::fprintf(stderr, "the copy is not direct\n");
  compare("copy/opencl/64MiB: between two devices of one context, without access",
          {{"weft::copy", timed([&] { weft::copy(dst, src); })},
           {"clEnqueueCopyBuffer", timed([&] { plain.copy(); })},
           {"weft::copy, staged", timed([&] { weft::copy(dst, src, staged); })}},
          how, static_cast<double>(size));

  const weft::buffer<std::int64_t> total{m[0], 1};
  const weft::stream order{m[0]};
  bool is_right = true;
  const auto summed = [&](auto launched) {
    return timed([&, launched] {
      weft::fill(order, total, std::int64_t{0});
      launched();
      std::array<std::int64_t, 1> got{};
      weft::copy(order, got, total).wait();
      is_right = is_right && got[0] == static_cast<std::int64_t>(size / 4);
    });
  };
  const auto count = static_cast<std::int64_t>(size / 4);
  compare("reduce/opencl/64MiB: one device",
          {{"a reduce(sum) kernel", summed([&] { weft::launch<adds_up>(order, weft::range(count), src, total); })},
           {"the loop in one work item",
            summed([&] { weft::launch<adds_up_alone>(order, weft::range(1), src, total, count); })}},
          how, static_cast<double>(size));
  if (!is_right) std::fprintf(stderr, "WRONG: a sum differs\n");
  return is_right ? EXIT_SUCCESS : EXIT_FAILURE;
} catch (const weft::error_exception& absent) {
  std::fprintf(stderr, "%s\n", absent.what());
  return EXIT_SUCCESS;
}

#else

#include <cstdio>

int main() { std::fprintf(stderr, "built without the OpenCL headers\n"); }

#endif
