// SPDX-License-Identifier: Apache-2.0
// CUB's sum as a library that bench_backend_gpu opens (WEFT_BENCH_CUB), to be timed in the same process and stream as
// weft's. scripts/gpu-check compiles it where nvcc is: nvcc -O3 -std=c++17 -shared -Xcompiler -fPIC -arch=native.
#include <cstddef>
#include <cub/device/device_reduce.cuh>

/// Null for the workspace: answers its size only. The result is on the device.
extern "C" int weft_cub_sum(const float* values, float* result, std::size_t count, void* workspace,
                            std::size_t* workspace_size, void* stream) {
  return cub::DeviceReduce::Sum(workspace, *workspace_size, values, result, static_cast<long long>(count),
                                static_cast<cudaStream_t>(stream));
}
