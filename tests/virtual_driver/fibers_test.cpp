// SPDX-License-Identifier: Apache-2.0
// Threads of a block that wait keep what is theirs, on stacks that later threads use again.
#include "virtual_driver/loaded_driver.hpp"

#include <algorithm>
#include <cstdint>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

namespace fibers_test {

using namespace virtual_cuda;

constexpr const char* texts = R"(
extern "C" __global__ void keep(long long* p) {
  long long t = threadIdx.x, a = t + 1, b = 2 * t, c = 3 * t, d = 5 * t, e = 7 * t, f = 11 * t;
  double x = t * 0.5, y = t * 0.25;
  asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
  for (int n = 0; n < 10; ++n) {
    if (n % 2 == 0) __syncthreads(); else __syncwarp();
    a += n, b += a, c += b, d += c, e += d, f += e, x += 1, y += x;
  }
  p[blockIdx.x * blockDim.x + threadIdx.x] = a + b + c + d + e + f + (long long)(4 * y);
}
extern "C" __global__ void round_down(float* p) {
  if (threadIdx.x % 2 == 1) {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x2000);
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" : : "r"(2ULL << 22));
#endif
  }
  __syncthreads();
  volatile float one = 1, three = 3;
  p[threadIdx.x] = one / three;
}
extern "C" __global__ void miss(int last_ends) {
  if (last_ends != 0 && threadIdx.x == 31) return;
  if (threadIdx.x < 16) __syncwarp(); else __syncthreads();
}
extern "C" __global__ void fail(int* p) {
  __syncthreads();
  assert(threadIdx.x != 40);
  __syncthreads();
}
__device__ __noinline__ int down(int depth) {
  volatile char kibibyte[1024];
  kibibyte[0] = (char)depth;
  return depth == 0 ? 0 : down(depth - 1) + kibibyte[0];
}
extern "C" __global__ void deep(int* p, int depth) {
  __syncthreads();
  if (threadIdx.x == 40) *p = down(depth);
  __syncthreads();
}
)";

std::vector<std::int64_t> kept(session& cu, unsigned grid, unsigned block) {
  const std::size_t count = std::size_t{grid} * block;
  const CUdeviceptr out = cu.allocate(count * 8);
  EXPECT_EQ(cu.launch(cu.kernel(texts, "keep"), grid, block, nullptr, out), CUDA_SUCCESS);
  std::vector<std::int64_t> came(count);
  EXPECT_EQ(cu.cuMemcpyDtoHAsync(came.data(), out, count * 8, nullptr), CUDA_SUCCESS);
  return came;
}

std::int64_t kept_by(std::int64_t t) {
  std::int64_t a = t + 1, b = 2 * t, c = 3 * t, d = 5 * t, e = 7 * t, f = 11 * t;
  double x = static_cast<double>(t) * 0.5;
  double y = static_cast<double>(t) * 0.25;
  for (int n = 0; n < 10; ++n) a += n, b += a, c += b, d += c, e += d, f += e, x += 1, y += x;
  return a + b + c + d + e + f + static_cast<std::int64_t>(4 * y);
}

void expect_kept(const std::vector<std::int64_t>& came, unsigned block) {
  for (std::size_t n = 0; n < came.size(); ++n) {
    ASSERT_EQ(came[n], kept_by(static_cast<std::int64_t>(n % block))) << n;
  }
}

TEST(virtual_driver_fibers, values_of_a_thread_outlive_its_barriers) {
  in_child({}, [] {
    session cu;
    for (const unsigned block : {1U, 31U, 32U, 33U, 256U, 1024U}) expect_kept(kept(cu, 3, block), block);
  });
}

TEST(virtual_driver_fibers, each_thread_rounds_in_its_own_way) {
#if !defined(__x86_64__) && !defined(__aarch64__)
  GTEST_SKIP() << "the kernel sets the mode of x86-64 and AArch64";
#endif
  in_child({}, [] {
    session cu;
    const CUdeviceptr out = cu.allocate(256);
    EXPECT_EQ(cu.launch(cu.kernel(texts, "round_down"), 1, 64, nullptr, out), CUDA_SUCCESS);
    for (unsigned n = 0; n < 64; ++n) {
      EXPECT_EQ(cu.read<std::uint32_t>(out + 4 * n), n % 2 == 1 ? 0x3eaaaaaaU : 0x3eaaaaabU) << n;
    }
  });
}

TEST(virtual_driver_fibers, blocks_and_launches_use_the_stacks_of_those_before) {
  in_child({}, [] {
    session cu;
    const CUfunction keep = cu.kernel(texts, "keep");
    const CUdeviceptr out = cu.allocate(std::size_t{4} * 256 * 8);
    const auto launch = [&] {
      EXPECT_EQ(cu.launch(keep, 4, 256, nullptr, out), CUDA_SUCCESS);
      EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
    };
    launch();
    struct rusage before{};
    struct rusage after{};
    ::getrusage(RUSAGE_SELF, &before);
    for (int n = 0; n < 64; ++n) launch();
    ::getrusage(RUSAGE_SELF, &after);
    EXPECT_LT(after.ru_minflt - before.ru_minflt, 64 * 256 / 2) << "a new stack costs a page each";
  });
}

TEST(virtual_driver_fibers, threads_that_wait_for_what_never_comes_time_out) {
  for (const int last_ends : {0, 1}) {
    in_child({}, [&] {
      session cu;
      EXPECT_EQ(cu.launch(cu.kernel(texts, "miss"), 1, 32, nullptr, last_ends), CUDA_SUCCESS);
      EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_LAUNCH_TIMEOUT);
    });
  }
}

TEST(virtual_driver_fibers, an_assertion_that_fails_between_barriers_ends_its_launch_alone) {
  in_child({}, [] {
    session cu;
    const CUdeviceptr out = cu.allocate(4);
    EXPECT_EQ(cu.launch(cu.kernel(texts, "fail"), 2, 64, nullptr, out), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_ASSERT);
    EXPECT_EQ(cu.cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuDevicePrimaryCtxRetain(cu.contexts.data(), 0), CUDA_SUCCESS);
    cu.use(0);
    expect_kept(kept(cu, 5, 96), 96);
  });
}

TEST(virtual_driver_fibers, no_thread_runs_over_into_the_stack_of_another) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const probe = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  constexpr int guard_install = 102;
  const bool has_guards = ::madvise(probe, page, guard_install) == 0;
  ::munmap(probe, page);
  if (!has_guards) GTEST_SKIP() << "this system has no MADV_GUARD_INSTALL (Linux 6.13)";
  for (const int depth : {32, 96}) {
    in_child({}, [&] {
      session cu;
      const CUdeviceptr out = cu.allocate(4);
      EXPECT_EQ(cu.launch(cu.kernel(texts, "deep"), 1, 64, nullptr, out, depth), CUDA_SUCCESS);
      EXPECT_EQ(cu.cuCtxSynchronize(), depth == 32 ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS);
    });
  }
}

}  // namespace fibers_test
