// SPDX-License-Identifier: Apache-2.0
// A running OpenCL kernel and a host thread that talk through rings in fine-grained shared memory (PoCL needs no GPU).

#include "backend/kernels/kernel_text.hpp"
#include "support/hang.hpp"
#include "support/paths.hpp"

#include <gtest/gtest.h>

#if __has_include(<CL/cl.h>)
#undef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 300
#include <CL/cl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <new>
#include <ostream>
#include <span>
#include <thread>

namespace {

// Changes every word, so that a message that was not seen by the kernel cannot come back.
WEFT_KERNEL(answers, (WEFT_RING in, WEFT_RING out, WEFT_OUT(uint64_t, whole) result, uint64_t count, uint64_t polls), {
  uint32_t message[16];
  uint64_t done = 0;
  int came_to = WEFT_RING_OK;
  for (; done < count; ++done) {
    came_to = weft_ring_receive(in, &message, polls);
    if (came_to != WEFT_RING_OK) break;
    for (uint32_t word = 0; word < in->bytes / 4; ++word) {
      message[word] = message[word] * 3u + word + (uint32_t)done;
    }
    came_to = weft_ring_send(out, &message, polls);
    if (came_to != WEFT_RING_OK) break;
  }
  result[0] = done;
  result[1] = (uint64_t)came_to;
});

constexpr std::uint64_t polls = ~std::uint64_t{0};                  // until it is stopped
constexpr std::chrono::seconds long_enough = samples::only_a_hang;  // without one message

struct layout {
  const char* name;
  std::uint32_t bytes;
  std::uint32_t stride;  // 0: packed

  friend void PrintTo(const layout& one, std::ostream* to) { *to << one.name; }
};

std::uint32_t word_of(std::uint64_t message, std::uint32_t word) {
  return static_cast<std::uint32_t>(message * 2654435761U) ^ (word * 40503U + 7U);
}

/// One device, its compiler and one piece of memory that it shares with the host.
class shared_memory_device {
 public:
  static constexpr std::size_t size = std::size_t{1} << 16;

  shared_memory_device() {
    // PoCL would else fill the cache of the user who runs the tests.
    setenv("POCL_CACHE_DIR", (samples::build_folder() + "/pocl_cache").c_str(), 0);
    library_ = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) {
      why_absent_ = "libOpenCL.so.1 is not installed";
      return;
    }
    if (dlsym(library_, "clSVMAlloc") == nullptr) {
      why_absent_ = "libOpenCL.so.1 is older than OpenCL 2.0";
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
    cl_device_svm_capabilities shared = 0;
    call<decltype(clGetDeviceInfo)>("clGetDeviceInfo")(device_, CL_DEVICE_SVM_CAPABILITIES, sizeof shared, &shared,
                                                       nullptr);
    const cl_device_svm_capabilities needed = CL_DEVICE_SVM_FINE_GRAIN_BUFFER | CL_DEVICE_SVM_ATOMICS;
    if ((shared & needed) != needed) {
      why_absent_ = "the OpenCL device has no fine-grained shared memory with atomics";
      return;
    }
    newest_opencl_c_ = newest_opencl_c();
    if (newest_opencl_c_ < 200) {
      why_absent_ = "the OpenCL device knows neither OpenCL C 2.0 nor 3.0";
      return;
    }
    cl_int status = 0;
    context_ = call<decltype(clCreateContext)>("clCreateContext")(nullptr, 1, &device_, nullptr, nullptr, &status);
    if (status == CL_SUCCESS) {
      queue_ = call<decltype(clCreateCommandQueueWithProperties)>("clCreateCommandQueueWithProperties")(
          context_, device_, nullptr, &status);
      memory_ = static_cast<std::byte*>(call<decltype(clSVMAlloc)>("clSVMAlloc")(
          context_, CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER | CL_MEM_SVM_ATOMICS, size, 128));
    }
    if (status != CL_SUCCESS || memory_ == nullptr) {
      why_absent_ = "the OpenCL device gives no queue or no shared memory";
    }
  }
  shared_memory_device(const shared_memory_device&) = delete;
  shared_memory_device& operator=(const shared_memory_device&) = delete;
  ~shared_memory_device() {
    if (memory_ != nullptr) call<decltype(clSVMFree)>("clSVMFree")(context_, memory_);
    if (queue_ != nullptr) call<decltype(clReleaseCommandQueue)>("clReleaseCommandQueue")(queue_);
    if (context_ != nullptr) call<decltype(clReleaseContext)>("clReleaseContext")(context_);
  }

