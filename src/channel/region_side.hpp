// SPDX-License-Identifier: Apache-2.0
// One process's side of a queue whose memory is a region: another process has the other side, or what carries messages
// to one of another node acts for it.
#pragma once

#include "channel/queue_state.hpp"
#include "channel/shared_region.hpp"

#include <memory>
#include <source_location>
#include <string>

namespace weft::detail {

/// Errors: unsupported for options that a queue of two processes cannot have; `own` is the mode it has.
void check_shared(const queue_options& o, transfer_mode own, std::source_location where);

/// The header of a queue that a receiver offers.
[[nodiscard]] region_header describe(const message_type& type, const queue_options& options);
/// Whether a sender with these options takes what was offered. Errors: incompatible, resource_exhausted.
[[nodiscard]] result<void> accept(const region_header& header, const queue_options& options,
                                  const connect_options& how);

[[nodiscard]] std::shared_ptr<queue_state> make_region_side(queue_side side, const region_header& header,
                                                            mapped_region region, const queue_options& options,
                                                            parking::word_scope scope);
[[nodiscard]] inline region_words* words_in(std::byte* region) noexcept {
  return reinterpret_cast<region_words*>(region + words_offset);
}
[[nodiscard]] inline region_words* words_of(const queue_state& queue) noexcept { return words_in(queue.region.data()); }

/// How a side sees the ring, or who acts for that side.
[[nodiscard]] ring_view view_of(queue_side side, std::byte* region) noexcept;
/// The cause that the other end told when its use ended; null while it is in use.
[[nodiscard]] std::shared_ptr<const error> told_by_other(const region_words& words, queue_side own,
                                                         const std::string& other);

}  // namespace weft::detail
