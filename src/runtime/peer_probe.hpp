// SPDX-License-Identifier: Apache-2.0
// Tries by commands and by a kernel whether data arrives over a pair of devices, for drivers that have no shorter way.
#pragma once

#include "weft/backend/backend.hpp"

#include <chrono>
#include <map>
#include <string>

namespace weft::detail {

/// The devices work in streams and memory kept for this alone, so that nothing of the program's waits for it. Nothing
/// of that goes back before the machine is closed: a driver may wait for all work of a device before it frees memory,
/// and that work may wait for the caller.
/// Thread: one at a time.
class peer_probe {
 public:
  explicit peer_probe(backend& driver) : driver_(driver) {}

  /// Errors: those of the driver; timed_out, each step having `timeout`; not_ready where a kernel would have to be
  /// loaded on a device that has work: a driver may wait for that work first.
  [[nodiscard]] result<peer_delivery> run(device_id from, device_id to, peer_way way, std::chrono::nanoseconds timeout);

 private:
  using word = std::uint64_t;
  /// The stream and the memory kept for a device; empty until needed.
  struct place {
    stream_handle order{};
    word *host = nullptr, *plain = nullptr, *pooled = nullptr, *block = nullptr;
    bytes block_size;
    bool has_kernel = false;
  };
  [[nodiscard]] peer_delivery tried(device_id from, device_id to, peer_way way);
  [[nodiscard]] place& place_on(device_id device);
  [[nodiscard]] word* pool_memory(device_id owner, device_id user);
  [[nodiscard]] word* block_memory(device_id owner, device_id user);
  void load_kernel(device_id device, place& at);
  [[nodiscard]] bool is_gone(const word* memory);
  void move(const place& by, word* into, const word* out_of);
  void run_kernel(const place& by, word* into, word* out_of);
  void write(const place& by, word* into, bool opposite);
  [[nodiscard]] std::string difference(const place& by, const word* in);
  void finish(const event_ref& done);

  backend& driver_;
  std::map<device_id, place> places_;
  device_id from_, to_;  // of this run
  std::chrono::nanoseconds timeout_{};
};

}  // namespace weft::detail
