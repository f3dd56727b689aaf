// SPDX-License-Identifier: Apache-2.0
// Who may reach whose memory, and the two ways that a copy can take: direct, and staged through the host.
#include "play.hpp"
#include "weft/core/raise.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/peer_access.hpp"

#include <iostream>
#include <numeric>
#include <vector>

int main(int argc, char** argv) {
  const weft::machine m = examples::play(argc, argv, "two_socket_8");
  std::cout << m.layout().name << ": row reads and writes the memory of column\n";
  for (const auto& from : m.devices()) {
    std::cout << to_string(from);
    for (const auto& to : m.devices()) {
      const auto pair = weft::capability_between(m, from, to);
      std::cout << "\t" << (!pair ? "-" : pair->supported ? to_string(pair->link) : "no");
    }
    std::cout << "\n";
  }

  std::vector<int> numbers(1 << 20);
  std::iota(numbers.begin(), numbers.end(), 7);
  weft::buffer<int> x{m[0], numbers.size()};
  weft::buffer<int> y{m[1], numbers.size()};
  weft::copy(x, numbers);

  const auto try_copy = [&](const char* when) {
    const auto report = weft::copy(y, x);
    std::vector<int> back(numbers.size());
    weft::copy(back, y);
    std::cout << when << ": " << to_string(report.size) << " " << to_string(report.path)
              << (back == numbers ? ", verified" : ", WRONG") << "\n";
  };
  try_copy("before access is enabled");
  if (weft::can_access_peer(m, m[0], m[1])) {
    const weft::peer_access lease{m, m[0], m[1]};  // ends with this block
    try_copy("while a lease is held");
  }
  try_copy("after the lease has ended");

  const weft::copy_counters count = weft::counters(m);
  std::cout << count.direct.copies << " direct, " << count.staged.copies << " staged\n";
}
