// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/channel/message_queue.hpp"
#include "weft/memory/buffer.hpp"

#include <cstdint>
#include <source_location>

namespace weft {

namespace detail {

/// The end, or the reason why there is none to lend: several producers have several.
[[nodiscard]] queue_end& lendable(queue_end* only, std::source_location where);

/// Takes an end away from its host thread and lays it where kernels of its device find it.
class loan {
 public:
  loan(std::shared_ptr<queue_state> queue, queue_end& end, device_id on, std::source_location where);
  ~loan() { end(); }
  loan(const loan&) = delete;
  loan& operator=(const loan&) = delete;

  /// Brings back how far the kernels got.
  void end() noexcept;
  [[nodiscard]] device_span<std::uint64_t> words() const { return words_.span(); }

 private:
  std::shared_ptr<queue_state> queue_;
  queue_end* end_ = nullptr;
  bool was_plain_ = false;
  buffer<std::uint64_t> words_;
};

}  // namespace detail

/// One end of a queue, lent to kernels: the argument of a WEFT_RING parameter. Kernels of the sender's device (or the
/// receiver's) go on where the end was, one launch after another; when the loan ends the host goes on where they were.
///
/// While it is lent the end's own operations say failed. A kernel wakes nobody: a host thread that waits at the other
/// end looks again by itself, a few thousand times a second. End it after the launches that used it have ended.
/// Thread: one at a time.
class kernel_end {
 public:
  /// Errors: unsupported for a queue with checksums, overwriting, spill, samples or several producers, or one between
  ///   processes; out_of_memory.
  template <message T>
  explicit kernel_end(sender<T>& tx, std::source_location where = std::source_location::current())
      : loan_(tx.state(), *tx.native(), detail::facts_of(*tx.state()).source, where) {
    static_assert(sizeof(T) % 4 == 0, "a kernel moves messages of whole 4-byte words");
  }
  template <message T>
  explicit kernel_end(receiver<T>& rx, std::source_location where = std::source_location::current())
      : loan_(rx.state(), detail::lendable(rx.native(), where), detail::facts_of(*rx.state()).destination, where) {
    static_assert(sizeof(T) % 4 == 0, "a kernel moves messages of whole 4-byte words");
  }

  /// What a launch takes.
  [[nodiscard]] device_span<std::uint64_t> span() const { return loan_.words(); }
  void end() noexcept { loan_.end(); }

 private:
  detail::loan loan_;
};

}  // namespace weft