  [[nodiscard]] const std::string& why_absent() const { return why_absent_; }
  [[nodiscard]] std::byte* memory() const { return memory_; }

  /// Starts one work item; each pointer lies in the shared memory. Empty, or what went wrong.
  [[nodiscard]] std::string start(const weft::kernel_code& code, std::span<void* const> pointers,
                                  std::span<const std::uint64_t> scalars) {
    const std::string text = weft::kernel_text(code, weft::dialect::opencl);
    const char* source = text.c_str();
    std::string options;
    for (const std::string& option : weft::kernel_options(code, weft::dialect::opencl, newest_opencl_c_)) {
      options += option + " ";
    }
    cl_int status = 0;
    const cl_program program =
        call<decltype(clCreateProgramWithSource)>("clCreateProgramWithSource")(context_, 1, &source, nullptr, &status);
    if (call<decltype(clBuildProgram)>("clBuildProgram")(program, 1, &device_, options.c_str(), nullptr, nullptr) !=
        CL_SUCCESS) {
      std::string log(1 << 16, '\0');
      std::size_t length = 0;
      call<decltype(clGetProgramBuildInfo)>("clGetProgramBuildInfo")(program, device_, CL_PROGRAM_BUILD_LOG, log.size(),
                                                                     log.data(), &length);
      call<decltype(clReleaseProgram)>("clReleaseProgram")(program);
      return "build with " + options + "failed: " + log.substr(0, length);
    }
    const cl_kernel kernel =
        call<decltype(clCreateKernel)>("clCreateKernel")(program, weft::kernel_entry(code).c_str(), &status);
    bool is_good = status == CL_SUCCESS;
    cl_uint position = 0;
    for (void* pointer : pointers) {
      is_good = is_good && call<decltype(clSetKernelArgSVMPointer)>("clSetKernelArgSVMPointer")(kernel, position++,
                                                                                                pointer) == CL_SUCCESS;
    }
    const std::int64_t begin = 0, end = 1;
    const auto set = call<decltype(clSetKernelArg)>("clSetKernelArg");
    for (const std::uint64_t& scalar : scalars) {
      is_good = is_good && set(kernel, position++, sizeof scalar, &scalar) == CL_SUCCESS;
    }
    is_good = is_good && set(kernel, position++, sizeof begin, &begin) == CL_SUCCESS &&
              set(kernel, position++, sizeof end, &end) == CL_SUCCESS;
    // The rings hold addresses: what they point to is used too.
    void* const reached = memory_;
    is_good = is_good && call<decltype(clSetKernelExecInfo)>("clSetKernelExecInfo")(
                             kernel, CL_KERNEL_EXEC_INFO_SVM_PTRS, sizeof(void*), &reached) == CL_SUCCESS;
    const std::size_t items = 1;
    is_good = is_good && call<decltype(clEnqueueNDRangeKernel)>("clEnqueueNDRangeKernel")(
                             queue_, kernel, 1, nullptr, &items, nullptr, 0, nullptr, nullptr) == CL_SUCCESS;
    call<decltype(clFlush)>("clFlush")(queue_);
    call<decltype(clReleaseKernel)>("clReleaseKernel")(kernel);
    call<decltype(clReleaseProgram)>("clReleaseProgram")(program);
    return is_good ? "" : "an OpenCL call failed";
  }
  [[nodiscard]] bool finish() const { return call<decltype(clFinish)>("clFinish")(queue_) == CL_SUCCESS; }

 private:
  template <class Function>
  [[nodiscard]] Function* call(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }

