// SPDX-License-Identifier: Apache-2.0
// Threads that wait until a word of memory has changed. A write that a stream makes wakes them; kernels, the host's own
// stores and other processes make no call, so they also look by themselves, each millisecond at the least.
#pragma once

#include "weft/backend/event_record.hpp"

#include <functional>
#include <stop_token>

namespace weft::detail {

/// Returns once `holds()`, or a stop is requested. It is asked often, on this thread alone.
/// Cost: a processor for some tens of microseconds, as the policy says; then a look after 50 µs, 100 µs, … 1 ms.
void watch_word(const std::function<bool()>& holds, const std::stop_token& stop, waiting policy);

/// A word was written: all who watch one look at theirs now.
/// Cost: one atomic operation where nobody does.
void word_written() noexcept;

}  // namespace weft::detail
