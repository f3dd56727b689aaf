// SPDX-License-Identifier: Apache-2.0
// Kernels really run: compiled by the host's compiler, with the rights of their device, and their faults stick.
#include "virtual_driver/loaded_driver.hpp"

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

namespace kernels_test {

using namespace virtual_cuda;

constexpr CUresult cooperative_launch_too_large = 720;

constexpr const char* texts = R"(
extern "C" __global__ void put(int* p, int value) { p[blockIdx.x * blockDim.x + threadIdx.x] = value; }
extern "C" __global__ void through(int** p, int value) { **p = value; }
extern "C" __global__ void spin(volatile int* p) { while (*p == 0) { } }
extern "C" __global__ void begin_and_spin(volatile int* begun, volatile int* p) { *begun = 1; while (*p == 0) { } }
extern "C" __global__ void meet(int* arrived) {
  atomicAdd(arrived, 1);
  while (atomicAdd(arrived, 0) < (int)gridDim.x) __nanosleep(10);
}
extern "C" __global__ void apart(int* p, int* arrived) {
  __shared__ int mine[2];
  mine[threadIdx.x] = blockIdx.x * 10 + threadIdx.x;
  atomicAdd(arrived, 1);
  while (atomicAdd(arrived, 0) < (int)(gridDim.x * blockDim.x)) __nanosleep(10);
  p[blockIdx.x * blockDim.x + threadIdx.x] = mine[1 - threadIdx.x];
}
extern "C" __global__ void uneven(int* p) {
  __shared__ int v;
  if (threadIdx.x == 0) v = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    for (int n = 0; n < 3; ++n) __syncwarp();
    if (threadIdx.x == 0) v = 7;
  }
  __syncthreads();
  if (threadIdx.x == 63) *p = v;
}
extern "C" __global__ void check(int x) { assert(x == 1); }
extern "C" __global__ void divide(int* p, int by) { *p = 7 / by; }
extern "C" __global__ void deep(int* p) { volatile char large[1 << 20]; large[0] = 1; __syncthreads(); *p = large[0]; }
__global__ void mangled(int* p) { *p = 3; }
extern "C" __global__ void __launch_bounds__(256) sum(const int* x, int* out) {
  __shared__ int part[256];
  extern __shared__ int more[];
  more[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
  __syncthreads();
  part[threadIdx.x] = more[255 - threadIdx.x];
  __syncthreads();
  for (unsigned w = 128; w >= 32; w /= 2) {
    if (threadIdx.x < w) part[threadIdx.x] += part[threadIdx.x + w];
    __syncthreads();
  }
  int v = part[threadIdx.x & 31];
  for (int k = 16; k != 0; k /= 2) v += __shfl_down_sync(0xffffffffu, v, k);
  if (threadIdx.x == 0) atomicAdd(out, v);
}
)";