  // OpenCL 3.0 lists the versions; before, the text "OpenCL C 2.0 …" names the newest.
  [[nodiscard]] int newest_opencl_c() const {
    const auto info = call<decltype(clGetDeviceInfo)>("clGetDeviceInfo");
    std::vector<cl_name_version> versions(32);
    std::size_t length = 0;
    int newest = 0;
    if (info(device_, CL_DEVICE_OPENCL_C_ALL_VERSIONS, versions.size() * sizeof(cl_name_version), versions.data(),
             &length) == CL_SUCCESS) {
      for (std::size_t n = 0; n < length / sizeof(cl_name_version); ++n) {
        const cl_version one = versions[n].version;
        newest = std::max(newest, static_cast<int>(100 * CL_VERSION_MAJOR(one) + 10 * CL_VERSION_MINOR(one)));
      }
    } else {
      std::string text(256, '\0');
      info(device_, CL_DEVICE_OPENCL_C_VERSION, text.size(), text.data(), nullptr);
      const std::string_view start = "OpenCL C ";
      if (text.starts_with(start)) newest = 100 * (text[start.size()] - '0') + 10 * (text[start.size() + 2] - '0');
    }
    return newest;
  }

  void* library_ = nullptr;
  std::string why_absent_;
  int newest_opencl_c_ = 0;
  cl_device_id device_ = nullptr;
  cl_context context_ = nullptr;
  cl_command_queue queue_ = nullptr;
  std::byte* memory_ = nullptr;
};

/// Both ends of one ring and all that they share, laid into shared memory at `at`, which goes on behind it.
struct shared_ring {
  weft_ring* sender;
  weft_ring* receiver;
  std::uint32_t* stop;

  shared_ring(std::byte*& at, const layout& of, std::uint32_t shift) {
    const std::uint64_t places = std::uint64_t{1} << shift;
    auto* const credit = take<std::uint64_t>(at);
    auto* const fin = take<std::uint64_t>(at);
    stop = take<std::uint32_t>(at);
    *fin = WEFT_RING_OPEN;
    weft_ring end{};
    end.credit = address_of(credit);
    end.fin = address_of(fin);
    end.stop = address_of(stop);
    end.slots = address_of(at);
    end.mask = places - 1;
    end.shift = shift;
    end.bytes = of.bytes;
    end.stride = of.stride;
    end.per_line = of.stride == 0 ? WEFT_RING_LINE_PAYLOAD / of.bytes : 0;
    // a line is written again only when all of it was read, so one line is never counted on
    end.capacity = of.stride == 0 ? (places - 1) * end.per_line : places;
    const std::size_t slots = places * (of.stride == 0 ? WEFT_RING_LINE : of.stride);
    std::memset(at, 0, slots);
    at += (slots + 127) / 128 * 128;
    sender = take<weft_ring>(at);
    receiver = take<weft_ring>(at);
    *sender = *receiver = end;
  }

 private:
  template <class T>
  static T* take(std::byte*& at) {
    T* const made = ::new (at) T{};
    at += (sizeof(T) + 127) / 128 * 128;
    return made;
  }
  static std::uint64_t address_of(void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }
};

class opencl_ring : public testing::TestWithParam<layout> {
 protected:
  static void SetUpTestSuite() { device_ = new shared_memory_device; }
  static void TearDownTestSuite() {
    delete device_;
    device_ = nullptr;
  }
  void SetUp() override {
    if (!device_->why_absent().empty()) {
      GTEST_SKIP() << device_->why_absent();
    }
  }

