// SPDX-License-Identifier: Apache-2.0
// A machine that is closed while threads use it, on every backend.
#include "support/closing.hpp"
#include "support/rounds.hpp"

namespace closed_in_use_test {

TEST(machine_in_use, a_machine_closed_in_use_says_so_and_touches_no_freed_memory) {
  EXPECT_EQ(samples::closed_in_use(
                [] {
                  weft::machine_options options;
                  options.devices = 2;
                  return weft::machine{options};
                },
                samples::by_night() ? 300 : 100),
            "");
}

}  // namespace closed_in_use_test
