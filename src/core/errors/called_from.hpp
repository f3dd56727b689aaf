// SPDX-License-Identifier: Apache-2.0
// The place in the program that called weft, kept for as long as the call lasts. What the library raises meanwhile on
// this thread names it, and no function in between needs to hand it on. This is the library's only thread-local state.
#pragma once

#include <source_location>

namespace weft {

/// Opened first in a public function. The outermost one counts: a call of the library's own inside is part of it.
class called_from {
 public:
  explicit called_from(const std::source_location& where) noexcept;
  ~called_from();
  called_from(const called_from&) = delete;
  called_from& operator=(const called_from&) = delete;

  /// Line 0 outside of every call.
  [[nodiscard]] static std::source_location place() noexcept;

 private:
  bool outermost_;
};

}  // namespace weft
