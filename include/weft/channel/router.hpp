// SPDX-License-Identifier: Apache-2.0
// Which of several queues a message takes: the one that was named, all, the one its key belongs to, or the next that
// has space. And a ring on which messages travel from device to device until they are taken or have gone far enough.
#pragma once

#include "weft/channel/message_queue.hpp"
#include "weft/channel/queue_network.hpp"
#include "weft/core/raise.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <source_location>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace weft {

/// Where a message went, or why it did not.
struct routed {
  device_id to;
  queue_status status = queue_status::ok;

  friend bool operator==(const routed&, const routed&) = default;
};

/// What a broadcast came to, member by member. Valid until the router's next broadcast or change of members.
struct broadcast_result {
  std::size_t delivered = 0;
  std::span<const routed> members;

  [[nodiscard]] bool reached_all() const noexcept { return delivered == members.size(); }
};

/// What one member of a router was offered. One writer: read it on the router's thread.
struct member_statistics {
  device_id member;
  std::uint64_t sent = 0;
  std::uint64_t full = 0;
  std::uint64_t closed = 0;
  std::uint64_t failed = 0;  // failed, timed out or cancelled

  friend bool operator==(const member_statistics&, const member_statistics&) = default;
};

/// Of all members, also those that have left.
struct router_statistics {
  std::uint64_t sent = 0;
  std::uint64_t not_sent = 0;  // full, closed, failed, or to nobody who is here
  std::uint64_t broadcasts = 0;
  std::uint64_t unknown = 0;  // of not_sent: the member that was named is none

  friend bool operator==(const router_statistics&, const router_statistics&) = default;
};

namespace detail {
/// The member that a key belongs to, by rendezvous: each member draws a number from (key, member) and the highest wins.
/// A member that leaves takes its own keys along and no others, whatever the order in which they stand.
[[nodiscard]] std::size_t owner_of_key(std::uint64_t key, std::span<const member_statistics> members) noexcept;
[[nodiscard]] error no_such_member(device_id asked, std::span<const member_statistics> members);
void check_new_member(device_id member, bool is_open, std::span<const member_statistics> members,
                      std::source_location where);
}  // namespace detail

/// Sends over several queues that leave one place. Borrows the senders: they outlive the router, or leave() it first.
///
/// Thread: one at a time, which is that of the senders. Cost: no allocation per message; one pass over the members,
/// at most.
template <message T>
class router {
 public:
  router() = default;
  /// Over all queues of a network that leave `from`. Errors: not_found when none does.
  router(queue_network<T>& network, device_id from, std::source_location where = std::source_location::current()) {
    for (const queue_edge& edge : network.edges()) {
      if (edge.from == from) join(edge.to, network.sender(edge.from, edge.to, 0, where), where);
    }
    if (members_.empty()) raise(errc::not_found, "no queue of this network leaves " + to_string(from), where);
  }

  /// Errors: invalid_argument when the device is a member already, or the sender is closed.
  void join(device_id member, sender<T>& over, std::source_location where = std::source_location::current()) {
    detail::check_new_member(member, over.is_open(), members_, where);
    members_.reserve(members_.size() + 1);
    senders_.reserve(members_.size() + 1);
    outcomes_.resize(members_.size() + 1);
    members_.push_back({.member = member});
    senders_.push_back(&over);
    unknown_.reset();  // what it would say of the members is true no more
  }
  /// Ends a membership; the sender stays open. False when the device was no member.
  bool leave(device_id member) noexcept {
    const std::size_t at = find(member);
    if (at == members_.size()) return false;
    const auto offset = static_cast<std::ptrdiff_t>(at);
    members_.erase(members_.begin() + offset);
    senders_.erase(senders_.begin() + offset);
    outcomes_.pop_back();
    if (next_ > at) --next_;
    return true;
  }
  [[nodiscard]] bool has(device_id member) const noexcept { return find(member) != members_.size(); }
  [[nodiscard]] std::size_t size() const noexcept { return members_.size(); }

  // ---- direct

  /// As sender::try_send. A device that is no member: failed, and failure() says who is.
  queue_status try_send(device_id to, const T& message) noexcept {
    const std::size_t at = find(to);
    if (at == members_.size()) return unknown(to);
    return offer(at, message);
  }
  /// As sender::send.
  queue_status send(device_id to, const T& message, std::stop_token stop = {}) noexcept {
    const std::size_t at = find(to);
    if (at == members_.size()) return unknown(to);
    return count(at, senders_[at]->is_open() ? senders_[at]->send(message, std::move(stop)) : queue_status::closed);
  }

