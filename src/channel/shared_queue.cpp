// SPDX-License-Identifier: Apache-2.0
// Two processes agree on a queue: the receiver makes the memory and offers it, the sender looks at it and accepts.
#include "weft/channel/shared_queue.hpp"

#include "channel/region_side.hpp"
#include "core/errors/called_from.hpp"
#include "core/errors/make_error.hpp"
#include "processes/packet.hpp"
#include "processes/packet_socket.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <string_view>
#include <sys/syscall.h>
#include <type_traits>
#include <unistd.h>
#include <vector>

namespace weft::detail {
namespace {

// Messages of the handshake have tags that no user is likely to take.
constexpr std::uint64_t offer_tag(std::uint64_t channel) { return 0x7175'6575'6500'0000 ^ channel; }
/// Mixed, so that no two channels of small numbers have one for the other's offers.
constexpr std::uint64_t answer_tag(std::uint64_t channel) {
  return 0x7175'6575'6580'0000 ^ ((channel + 1) * 0x9e37'79b9'7f4a'7c15);
}

[[noreturn]] void raise_at(error cause, std::source_location where) {
  cause.where = where;
  raise(std::move(cause));
}
template <class T>
T called_at(std::source_location where, result<T> got) {
  if (!got) raise_at(std::move(got).error(), where);
  if constexpr (!std::is_void_v<T>) return std::move(*got);
}
/// The message that was sent or received for a queue; a failure names the channel, as users do not know its tag.
template <class T>
T of_channel(std::uint64_t channel, std::source_location where, result<T> got) {
  if (!got) got.error().what = "a queue on channel " + std::to_string(channel) + ": " + got.error().what;
  return called_at(where, std::move(got));
}

/// Knows whether a process still lives, whatever becomes of the group.
class watched_process {
 public:
  watched_process(const process_group& group, rank which) : name_(to_string(which)) {
    const peer_process& peer = group.peer(which);
    name_ += " (pid " + std::to_string(peer.pid) + ")";
    pidfd_ = descriptor{static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0))};
    // between its death and here the number may have gone to somebody else: the group knows
    if (pidfd_ && !group.alive(which)) pidfd_ = {};
    known_ = static_cast<bool>(pidfd_) || errno == ESRCH || !group.alive(which);
  }

  [[nodiscard]] bool dead() const noexcept {
    if (!pidfd_) return known_;
    pollfd look{pidfd_.get(), POLLIN, 0};
    return ::poll(&look, 1, 0) == 1;
  }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  std::string name_;
  descriptor pidfd_;
  bool known_ = false;  // without a descriptor: it was dead when we looked
};

/// The number of an offer, and some text or bytes. An answer names its offer: another one may have been given up.
template <class Text>
std::vector<std::byte> numbered(std::uint64_t number, const Text& text) {
  const auto head = std::as_bytes(std::span{&number, 1}), rest = std::as_bytes(std::span{text});
  std::vector<std::byte> made(head.begin(), head.end());
  made.insert(made.end(), rest.begin(), rest.end());
  return made;
}
/// Takes the number off; 0 where there is none.
std::uint64_t number_of(std::span<const std::byte>& payload) {
  std::uint64_t number = 0;
  if (payload.size() < sizeof number) return 0;
  std::memcpy(&number, payload.data(), sizeof number);
  payload = payload.subspan(sizeof number);
  return number;
}

/// Whether the receiver has closed what it offered, whatever that fits. False where it is no such memory.
bool was_given_up(const peer_message& offer) noexcept {
  std::uint64_t credit = 0;
  const int file = offer.descriptors.size() == 1 ? offer.descriptors.front().get() : -1;
  return ::fcntl(file, F_GET_SEALS) >= 0 &&  // read from nothing that might let it wait
         ::pread(file, &credit, sizeof credit, words_offset + offsetof(region_words, credit)) == sizeof credit &&
         (credit & WEFT_RING_CLOSED_BIT) != 0;
}

/// Tells the other side why, and throws it here.
[[noreturn]] void refuse_offer(process_group& group, rank to, std::uint64_t channel, std::uint64_t number,
                               const connect_options& how, error cause, std::source_location where) {
  static_cast<void>(
      group.send(to, answer_tag(channel), numbered(number, cause.what.substr(0, 1000)), {}, how.timeout, how.stop));
  raise_at(std::move(cause), where);
}