  static inline shared_memory_device* device_ = nullptr;
};

TEST_P(opencl_ring, carries_messages_between_a_host_thread_and_a_running_kernel) {
  constexpr std::uint64_t round_trips = 200, count = 10'000;
  std::byte* at = device_->memory();
  const shared_ring there(at, GetParam(), 4), back(at, GetParam(), 4);
  auto* const result = ::new (at) std::uint64_t[2]{~0ULL, ~0ULL};
  ASSERT_LE(at + 16, device_->memory() + shared_memory_device::size);

  const auto code = weft::make_kernel_code<answers>();
  const std::string problem =
      device_->start(*code, std::array<void*, 3>{there.receiver, back.sender, result}, std::array{count, polls});
  ASSERT_EQ(problem, "");

  const std::uint32_t words = GetParam().bytes / 4;
  auto deadline = std::chrono::steady_clock::now() + long_enough;
  std::uint64_t sent = 0, received = 0, wrong = 0;
  int trouble = WEFT_RING_OK;
  std::uint32_t message[16] = {};
  while (received < count && trouble == WEFT_RING_OK && std::chrono::steady_clock::now() < deadline) {
    // one message at a time at first, then as many as there is room for
    if (sent < count && (sent >= round_trips || sent == received)) {
      for (std::uint32_t word = 0; word < words; ++word) message[word] = word_of(sent, word);
      const int came_to = weft_ring_try_send(there.sender, message);
      if (came_to == WEFT_RING_OK) {
        ++sent;
      } else if (came_to != WEFT_RING_FULL) {
        trouble = came_to;
      }
    }
    const int came_to = weft_ring_try_receive(back.receiver, message);
    if (came_to == WEFT_RING_OK) {
      for (std::uint32_t word = 0; word < words; ++word) {
        const std::uint32_t expected = word_of(received, word) * 3U + word + static_cast<std::uint32_t>(received);
        wrong += message[word] != expected ? 1 : 0;
      }
      ++received;
      deadline = std::chrono::steady_clock::now() + long_enough;
    } else if (came_to != WEFT_RING_EMPTY) {
      trouble = came_to;
    } else {
      std::this_thread::yield();  // the kernel may be waiting for this very core
    }
  }
  // the kernel ends even if the exchange did not
  __atomic_store_n(there.stop, 1U, __ATOMIC_RELEASE);
  __atomic_store_n(back.stop, 1U, __ATOMIC_RELEASE);
  ASSERT_TRUE(device_->finish());
  EXPECT_EQ(trouble, WEFT_RING_OK);
  EXPECT_EQ(received, count);
  EXPECT_EQ(wrong, 0U) << "words";
  EXPECT_EQ(result[0], count);
  EXPECT_EQ(result[1], static_cast<std::uint64_t>(WEFT_RING_OK));
}

TEST_P(opencl_ring, lets_a_kernel_end_when_nothing_comes_and_go_on_where_it_ended) {
  std::byte* at = device_->memory();
  const shared_ring there(at, GetParam(), 4), back(at, GetParam(), 4);
  auto* const result = ::new (at) std::uint64_t[2]{~0ULL, ~0ULL};
  const auto code = weft::make_kernel_code<answers>();
  const std::uint32_t words = GetParam().bytes / 4;
  std::uint32_t message[16] = {};
  for (std::uint64_t launch = 0; launch < 3; ++launch) {
    for (std::uint32_t word = 0; word < words; ++word) message[word] = word_of(launch, word);
    ASSERT_EQ(weft_ring_try_send(there.sender, message), WEFT_RING_OK);
    const std::string problem = device_->start(*code, std::array<void*, 3>{there.receiver, back.sender, result},
                                               std::array<std::uint64_t, 2>{5, 1000});
    ASSERT_EQ(problem, "");
    ASSERT_TRUE(device_->finish());
    EXPECT_EQ(result[0], 1U) << "what was there";
    EXPECT_EQ(result[1], static_cast<std::uint64_t>(WEFT_RING_EMPTY)) << "and then its polls were used up";
    ASSERT_EQ(weft_ring_try_receive(back.receiver, message), WEFT_RING_OK);
    for (std::uint32_t word = 0; word < words; ++word) EXPECT_EQ(message[word], word_of(launch, word) * 3U + word);
  }
  EXPECT_EQ(there.receiver->position, 3U);
  EXPECT_EQ(back.sender->position, 3U);
  EXPECT_EQ(there.receiver->waits, 3U * 1001U);
}

INSTANTIATE_TEST_SUITE_P(layouts, opencl_ring,
                         testing::Values(layout{"packed_8", 8, 0}, layout{"packed_24", 24, 0},
                                         layout{"slots_28", 28, 32}, layout{"slots_60", 60, 64}),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace

#else

TEST(opencl_ring, carries_messages_between_a_host_thread_and_a_running_kernel) {
  GTEST_SKIP() << "built without the OpenCL headers";
}

#endif
