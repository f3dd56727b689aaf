// SPDX-License-Identifier: Apache-2.0
// Two buffers on one device, of which another device shall see one. Peer access shows both; mapped blocks show what was
// granted.
#include "play.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/mapping.hpp"
#include "weft/memory/peer_access.hpp"

#include <cstdint>
#include <functional>
#include <iostream>
#include <vector>

constexpr std::size_t elements = 1000;

WEFT_KERNEL(read_all, (WEFT_IN(int32_t) theirs, WEFT_OUT(int32_t) mine), { mine[i] = theirs[i]; });

int show(const weft::machine& m) {
  const weft::device_id gpu0{0}, gpu1{1};
  const weft::buffer<std::int32_t> got{m[gpu1], elements};

  // A kernel of gpu1 reads memory of gpu0, given as gpu1 reaches it.
  const auto read = [&](const char* what, const weft::device_span<const std::int32_t>& theirs, std::int32_t expected) {
    try {
      weft::launch<read_all>(weft::stream{m[gpu1]}, weft::range(elements), theirs, got).wait();
      std::vector<std::int32_t> host(elements);
      weft::copy(host, got);
      const bool same = host == std::vector<std::int32_t>(elements, expected);
      std::cout << what << ": " << (same ? "read" : "WRONG") << "\n";
      return same;
    } catch (const weft::error_exception& e) {
      std::cout << what << ": " << to_string(e.code()) << "\n";
      return false;
    }
  };
  const auto filled = [](std::int32_t value) { return std::vector<std::int32_t>(elements, value); };

  bool both = true;
  {
    const weft::buffer<std::int32_t> open{m[gpu0], elements}, secret{m[gpu0], elements};
    weft::copy(open, filled(1));
    weft::copy(secret, filled(2));
    const weft::peer_access lease{m, gpu1, gpu0};
    both = read("peer access, the first buffer", weft::peer_mapping{m, open.span(), gpu1}.span(), 1) && both;
    both = read("peer access, the second buffer", weft::peer_mapping{m, secret.span(), gpu1}.span(), 2) && both;
  }

  const auto mapped = [&](std::int32_t value) {
    weft::mapping made{weft::physical_block{m[gpu0], weft::bytes{elements * sizeof(std::int32_t)}}};
    made.grant(gpu0, weft::access_right::read_write);
    weft::copy(made.span<std::int32_t>().first(elements), filled(value));
    return made;
  };
  weft::mapping open = mapped(3);
  const weft::mapping secret = mapped(4);
  open.grant(gpu1, weft::access_right::read);  // of this mapping, and of nothing else
  const bool first = read("blocks, the one that was granted", open.span<const std::int32_t>(gpu1).first(elements), 3);
  const bool second = read("blocks, the one that was not", secret.span<const std::int32_t>(gpu1).first(elements), 4);
  return both && first && !second ? 0 : 1;
}

int main(int argc, char** argv) {
  return examples::run([&] { return show(examples::play(argc, argv, "pair_nvlink")); });
}
