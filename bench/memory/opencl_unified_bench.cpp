// SPDX-License-Identifier: Apache-2.0
// unified/…: 64 MiB that the host fills, a kernel changes and the host reads: as one memory, and with copies there and
// back. Only where OpenCL devices share memory with the host; else POCL_DEVICES="pthread" and PoCL.

#include "backends/opencl/factory.hpp"
#include "paired.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/copy.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

namespace {

WEFT_KERNEL(bench_adds, (WEFT_INOUT(uint32_t) values, uint32_t more), { values[i] = values[i] + more; });

constexpr std::size_t size = std::size_t{64} << 20;
constexpr std::size_t count = size / sizeof(std::uint32_t);

void fill(std::span<std::uint32_t> values, std::uint32_t seed) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint32_t>(i) + seed;
}
void check(std::span<const std::uint32_t> values, std::uint32_t expected) {
  std::uint32_t wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) wrong |= values[i] ^ (static_cast<std::uint32_t>(i) + expected);
  if (wrong == 0) return;
  std::fprintf(stderr, "unified: wrong data\n");
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace weft::bench;
  const options how = parse(argc, argv);
  print_machine(how);
  setenv("POCL_DEVICES", "pthread", 0);  // NOLINT(concurrency-mt-unsafe): before there are threads
  weft::machine_options chosen;
  chosen.more_backends = {{weft::backend_kind::opencl, "opencl_shared", &weft::opencl::open}};
  chosen.backend = "opencl_shared";
  try {
    const weft::machine m{chosen};
    const weft::stream order{m[0]};
    const weft::unified_buffer<std::uint32_t> one{m[0], count};
    const weft::buffer<std::uint32_t> there{m[0], count};
    const weft::pinned_buffer<std::uint32_t> here{m[0], count};
    std::uint32_t seed = 0;
    const auto unified = [&] {
      fill(one.host(), ++seed);
      weft::launch<bench_adds>(order, weft::range(count), one, 5U).wait();
      check(one.host(), seed + 5U);
    };
    const auto copied = [&] {
      fill(here.host(), ++seed);
      weft::copy(order, there, here);
      weft::launch<bench_adds>(order, weft::range(count), there, 5U);
      weft::copy(order, here, there).wait();
      check(here.host(), seed + 5U);
    };
    unified();
    copied();
    compare("unified/64MiB/host fills, kernel adds, host reads",
            {{"copies there and back", [&] { return seconds_of(1, copied); }},
             {"one memory", [&] { return seconds_of(1, unified); }}},
            how, static_cast<double>(size));
    // without what is the same on both ways
    compare(
        "unified/64MiB/kernel and what brings its data",
        {{"copies there and back",
          [&] {
            return seconds_of(1, [&] {
              weft::copy(order, there, here);
              weft::launch<bench_adds>(order, weft::range(count), there, 5U);
              weft::copy(order, here, there).wait();
            });
          }},
         {"one memory",
          [&] { return seconds_of(1, [&] { weft::launch<bench_adds>(order, weft::range(count), one, 5U).wait(); }); }}},
        how, static_cast<double>(size));
  } catch (const weft::error_exception& absent) {
    std::printf("unified: %s\n", to_string(absent.cause()).c_str());
  }
  return 0;
}
