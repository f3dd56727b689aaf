// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/descriptor.hpp"

namespace weft::detail {

/// Ends the poll of another thread: an eventfd, readable from the first ring on.
/// Thread: any may ring.
class event_bell {
 public:
  /// Without a descriptor to spare it is none, and errno says why.
  [[nodiscard]] static event_bell make() noexcept;

  explicit operator bool() const noexcept { return static_cast<bool>(file_); }
  /// For poll().
  [[nodiscard]] int file() const noexcept { return file_.get(); }
  void ring() const noexcept { ring(file()); }
  static void ring(int file) noexcept;
  /// Not readable any more, until the next ring.
  void silence() const noexcept;
  void reset() noexcept { file_.reset(); }

 private:
  descriptor file_;
};

}  // namespace weft::detail
