// SPDX-License-Identifier: Apache-2.0
// opencl/launch/…: a launch on one OpenCL device, submitted and waited for, against the same calls by hand: the same
// text, arguments, groups and way of waiting. Bar: at most 1 us above, by the median of paired differences.
// POCL_DEVICES="pthread" unless the environment says otherwise.

#include "backend/kernels/kernel_text.hpp"
#include "backends/opencl/driver/discovery.hpp"
#include "paired.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/memory/buffer.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

using weft::range;
namespace opencl = weft::opencl;

WEFT_KERNEL(opencl_launch_nothing, (WEFT_INOUT(float) values), { values[i] = values[i]; });
WEFT_KERNEL(opencl_launch_four, (WEFT_IN(float) a, WEFT_IN(float) b, float scale, WEFT_OUT(float) out),
            { out[i] = a[i] + scale * b[i]; });

constexpr std::int64_t items = 64;
constexpr std::size_t group = 256;  // as the backend's: work items past the end do nothing

template <class T>
T value_or_exit(weft::result<T> made) {
  if (made) return std::move(*made);
  std::printf("left out: %s\n", made.error().what.c_str());
  std::exit(0);
}

void check(cl_int status) {
  if (status == CL_SUCCESS) return;
  std::printf("the plain calls failed: %s\n", opencl::name_of(status).c_str());
  std::exit(1);
}

/// One device, a queue, and kernels of the text that the backend compiles.
class plain_program {
 public:
  plain_program() : cl_(value_or_exit(opencl::load_api("libOpenCL.so.1"))), found_(value_or_exit(discover(cl_, {}))) {
    cl_int status = CL_SUCCESS;
    queue_ = {cl_, cl_->clCreateCommandQueue(context(), device().id, 0, &status)};
    check(status);
    for (opencl::buffer_handle& one : memory_) {
      one = {cl_, cl_->clCreateBuffer(context(), CL_MEM_READ_WRITE, items * sizeof(float), nullptr, &status)};
      check(status);
    }
  }

  [[nodiscard]] opencl::kernel_handle compile(const weft::kernel_code& code) {
    cl_int status = CL_SUCCESS;
    const std::string text = kernel_text(code, weft::dialect::opencl);
    const char* source = text.c_str();
    programs_.emplace_back(cl_, cl_->clCreateProgramWithSource(context(), 1, &source, nullptr, &status));
    check(status);
    std::string options;
    for (const std::string& one : kernel_options(code, weft::dialect::opencl, device().newest_c)) options += one + " ";
    check(cl_->clBuildProgram(programs_.back().get(), 1, &device().id, options.c_str(), nullptr, nullptr));
    opencl::kernel_handle made{cl_,
                               cl_->clCreateKernel(programs_.back().get(), weft::kernel_entry(code).c_str(), &status)};
    check(status);
    return made;
  }

  void set(cl_kernel kernel, cl_uint at, std::size_t buffer) const {
    const cl_mem memory = memory_[buffer].get();
    check(cl_->clSetKernelArg(kernel, at, sizeof memory, static_cast<const void*>(&memory)));
  }
  template <class T>
  void set_value(cl_kernel kernel, cl_uint at, T value) const {
    check(cl_->clSetKernelArg(kernel, at, sizeof value, &value));
  }
  void run(cl_kernel kernel) const {
    cl_event ended = nullptr;
    check(cl_->clEnqueueNDRangeKernel(queue_.get(), kernel, 1, nullptr, &group, &group, 0, nullptr, &ended));
    check(cl_->clFlush(queue_.get()));
    check(cl_->clWaitForEvents(1, &ended));
    check(cl_->clReleaseEvent(ended));
  }
  [[nodiscard]] const std::string& name() const { return device().description.name; }

 private:
  [[nodiscard]] const opencl::device_place& device() const { return found_.devices.front(); }
  [[nodiscard]] cl_context context() const { return found_.contexts[device().context].context.get(); }

  std::shared_ptr<const opencl::api> cl_;
  opencl::discovery found_;
  opencl::queue_handle queue_;
  std::array<opencl::buffer_handle, 3> memory_;
  std::vector<opencl::program_handle> programs_;
};

}  // namespace

int main(int argc, char** argv) {
  using namespace weft::bench;
  const options how = parse(argc, argv);
  setenv("POCL_DEVICES", "pthread", 0);  // NOLINT(concurrency-mt-unsafe): nothing runs yet
  print_machine(how);
  plain_program plain;
  weft::machine_options chosen;
  chosen.backend = "opencl";
  chosen.devices = 1;
  const weft::machine m{chosen};
  const weft::stream order{m[0]};
  std::array<weft::buffer<float>, 3> memory{weft::buffer<float>{m[0], items}, weft::buffer<float>{m[0], items},
                                            weft::buffer<float>{m[0], items}};
  if (!how.json) std::printf("%s, %lld items\n", plain.name().c_str(), static_cast<long long>(items));
  const int pairs = how.samples * 200;
  const auto timed = [](auto work) { return [work] { return seconds_of(1, work); }; };

  const auto nothing = plain.compile(*weft::detail::code_of<opencl_launch_nothing>());
  const contender by_hand{"plain calls", timed([&] {
                            plain.set(nothing.get(), 0, 0);
                            plain.set_value(nothing.get(), 1, cl_long{0});
                            plain.set_value(nothing.get(), 2, cl_long{items});
                            plain.run(nothing.get());
                          })};
  compare_difference(
      "opencl/launch/stream: one buffer, submitted and waited for",
      {"launch in a stream", timed([&] { launch<opencl_launch_nothing>(order, range(items), memory[0]).wait(); })},
      by_hand, pairs, how);
  compare_difference(
      "opencl/launch/machine: one buffer, submitted and waited for",
      {"launch over the machine", timed([&] { launch<opencl_launch_nothing>(m, range(items), memory[0]).wait(); })},
      by_hand, pairs, how);
  const auto four = plain.compile(*weft::detail::code_of<opencl_launch_four>());
  compare_difference("opencl/launch/four: three buffers and a value, submitted and waited for",
                     {"launch in a stream", timed([&] {
                        launch<opencl_launch_four>(order, range(items), memory[0], memory[1], 2.0F, memory[2]).wait();
                      })},
                     {"plain calls", timed([&] {
                        plain.set(four.get(), 0, 0);
                        plain.set(four.get(), 1, 1);
                        plain.set_value(four.get(), 2, 2.0F);
                        plain.set(four.get(), 3, 2);
                        plain.set_value(four.get(), 4, cl_long{0});
                        plain.set_value(four.get(), 5, cl_long{items});
                        plain.run(four.get());
                      })},
                     pairs, how);
  compare_difference("opencl/launch/noise: the plain calls against themselves", by_hand, by_hand, pairs, how);
  return 0;
}
