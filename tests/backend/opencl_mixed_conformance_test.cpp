// SPDX-License-Identifier: Apache-2.0
// The conformance suite on devices of two backends together: what users of the library may rely on there too.
#include "conformance/conformance.hpp"
#include "support/mixed_machines.hpp"

#include <set>
#include <string>

namespace opencl_mixed_conformance_test {

class mixed_conformance : public samples::mixed_test {};
INSTANTIATE_TEST_SUITE_P(mixtures, mixed_conformance, samples::mixtures, samples::name_of_mixture);

TEST_P(mixed_conformance, nothing_falls_short_and_what_is_not_offered_has_a_reason) {
  std::set<std::string> groups_that_hold;
  for (const weft::case_result& result : weft::run_conformance([] { return open(); })) {
    if (result.verdict == weft::verdict_kind::holds) {
      groups_that_hold.insert(result.group);
      continue;
    }
    EXPECT_FALSE(result.why.empty()) << result.group << ": " << result.name;
    EXPECT_NE(result.verdict, weft::verdict_kind::falls_short)
        << result.group << ": " << result.name << "\n  " << result.why;
  }
  for (const char* const group : {"selection", "memory", "address_range", "streams_events", "barriers", "kernels",
                                  "peer_query", "peer_copy", "routes", "library_wide"}) {
    EXPECT_TRUE(groups_that_hold.contains(group)) << group;
  }
}

}  // namespace opencl_mixed_conformance_test