std::shared_ptr<queue_state> make_side(process_group& group, rank other, queue_side side, const region_header& header,
                                       mapped_region region, const queue_options& options) {
  auto queue = make_region_side(side, header, std::move(region), options, parking::word_scope::shared);
  auto peer = std::make_shared<watched_process>(group, other);
  queue->trouble = [peer, words = words_of(*queue), side]() -> std::shared_ptr<const error> {
    if (auto told = told_by_other(*words, side, peer->name())) return told;
    if (peer->dead()) return queue_error(errc::peer_dead, peer->name() + ", the other end of the queue, has died");
    return nullptr;
  };
  return queue;
}

}  // namespace

rest_of_time::rest_of_time(const connect_options& how) : how_(how), until_(deadline_after(steady_now(), how.timeout)) {}

connect_options rest_of_time::operator()() const {
  connect_options now = how_;
  if (until_ != no_deadline) now.timeout = std::max(until_ - steady_now(), std::chrono::nanoseconds{0});
  return now;
}

queue_end* only_receiver(queue_state& queue) noexcept { return &queue.lanes.front()->receiver; }

offered_receiver offer_receiving(process_group& group, rank from, std::uint64_t channel, const message_type& type,
                                 const queue_options& options, const connect_options& how, std::source_location where) {
  const called_from here{where};
  static std::atomic<std::uint64_t> last{0};
  check_shared(options, transfer_mode::direct, where);
  const region_header header = describe(type, options);
  const descriptor file = called_at(where, make_region(header));
  mapped_region region = called_at(where, map_region(file.get(), region_size(shape_in(header))));
  const std::uint64_t number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  const int with = file.get();
  of_channel(channel, where,
             group.send(from, offer_tag(channel), numbered(number, std::span{&header, 1}), std::span{&with, 1},
                        how.timeout, how.stop));
  return {make_side(group, from, queue_side::receiving, header, std::move(region), options), number};
}

void await_accepted(process_group& group, rank from, std::uint64_t channel, std::uint64_t offer,
                    const connect_options& how, std::source_location where) {
  const called_from here{where};
  const rest_of_time left{how};
  for (;;) {
    const peer_message answer =
        of_channel(channel, where, group.receive(from, answer_tag(channel), left().timeout, how.stop));
    std::span<const std::byte> text = answer.payload;
    if (number_of(text) != offer) continue;  // to one that was given up
    if (text.empty()) return;
    raise(errc::incompatible, to_string(from) + " refused the queue: " + printable(text), where);
  }
}

connected_sender connect_sending(process_group& group, rank to, std::uint64_t channel, const message_type& type,
                                 const queue_options& options, const connect_options& how, std::source_location where) {
  const called_from here{where};
  check_shared(options, transfer_mode::direct, where);
  const rest_of_time left{how};
  for (;;) {
    const peer_message offer =
        of_channel(channel, where, group.receive(to, offer_tag(channel), left().timeout, how.stop));
    std::span<const std::byte> payload = offer.payload;
    const std::uint64_t number = number_of(payload);
    if (was_given_up(offer)) continue;  // there may be another one behind it
    const auto or_refuse = [&]<class T>(result<T> got) -> T {
      if (!got) refuse_offer(group, to, channel, number, left(), std::move(got).error(), where);
      if constexpr (!std::is_void_v<T>) return std::move(*got);
    };
    const region_header header = or_refuse(read_header(payload.data(), payload.size(), type));
    if (offer.descriptors.size() != 1) {
      refuse_offer(group, to, channel, number, left(),
                   make_error(errc::corrupt, "an offered queue came with " + std::to_string(offer.descriptors.size()) +
                                                 " descriptors, not one"),
                   where);
    }
    or_refuse(accept(header, options, how));
    mapped_region region = or_refuse(map_region(offer.descriptors.front().get(), region_size(shape_in(header))));
    auto queue = make_side(group, to, queue_side::sending, header, std::move(region), options);
    queue_end& end = queue->lanes.front()->sender;
    of_channel(channel, where,
               group.send(to, answer_tag(channel), numbered(number, std::string_view{}), {}, left().timeout, how.stop));
    return {std::move(queue), &end};
  }
}

}  // namespace weft::detail
