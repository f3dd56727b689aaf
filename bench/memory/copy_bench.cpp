// SPDX-License-Identifier: Apache-2.0
// copy/…: copies between host devices against the best plain memory copy of this machine, found in the same run.
// Bars: a same-device and a direct copy of 64 MiB at least 0.95 of it; a staged copy at least 0.45 of a direct one.

#include "weft/memory/copy.hpp"

#include "paired.hpp"
#include "plain_copy.hpp"
#include "weft/memory/peer_access.hpp"

#include <cstdio>
#include <cstring>
#include <vector>

namespace {

constexpr std::size_t large = std::size_t{64} << 20;

void check(const weft::buffer<std::uint64_t>& target, std::uint64_t salt, const char* what) {
  std::vector<std::uint64_t> got(target.size());
  weft::copy(got, target);
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] != i * 0x9e3779b97f4a7c15 + salt) {
      std::fprintf(stderr, "%s: wrong data at element %zu\n", what, i);
      std::exit(1);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace weft::bench;
  const options how = parse(argc, argv);
  print_machine(how);
  weft::machine_options chosen;
  chosen.backend = "host";
  const weft::machine m{chosen};
  const auto leases = weft::enable_all_peers(m);

  const std::size_t n = large / 8;
  const weft::buffer<std::uint64_t> source{m[0], n}, same{m[0], n}, peer{m[1], n};
  std::vector<std::uint64_t> pattern(n);
  for (std::size_t i = 0; i < n; ++i) pattern[i] = i * 0x9e3779b97f4a7c15 + 7;
  weft::copy(source, pattern);
  weft::copy(same, pattern);
  weft::copy(peer, pattern);

  // plain memory of the same kind that a user would take, touched
  std::vector<char> a(large, 1), b(large, 2);
  std::vector<contender> candidates;
  for (const plain p : all_plain) {
    candidates.push_back(
        {std::string{name_of(p)}, [&, p] { return seconds_of(1, [&] { copy_plain(p, b.data(), a.data(), large); }); }});
  }
  compare("copy/plain/64MiB: which plain copy is best here", candidates, how, large);
  plain best = plain::memcpy_one;
  double shortest = 1e9;
  for (const plain p : all_plain) {
    std::vector<double> t;
    for (int i = 0; i < 15; ++i) t.push_back(seconds_of(1, [&] { copy_plain(p, b.data(), a.data(), large); }));
    if (const double median = spread_of(t).median; median < shortest) {
      shortest = median;
      best = p;
    }
  }
  const contender limit{"best plain: " + std::string{name_of(best)},
                        [&] { return seconds_of(1, [&] { copy_plain(best, b.data(), a.data(), large); }); }};
  weft::copy_options direct, staged;
  direct.route.path = weft::copy_path::direct;
  staged.route.path = weft::copy_path::staged;
  const contender on_one{"weft same device", [&] { return seconds_of(1, [&] { weft::copy(same, source); }); }};
  const contender peer_direct{"weft direct", [&] { return seconds_of(1, [&] { weft::copy(peer, source, direct); }); }};
  const contender peer_staged{"weft staged", [&] { return seconds_of(1, [&] { weft::copy(peer, source, staged); }); }};
  compare("copy/same_device/64MiB", {on_one, limit}, how, large);
  compare("copy/direct/64MiB/gpu0-gpu1", {peer_direct, limit}, how, large);
  compare("copy/staged/64MiB/gpu0-gpu1", {peer_staged, peer_direct}, how, large);
  check(same, 7, "same device");
  check(peer, 7, "direct and staged");

  for (const std::size_t size : {std::size_t{8}, std::size_t{4096}}) {
    constexpr int repeats = 2000;
    const auto to = peer.subspan(0, size / 8);
    const auto from = source.subspan(0, size / 8);
    const std::string title =
        "copy/sync/" + std::to_string(size) + "B: latency beside memcpy, without a thread hand-over";
    compare(title,
            {{"weft direct", [&] { return seconds_of(repeats, [&] { weft::copy(to, from); }); }},
             {"weft host to device",
              [&] { return seconds_of(repeats, [&] { weft::copy(to, std::span{pattern}.first(size / 8)); }); }},
             {"memcpy",
              [&] {
                return seconds_of(repeats, [&] {
                  std::memcpy(b.data(), a.data(), size);
                  asm volatile("" ::: "memory");
                });
              }}},
            how, static_cast<double>(size));
  }
  return 0;
}