  // ---- broadcast

  /// Offers a copy to every member, once and without waiting: who is full or gone does not stop the others.
  broadcast_result try_broadcast(const T& message) noexcept {
    ++totals_.broadcasts;
    broadcast_result result{0, outcomes_};
    for (std::size_t at = 0; at < members_.size(); ++at) {
      outcomes_[at] = {members_[at].member, offer(at, message)};
      if (outcomes_[at].status == queue_status::ok) ++result.delivered;
    }
    return result;
  }

  // ---- by key

  /// The member that a key belongs to; none without members.
  [[nodiscard]] std::optional<device_id> owner_of(std::uint64_t key) const noexcept {
    if (members_.empty()) return std::nullopt;
    return members_[detail::owner_of_key(key, members_)].member;
  }
  /// To the member that the key belongs to, and to no other, even if it is full or closed: leave() is how keys move.
  routed try_send_by_key(std::uint64_t key, const T& message) noexcept {
    if (members_.empty()) return {device_id{}, unknown(device_id{})};
    const std::size_t at = detail::owner_of_key(key, members_);
    return {members_[at].member, offer(at, message)};
  }
  routed send_by_key(std::uint64_t key, const T& message, std::stop_token stop = {}) noexcept {
    if (members_.empty()) return {device_id{}, unknown(device_id{})};
    const device_id to = members_[detail::owner_of_key(key, members_)].member;
    return {to, send(to, message, std::move(stop))};
  }

  // ---- to the next one

  /// To the next member in turn that takes it; those that are full, closed or failed are passed over. When nobody takes
  /// it: full if anybody was full, else failed if anybody has failed, else closed.
  routed try_send_to_next(const T& message) noexcept {
    if (members_.empty()) return {device_id{}, unknown(device_id{})};
    routed result{device_id{}, queue_status::closed};
    for (std::size_t tries = 0; tries < members_.size(); ++tries) {
      const std::size_t at = next_ < members_.size() ? next_ : 0;
      next_ = at + 1;
      const queue_status status = offer(at, message);
      if (status == queue_status::ok) return {members_[at].member, status};
      if (status != queue_status::closed && result.status != queue_status::full) {
        result = {members_[at].member, status};
      }
    }
    return result;
  }

  /// Errors: not_found when the device is no member.
  [[nodiscard]] const member_statistics& statistics(
      device_id member, std::source_location where = std::source_location::current()) const {
    const std::size_t at = find(member);
    if (at == members_.size()) {
      error cause = detail::no_such_member(member, members_);
      cause.where = where;
      raise(std::move(cause));
    }
    return members_[at];
  }
  [[nodiscard]] std::span<const member_statistics> members() const noexcept { return members_; }
  [[nodiscard]] const router_statistics& statistics() const noexcept { return totals_; }

  /// The cause behind the last `failed`; none if that was for want of a member and one has joined since.
  [[nodiscard]] std::optional<error> failure() const {
    if (unknown_) return detail::no_such_member(*unknown_, members_);
    const std::size_t at = failed_ ? find(*failed_) : members_.size();
    return at == members_.size() ? std::nullopt : senders_[at]->failure();
  }

 private:
  [[nodiscard]] std::size_t find(device_id member) const noexcept {
    std::size_t at = 0;
    while (at < members_.size() && members_[at].member != member) ++at;
    return at;
  }
  queue_status offer(std::size_t at, const T& message) noexcept {
    return count(at, senders_[at]->is_open() ? senders_[at]->try_send(message) : queue_status::closed);
  }
  queue_status count(std::size_t at, queue_status status) noexcept {
    member_statistics& member = members_[at];
    switch (status) {
      case queue_status::ok:
        ++member.sent;
        ++totals_.sent;
        return status;
      case queue_status::full:
        ++member.full;
        break;
      case queue_status::closed:
        ++member.closed;
        break;
      case queue_status::failed:
        failed_ = member.member;
        unknown_.reset();
        [[fallthrough]];
      default:
        ++member.failed;
        break;
    }
    ++totals_.not_sent;
    return status;
  }
  queue_status unknown(device_id asked) noexcept {
    unknown_ = asked;
    failed_.reset();
    ++totals_.unknown;
    ++totals_.not_sent;
    return queue_status::failed;
  }

  // side by side: who is looked for often, where it leads only once
  std::vector<member_statistics> members_;
  std::vector<sender<T>*> senders_;
  std::vector<routed> outcomes_;
  std::size_t next_ = 0;
  std::optional<device_id> unknown_, failed_;
  router_statistics totals_;
};

