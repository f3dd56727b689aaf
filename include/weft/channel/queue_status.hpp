// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft {

/// What an operation on a queue came to. Only `failed` has an error behind it: the endpoint's failure().
enum class queue_status : std::uint8_t {
  ok,
  partial,    // of a batch, a prefix: count says how long
  full,       // nothing was sent
  empty,      // nothing is there now
  timed_out,  // nothing was moved
  cancelled,  // nothing was moved
  closed,     // an end, or the queue, was closed; if the sender's, the receiver has received everything that was sent
  failed,
};
[[nodiscard]] std::string_view to_string(queue_status status);

/// The outcome of a batch: the first `count` messages were moved. A batch of no messages is ok, also after the end.
struct batch_result {
  queue_status status = queue_status::ok;
  std::size_t count = 0;

  friend bool operator==(const batch_result&, const batch_result&) = default;
};

}  // namespace weft
