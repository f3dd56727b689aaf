// SPDX-License-Identifier: Apache-2.0
// Every allocation of this test program, by all of its threads: counted, and one of them may fail.
#pragma once

#include <atomic>

namespace allocations {

extern std::atomic<long> made;
extern thread_local long made_here;  // by this thread
/// That many more succeed, and then one fails; negative: none does.
extern std::atomic<long> until_failure;
/// Not 0 on a thread that works for a driver just now: its allocations are the driver's own, and none of them fails.
extern thread_local int for_a_driver;

}  // namespace allocations
