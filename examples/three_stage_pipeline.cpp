// SPDX-License-Identifier: Apache-2.0
// Three stages on three devices that work on different batches at the same time. The clock is virtual: the stages
// really run, and their times, 50 ms a stage, are those of a model.
#include "weft/exec/pipeline.hpp"

#include <iostream>
#include <vector>

WEFT_KERNEL(scale, (WEFT_IN(float) in, WEFT_OUT(float) out, float by), { out[i] = in[i] * by; });
WEFT_KERNEL(shift, (WEFT_IN(float) in, WEFT_OUT(float) out, float by), { out[i] = in[i] + by; });
WEFT_KERNEL(round_down, (WEFT_IN(float) in, WEFT_OUT(int32_t) out), { out[i] = (int32_t)in[i]; });

int main() {
  constexpr std::size_t batches = 20, items = 10'000;
  weft::machine_options options;
  options.sim = "ring_3_no_p2p";
  options.clock = weft::clock_kind::virtual_time;
  const weft::machine m{options};

  weft::stage_options stage;
  stage.cost = weft::kernel_cost{.seconds = 0.050 * m.layout().devices[0].speed, .seconds_per_item = 0};
  auto line = weft::make_pipeline<float>(m, items)
                  .kernel<scale>("scale", stage, 0.5F)
                  .kernel<shift>("shift", stage, 3.0F)
                  .kernel<round_down>("round down", stage)
                  .build();

  std::vector<std::vector<float>> in(batches);
  std::vector<std::vector<std::int32_t>> out(batches, std::vector<std::int32_t>(items));
  for (std::size_t b = 0; b < batches; ++b) {
    for (std::size_t i = 0; i < items; ++i) in[b].push_back(static_cast<float>(b * items + i));
    line.push(in[b], out[b]);  // waits while too many batches are under way
  }
  line.drain();

  std::size_t right = 0;
  for (std::size_t b = 0; b < batches; ++b) {
    for (std::size_t i = 0; i < items; ++i) {
      if (out[b][i] == static_cast<std::int32_t>(in[b][i] * 0.5F + 3.0F)) ++right;
    }
  }
  const weft::pipeline_report report = line.report();
  for (const auto& s : report.stages) std::cout << s.name << " on " << to_string(s.device) << '\n';
  const auto ms = [](std::chrono::nanoseconds t) { return std::chrono::duration<double, std::milli>(t).count(); };
  std::cout << batches << " batches in " << static_cast<int>(ms(report.elapsed)) << " ms, one every "
            << static_cast<int>(ms(report.period)) << " ms (simulated)\n"
            << right << " of " << batches * items << " are right\n";
  return right == batches * items ? 0 : 1;
}
