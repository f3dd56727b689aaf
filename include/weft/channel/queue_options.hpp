// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/backend/event_record.hpp"
#include "weft/core/bytes.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft {

/// How messages travel. `network`: between two nodes, by the library that carries messages there; a queue within a
/// machine refuses it. `rdma` is refused with the reason: it is not built.
enum class transfer_mode : std::uint8_t { adaptive, direct, host_staged, rdma, network };
[[nodiscard]] std::string_view to_string(transfer_mode mode);

/// What a send does when the ring is full.
enum class backpressure : std::uint8_t {
  block,             // the waiting forms wait; try_send says full
  reject,            // every form says full at once
  drop_newest,       // says ok, and counts the message as dropped
  overwrite_oldest,  // never full: the receiver counts exactly what it lost; an end is told a lap or 1024 sends later
  spill,             // keeps messages on the sender's side up to spill_limit, in order, then as block
};
[[nodiscard]] std::string_view to_string(backpressure policy);

struct queue_options {
  std::size_t capacity = 1024;  // messages of each producer; rounded up to a power of two of at least 16
  transfer_mode mode = transfer_mode::adaptive;
  backpressure when_full = backpressure::block;
  std::chrono::nanoseconds timeout = std::chrono::seconds{5};  // of waiting forms that name no other
  std::size_t batch_size = 64;  // messages of receive_batch() without a size; of a forwarder's turn
  bool pinned = true;           // a ring in host memory is page-locked, if it can be: CUDA kernels need it
  bytes staging_size{std::uint64_t{1} << 20};  // most bytes a forwarder moves at a time, where there is one
  bool validate = false;                       // a checksum with every message
  int producers = 1;                           // ends that may send; each keeps its own order
  bytes spill_limit{std::uint64_t{64} << 20};  // of the policy spill, per sender
  int sample_every = 0;                        // measure the latency of one message in so many (a power of two)
  waiting wait_policy = waiting::adaptive;     // of this queue's waiting forms
  bool for_kernels = false;                    // only kernels move messages, so that the ring may lie with the devices
};

}  // namespace weft
