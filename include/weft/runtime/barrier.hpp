// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/runtime/machine.hpp"
#include "weft/runtime/stream.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <source_location>
#include <vector>

namespace weft {

/// A meeting point of several devices that covers their work: it opens when every device has arrived and everything
/// submitted to the arriving streams before has ended. Reusable: each opening starts the next generation.
///
/// Thread: any.
class device_barrier {
 public:
  /// Errors: invalid_argument for fewer than one device or one named twice; invalid_device for an unknown one.
  device_barrier(const machine& m, std::vector<device_id> participants,
                 std::source_location where = std::source_location::current());
  ~device_barrier();
  device_barrier(device_barrier&&) noexcept;
  device_barrier& operator=(device_barrier&&) noexcept;

  struct progress {
    std::uint64_t generation = 0;  // times that all have arrived; the work of the last ones may still run
    std::size_t arrived = 0;       // in the generation that is filling
    std::size_t participants = 0;
  };
  [[nodiscard]] progress status() const;

  /// Arrives for the stream's device. The event ends when the barrier opens; later work of the stream does not wait.
  /// Errors: invalid_argument for a device that does not take part or has arrived already in this generation.
  event arrive(const stream& by, std::source_location where = std::source_location::current());
  /// Arrives, and makes later work of the stream wait for the opening; the host does not wait.
  event arrive_and_order(const stream& by, std::source_location where = std::source_location::current());
  /// Arrives and waits on the host. timed_out leaves the arrival standing: the barrier still opens when the others
  /// come, and status() tells how many have.
  wait_outcome arrive_and_wait(const stream& by, std::chrono::nanoseconds timeout,
                               std::source_location where = std::source_location::current());

  /// Ends the filling generation: the events of those who have arrived fail with cancelled, and a new one begins.
  void reset(std::source_location where = std::source_location::current());

 private:
  struct body;
  [[nodiscard]] body& held() const;

  std::unique_ptr<body> body_;
};

}  // namespace weft
