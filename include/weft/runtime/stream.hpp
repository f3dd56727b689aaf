// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/internals.hpp"
#include "weft/core/stream_handle.hpp"
#include "weft/core/unique_handle.hpp"
#include "weft/core/word_comparison.hpp"
#include "weft/runtime/device.hpp"
#include "weft/runtime/event.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>

namespace weft {

namespace detail {
struct stream_identity {
  std::shared_ptr<machine_state> state;
  stream_handle handle = stream_handle::none;
  device_id device;
  bool owned = false;
  bool operator==(const stream_identity& other) const { return handle == other.handle && state == other.state; }
};
struct stream_traits {
  using type = stream_identity;
  static type none() { return {}; }
  static void release(type& identity) noexcept;
};
}  // namespace detail

struct stream_options {
  int priority = 0;  // higher goes first; without effect where the device lacks capability::priorities
};

/// Work of one device in the order of submission. Going out of scope waits for the work, but for adopt() and
/// device::default_stream(), whose stream lives on.
///
/// After a failure, what was submitted to the stream until then is skipped with the same cause; once a wait has
/// reported the cause, new work runs again.
/// Thread: any; the order of calls from several threads is the order in which they arrive.
class stream {
 public:
  explicit stream(const device& on, stream_options options = {},
                  std::source_location where = std::source_location::current());
  /// A stream that somebody else owns, by its native handle on that device's backend.
  [[nodiscard]] static stream adopt(const device& on, stream_handle native,
                                    std::source_location where = std::source_location::current());
  /// A stream over a queue of the driver that the program made, as CUDA's CUstream (cudaStream_t), or null for CUDA's
  /// default stream. It must outlive this. What the program puts into it, and what weft does, run in the order in which
  /// they came there; events and waits of this stream cover both. But what weft still holds back (see driver_queue())
  /// is not there yet. Memory that only the program's own work uses must stay until that has ended.
  /// Errors: wrong_device for a queue of another device or context; unsupported where the backend has none.
  [[nodiscard]] static stream over(const device& on, void* driver_queue,
                                   std::source_location where = std::source_location::current());

  /// Errors: invalid_argument for a stream that was moved from.
  [[nodiscard]] device on() const;
  [[nodiscard]] stream_handle native() const { return identity_.get().handle; }
  /// The queue of the driver under this stream, for libraries of the vendor: CUstream on CUDA. It lasts as long as the
  /// stream, or until its device is reset. call(), copies of ordinary host memory, and what waits in weft behind them
  /// or behind an event of another backend are not in it: they come after what the program has put there, but what it
  /// puts there then does not wait for them. Errors: unsupported where the backend has none.
  [[nodiscard]] void* driver_queue(std::source_location where = std::source_location::current()) const;

  /// An event that ends when all work submitted so far has.
  [[nodiscard]] event record(std::source_location where = std::source_location::current()) const;
  /// Work submitted from here on starts after `event` has ended; the host does not wait. Events of any device and
  /// backend of this machine. Errors: wrong_device for an event of another machine.
  void wait(const event& event, std::source_location where = std::source_location::current()) const;
  /// Writes a word of memory, in order and by one store: a device, a stream (wait_value()) or a thread of the host that
  /// sees the value sees all that this stream did before. The word is memory of this machine that the device may use,
  /// at a multiple of its size; without a right to it the event fails as a kernel with such an argument does.
  /// Errors: invalid_argument (null, alignment); not_found; out_of_range; unsupported where the backend has none.
  // NOLINTNEXTLINE(modernize-use-nodiscard): the work is done whether or not somebody keeps the event
  event write_value(std::uint32_t* word, std::uint32_t value,
                    std::source_location where = std::source_location::current()) const;
  // NOLINTNEXTLINE(modernize-use-nodiscard)
  event write_value(std::uint64_t* word, std::uint64_t value,
                    std::source_location where = std::source_location::current()) const;
  /// What is submitted from here on starts once the word compares with `value`, and sees what came before the write
  /// that made it so: by write_value() of any stream, by a kernel, by the host or another process. The event ends then.
  /// A value that never comes holds the stream until close(), which cancels what is behind, or the loss or the reset of
  /// the device; on CUDA these leave a value in the word that compares. A wait for the event can be bounded; that of
  /// the destructor cannot.
  /// Errors: those of write_value(); invalid_argument for what no word can pass.
  /// Cost: on CUDA none for the host, but the wait stands in a queue of the GPU (docs/reference/streams.md); elsewhere
  /// a thread that looks at the word, every millisecond at the least.
  // NOLINTNEXTLINE(modernize-use-nodiscard)
  event wait_value(const std::uint32_t* word, std::uint32_t value,
                   word_comparison comparison = word_comparison::greater_equal,
                   std::source_location where = std::source_location::current()) const;
  // NOLINTNEXTLINE(modernize-use-nodiscard)
  event wait_value(const std::uint64_t* word, std::uint64_t value,
                   word_comparison comparison = word_comparison::greater_equal,
                   std::source_location where = std::source_location::current()) const;
  /// Runs a host function in order. It must not call the library. An exception it throws fails the event.
  event call(std::function<void()> function, std::source_location where = std::source_location::current()) const;

  /// True when no work is pending.
  [[nodiscard]] bool idle(std::source_location where = std::source_location::current()) const;
  /// Waits for all work. Errors: the first failure that no wait has reported yet.
  void synchronize(std::source_location where = std::source_location::current()) const;
  [[nodiscard]] wait_outcome synchronize_for(std::chrono::nanoseconds timeout,
                                             std::source_location where = std::source_location::current()) const;

  [[nodiscard]] device_id on_id() const { return identity_.get().device; }

 private:
  friend struct detail::internals;
  [[nodiscard]] const std::shared_ptr<detail::machine_state>& state() const { return identity_.get().state; }

  explicit stream(detail::stream_identity identity) : identity_(std::move(identity)) {}
  friend class device;

  unique_handle<detail::stream_traits> identity_;
};

}  // namespace weft
