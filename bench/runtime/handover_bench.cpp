// SPDX-License-Identifier: Apache-2.0
// handover/…: an empty operation submitted and waited for, against a bare hand-over between two threads with the same
// way of waiting. Bars: under 1 us above the hand-over; 1,000 queued operations under 0.3 us each.

#include "bare_handover.hpp"
#include "paired.hpp"
#include "weft/runtime/machine.hpp"
#include "weft/runtime/stream.hpp"

int main(int argc, char** argv) {
  using namespace weft::bench;
  const options how = parse(argc, argv);
  print_machine(how);
  for (const weft::waiting policy : {weft::waiting::spin, weft::waiting::park}) {
    const bool spin = policy == weft::waiting::spin;
    weft::machine_options chosen;
    chosen.backend = "host";
    chosen.devices = 1;
    chosen.wait_policy = policy;
    const weft::machine m{chosen};
    const weft::stream order{m[0]};
    bare_handover bare{policy};
    const int repeats = spin ? 500 : 100;
    compare(spin ? "handover/spin: submit an empty operation and wait"
                 : "handover/park: submit an empty operation and wait",
            {{"weft record + wait", [&] { return seconds_of(repeats, [&] { order.record().wait(); }); }},
             {"bare hand-over", [&] { return seconds_of(repeats, [&] { bare.round_trip(); }); }}},
            how);
  }
  weft::machine_options chosen;
  chosen.backend = "host";
  chosen.devices = 1;
  const weft::machine m{chosen};
  const weft::stream order{m[0]};
  compare("queued/1000: per operation of 1,000 on one stream, submitted and waited for",
          {{"weft",
            [&] {
              return seconds_of(1,
                                [&] {
                                  for (int i = 0; i < 999; ++i) static_cast<void>(order.record());
                                  order.record().wait();
                                }) /
                     1000;
            }}},
          how);
  return 0;
}
