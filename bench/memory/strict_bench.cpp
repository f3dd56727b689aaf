// SPDX-License-Identifier: Apache-2.0
// strict/…: what it costs that device pointers fault on the host (each allocation mapped twice). The default follows
// from these figures: docs/reference/memory.md.

#include "paired.hpp"
#include "weft/memory/copy.hpp"

#include <cstdio>

int main(int argc, char** argv) {
  using namespace weft::bench;
  const options how = parse(argc, argv);
  print_machine(how);
  const auto open = [](bool strict) {
    weft::machine_options chosen;
    chosen.backend = "host";
    chosen.devices = 1;
    chosen.strict = strict;
    return weft::machine{chosen};
  };
  const weft::machine strict = open(true), plain = open(false);
  for (const std::size_t size : {std::size_t{8}, std::size_t{4} << 10, std::size_t{64} << 20}) {
    const weft::buffer<std::byte> a{strict[0], size}, b{strict[0], size}, c{plain[0], size}, d{plain[0], size};
    const int repeats = size > 4096 ? 1 : 2000;
    weft::copy(b, a);
    weft::copy(d, c);
    compare("strict/copy/same_device/" + weft::to_string(weft::bytes{size}),
            {{"strict", [&] { return seconds_of(repeats, [&] { weft::copy(b, a); }); }},
             {"one address", [&] { return seconds_of(repeats, [&] { weft::copy(d, c); }); }}},
            how, static_cast<double>(size));
  }
  for (const std::size_t size : {std::size_t{4} << 10, std::size_t{16} << 20}) {
    compare("strict/allocate and free/" + weft::to_string(weft::bytes{size}),
            {{"strict", [&] { return seconds_of(50, [&] { const weft::buffer<std::byte> x{strict[0], size}; }); }},
             {"one address", [&] { return seconds_of(50, [&] { const weft::buffer<std::byte> x{plain[0], size}; }); }}},
            how);
  }
  return 0;
}
