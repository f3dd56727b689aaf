// SPDX-License-Identifier: Apache-2.0
// A queue between two processes of a group: the same ring, in memory that both map.
#pragma once

#include "weft/channel/message_queue.hpp"
#include "weft/core/bytes.hpp"
#include "weft/core/waiting.hpp"
#include "weft/processes/process_group.hpp"

#include <chrono>
#include <cstdint>
#include <source_location>
#include <stop_token>
#include <typeinfo>
#include <utility>

namespace weft {

/// How the two ends look for each other.
struct connect_options {
  std::chrono::nanoseconds timeout = std::chrono::seconds{30};
  std::stop_token stop{};
  /// The largest memory of a queue that connect_sender() accepts from the other process.
  bytes largest{std::uint64_t{64} << 20};
};

namespace detail {

/// What both ends must agree on.
struct message_type {
  std::size_t size = 0;
  std::size_t alignment = 0;
  std::uint64_t name_hash = 0;
};

[[nodiscard]] std::uint64_t hash_of_name(const char* name) noexcept;
template <message T>
message_type type_of() {
  return {sizeof(T), alignof(T), hash_of_name(typeid(T).name())};
}

/// The options of a call of several steps, each with the time that is left.
class rest_of_time {
 public:
  explicit rest_of_time(const connect_options& how);
  [[nodiscard]] connect_options operator()() const;

 private:
  connect_options how_;
  wait_deadline until_;
};

struct connected_sender {
  std::shared_ptr<queue_state> queue;
  queue_end* end = nullptr;
};
[[nodiscard]] connected_sender connect_sending(process_group& group, rank to, std::uint64_t channel,
                                               const message_type& type, const queue_options& options,
                                               const connect_options& how, std::source_location where);
[[nodiscard]] queue_end* only_receiver(queue_state& queue) noexcept;
struct offered_receiver {
  std::shared_ptr<queue_state> queue;
  std::uint64_t number = 0;
};
[[nodiscard]] offered_receiver offer_receiving(process_group& group, rank from, std::uint64_t channel,
                                               const message_type& type, const queue_options& options,
                                               const connect_options& how, std::source_location where);
void await_accepted(process_group& group, rank from, std::uint64_t channel, std::uint64_t offer,
                    const connect_options& how, std::source_location where);
/// Closed where it goes before somebody has accepted.
template <message T>
receiver<T> receiver_of(offered_receiver& offered) {
  queue_end* end = only_receiver(*offered.queue);
  return make<receiver<T>>(std::move(offered.queue), end);
}
}  // namespace detail

/// The receiving end of a queue from another process, in memory that this process makes: a sealed memfd, handed to the
/// sender over the group's connection. Capacity and checksums are this end's choice; both ends ask for
/// backpressure::overwrite_oldest, or neither. Waits until the other process calls connect_sender() with the same
/// channel and type.
///
/// After the sender's process has died everything it had published is received, then `failed` with peer_dead; a waiting
/// form notices within the 20 ms of its belt. After a fork the memory is gone from the child: an end used there faults
/// instead of corrupting the queue; one that is closed or let go of there changes nothing. Ends across processes cannot
/// be awaited with co_await, do not spill, and have one producer. connect_options::timeout is that of the whole call.
/// Errors: those of process_group::receive; incompatible with both types described; invalid_argument; unsupported
///   (spill, several producers); resource_exhausted (descriptors, mappings); out_of_memory.
template <message T>
[[nodiscard]] receiver<T> connect_receiver(process_group& group, rank from, std::uint64_t channel,
                                           const queue_options& options = {}, const connect_options& how = {},
                                           std::source_location where = std::source_location::current()) {
  const detail::rest_of_time left{how};
  auto offered = detail::offer_receiving(group, from, channel, detail::type_of<T>(), options, how, where);
  receiver<T> in = detail::receiver_of<T>(offered);
  detail::await_accepted(group, from, channel, offered.number, left(), where);
  return in;
}

/// The sending end. `options` says what a full ring does (block, reject or drop_newest; overwrite_oldest if and only if
/// the receiver says so), timeouts and the waiting policy; the rest is the receiver's choice. Errors: as
/// connect_receiver(); corrupt when what was offered is not a queue, or memory that the other process has not paid for;
/// resource_exhausted when it is larger than connect_options::largest.
template <message T>
[[nodiscard]] sender<T> connect_sender(process_group& group, rank to, std::uint64_t channel,
                                       const queue_options& options = {}, const connect_options& how = {},
                                       std::source_location where = std::source_location::current()) {
  auto made = detail::connect_sending(group, to, channel, detail::type_of<T>(), options, how, where);
  return detail::make<sender<T>>(std::move(made.queue), *made.end);
}

/// Both directions at once, for two processes that each call this with the other: neither has to come first.
template <message T>
[[nodiscard]] std::pair<sender<T>, receiver<T>> connect_both(
    process_group& group, rank other, std::uint64_t channel, const queue_options& options = {},
    const connect_options& how = {}, std::source_location where = std::source_location::current()) {
  const detail::rest_of_time left{how};
  auto offered = detail::offer_receiving(group, other, channel, detail::type_of<T>(), options, how, where);
  receiver<T> in = detail::receiver_of<T>(offered);
  sender<T> out = connect_sender<T>(group, other, channel, options, left(), where);
  detail::await_accepted(group, other, channel, offered.number, left(), where);
  return {std::move(out), std::move(in)};
}

}  // namespace weft
