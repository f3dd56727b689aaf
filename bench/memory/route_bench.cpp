// SPDX-License-Identifier: Apache-2.0
// route/…: the choice alone on 8 devices. Bar: under 1 us; reasons are made only when asked for.

#include "weft/memory/route.hpp"

#include "paired.hpp"
#include "weft/core/raise.hpp"

#include <cstdio>

int main(int argc, char** argv) {
  using namespace weft::bench;
  const options how = parse(argc, argv);
  print_machine(how);
  for (const char* name : {"dgx_h100", "mi300x_8", "two_socket_8"}) {
    const auto facts = weft::route_facts_of(weft::value_or_raise(weft::load_topology(name)));
    volatile double sink = 0;
    int turn = 0;
    const auto next = [&] {
      turn = (turn + 1) % 56;
      return turn;
    };
    compare(std::string{"route/"} + name + "/8 devices",
            {{"route()",
              [&] {
                return seconds_of(1000, [&] {
                  const int i = next();
                  const auto choice = weft::route(facts, weft::device_id{i / 7},
                                                  weft::device_id{(i / 7 + 1 + i % 7) % 8}, weft::bytes{1u << 26});
                  sink = choice->predicted_seconds;
                });
              }},
             {"explain_route()",
              [&] {
                return seconds_of(100, [&] {
                  const int i = next();
                  const auto report = weft::explain_route(
                      facts, weft::device_id{i / 7}, weft::device_id{(i / 7 + 1 + i % 7) % 8}, weft::bytes{1u << 26});
                  sink = report->chosen.predicted_seconds;
                });
              }}},
            how);
  }
  return 0;
}