/// A message on a ring, with what the ring has to know of it.
template <message T>
struct travelling {
  T body;
  device_id origin;
  std::uint32_t hops = 0;  // queues that it has gone through
};

struct ring_statistics {
  std::uint64_t sent = 0;       // from here
  std::uint64_t received = 0;   // came by, whoever sent them
  std::uint64_t forwarded = 0;  // of them: went on
  std::uint64_t expired = 0;    // of them: were to go on, had used up their hops, and were dropped

  friend bool operator==(const ring_statistics&, const ring_statistics&) = default;
};

/// One device's place on a ring: takes what comes from the device before it and passes it on to the one behind it, so
/// that a message visits the devices in turn. Borrows its ends from the network, which outlives it.
///
/// A message that would make more than `hop_limit` hops is dropped and counted. Nothing else is dropped here but a
/// message whose visit throws; when the next queue is full, the message waits here. `drop_newest` and
/// `overwrite_oldest` drop in the queue: use `block`, `reject` or `spill`. A ring that is full everywhere stands still,
/// so keep fewer messages on it than one of its queues holds. Thread: one at a time. Cost: no allocation per message.
template <message T>
class ring_stop {
 public:
  static constexpr std::uint32_t usual_hop_limit = 32;

  /// Errors: not_found when `here` is not on the ring; invalid_argument when it is no ring: several queues leave or
  /// reach
  ///   it, or a hop limit is 0.
  ring_stop(queue_network<travelling<T>>& ring, device_id here, std::uint32_t hop_limit = usual_hop_limit,
            std::source_location where = std::source_location::current())
      : here_(here), hop_limit_(hop_limit) {
    if (hop_limit == 0)
      raise(errc::invalid_argument, "a hop limit of 0 lets no message leave " + to_string(here), where);
    for (const queue_edge& edge : ring.edges()) {
      if (edge.from == here) take(next_, &ring.sender(edge.from, edge.to, 0, where), "leave", where);
      if (edge.to == here) take(before_, &ring.receiver(edge.from, edge.to, where), "reach", where);
    }
    if (next_ == nullptr || before_ == nullptr) {
      raise(errc::not_found, to_string(here) + " is not on this ring: a queue to it and one from it are needed", where);
    }
  }

  /// Sends a message on its way. As sender::try_send; the first hop is counted when it arrives.
  queue_status try_send(const T& body) noexcept {
    const queue_status status = pass({body, here_, 1});
    if (status == queue_status::ok) ++statistics_.sent;
    return status;
  }

  /// Takes the next message, shows it to `visit(body, origin, hops)`, which may change the body, and passes it on if
  /// that says true. ok when one was visited or one that had waited here has gone on; empty; full or closed when the
  /// message that is here cannot go on (it is kept, and visited once only); failed.
  template <class Visit>
  queue_status try_step(Visit&& visit) {
    if (held_) return pass_on();
    travelling<T> came{};
    const queue_status status = before_->try_receive(came);
    if (status != queue_status::ok) return status;
    ++statistics_.received;
    if (!visit(came.body, device_id{came.origin}, std::uint32_t{came.hops})) return status;
    if (came.hops >= hop_limit_) {
      ++statistics_.expired;
      return status;
    }
    ++came.hops;
    held_ = came;
    return pass_on();
  }

  /// True while a message waits here for space in the next queue.
  [[nodiscard]] bool holds() const noexcept { return held_.has_value(); }
  [[nodiscard]] device_id here() const noexcept { return here_; }
  [[nodiscard]] std::uint32_t hop_limit() const noexcept { return hop_limit_; }
  [[nodiscard]] const ring_statistics& statistics() const noexcept { return statistics_; }

 private:
  template <class End>
  void take(End*& place, End* end, const char* verb, std::source_location where) const {
    if (place != nullptr) {
      raise(errc::invalid_argument, std::string{"several queues "} + verb + " " + to_string(here_) + ": not a ring",
            where);
    }
    place = end;
  }
  queue_status pass(const travelling<T>& message) noexcept {
    return next_->is_open() ? next_->try_send(message) : queue_status::closed;
  }
  queue_status pass_on() noexcept {
    const queue_status status = pass(*held_);
    if (status == queue_status::ok) {
      ++statistics_.forwarded;
      held_.reset();
    }
    return status;
  }

  device_id here_;
  std::uint32_t hop_limit_;
  sender<travelling<T>>* next_ = nullptr;
  receiver<travelling<T>>* before_ = nullptr;
  std::optional<travelling<T>> held_;
  ring_statistics statistics_;
};

}  // namespace weft
