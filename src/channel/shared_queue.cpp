// SPDX-License-Identifier: Apache-2.0
// Two processes agree on a queue: the receiver makes the memory and offers it, the sender looks at it and accepts.
#include "weft/channel/shared_queue.hpp"

#include "channel/queue_state.hpp"
#include "channel/shared_region.hpp"

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

void check_shared(const queue_options& o, std::source_location where) {
  check(o, where);
  if (o.mode != transfer_mode::adaptive && o.mode != transfer_mode::direct) {
    raise(errc::unsupported,
          "a queue between processes lies in memory that both reach, and cannot be " + std::string{to_string(o.mode)},
          where);
  }
  if (o.when_full == backpressure::spill) {
    raise(errc::unsupported,
          "a queue between processes does not spill: what is kept on the sender's side would die with it", where);
  }
  if (o.for_kernels) {
    raise(errc::unsupported,
          "a queue between processes lies in memory of the host, and its ends are lent to kernels when they are to be: "
          "leave queue_options::for_kernels",
          where);
  }
  if (o.producers != 1) {
    raise(errc::unsupported, "a queue between processes has one producer: connect one per sender", where);
  }
  if (o.sample_every != 0) {
    raise(errc::unsupported, "a queue between processes takes no samples: two processes share no board for them",
          where);
  }
}

/// Tells the other side why, and throws it here.
[[noreturn]] void refuse_offer(process_group& group, rank to, std::uint64_t channel, const connect_options& how,
                               error cause, std::source_location where) {
  const auto text = std::as_bytes(std::span{cause.what});
  static_cast<void>(group.send(to, answer_tag ^ channel, text.first(std::min<std::size_t>(text.size(), 1000)), {},
                               how.limit, how.stop));
  raise_at(std::move(cause), where);
}

std::shared_ptr<queue_state> make_side(process_group& group, rank other, queue_side side, const region_header& header,
                                       mapped_region region, const queue_options& options) {
  auto queue = std::make_shared<queue_state>();
  queue->side = side;
  queue->options = options;
  queue->options.validate = (header.flags & region_header::validates) != 0;
  queue->overwrites = (header.flags & region_header::overwrites) != 0;
  if (queue->overwrites) queue->options.when_full = backpressure::overwrite_oldest;
  queue->size = header.size;
  queue->shape.bytes = header.bytes;
  queue->shape.stride = header.stride;
  queue->shape.per_line = header.per_line;
  queue->shape.capacity = header.capacity;
  queue->shape.places = header.places;
  queue->facts.mode = transfer_mode::direct;
  queue->facts.capacity = header.capacity;
  queue->scope = parking::word_scope::shared;
  queue->fences = !parking::offers_heavy_fence(parking::word_scope::shared);
  queue->receiving.resize(header.bytes);
  queue->held.resize(header.size);

  std::byte* base = region.get().base;
  auto* words = reinterpret_cast<region_words*>(base + words_offset);
  auto made = std::make_unique<queue_lane>();
  queue_lane& l = *made;
  ring_view view;
  view.slots = base + slots_offset;
  view.credit = &words->credit;
  view.fin = &words->fin;
  const bool sends = side == queue_side::sending;
  view.stop = sends ? &words->sender_stop : &words->receiver_stop;
  queue_end& end = sends ? l.sender : l.receiver;
  set_end(end, view, queue->shape);
  end.plain = !queue->options.validate && !queue->overwrites && !queue->fences;
  l.sender_waits = &words->sender_waits;
  queue->receiver_waits = &words->receiver_waits;
  l.sender.other_waits = &words->receiver_waits;
  l.receiver.other_waits = &words->sender_waits;
  l.sending.resize(header.bytes);
  queue->region = {region.get().base, region.get().size};
  l.memory.push_back(std::make_shared<mapped_region>(std::move(region)));
  queue->broken = sends ? &words->sender_broken : &words->receiver_broken;
  queue->own_loan = sends ? &words->sender_lent : &words->receiver_lent;
  queue->other_loan = sends ? &words->receiver_lent : &words->sender_lent;
  const std::uint32_t* broken = sends ? &words->receiver_broken : &words->sender_broken;
  auto peer = std::make_shared<watched_process>(group, other);
  queue->trouble = [peer, broken]() -> std::shared_ptr<const error> {
    const std::uint32_t state = WEFT_RING_LOAD_32(broken);
    if (state == end_lost_kernels) {
      return queue_error(errc::device_lost, peer->name() +
                                                ", the other end of the queue, had lent it to kernels whose " +
                                                "device is lost or whose machine was closed");
    }
    if (state != end_in_use) {
      return queue_error(errc::corrupt, peer->name() + ", the other end of the queue, has found it damaged");
    }
    if (peer->dead()) return queue_error(errc::peer_dead, peer->name() + ", the other end of the queue, has died");
    return nullptr;
  };
  queue->lanes.push_back(std::move(made));
  return queue;
}

}  // namespace