TEST(virtual_driver_kernels, threads_of_a_block_meet_at_barriers) {
  in_child({}, [] {
    session cu;
    const CUfunction sum = cu.kernel(texts, "sum");
    std::vector<int> x(1024);
    std::iota(x.begin(), x.end(), 1);
    CUdeviceptr in = cu.allocate(4096);
    CUdeviceptr out = cu.allocate(4);
    EXPECT_EQ(cu.cuMemcpyHtoDAsync(in, x.data(), 4096, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemsetD32Async(out, 0, 1, nullptr), CUDA_SUCCESS);
    void* arguments[] = {&in, &out};
    EXPECT_EQ(cu.cuLaunchKernel(sum, 4, 1, 1, 256, 1, 1, 1024, nullptr, arguments, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(out), 1024 * 1025 / 2);
    EXPECT_EQ(cu.launch(cu.kernel(texts, "uneven"), 1, 64, nullptr, out), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(out), 7) << "one warp meets more often than the other";
  });
}

TEST(virtual_driver_kernels, pointers_may_begin_outside_of_their_memory_and_lie_in_memory) {
  in_child({}, [] {
    session cu;
    const CUdeviceptr a = cu.allocate(4096);
    const CUfunction put = cu.kernel(texts, "put");
    // element 0 of a part lies below the part: only what is touched counts
    EXPECT_EQ(cu.cuMemsetD32Async(a, 0, 1024, nullptr), CUDA_SUCCESS);
    const CUdeviceptr part = a - 4096 * 1024;
    const CUfunction far =
        cu.kernel("extern \"C\" __global__ void far(int* p, long long first) { p[first] = 5; }\n", "far");
    EXPECT_EQ(cu.launch(far, 1, 1, nullptr, part, 1024LL * 1024), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(a), 5);
    cu.write(a + 8, a + 16);
    EXPECT_EQ(cu.launch(cu.kernel(texts, "through"), 1, 1, nullptr, a + 8, 6), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(a + 16), 6);
    EXPECT_EQ(cu.launch(put, 2, 4, nullptr, a, 9), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(a + 28), 9);
  });
}

TEST(virtual_driver_kernels, what_is_wrong_with_a_text_is_said_with_its_line) {
  in_child({}, [] {
    session cu;
    CUmodule module = nullptr;
    std::string log;
    EXPECT_EQ(cu.load("\n\nextern \"C\" __global__ void k(int* p) { *p = nothing; }\n", &module, &log), 10006);
    EXPECT_NE(log.find("user.cu:3"), std::string::npos) << log;
    EXPECT_NE(log.find("nothing"), std::string::npos) << log;
    EXPECT_EQ(cu.load("", &module, &log, "sm_12345"), 10005);
    EXPECT_NE(log.find("architecture"), std::string::npos) << log;
  });
}

TEST(virtual_driver_kernels, a_kernel_that_is_not_there_is_not_a_kernel_that_does_nothing) {
  in_child({}, [] {
    session cu;
    CUmodule module = nullptr;
    ASSERT_EQ(cu.load(texts, &module), CUDA_SUCCESS);
    CUfunction f = nullptr;
    EXPECT_EQ(cu.cuModuleGetFunction(&f, module, "nothing"), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(cu.cuModuleGetFunction(&f, module, "mangled"), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(cu.cuModuleGetFunction(&f, module, "_Z7mangledPi"), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuModuleLoadDataEx(&module,
                                    "\x7f"
                                    "ELF and so on",
                                    0, nullptr, nullptr),
              CUDA_ERROR_NO_BINARY_FOR_GPU);
    EXPECT_EQ(cu.cuModuleLoadDataEx(&module, "// text\n.version 8.0\n", 0, nullptr, nullptr), CUDA_ERROR_INVALID_PTX);
    EXPECT_EQ(cu.cuModuleLoadDataEx(&module, "whatever", 0, nullptr, nullptr), CUDA_ERROR_INVALID_IMAGE);
    EXPECT_EQ(cu.load(texts, &module, nullptr, "sm_80"), CUDA_ERROR_NO_BINARY_FOR_GPU);
  });
}

constexpr const char* hidden_texts = R"(
#define KERNEL(name) extern "C" __global__ void name
#define ENTRY __global__
#define BOUND 64
KERNEL(by_macro)(int* p) { *p = 1; }
extern "C" {
void helper();
}
ENTRY void mangled(int* p) { *p = 2; }
namespace a { namespace b {
const int most = BOUND;
__launch_bounds__(most) __global__ void inside(int* p) { *p = 3; }
} }
#if 0
__global__ void never(int* p) { nothing; }
#endif
KERNEL(write)(int* p) { *p = 4; }
#include "barriers.h"
)";
constexpr const char* hidden_header = R"(
#define MEET() __syncthreads()
#define MORE extern __shared__ int more[]
extern "C" __global__ void swapped(int* p) {
  MORE;
  more[threadIdx.x] = threadIdx.x;
  MEET();
  p[threadIdx.x] = more[blockDim.x - 1 - threadIdx.x];
}
)";

TEST(virtual_driver_kernels, macros_headers_and_namespaces_hide_no_kernel_and_no_barrier) {
  in_child({}, [] {
    session cu;
    CUmodule module = nullptr;
    ASSERT_EQ(cu.load(hidden_texts, &module, nullptr, "sm_90", {{"barriers.h", hidden_header}}), CUDA_SUCCESS);
    const CUdeviceptr a = cu.allocate(16);
    int expected = 0;
    for (const char* const name : {"by_macro", "_Z7mangledPi", "_ZN1a1b6insideEPi", "write"}) {
      CUfunction f = nullptr;
      ASSERT_EQ(cu.cuModuleGetFunction(&f, module, name), CUDA_SUCCESS) << name;
      EXPECT_EQ(cu.launch(f, 1, 1, nullptr, a), CUDA_SUCCESS);
      EXPECT_EQ(cu.read<int>(a), ++expected);
    }
    CUfunction swapped = nullptr;
    ASSERT_EQ(cu.cuModuleGetFunction(&swapped, module, "swapped"), CUDA_SUCCESS);
    CUdeviceptr argument = a;
    void* list[] = {&argument};
    EXPECT_EQ(cu.cuLaunchKernel(swapped, 1, 1, 1, 4, 1, 1, 16, nullptr, list, nullptr), CUDA_SUCCESS);
    EXPECT_EQ((cu.read<std::array<int, 4>>(a)), (std::array<int, 4>{3, 2, 1, 0}));
  });
}

TEST(virtual_driver_kernels, registered_host_functions_are_kernels_too) {
  in_child({}, [] {
    session cu;
    const unsigned sizes[] = {8, 4};
    const unsigned char pointers[] = {1, 0};
    find<void(const char*, weft_virtual_kernel_function, unsigned, const unsigned*, const unsigned char*)>(
        "weft_virtual_register_kernel")(
        "fill",
        [](const weft_virtual_launch* shape, void** arguments) {
          int* const p = *static_cast<int**>(arguments[0]);
          for (unsigned n = 0; n < shape->grid.x * shape->block.x; ++n) p[n] = *static_cast<int*>(arguments[1]);
        },
        2, sizes, pointers);
    CUmodule module = nullptr;
    ASSERT_EQ(cu.cuModuleLoadDataEx(&module, "weft:registered", 0, nullptr, nullptr), CUDA_SUCCESS);
    CUfunction fill = nullptr;
    ASSERT_EQ(cu.cuModuleGetFunction(&fill, module, "fill"), CUDA_SUCCESS);
    const CUdeviceptr a = cu.allocate(400);
    EXPECT_EQ(cu.launch(fill, 10, 10, nullptr, a, 4), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(a + 396), 4);
  });
}

struct fault_case {
  const char* what;
  const char* kernel;
  CUresult code;
};

TEST(virtual_driver_kernels, a_fault_ends_the_process_where_the_header_says_so_and_other_devices_go_on) {
  const fault_case cases[] = {{"null", "put", CUDA_ERROR_ILLEGAL_ADDRESS},
                              {"peer", "put", CUDA_ERROR_ILLEGAL_ADDRESS},
                              {"past the end", "put", CUDA_ERROR_ILLEGAL_ADDRESS},
                              {"not aligned", "put", CUDA_ERROR_MISALIGNED_ADDRESS},
                              {"memory of a peer by a pointer in memory", "through", CUDA_ERROR_ILLEGAL_ADDRESS},
                              {"assert", "check", CUDA_ERROR_ASSERT},
                              {"stack", "deep", CUDA_ERROR_ILLEGAL_ADDRESS}};
  for (const fault_case& one : cases) {
    SCOPED_TRACE(one.what);
    in_child({}, [&] {
      session cu{2};
      cu.use(1);
      const CUdeviceptr other = cu.allocate(4096);
      cu.use(0);
      const CUdeviceptr mine = cu.allocate(4096);
      cu.write(mine, other);
      const CUfunction f = cu.kernel(texts, one.kernel);
      const std::string what = one.what;
      const CUstream s = cu.stream();
      static int ran = 0;
      if (what == "assert") {
        EXPECT_EQ(cu.launch(f, 1, 1, s, 0), CUDA_SUCCESS);
      } else {
        const CUdeviceptr target = what == "null"           ? 0
                                   : what == "peer"         ? other
                                   : what == "past the end" ? mine + 4096
                                   : what == "not aligned"  ? mine + 2
                                                            : mine;
        EXPECT_EQ(cu.launch(f, 1, 1, s, target, 1), CUDA_SUCCESS);
      }
      EXPECT_EQ(cu.cuLaunchHostFunc(
                    s, [](void*) { ran = 1; }, nullptr) == CUDA_SUCCESS ||
                    cu.cuCtxSynchronize() == one.code,
                true);
      EXPECT_EQ(cu.cuStreamSynchronize(s), one.code);
      CUdeviceptr more = 0;
      EXPECT_EQ(cu.cuMemAlloc(&more, 5), one.code);
      EXPECT_EQ(cu.cuStreamQuery(s), one.code);
      EXPECT_EQ(ran, 0) << "no function of the program behind a fault";
      cu.use(1);
      EXPECT_NE(cu.allocate(5), 0U) << "another device";
      CUcontext again = nullptr;
      if (one.code != CUDA_ERROR_ASSERT) {  // the process must be terminated and relaunched
        EXPECT_EQ(cu.cuDevicePrimaryCtxReset(0), one.code);
        EXPECT_EQ(cu.cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
        EXPECT_EQ(cu.cuDevicePrimaryCtxRetain(&again, 0), one.code);
        return;
      }
      EXPECT_EQ(cu.cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
      EXPECT_EQ(cu.cuDevicePrimaryCtxRetain(&again, 0), CUDA_SUCCESS);
      EXPECT_EQ(cu.cuCtxSetCurrent(again), CUDA_SUCCESS);
      EXPECT_NE(cu.allocate(5), 0U);
    });
  }
}

TEST(virtual_driver_kernels, access_to_a_peer_is_enabled_for_old_and_new_memory_and_goes_at_once) {
  in_child({}, [] {
    session cu{2};
    cu.use(1);
    const CUdeviceptr before = cu.allocate(64);
    cu.use(0);
    const CUfunction put = cu.kernel(texts, "put");
    ASSERT_EQ(cu.cuCtxEnablePeerAccess(cu.contexts[1], 0), CUDA_SUCCESS);
    cu.use(1);
    const CUdeviceptr after = cu.allocate(64);
    const CUfunction back = cu.kernel(texts, "put");
    cu.use(0);
    EXPECT_EQ(cu.launch(put, 1, 1, nullptr, before, 1), CUDA_SUCCESS);
    EXPECT_EQ(cu.launch(put, 1, 1, nullptr, after, 2), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(before) + cu.read<int>(after), 3);
    const CUdeviceptr mine = cu.allocate(64);
    cu.use(1);
    const CUstream s1 = cu.stream();
    EXPECT_EQ(cu.launch(back, 1, 1, s1, mine, 1), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(s1), CUDA_ERROR_ILLEGAL_ADDRESS) << "one way only";
    cu.use(0);
    EXPECT_EQ(cu.cuCtxDisablePeerAccess(cu.contexts[1]), CUDA_SUCCESS);
    EXPECT_EQ(cu.launch(put, 1, 1, nullptr, before, 1), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
  });
}

TEST(virtual_driver_kernels, freeing_waits_for_the_owner_s_work_and_takes_memory_from_peers_at_once) {
  in_child({}, [] {
    session cu{2};
    CUdeviceptr words = 0;
    ASSERT_EQ(cu.cuMemAllocManaged(&words, 8, attach_global), CUDA_SUCCESS);
    auto* const word = reinterpret_cast<int*>(words);
    word[0] = word[1] = 0;
    const CUdeviceptr a = cu.allocate(4096);
    const CUdeviceptr of_peer = cu.allocate(4096);
    const CUstream s = cu.stream();
    ASSERT_EQ(cu.launch(cu.kernel(texts, "begin_and_spin"), 1, 1, s, words, words + 4), CUDA_SUCCESS);
    while (std::atomic_ref{word[0]}.load() == 0) std::this_thread::yield();
    cu.use(1);
    ASSERT_EQ(cu.cuCtxEnablePeerAccess(cu.contexts[0], 0),
              CUDA_SUCCESS);  // what is being freed is taken from who has it
    std::atomic<bool> freed{false};
    std::thread freeing{[&] {
      cu.use(0);
      EXPECT_EQ(cu.cuMemFree(of_peer), CUDA_SUCCESS);
      freed = true;
    }};
    const CUfunction put = cu.kernel(texts, "put");
    EXPECT_EQ(cu.launch(put, 1, 1, nullptr, a, 1), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS) << "what is not freed is there";
    CUresult code = CUDA_SUCCESS;
    while (code == CUDA_SUCCESS) {
      EXPECT_EQ(cu.launch(put, 1, 1, nullptr, of_peer, 1), CUDA_SUCCESS);
      code = cu.cuStreamSynchronize(nullptr);
    }
    EXPECT_EQ(code, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_FALSE(freed);
    std::atomic_ref{word[1]}.store(1);
    freeing.join();
  });
}

TEST(virtual_driver_kernels, a_pointer_of_a_pool_is_freed_without_a_wait) {
  in_child({}, [] {
    session cu;
    CUmemoryPool pool = nullptr;
    ASSERT_EQ(cu.cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
    CUdeviceptr a = 0;
    ASSERT_EQ(cu.cuMemAllocFromPoolAsync(&a, 64, pool, nullptr), CUDA_SUCCESS);
    const CUstream s = cu.stream();
    const CUdeviceptr word = cu.allocate(4);
    cu.write(word, 0);
    EXPECT_EQ(cu.cuStreamWaitValue32(s, word, 1, wait_value_eq), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemFree(a), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    ASSERT_EQ(cu.cuMemAllocFromPoolAsync(&a, 64, pool, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemFreeAsync(a, s), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemFree(a), CUDA_ERROR_INVALID_VALUE) << "freed behind the wait";
    EXPECT_EQ(cu.cuStreamWriteValue32(cu.stream(), word, 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(s), CUDA_SUCCESS);
  });
}

TEST(virtual_driver_kernels, a_kernel_of_another_device_s_module_is_refused_in_a_stream) {
  in_child({}, [] {
    session cu{2};
    const CUfunction put = cu.kernel(texts, "put");
    cu.use(1);
    const CUstream s = cu.stream();
    EXPECT_EQ(cu.launch(put, 1, 1, s, CUdeviceptr{0}, 1), CUDA_ERROR_INVALID_HANDLE);
    cu.use(0);
    EXPECT_EQ(cu.launch(put, 0, 1, nullptr, CUdeviceptr{0}, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.launch(put, 1, 1025, nullptr, CUdeviceptr{0}, 1), CUDA_ERROR_INVALID_VALUE);
  });
}

// Launches a kernel that never ends, and comes back when it runs.
void begin_to_spin(session& cu, CUstream s) {
  const CUdeviceptr word = cu.allocate(4);
  cu.write(word, 0);
  CUdeviceptr begun = 0;
  ASSERT_EQ(cu.cuMemAllocManaged(&begun, 4, attach_global), CUDA_SUCCESS);
  auto* const seen = reinterpret_cast<int*>(begun);
  *seen = 0;
  ASSERT_EQ(cu.launch(cu.kernel(texts, "begin_and_spin"), 1, 1, s, begun, word), CUDA_SUCCESS);
  while (std::atomic_ref{*seen}.load() == 0) std::this_thread::yield();
  EXPECT_EQ(cu.cuStreamQuery(s), CUDA_ERROR_NOT_READY);
}

TEST(virtual_driver_kernels, a_kernel_that_spins_ends_with_its_context) {
  in_child({}, [] {
    session cu;
    begin_to_spin(cu, cu.stream());
    EXPECT_EQ(cu.cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  });
  in_child({}, [] {
    session cu{2};
    const CUstream s = cu.stream();
    const CUdeviceptr a = cu.allocate(4);
    begin_to_spin(cu, s);
    const CUevent behind = cu.event();
    ASSERT_EQ(cu.cuEventRecord(behind, s), CUDA_SUCCESS);
    cu.use(1);
    const CUstream waiting = cu.stream();
    ASSERT_EQ(cu.cuStreamWaitEvent(waiting, behind, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);
    find<void(int, int)>("weft_virtual_lose")(0, CUDA_ERROR_ECC_UNCORRECTABLE);
    EXPECT_EQ(cu.cuStreamSynchronize(waiting), CUDA_SUCCESS) << "another device goes on";
    cu.use(0);
    EXPECT_EQ(cu.cuMemFree(a), CUDA_ERROR_ECC_UNCORRECTABLE);
    EXPECT_EQ(cu.cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  });
}

TEST(virtual_driver_kernels, blocks_of_a_cooperative_launch_are_all_there) {
  in_child({}, [] {
    session cu;
    CUdeviceptr arrived = cu.allocate(4);
    cu.write(arrived, 0);
    void* arguments[] = {&arrived};
    EXPECT_EQ(cu.cuLaunchCooperativeKernel(cu.kernel(texts, "meet"), 7, 1, 1, 1, 1, 1, 0, nullptr, arguments),
              CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(arrived), 7);
  });
}

TEST(virtual_driver_kernels, each_block_of_a_cooperative_launch_has_shared_variables_of_its_own) {
  in_child({}, [] {
    session cu;
    CUdeviceptr arrived = cu.allocate(4);
    cu.write(arrived, 0);
    CUdeviceptr out = cu.allocate(24);
    void* arguments[] = {&out, &arrived};
    EXPECT_EQ(cu.cuLaunchCooperativeKernel(cu.kernel(texts, "apart"), 3, 1, 1, 2, 1, 1, 0, nullptr, arguments),
              CUDA_SUCCESS);
    EXPECT_EQ((cu.read<std::array<int, 6>>(out)), (std::array<int, 6>{1, 0, 11, 10, 21, 20}));
  });
}

constexpr const char* sized_texts = R"(
extern "C" __global__ void plain(int* p) { *p = 1; }
extern "C" __global__ void __launch_bounds__(2 * 32) bounded(int* p) { *p = 1; }
extern "C" __global__ void shares(int* p) {
  __shared__ int half[56 << 8];
  half[threadIdx.x] = 1;
  __syncthreads();
  *p = half[0];
}
struct pair { char a; double b; };
extern "C" __global__ void packed(char c, pair both, int* p, short s) { *p = c + (int)both.b + s; }
)";

TEST(virtual_driver_kernels, occupancy_goes_by_threads_blocks_shared_memory_and_bounds) {
  in_child({}, [] {
    session cu;
    const CUfunction plain = cu.kernel(sized_texts, "plain");
    const CUfunction bounded = cu.kernel(sized_texts, "bounded");
    const CUfunction shares = cu.kernel(sized_texts, "shares");
    const auto blocks = [&](CUfunction f, int threads, std::size_t dynamic) {
      int found = -1;
      EXPECT_EQ(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&found, f, threads, dynamic), CUDA_SUCCESS);
      return found;
    };
    EXPECT_EQ(blocks(plain, 32, 0), 32) << "so many blocks at most";
    EXPECT_EQ(blocks(plain, 1024, 0), 2);
    EXPECT_EQ(blocks(plain, 33, 0), 32) << "whole warps";
    EXPECT_EQ(blocks(plain, 32, 48 << 10), 4) << "each a KiB more, of 228 KiB";
    EXPECT_EQ(blocks(bounded, 64, 0), 32);
    EXPECT_EQ(blocks(bounded, 65, 0), 0) << "past its bounds";
    EXPECT_EQ(blocks(shares, 32, 0), 4) << "56 KiB of its own and one of the driver's";
    int value = 0;
    EXPECT_EQ(cu.cuFuncGetAttribute(&value, function_shared_bytes, shares), CUDA_SUCCESS);
    EXPECT_EQ(value, 56 << 10);
    EXPECT_EQ(cu.cuFuncGetAttribute(&value, function_max_threads_per_block, bounded), CUDA_SUCCESS);
    EXPECT_EQ(value, 64);
    int grid = 0;
    int block = 0;
    EXPECT_EQ(cu.cuOccupancyMaxPotentialBlockSize(&grid, &block, plain, nullptr, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(block, 1024);
    EXPECT_EQ(grid, 2 * 8);
    EXPECT_EQ(cu.cuOccupancyMaxPotentialBlockSize(&grid, &block, plain, nullptr, 0, 96), CUDA_SUCCESS);
    EXPECT_EQ(block, 64) << "32 of them are 2048 threads, and 21 blocks of 96 are 2016";
    EXPECT_EQ(grid, 32 * 8);
    const CUdeviceptr a = cu.allocate(4);
    EXPECT_EQ(cu.launch(bounded, 1, 64, nullptr, a), CUDA_SUCCESS);
    EXPECT_EQ(cu.launch(bounded, 1, 65, nullptr, a), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    EXPECT_EQ(cu.launch(shares, 1, 32, nullptr, a), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(a), 1);
  });
  in_child({{"WEFT_VIRTUAL_CUDA_ARCH", "86"}}, [] {
    session cu;
    int value = 0;
    EXPECT_EQ(cu.cuDeviceGetAttribute(&value, max_threads_per_multiprocessor, 0), CUDA_SUCCESS);
    EXPECT_EQ(value, 1536);
    EXPECT_EQ(cu.cuDeviceGetAttribute(&value, max_shared_memory_per_block_optin, 0), CUDA_SUCCESS);
    EXPECT_EQ(value, 99 << 10);
  });
}

TEST(virtual_driver_kernels, a_cooperative_launch_has_as_many_blocks_as_are_held_at_once) {
  in_child({{"WEFT_VIRTUAL_CUDA_SMS", "2"}}, [] {
    session cu;
    const CUfunction shares = cu.kernel(sized_texts, "shares");
    CUdeviceptr a = cu.allocate(4);
    void* list[] = {&a};
    EXPECT_EQ(cu.cuLaunchCooperativeKernel(shares, 4 * 2, 1, 1, 32, 1, 1, 0, nullptr, list), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuLaunchCooperativeKernel(shares, 4 * 2 + 1, 1, 1, 32, 1, 1, 0, nullptr, list),
              cooperative_launch_too_large);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  });
}

TEST(virtual_driver_kernels, arguments_are_taken_from_one_buffer_too) {
  in_child({}, [] {
    session cu;
    const CUfunction packed = cu.kernel(sized_texts, "packed");
    struct {
      char c;
      struct {
        char a;
        double b;
      } both;
      CUdeviceptr p;
      short s;
    } all{1, {0, 20}, cu.allocate(4), 300};
    std::size_t size = sizeof all;
    void* const buffer = reinterpret_cast<void*>(std::uintptr_t{1});
    void* const buffer_size = reinterpret_cast<void*>(std::uintptr_t{2});
    void* extra[] = {buffer, &all, buffer_size, &size, nullptr};
    EXPECT_EQ(cu.cuLaunchKernel(packed, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(all.p), 321);
    void* list[] = {&all.c, &all.both, &all.p, &all.s};
    EXPECT_EQ(cu.cuLaunchKernel(packed, 1, 1, 1, 1, 1, 1, 0, nullptr, list, extra), CUDA_ERROR_INVALID_VALUE) << "both";
    size = 32;
    EXPECT_EQ(cu.cuLaunchKernel(packed, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST(virtual_driver_kernels, variables_of_a_module_are_memory_of_its_device) {
  in_child({}, [] {
    session cu{2};
    CUmodule module = nullptr;
    ASSERT_EQ(cu.load("__device__ int count = 5;\n__constant__ float factors[3000];\n"
                      "extern \"C\" __global__ void next(int* p) { *p = ++count + (int)factors[2999]; }\n"
                      "extern \"C\" __global__ void set(int* p) { *p = 70; }\n",
                      &module),
              CUDA_SUCCESS);
    const auto find_kernel = [&](const char* name) {
      CUfunction f = nullptr;
      EXPECT_EQ(cu.cuModuleGetFunction(&f, module, name), CUDA_SUCCESS);
      return f;
    };
    CUdeviceptr count = 0;
    CUdeviceptr factors = 0;
    std::size_t size = 0;
    ASSERT_EQ(cu.cuModuleGetGlobal(&count, &size, module, "count"), CUDA_SUCCESS);
    EXPECT_EQ(size, 4U);
    ASSERT_EQ(cu.cuModuleGetGlobal(&factors, &size, module, "factors"), CUDA_SUCCESS);
    EXPECT_EQ(size, 12000U);
    EXPECT_EQ(cu.cuModuleGetGlobal(nullptr, &size, module, "count"), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuModuleGetGlobal(nullptr, nullptr, module, "count"), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cu.cuModuleGetGlobal(&factors, &size, module, "next"), CUDA_ERROR_NOT_FOUND) << "a kernel";
    EXPECT_EQ(cu.cuModuleGetGlobal(&factors, &size, module, "nothing"), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(cu.read<int>(count), 5);
    cu.write(count, 20);
    cu.write(factors + 4 * 2999, 300.F);
    const CUdeviceptr a = cu.allocate(4);
    EXPECT_EQ(cu.launch(find_kernel("next"), 1, 1, nullptr, a), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(a), 321);
    EXPECT_EQ(cu.launch(find_kernel("set"), 1, 1, nullptr, count), CUDA_SUCCESS) << "by its address";
    EXPECT_EQ(cu.launch(find_kernel("next"), 1, 1, nullptr, a), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(a), 371);
    EXPECT_EQ(cu.cuMemsetD32Async(count, 1, 1, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(count), 1);
    unsigned type = 0;
    EXPECT_EQ(cu.cuPointerGetAttribute(&type, pointer_memory_type, count), CUDA_SUCCESS);
    EXPECT_EQ(type, unsigned{memory_type_device});
    EXPECT_EQ(cu.cuMemFree(count), CUDA_ERROR_INVALID_VALUE);
    auto* const used = find<unsigned long long(int)>("weft_virtual_used");
    const auto before = used(0);
    EXPECT_EQ(cu.cuModuleUnload(module), CUDA_SUCCESS);
    EXPECT_LT(used(0), before);
    EXPECT_EQ(cu.cuMemcpyDtoHAsync(&type, count, 4, nullptr), CUDA_ERROR_INVALID_VALUE) << "gone with its module";
  });
}

TEST(virtual_driver_kernels, each_module_is_itself_however_many_there_are) {
  in_child({}, [] {
    session cu;
    const CUdeviceptr a = cu.allocate(4);
    for (int n = 0; n < 100; ++n) {
      CUmodule module = nullptr;
      CUfunction f = nullptr;
      const std::string name = "k" + std::to_string(n % 5);
      ASSERT_EQ(cu.load("__device__ int count;\nextern \"C\" __global__ void " + name + "(int* p) { *p = ++count; }\n",
                        &module),
                CUDA_SUCCESS);
      ASSERT_EQ(cu.cuModuleGetFunction(&f, module, name.c_str()), CUDA_SUCCESS);
      EXPECT_EQ(cu.launch(f, 1, 1, nullptr, a), CUDA_SUCCESS);
      EXPECT_EQ(cu.read<int>(a), 1) << "globals of its own";
      if (n % 3 != 0) {
        EXPECT_EQ(cu.cuModuleUnload(module), CUDA_SUCCESS);
      }
    }
  });
}

TEST(virtual_driver_kernels, may_have_the_name_of_a_function_of_the_hosts) {
  in_child({}, [] {
    session cu;
    const CUdeviceptr a = cu.allocate(4);
    const CUfunction f =
        cu.kernel("extern \"C\" __global__ void write(int* out, int value) { *out = value; }", "write");
    EXPECT_EQ(cu.launch(f, 1, 1, nullptr, a, 41), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(a), 41);
  });
}

TEST(virtual_driver_kernels, the_first_one_may_stand_right_behind_a_macro) {
  in_child({}, [] {
    session cu;
    CUmodule module = nullptr;
    ASSERT_EQ(
        cu.load("#ifndef GUARD\n#define GUARD \\\n  1\nextern \"C\" __global__ void first(int* out) { *out = GUARD; }\n"
                "#endif\n#define KERNEL(name) \\\n  extern \"C\" __global__ void name(int* out) { *out = 2; }\n",
                &module),
        CUDA_SUCCESS);
    CUfunction found = nullptr;
    EXPECT_EQ(cu.cuModuleGetFunction(&found, module, "first"), CUDA_SUCCESS);
  });
}

TEST(virtual_driver_kernels, find_what_they_include_beside_their_text) {
  in_child({}, [] {
    session cu;
    const std::string folder = samples::build_folder() + "/beside_kernels";
    std::filesystem::create_directories(folder);
    const std::string text = "#include \"beside.h\"\nextern \"C\" __global__ void tell(int* out) { *out = beside; }\n";
    const CUdeviceptr a = cu.allocate(4);
    for (const int value : {5, 6}) {  // what it includes is no part of the text: nothing is taken from the cache
      std::ofstream{folder + "/beside.h"} << "constexpr int beside = " << value << ";\n";
      CUmodule module = nullptr;
      CUfunction f = nullptr;
      ASSERT_EQ(cu.load(text, &module, nullptr, "sm_90", {}, folder + "/user.cu"), CUDA_SUCCESS);
      ASSERT_EQ(cu.cuModuleGetFunction(&f, module, "tell"), CUDA_SUCCESS);
      EXPECT_EQ(cu.launch(f, 1, 1, nullptr, a), CUDA_SUCCESS);
      EXPECT_EQ(cu.read<int>(a), value);
    }
    CUmodule module = nullptr;
    std::string log;
    EXPECT_EQ(cu.load(text, &module, &log, "sm_90", {}, folder + "/user.cu", {"--no-source-include"}),
              10000 + NVRTC_ERROR_COMPILATION);
  });
}

TEST(virtual_driver_kernels, kernels_of_two_streams_run_at_the_same_time) {
  in_child({}, [] {
    session cu;
    const CUdeviceptr a = cu.allocate(4);
    cu.write(a, 0);
    const CUstream one = cu.stream();
    const CUstream two = cu.stream();
    const CUfunction spin = cu.kernel(texts, "spin");
    const CUfunction put = cu.kernel(texts, "put");
    EXPECT_EQ(cu.launch(spin, 1, 1, one, a), CUDA_SUCCESS);
    EXPECT_EQ(cu.launch(put, 1, 1, two, a, 1), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(one), CUDA_SUCCESS);
  });
}

TEST(virtual_driver_kernels, a_device_can_be_lost_at_its_nth_kernel) {
  in_child({{"WEFT_VIRTUAL_CUDA_FAIL", "device.launch@2=719"}}, [] {
    session cu;
    const CUdeviceptr a = cu.allocate(4);
    const CUfunction put = cu.kernel(texts, "put");
    EXPECT_EQ(cu.launch(put, 1, 1, nullptr, a, 1), CUDA_SUCCESS);
    EXPECT_EQ(cu.read<int>(a), 1);
    EXPECT_EQ(cu.launch(put, 1, 1, nullptr, a, 2), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
  });
}

TEST(virtual_driver_kernels, are_none_of_the_calls_that_are_counted_whenever_they_begin) {
  in_child({}, [] {
    session cu;
    const CUdeviceptr a = cu.allocate(4);
    const CUfunction put = cu.kernel(texts, "put");
    find<void(const char*)>("weft_virtual_fail")("*@3=999");
    EXPECT_EQ(cu.launch(put, 1, 1, nullptr, a, 1), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemFree(a), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(find<unsigned long long(const char*)>("weft_virtual_calls")("device.launch"), 1U);
  });
}

}  // namespace kernels_test
