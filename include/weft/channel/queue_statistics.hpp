// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/channel/queue_options.hpp"

#include <array>
#include <chrono>
#include <cstdint>

namespace weft {

/// Durations of samples, counted in buckets of a quarter of a power of two.
struct duration_histogram {
  static constexpr std::size_t buckets = 160;  // up to 2^41 ns
  std::array<std::uint64_t, buckets> counts{};
  std::uint64_t samples = 0;
  std::uint64_t total_ns = 0;

  void add(std::chrono::nanoseconds sample) noexcept;
  [[nodiscard]] std::chrono::nanoseconds mean() const noexcept;
  /// The upper edge of the bucket that holds the given share of the samples, less than 25 % above the value itself.
  /// A sample longer than 2^41 ns counts in the last bucket, whose edge is 2^41 - 1.
  [[nodiscard]] std::chrono::nanoseconds quantile(double share) const noexcept;
};

/// What moved by one way, counted by whoever moved it.
struct moved {
  std::uint64_t operations = 0;
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;

  friend bool operator==(const moved&, const moved&) = default;
};

/// A snapshot. Every count has one writer, so that reading while messages flow may tear between counts, never within
/// one; at rest all of them agree: sent = received + lost + cleared + discarded + in_flight.
struct queue_statistics {
  // the senders
  std::uint64_t sent = 0;  // accepted, dropped ones not included
  std::uint64_t sent_batches = 0;
  std::uint64_t full = 0;  // looks of senders that found no space
  std::uint64_t dropped = 0;
  std::uint64_t spilled = 0;             // messages that went through the spill
  std::uint64_t spilled_high_water = 0;  // most messages that waited there
  std::uint64_t failed_sends = 0;        // full, timed out, cancelled, closed or failed
  std::uint64_t send_timeouts = 0;
  std::uint64_t send_cancellations = 0;
  std::uint64_t sender_parks = 0;
  // the receiver
  std::uint64_t received = 0;
  std::uint64_t received_batches = 0;
  std::uint64_t empty = 0;  // looks of the receiver that found nothing
  std::uint64_t lost = 0;   // overwritten before they were received
  std::uint64_t cleared = 0;
  std::uint64_t discarded = 0;  // still there when the receiver closed
  std::uint64_t corrupted = 0;  // failed their checksum; counted as received too
  std::uint64_t receive_timeouts = 0;
  std::uint64_t receive_cancellations = 0;
  std::uint64_t receiver_parks = 0;
  // both
  std::uint64_t in_flight = 0;     // overwritten ones included, until the receiver finds out
  std::uint64_t bytes = 0;         // of messages received
  moved direct;                    // written into the destination's memory by a sender
  moved staged;                    // moved there by the forwarder; without one, put into the ring in host memory
  moved fed_by_stores;             // brought to a receiving kernel's memory by the host's stores (ring_delivery)
  moved fed_by_copies;             // … by copies
  std::chrono::nanoseconds at{0};  // when this was read, on the steady clock: rates are differences of two snapshots
  // of samples (queue_options::sample_every)
  duration_histogram send_call;         // in the attempt that sent it, without the wait before
  duration_histogram queueing;          // from there until a receiver took it; none once a forwarder has lost messages
  duration_histogram receive_call;      // in the attempt that received it, without the wait before
  double peak_messages_per_second = 0;  // between two samples
};

}  // namespace weft
