// SPDX-License-Identifier: Apache-2.0
// Stacks between which one thread of the process switches, kept for what it runs next.
#pragma once

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

namespace weft::virtual_cuda {

/// Where a stack was left.
#if defined(__x86_64__) || defined(__aarch64__)
using left_stack = void*;
#else
using left_stack = ucontext_t;
#endif

/// Keeps in `from` where the caller is, and goes on at `to`; comes back when another switch goes on at `from`.
void switch_stack(left_stack& from, left_stack& to);

class stacks {
 public:
  stacks() = default;
  stacks(const stacks&) = delete;
  stacks& operator=(const stacks&) = delete;
  ~stacks() { drop(); }

  /// Room for so many, each to begin anew, and with the caller's way to round. False: there is no memory.
  [[nodiscard]] bool reserve(std::size_t count);
  /// Gives back more than the largest block needs.
  void trim();
  /// A switch to `at` then runs `run` on stack `n`; it never returns.
  void begin(std::size_t n, void (*run)(), left_stack& at);

 private:
  void drop();

  std::byte* base_ = nullptr;
  std::size_t count_ = 0;
  std::size_t guarded_ = 0;
  std::uint64_t control_ = 0;
};

}  // namespace weft::virtual_cuda
