// SPDX-License-Identifier: Apache-2.0
// A queue between two ranks of a world, on one node or on two: the same ends as everywhere.
#pragma once

#include "weft/channel/shared_queue.hpp"
#include "weft/distributed/world.hpp"

#include <cstdint>
#include <memory>
#include <source_location>
#include <utility>

namespace weft {

namespace detail {

struct far_end;

/// The receiving end of a queue from another node, which that rank has not taken yet.
struct far_receiver {
  std::shared_ptr<queue_state> queue;
  std::shared_ptr<far_end> end;
};
[[nodiscard]] far_receiver offer_far_receiving(const world& w, rank from, std::uint64_t channel,
                                               const message_type& type, const queue_options& options,
                                               std::source_location where);
void await_accepted(const world& w, const far_receiver& offered, const connect_options& how,
                    std::source_location where);
[[nodiscard]] connected_sender connect_far_sender(const world& w, rank to, std::uint64_t channel,
                                                  const message_type& type, const queue_options& options,
                                                  const connect_options& how, std::source_location where);
/// That rank's place on this node; rank{-1} on another one. Errors: invalid_argument for self and ranks outside.
[[nodiscard]] rank place_on_this_node(const world& w, rank other, std::source_location where);

}  // namespace detail

/// The receiving end of a queue from another rank. Waits until that rank calls connect_sender() with the same channel
/// and type. On one node: connect_receiver() of its process_group. Between nodes messages go through the memory of both
/// hosts and the library that carries the world's messages (mode() is transfer_mode::network), in frames of up to
/// 128 KiB; order, checksums, policies and deadlines are those of queues between processes. Each side has the ring's
/// memory, which is the bound on what it keeps. What is sent arrives although nobody waits for it: a thread of the
/// world's moves messages on. An end may outlive its world, but not MPI where that carries the messages.
///
/// After that rank has died, what has arrived is received, then `failed` with peer_dead that names it. Closing the
/// sender does not wait; the last end of a world to go waits up to a second until what was sent has left.
/// Errors: those of connect_receiver(process_group&); invalid_argument for self; unsupported without an engine, or by
/// MPI where a rank has begun without MPI_THREAD_MULTIPLE. One that timed out may be repeated: its offer is withdrawn.
template <message T>
[[nodiscard]] receiver<T> connect_receiver(const world& w, rank from, std::uint64_t channel,
                                           const queue_options& options = {}, const connect_options& how = {},
                                           std::source_location where = std::source_location::current()) {
  if (const rank near = detail::place_on_this_node(w, from, where); near.value() >= 0)
    return connect_receiver<T>(*w.node_group(), near, channel, options, how, where);
  auto offered = detail::offer_far_receiving(w, from, channel, detail::type_of<T>(), options, where);
  detail::await_accepted(w, offered, how, where);
  detail::queue_end* end = detail::only_receiver(*offered.queue);
  return detail::make<receiver<T>>(std::move(offered.queue), end);
}

/// The sending end; as connect_sender(process_group&). Between nodes it returns when the receiver has answered; where
/// the time ends or a stop is asked for after the offer was taken, it returns without the answer, and sends say closed
/// if the receiver has given up.
template <message T>
[[nodiscard]] sender<T> connect_sender(const world& w, rank to, std::uint64_t channel,
                                       const queue_options& options = {}, const connect_options& how = {},
                                       std::source_location where = std::source_location::current()) {
  if (const rank near = detail::place_on_this_node(w, to, where); near.value() >= 0)
    return connect_sender<T>(*w.node_group(), near, channel, options, how, where);
  auto made = detail::connect_far_sender(w, to, channel, detail::type_of<T>(), options, how, where);
  return detail::make<sender<T>>(std::move(made.queue), *made.end);
}

/// Both directions at once, for two ranks that each call this with the other: neither has to come first.
template <message T>
[[nodiscard]] std::pair<sender<T>, receiver<T>> connect_both(
    const world& w, rank other, std::uint64_t channel, const queue_options& options = {},
    const connect_options& how = {}, std::source_location where = std::source_location::current()) {
  if (const rank near = detail::place_on_this_node(w, other, where); near.value() >= 0)
    return connect_both<T>(*w.node_group(), near, channel, options, how, where);
  const detail::rest_of_time left{how};
  auto offered = detail::offer_far_receiving(w, other, channel, detail::type_of<T>(), options, where);
  auto out = connect_sender<T>(w, other, channel, options, left(), where);
  detail::await_accepted(w, offered, left(), where);
  detail::queue_end* end = detail::only_receiver(*offered.queue);
  return {std::move(out), detail::make<receiver<T>>(std::move(offered.queue), end)};
}

}  // namespace weft
