// SPDX-License-Identifier: Apache-2.0
// trace/…: an operation while nobody records, while a profiler is paused, and while it records; and what the records
// cost afterwards. Off and paused should be alike.

#include "paired.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/fill.hpp"
#include "weft/profile/chrome_trace.hpp"
#include "weft/profile/profiler.hpp"
#include "weft/runtime/machine.hpp"
#include "weft/runtime/stream.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace {

/// A machine with a stream and memory of its own, so that each contender is alone with its way of recording.
struct place {
  weft::machine machine;
  weft::buffer<std::uint8_t> memory{machine[0], 64};
  weft::stream order{machine[0]};
  std::optional<weft::profiler> watch;

  explicit place(std::optional<weft::profiler_options> recording) : machine{one_device()} {
    if (recording) watch.emplace(machine, *recording);
  }
  static weft::machine_options one_device() {
    weft::machine_options chosen;
    chosen.backend = "host";
    chosen.devices = 1;
    return chosen;
  }

  /// Seconds of one of `count` operations that are submitted together.
  double queued(int count) {
    const double each = weft::bench::seconds_of(1,
                                                [&] {
                                                  for (int i = 0; i < count; ++i) {
                                                    static_cast<void>(weft::fill(order, memory, std::uint8_t{1}));
                                                  }
                                                  order.synchronize();
                                                }) /
                        count;
    if (watch) watch->reset();
    return each;
  }
};

std::vector<weft::trace_record> some_records(std::size_t count) {
  std::vector<weft::trace_record> records(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::int64_t>(i) * 1000;
    weft::trace_record& r = records[i];
    r.kind = i % 3 == 0 ? weft::trace_kind::copy : weft::trace_kind::kernel;
    r.device = r.to = weft::device_id{static_cast<int>(i % 4)};
    r.stream = i % 8;
    r.name = "saxpy";
    r.started = std::chrono::nanoseconds{at};
    r.ended = std::chrono::nanoseconds{at + 900};
  }
  return records;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace weft::bench;
  const options how = parse(argc, argv);
  print_machine(how);

  place off{std::nullopt};
  place paused{weft::profiler_options{.paused = true}};
  place on{weft::profiler_options{}};
  constexpr int operations = 1000;
  compare("trace/operation: one of 1,000 fills of 64 bytes on one stream, submitted and waited for",
          {{"nobody records", [&] { return off.queued(operations); }},
           {"paused", [&] { return paused.queued(operations); }},
           {"recording", [&] { return on.queued(operations); }}},
          how);

  constexpr std::size_t count = 100'000;
  const auto records = some_records(count);
  compare("trace/record: per record of 100,000",
          {{"summarise",
            [&] { return seconds_of(1, [&] { static_cast<void>(weft::summarise(records)); }) / double{count}; }},
           {"chrome_trace",
            [&] { return seconds_of(1, [&] { static_cast<void>(weft::chrome_trace(records)); }) / double{count}; }}},
          how);
  return 0;
}
