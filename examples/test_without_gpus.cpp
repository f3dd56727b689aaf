// SPDX-License-Identifier: Apache-2.0
// How to test code for several GPUs on a computer that has none: run it on machines that are data, broken ones too.
#include "weft/core/raise.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/peer_access.hpp"

#include <iostream>
#include <numeric>
#include <vector>

// The code under test: sends data once around all devices and says whether it came back as it was.
bool goes_around(const weft::machine& m) {
  std::vector<int> sent(100'000);
  std::iota(sent.begin(), sent.end(), 1);
  std::vector<weft::buffer<int>> stops;
  for (const auto& device : m.devices()) stops.emplace_back(device, sent.size());
  weft::copy(stops.front(), sent);
  for (std::size_t i = 1; i < stops.size(); ++i) weft::copy(stops[i], stops[i - 1]);
  std::vector<int> received(sent.size());
  weft::copy(received, stops.back());
  return received == sent;
}

int main() {
  for (const char* name : {"one", "pair_nvlink", "ring_3_no_p2p", "two_socket_8"}) {
    const weft::machine m = weft::machine::load(name);
    const auto peers = weft::enable_all_peers(m);
    std::cout << name << ": " << (goes_around(m) ? "arrived" : "LOST") << "\n";
  }

  // A link that says it works and drops what is sent: nothing but a look at the data shows it.
  weft::topology broken = weft::value_or_raise(weft::load_topology("pair_nvlink"));
  weft::topology_fault fault;
  fault.what = weft::topology_fault::kind::drops_data;
  fault.from = weft::device_id{0};
  fault.to = weft::device_id{1};
  fault.nth = 0;  // every time
  broken.faults.push_back(fault);
  weft::machine_options options;
  options.machine = broken;
  options.verify_peers = weft::peer_verification::never;
  {
    const weft::machine m{options};
    const auto peers = weft::enable_all_peers(m);
    std::cout << "broken link, not verified: " << (goes_around(m) ? "ARRIVED" : "lost, as it should be") << "\n";
  }
  options.verify_peers = weft::peer_verification::first_use;  // the default: such a pair goes through the host
  const weft::machine m{options};
  const auto peers = weft::enable_all_peers(m);
  std::cout << "broken link: " << (goes_around(m) ? "arrived" : "LOST") << "\n";
  for (const auto& check : weft::verify_peers(m)) {
    std::cout << to_string(check.from) << " -> " << to_string(check.to)
              << (check.arrived ? " works" : " failed verification") << "\n";
  }
}
