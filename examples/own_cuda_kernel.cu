// SPDX-License-Identifier: Apache-2.0
// A kernel of the program's own, compiled by nvcc, between copies of weft: it runs in the CUDA stream under a stream of
// weft, on memory of weft. Build it with your library: nvcc -std=c++20 own_cuda_kernel.cu -lweft
#include "weft/weft.hpp"

#include <iostream>
#include <vector>

__global__ void saxpy(float a, const float* x, float* y, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) y[i] += a * x[i];
}

int main() {
  weft::machine_options options;
  options.backend = "cuda";
  options.backend_required = false;  // without a GPU the machine falls back to the host, and says so
  const weft::machine m{options};
  if (m.device_count("cuda") == 0) {
    for (const auto& note : m.notes()) std::cout << note << "\n";
    return 0;
  }

  constexpr int count = 1 << 20;
  const weft::stream order{m[0]};
  const weft::buffer<float> x{m[0], count}, y{m[0], count};
  std::vector<float> result(count);
  weft::fill(order, x, 2.0F);
  weft::fill(order, y, 1.0F);
  cudaPointerAttributes where{};
  cudaPointerGetAttributes(&where, x.data());
  cudaSetDevice(where.device);  // the runtime's number of m[0]: a launch goes to the current device
  saxpy<<<(count + 255) / 256, 256, 0, static_cast<cudaStream_t>(order.driver_queue())>>>(3.0F, x.data(), y.data(),
                                                                                          count);
  weft::copy(order, result, y).wait();  // after the kernel: one order for both
  std::cout << "3 * 2 + 1 = " << result.front() << ", " << result.back() << "\n";
  return result.front() == 7.0F && result.back() == 7.0F ? 0 : 1;
}
