// SPDX-License-Identifier: Apache-2.0
// Two processes agree on a queue: the receiver makes the memory and offers it, the sender looks at it and accepts.
#include "weft/channel/shared_queue.hpp"

#include "channel/region_side.hpp"

#include <cerrno>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace weft::detail {
namespace {

// Messages of the handshake have tags that no user is likely to take.
constexpr std::uint64_t offer_tag = 0x7175'6575'6500'0000, answer_tag = 0x7175'6575'6580'0000;

[[noreturn]] void raise_at(error cause, std::source_location where) {
  cause.where = where;
  raise(std::move(cause));
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

/// Tells the other side why, and throws it here.
[[noreturn]] void refuse_offer(process_group& group, rank to, std::uint64_t channel, const connect_options& how,
                               error cause, std::source_location where) {
  const auto text = std::as_bytes(std::span{cause.what});
  static_cast<void>(group.send(to, answer_tag ^ channel, text.first(std::min<std::size_t>(text.size(), 1000)), {},
                               how.timeout, how.stop));
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

queue_end* only_receiver(queue_state& queue) noexcept { return &queue.lanes.front()->receiver; }

std::shared_ptr<queue_state> offer_receiving(process_group& group, rank from, std::uint64_t channel,
                                             const message_type& type, const queue_options& options,
                                             const connect_options& how, std::source_location where) {
  check_shared(options, transfer_mode::direct, where);
  const region_header header = describe(type, options);
  auto file = make_region(header);
  if (!file) raise_at(std::move(file).error(), where);
  auto region = map_region(file->get(), region_size(shape_in(header)));
  if (!region) raise_at(std::move(region).error(), where);
  const int number = file->get();
  auto sent = group.send(from, offer_tag ^ channel, std::as_bytes(std::span{&header, 1}), std::span{&number, 1},
                         how.timeout, how.stop);
  if (!sent) raise_at(std::move(sent).error(), where);
  return make_side(group, from, queue_side::receiving, header, std::move(*region), options);
}

void await_accepted(process_group& group, rank from, std::uint64_t channel, const connect_options& how,
                    std::source_location where) {
  auto answer = group.receive(from, answer_tag ^ channel, how.timeout, how.stop);
  if (!answer) raise_at(std::move(answer).error(), where);
  if (answer->payload.empty()) return;
  const std::string why{reinterpret_cast<const char*>(answer->payload.data()), answer->payload.size()};
  raise(errc::incompatible, to_string(from) + " refused the queue: " + why, where);
}

connected_sender connect_sending(process_group& group, rank to, std::uint64_t channel, const message_type& type,
                                 const queue_options& options, const connect_options& how, std::source_location where) {
  check_shared(options, transfer_mode::direct, where);
  auto offer = group.receive(to, offer_tag ^ channel, how.timeout, how.stop);
  if (!offer) raise_at(std::move(offer).error(), where);
  auto header = read_header(offer->payload.data(), offer->payload.size(), type);
  if (!header) refuse_offer(group, to, channel, how, std::move(header).error(), where);
  error cause;
  cause.where = where;
  if (offer->descriptors.size() != 1) {
    cause.code = errc::corrupt;
    cause.what = "an offered queue came with " + std::to_string(offer->descriptors.size()) + " descriptors, not one";
    refuse_offer(group, to, channel, how, std::move(cause), where);
  }
  if (auto accepted = accept(*header, options, how); !accepted)
    refuse_offer(group, to, channel, how, std::move(accepted).error(), where);
  auto region = map_region(offer->descriptors.front().get(), region_size(shape_in(*header)));
  if (!region) refuse_offer(group, to, channel, how, std::move(region).error(), where);
  auto queue = make_side(group, to, queue_side::sending, *header, std::move(*region), options);
  auto answered = group.send(to, answer_tag ^ channel, {}, {}, how.timeout, how.stop);
  if (!answered) raise_at(std::move(answered).error(), where);
  queue_end& end = queue->lanes.front()->sender;
  return {std::move(queue), &end};
}

}  // namespace weft::detail
