// SPDX-License-Identifier: Apache-2.0
// pipeline/…: batches through three stages on two host devices, against oneTBB's parallel_pipeline and one thread with
// the same loops over memory that all stages share: they copy nothing, weft copies each batch four times. And what a
// small batch costs for each stage as stages and devices grow.

#include "weft/exec/pipeline.hpp"

#include "paired.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#ifdef WEFT_BENCH_TBB
#include <tbb/global_control.h>
#include <tbb/parallel_pipeline.h>
#endif

namespace {

constexpr int stages_of_line = 3;
constexpr std::int32_t steps = 16;

// The number of steps stands in it, as in the plain loop: both compilers' vectorizers want to know it.
WEFT_KERNEL(line_stage, (WEFT_IN(float) from, WEFT_OUT(float) to), {
  float x = from[i];
  for (int32_t s = 0; s < 16; ++s) {
    x = 3.7f * x * (1.0f - x);
  }
  to[i] = x;
});

// In the widest vectors that the processor has, and nothing fused: as the kernel.
#define PLAIN_STAGE(name, ...)                                                    \
  __VA_ARGS__ void name(const std::vector<float>& from, std::vector<float>& to) { \
    for (std::size_t i = 0; i < from.size(); ++i) {                               \
      float x = from[i];                                                          \
      for (std::int32_t s = 0; s < steps; ++s) x = 3.7f * x * (1.0f - x);         \
      to[i] = x;                                                                  \
    }                                                                             \
  }                                                                               \
  static_assert(true)  // takes the semicolon
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define AS_THE_KERNEL gnu::noinline, gnu::optimize("O3", "fp-contract=off")
PLAIN_STAGE(stage_of_128, [[AS_THE_KERNEL]]);
PLAIN_STAGE(stage_of_256, [[AS_THE_KERNEL, gnu::target("avx2")]]);
PLAIN_STAGE(stage_of_512,
            [[AS_THE_KERNEL, gnu::target("avx2,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]]);
auto* widest_stage() {
  if (__builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0) return stage_of_512;
  return __builtin_cpu_supports("avx2") != 0 ? stage_of_256 : stage_of_128;
}
auto* const plain_stage = widest_stage();
#else
PLAIN_STAGE(plain_stage);
#endif

weft::machine machine_of(int devices) {
  weft::machine_options chosen;
  chosen.backend = "host";
  chosen.devices = devices;
  return weft::machine{chosen};
}

weft::pipeline<float, float> line_of(const weft::machine& m, int stages, std::size_t items) {
  weft::pipeline_options options;
  for (int s = 0; s < stages; ++s) options.placement.push_back(m[s % static_cast<int>(m.devices().size())]);
  auto line = weft::make_pipeline<float>(m, items, options);
  for (int s = 0; s < stages; ++s) line = std::move(line).kernel<line_stage>("stage " + std::to_string(s));
  return std::move(line).build();
}

/// Batches, and where their results go: a few of each, used again and again.
struct traffic {
  static constexpr std::size_t apart = 8;
  std::vector<std::vector<float>> batches, results;
  explicit traffic(std::size_t items) : batches(apart), results(apart, std::vector<float>(items)) {
    for (std::size_t b = 0; b < apart; ++b) {
      for (std::size_t i = 0; i < items; ++i)
        batches[b].push_back(static_cast<float>((i * 7 + b) % 1000 + 1) / 1001.0f);
    }
  }
};

double through_weft(weft::pipeline<float, float>& line, traffic& of, int count) {
  std::array<weft::event, traffic::apart> over;
  const double start = weft::bench::now();
  for (int b = 0; b < count; ++b) {
    const std::size_t k = static_cast<std::size_t>(b) % traffic::apart;
    over[k].wait();  // of the batch whose memory this one uses
    over[k] = line.push(of.batches[k], of.results[k]);
  }
  line.drain();
  return (weft::bench::now() - start) / count;
}

double through_one_thread(traffic& of, int count) {
  std::array<std::vector<float>, stages_of_line - 1> between;
  for (auto& one : between) one.resize(of.batches[0].size());
  const double start = weft::bench::now();
  for (int b = 0; b < count; ++b) {
    const std::size_t k = static_cast<std::size_t>(b) % traffic::apart;
    plain_stage(of.batches[k], between[0]);
    plain_stage(between[0], between[1]);
    plain_stage(between[1], of.results[k]);
  }
  return (weft::bench::now() - start) / count;
}

#ifdef WEFT_BENCH_TBB
double through_tbb(traffic& of, int count) {
  struct token {
    std::size_t batch = 0;
    std::array<std::vector<float>, stages_of_line - 1> between;
  };
  std::vector<token> tokens(traffic::apart);
  for (token& t : tokens) {
    for (auto& one : t.between) one.resize(of.batches[0].size());
  }
  int given = 0;
  const double start = weft::bench::now();
  tbb::parallel_pipeline(
      traffic::apart,
      tbb::make_filter<void, token*>(tbb::filter_mode::serial_in_order, [&](tbb::flow_control& flow) -> token* {
        if (given == count) {
          flow.stop();
          return nullptr;
        }
        token& t = tokens[static_cast<std::size_t>(given) % traffic::apart];
        t.batch = static_cast<std::size_t>(given++) % traffic::apart;
        plain_stage(of.batches[t.batch], t.between[0]);
        return &t;
      }) & tbb::make_filter<token*, token*>(tbb::filter_mode::serial_in_order, [](token* t) {
        plain_stage(t->between[0], t->between[1]);
        return t;
      }) & tbb::make_filter<token*, void>(tbb::filter_mode::serial_in_order, [&](token* t) {
        plain_stage(t->between[1], of.results[t->batch]);
      }));
  return (weft::bench::now() - start) / count;
}
#endif

std::string named(std::size_t items) {
  return items >= 1 << 20   ? std::to_string(items >> 20) + "Mi"
         : items >= 1 << 10 ? std::to_string(items >> 10) + "Ki"
                            : std::to_string(items);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace weft::bench;
  const options how = parse(argc, argv);
  print_machine(how);
#ifdef WEFT_BENCH_TBB
  const tbb::global_control two_threads{tbb::global_control::max_allowed_parallelism, 2};
#else
  std::fprintf(stderr, "no oneTBB (libtbb-dev) when this was built: compared with one thread alone\n");
#endif
  bool is_right = true;
  for (const std::size_t items :
       {std::size_t{256}, std::size_t{4} << 10, std::size_t{20} << 10, std::size_t{64} << 10, std::size_t{1} << 20}) {
    const weft::machine m = machine_of(2);
    auto line = line_of(m, stages_of_line, items);
    traffic ours{items}, of_tbb{items}, of_thread{items};
    const int count = static_cast<int>(std::clamp<std::size_t>((std::size_t{2} << 20) / items, 16, 1024));
    std::vector<contender> all{
        {"weft::pipeline", [&, count] { return through_weft(line, ours, count); }},
#ifdef WEFT_BENCH_TBB
        {"oneTBB, shared memory", [&, count] { return through_tbb(of_tbb, count); }},
#endif
        {"one thread, shared memory", [&, count] { return through_one_thread(of_thread, count); }}};
    compare(
        "pipeline/batch/" + named(items) + " floats: three stages of " + std::to_string(steps) + " steps, two devices",
        all, how, static_cast<double>(items * sizeof(float)));
    is_right = is_right && ours.results == of_thread.results;
#ifdef WEFT_BENCH_TBB
    is_right = is_right && of_tbb.results == of_thread.results;
#endif
  }

  // A batch of 64 floats: what is left is the work of the pipeline. Per stage: linear is a ratio of 1.
  constexpr std::size_t small = 64;
  constexpr int small_count = 512;
  traffic tiny{small};
  const auto growth = [&](const char* title, const std::vector<std::array<int, 2>>& shapes) {
    std::vector<weft::machine> machines;
    std::vector<weft::pipeline<float, float>> lines;
    std::vector<contender> all;
    lines.reserve(shapes.size());
    for (const auto& [count, devices] : shapes) {
      machines.push_back(machine_of(devices));
      lines.push_back(line_of(machines.back(), count, small));
      all.push_back(
          {"weft, " + std::to_string(count) + " stages, " + std::to_string(devices) + " devices",
           [&line = lines.back(), &tiny, stages = count] { return through_weft(line, tiny, small_count) / stages; }});
    }
    compare(title, all, how);
  };
  growth("pipeline/stages: a batch of 64 floats, per stage", {{4, 2}, {1, 2}, {2, 2}, {8, 2}, {16, 2}, {32, 2}});
  growth("pipeline/devices: a batch of 64 floats, per stage", {{4, 2}, {4, 1}, {4, 4}, {16, 2}, {16, 4}, {16, 16}});
  if (!is_right) std::fprintf(stderr, "WRONG: a result differs from that of the plain loops\n");
  return is_right ? EXIT_SUCCESS : EXIT_FAILURE;
}