queue_end* only_receiver(queue_state& queue) noexcept { return &queue.lanes.front()->receiver; }

std::shared_ptr<queue_state> offer_receiving(process_group& group, rank from, std::uint64_t channel,
                                             const message_type& type, const queue_options& options,
                                             const connect_options& how, std::source_location where) {
  check_shared(options, where);
  const bool overwrites = options.when_full == backpressure::overwrite_oldest;
  const ring_shape shape =
      shape_of(carried_size(type.size, options.validate, overwrites), type.alignment, options.capacity, !overwrites);
  const region_header header = describe(
      type, shape, (options.validate ? region_header::validates : 0) | (overwrites ? region_header::overwrites : 0));
  auto file = make_region(header);
  if (!file) raise_at(std::move(file).error(), where);
  auto region = map_region(file->get(), region_size(shape));
  if (!region) raise_at(std::move(region).error(), where);
  const int number = file->get();
  auto sent = group.send(from, offer_tag ^ channel, std::as_bytes(std::span{&header, 1}), std::span{&number, 1},
                         how.limit, how.stop);
  if (!sent) raise_at(std::move(sent).error(), where);
  return make_side(group, from, queue_side::receiving, header, std::move(*region), options);
}

void await_accepted(process_group& group, rank from, std::uint64_t channel, const connect_options& how,
                    std::source_location where) {
  auto answer = group.receive(from, answer_tag ^ channel, how.limit, how.stop);
  if (!answer) raise_at(std::move(answer).error(), where);
  if (answer->payload.empty()) return;
  const std::string why{reinterpret_cast<const char*>(answer->payload.data()), answer->payload.size()};
  raise(errc::incompatible, to_string(from) + " refused the queue: " + why, where);
}

connected_sender connect_sending(process_group& group, rank to, std::uint64_t channel, const message_type& type,
                                 const queue_options& options, const connect_options& how, std::source_location where) {
  check_shared(options, where);
  auto offer = group.receive(to, offer_tag ^ channel, how.limit, how.stop);
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
  const bool overwrites = (header->flags & region_header::overwrites) != 0;
  if (options.when_full == backpressure::overwrite_oldest && !overwrites) {
    cause.code = errc::incompatible;
    cause.what = "the sender would overwrite, and the receiver's ring is not made for it: both must ask for it";
    refuse_offer(group, to, channel, how, std::move(cause), where);
  }
  ring_shape shape;
  shape.bytes = header->bytes;
  shape.stride = header->stride;
  shape.per_line = header->per_line;
  shape.capacity = header->capacity;
  shape.places = header->places;
  const bytes size{region_size(shape)};
  if (size > how.largest) {
    cause.code = errc::resource_exhausted;
    cause.what = "an offered queue takes " + to_string(size) + ", and connect_options::largest accepts " +
                 to_string(how.largest);
    refuse_offer(group, to, channel, how, std::move(cause), where);
  }
  auto region = map_region(offer->descriptors.front().get(), size.value());
  if (!region) refuse_offer(group, to, channel, how, std::move(region).error(), where);
  auto queue = make_side(group, to, queue_side::sending, *header, std::move(*region), options);
  auto answered = group.send(to, answer_tag ^ channel, {}, {}, how.limit, how.stop);
  if (!answered) raise_at(std::move(answered).error(), where);
  queue_end& end = queue->lanes.front()->sender;
  return {std::move(queue), &end};
}

}  // namespace weft::detail
