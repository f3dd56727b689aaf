// SPDX-License-Identifier: Apache-2.0
// Every kernel that weft itself brings, and kernels that together use all that a kernel may say: what a run-time
// compiler of GPUs has to take.
#pragma once

#include "backend/kernels/kernel_text.hpp"
#include "backends/gpu/kernels/own_kernels.hpp"
#include "kernel/portable_kernels.hpp"
#include "support/paths.hpp"
#include "support/written_kernels.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace samples {

using kernel_list = std::vector<std::shared_ptr<const weft::kernel_code>>;

WEFT_KERNEL(sum_and_least,
            (WEFT_IN(float) values, WEFT_INOUT(double, reduce(sum)) sum, WEFT_INOUT(float, reduce(min)) least), {
              sum[0] += values[i];
              least[0] = weft_fmin(least[0], values[i]);
            });

WEFT_KERNEL(sends_on, (WEFT_RING in, WEFT_RING out, uint64_t polls), {
  uint32_t message[16];
  while (weft_ring_receive(in, &message, polls) == WEFT_RING_OK) {
    message[0] += 1;
    if (weft_ring_send(out, &message, polls) != WEFT_RING_OK) {
      return;
    }
  }
});

/// The kernels that are the library's own.
inline kernel_list library_kernels() {
  kernel_list all;
  for (int type = 0; type <= static_cast<int>(weft::element_type::float64); ++type)
    all.push_back(weft::detail::reduction_kernel(static_cast<weft::element_type>(type)));
  for (const portable::run& one : portable::fold_runs()) all.push_back(one.code);
  all.push_back(weft::gpu::own_kernels::fill());
  return all;
}

/// Those of queues, the tool, the examples and the conformance suite.
inline kernel_list program_kernels() {
  kernel_list all;
  for (const auto& [folder, least] : {std::pair{"/src/channel", 2U}, std::pair{"/tools", 8U},
                                      std::pair{"/examples", 9U}, std::pair{"/tests/conformance", 9U}}) {
    const auto found = written_kernels_below(source_folder() + folder);
    EXPECT_GE(found.size(), least) << folder;
    all.insert(all.end(), found.begin(), found.end());
  }
  return all;
}

/// Portable kernels, reductions and rings.
inline kernel_list portable_kernels() {
  kernel_list all{weft::make_kernel_code<sum_and_least>(), weft::make_kernel_code<sends_on>()};
  for (const portable::run& one : portable::exact_runs()) all.push_back(one.code);
  for (const portable::run& one :
       {portable::float_division_run(), portable::float_function_run(), portable::double_function_run()})
    all.push_back(one.code);
  return all;
}

}  // namespace samples
