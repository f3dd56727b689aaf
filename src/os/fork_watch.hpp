// SPDX-License-Identifier: Apache-2.0
// Tells an object that it is in the child of a fork, where the threads it relies on do not exist.
#pragma once

#include <cstdint>

namespace weft::detail {

/// A number of this process that the child of a fork does not share. Never 0.
/// Cost: a load. The page that holds it is wiped by the kernel in a child, so that nothing is asked of it per call.
[[nodiscard]] std::uint64_t process_generation() noexcept;

/// What was made in this process is used in a child of it.
class fork_watch {
 public:
  [[nodiscard]] bool forked() const noexcept { return process_generation() != made_in_; }

 private:
  std::uint64_t made_in_ = process_generation();
};

}  // namespace weft::detail
