// SPDX-License-Identifier: Apache-2.0
// The conformance suite on four OpenCL devices, in both ways to keep memory and on parts of a device.
#include "conformance/conformance.hpp"
#include "support/opencl_machines.hpp"

#include <set>
#include <string>

namespace opencl_conformance_test {

using samples::opencl_memory;

class opencl_conformance : public samples::opencl_test {};

TEST_P(opencl_conformance, nothing_falls_short_and_what_is_not_offered_has_a_reason) {
  const auto results = weft::run_conformance([] { return open(); });
  ASSERT_EQ(results.size(), weft::conformance_cases().size());
  std::set<std::string> groups_that_hold;
  std::set<std::string> groups_with_absences;
  for (const weft::case_result& result : results) {
    if (result.verdict == weft::verdict_kind::holds) {
      groups_that_hold.insert(result.group);
    } else {
      EXPECT_FALSE(result.why.empty()) << result.group << ": " << result.name;
      const bool is_of_parts = result.why == "no device of this machine is a part of one";  // which is no absence
      if (!is_of_parts) groups_with_absences.insert(result.group);
    }
    EXPECT_NE(result.verdict, weft::verdict_kind::falls_short)
        << result.group << ": " << result.name << "\n  " << result.why;
  }
  for (const char* const group : {"selection", "memory", "address_range", "streams_events", "barriers", "kernels",
                                  "peer_query", "peer_copy", "routes", "library_wide"}) {
    EXPECT_TRUE(groups_that_hold.contains(group)) << group;
  }
  // blocks need addresses apart from memory, which OpenCL does not have; it has kernels and barriers, and memory that
  // is the host's too on some platforms
  EXPECT_TRUE(groups_with_absences.contains("blocks"));
  EXPECT_FALSE(groups_with_absences.contains("kernels"));
  const weft::machine m = open();
  EXPECT_NE(groups_with_absences.contains("memory"), m[0].has(weft::capability::unified_memory));
}

INSTANTIATE_TEST_SUITE_P(memories, opencl_conformance, samples::both_memories, samples::name_of_memory);

}  // namespace opencl_conformance_test
