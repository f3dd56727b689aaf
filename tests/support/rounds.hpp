// SPDX-License-Identifier: Apache-2.0
// How often tests repeat what a race decides.
#pragma once

#include <cstdlib>

namespace samples {

#if defined(WEFT_TSAN) || defined(WEFT_ASAN)
inline constexpr bool is_sanitized = true;
#else
inline constexpr bool is_sanitized = false;
#endif

/// ThreadSanitizer sees threads of one process.
#if defined(WEFT_TSAN)
inline constexpr bool sees_one_process = true;
#else
inline constexpr bool sees_one_process = false;
#endif

/// As often as wanted; under a sanitizer, which takes ten times as long and sees more each time, an eighth of it.
constexpr int rounds(int wanted) { return is_sanitized ? (wanted + 7) / 8 : wanted; }

/// Long forms of tests run by night: scripts/nightly sets WEFT_NIGHTLY.
inline bool by_night() { return std::getenv("WEFT_NIGHTLY") != nullptr; }  // NOLINT(concurrency-mt-unsafe)

}  // namespace samples
