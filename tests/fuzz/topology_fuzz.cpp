// SPDX-License-Identifier: Apache-2.0
// Any text gives a machine that checks itself, or the reason why not. Start it with topologies/ as the corpus.
#include "weft/core/topology.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto machine = weft::parse_topology(text, "fuzz.json");
  if (!machine) {
    if (machine.error().code != weft::errc::invalid_topology || !machine.error().what.starts_with("fuzz.json:"))
      std::abort();
    return 0;
  }
  if (machine->device_count() > 32) return 0;  // the same code, only slower
  const auto again = weft::complete_topology(*machine);
  if (!again || !(*again == *machine)) std::abort();
  for (int from = 0; from < machine->device_count(); ++from) {
    for (int to = 0; to < machine->device_count(); ++to) {
      const weft::device_id a{from};
      const weft::device_id b{to};
      if (weft::link_class(*machine, a, b) != weft::link_class(*machine, b, a)) std::abort();
      if (machine->can_access(a, b) && machine->peer_paths[machine->pair(a, b)].links.empty()) std::abort();
    }
  }
  return 0;
}
