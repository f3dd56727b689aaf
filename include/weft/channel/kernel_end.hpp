// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/channel/loan.hpp"
#include "weft/channel/message_queue.hpp"
#include "weft/memory/buffer.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <string_view>

namespace weft {

/// When kernels and the other end of a queue see what each other did.
enum class ring_visibility : std::uint8_t {
  immediate,        // while the kernel runs
  launch_boundary,  // what was sent before a launch begins is there for it, what it did is seen when it has ended
};
[[nodiscard]] std::string_view to_string(ring_visibility visibility);

/// One end of a queue, lent to kernels: the argument of a WEFT_RING parameter. Kernels of the sender's device (or the
/// receiver's) go on where the end was, one launch after another; when the loan ends the host goes on where they were.
///
/// While it is lent the end's own operations say failed, and closing it counts from the end of the loan, as do
/// the messages that its kernels move, in size() and statistics() of the queue. A kernel wakes nobody: a host thread
/// that waits at the other end looks again by itself, up to 10,000 times a second. End it after the launches that used
/// it have ended.
///
/// An end of a queue between processes is lent to a device of this process's machine, which is named; the process at
/// the other end may lend its own. The memory of the ring is adopted for as long as the loan lasts. When the other
/// process dies, kernels find WEFT_RING_STOPPED behind what it had sent, some 20 ms later.
///
/// Where the host reaches the device's memory by commands only, and kernels reach none of the host's, visibility() is
/// launch_boundary: each launch works on an image of its end. It finds the messages that were in the queue when it
/// began, and the space that was free then, and no more of either than per_launch(). So its waits end at their first
/// look, with WEFT_RING_EMPTY or WEFT_RING_FULL: a kernel that is to answer has to be launched after the question was
/// sent, and two kernels cannot talk to each other while they run. What a kernel received and sent counts when its
/// launch has ended well. A launch that fails, is cancelled, or has not ended when the loan ends, has received nothing
/// and sent nothing: its messages are there for the next one, in the same order. It must be launched in a stream (not
/// over devices). Moved from, only end(), assignment and destruction are allowed. Thread: one at a time.
class kernel_end {
 public:
  /// Errors: unsupported for a queue with checksums, overwriting, spill or samples, for the receiver of several
  ///   producers, for an end that is closed or lent already, and for one between processes whose memory the device's
  ///   driver does not take; invalid_argument for an end of no queue, and for one between processes without a device;
  ///   wrong_device for one within a process with another device than the end's; device_lost where the ring went with a
  ///   reset; not_ready for a receiver whose front() or try_peek() has copied a message out of the ring (elsewhere it
  ///   stays there for the kernel: no pop() for it afterwards); resource_exhausted (threads); out_of_memory.
  template <message T>
  explicit kernel_end(sender<T>& tx, std::source_location where = std::source_location::current())
      : kernel_end(tx, detail::device_of(detail::state_of(tx), &detail::queue_facts::source, where), where) {}
  template <message T>
  explicit kernel_end(receiver<T>& rx, std::source_location where = std::source_location::current())
      : kernel_end(rx, detail::device_of(detail::state_of(rx), &detail::queue_facts::destination, where), where) {}
  template <message T>
  kernel_end(sender<T>& tx, const device& on, std::source_location where = std::source_location::current())
      : loan_(std::make_unique<detail::loan>(
            detail::state_of(tx), detail::lendable(detail::state_of(tx), detail::internals::native(tx), where), on,
            where)) {
    static_assert(sizeof(T) % 4 == 0, "a kernel moves messages of whole 4-byte words");
  }
  template <message T>
  kernel_end(receiver<T>& rx, const device& on, std::source_location where = std::source_location::current())
      : loan_(std::make_unique<detail::loan>(
            detail::state_of(rx), detail::lendable(detail::state_of(rx), detail::internals::native(rx), where), on,
            where)) {
    static_assert(sizeof(T) % 4 == 0, "a kernel moves messages of whole 4-byte words");
  }

  /// What a launch takes.
  [[nodiscard]] device_span<std::uint64_t> span() const { return loan_->words(); }
  [[nodiscard]] ring_visibility visibility() const noexcept {
    return per_launch() ? ring_visibility::launch_boundary : ring_visibility::immediate;
  }
  /// Most messages that one launch finds or has space for; none where a kernel and the other end go on together.
  [[nodiscard]] std::optional<std::size_t> per_launch() const noexcept { return loan_->per_launch(); }
  /// How a receiving end gets its messages; `in_place` for a sending one.
  [[nodiscard]] ring_delivery delivery() const noexcept { return loan_->delivery(); }
  void end() noexcept {
    if (loan_) loan_->end();
  }

 private:
  std::unique_ptr<detail::loan> loan_;  // null: moved from
};

}  // namespace weft
