// SPDX-License-Identifier: Apache-2.0
#include "support/hang.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <future>

namespace skipped_copy_test {

TEST(copy_counters, count_what_was_taken_and_apart_from_it_what_failed_or_was_skipped) {
  weft::machine_options options;
  options.machine = weft::value_or_raise(weft::load_topology("pair_nvlink"));
  weft::topology_fault second_fails;
  second_fails.what = weft::topology_fault::kind::copy_fails;
  second_fails.from = weft::device_id{0};
  second_fails.to = weft::device_id{1};
  second_fails.nth = 2;
  options.machine->faults.push_back(second_fails);
  const weft::machine m{options};
  const auto leases = weft::enable_all_peers(m);
  const weft::buffer<int> a{m[0], 100}, b{m[1], 100};
  const weft::stream order{m[0]};
  std::vector<weft::event> done;
  // held back, so that all five are submitted before the first runs
  std::promise<void> go;
  static_cast<void>(order.call([held = go.get_future().share()] { held.wait_for(samples::only_a_hang); }));
  for (int i = 0; i < 5; ++i) done.push_back(weft::copy(order, b, a));
  go.set_value();
  EXPECT_THROW(weft::wait_all(done), weft::error_exception);
  const auto direct = weft::counters(m).direct;
  EXPECT_EQ(direct.copies, 1U) << "the first; the second fails, the others are skipped";
  EXPECT_EQ(direct.failed, 4U);
  EXPECT_EQ(direct.bytes, direct.copies * 100 * sizeof(int));
}

}  // namespace skipped_copy_test
