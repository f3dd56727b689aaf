// SPDX-License-Identifier: Apache-2.0
#include "weft/distributed/world_queue.hpp"

#include "channel/region_side.hpp"
#include "core/errors/called_from.hpp"
#include "distributed/queues/queue_carrier.hpp"
#include "processes/packet_socket.hpp"
#include "weft/core/raise.hpp"

#include <utility>

namespace weft::detail {
namespace {

/// Goes with the queue, and takes its end from the carrier.
class far_feed final : public queue_feed {
 public:
  far_feed(std::shared_ptr<queue_carrier> by, std::shared_ptr<far_end> end)
      : by_(std::move(by)), end_(std::move(end)) {}
  ~far_feed() override { by_->leave(*end_); }
  bool bring() noexcept override { return by_->bring(*end_); }

 private:
  std::shared_ptr<queue_carrier> by_;
  std::shared_ptr<far_end> end_;
};

using far_side = far_receiver;  // or a sender's

/// One side of a queue, in memory of this process alone, and what the carrier works on.
result<far_side> make_far_side(const std::shared_ptr<queue_carrier>& by, int peer, queue_side side,
                               const region_header& header, const queue_options& options) {
  auto file = make_region(header);
  if (!file) return std::move(file).error();
  auto region = map_region(file->get(), region_size(shape_in(header)));
  if (!region) return std::move(region).error();
  std::byte* const base = region->get().base;
  far_side made;
  made.queue = make_region_side(side, header, std::move(*region), options, parking::word_scope::process);
  made.queue->facts.mode = transfer_mode::network;
  made.queue->lies_in_host_memory = true;
  made.end = std::make_shared<far_end>();
  far_end& end = *made.end;
  end.peer = peer;
  end.sends = side == queue_side::sending;
  end.overwrites = made.queue->overwrites;
  end.words = words_in(base);
  ring_view other = view_of(end.sends ? queue_side::receiving : queue_side::sending, base);
  if (end.sends) other.credit = &end.unused;
  set_end(end.ring, other, made.queue->shape);
  end.message.resize(header.bytes);
  end.memory = made.queue->lanes.front()->memory.front();
  end.queue = made.queue;
  made.queue->trouble = [by = std::weak_ptr{by}, end = made.end, side,
                         name = by->name_of(peer)]() -> std::shared_ptr<const error> {
    if (auto told = told_by_other(*end->words, side, name)) return told;
    const auto carrier = by.lock();
    return carrier ? carrier->trouble(*end) : nullptr;
  };
  return made;
}

void feed(const std::shared_ptr<queue_carrier>& by, const far_receiver& made) {
  made.queue->feed_from(std::make_shared<far_feed>(by, made.end),
                        made.end->sends ? made.end->words->receiver_waits : made.end->words->sender_waits);
}

/// Tells the receiver why, and throws it here.
[[noreturn]] void refuse(queue_carrier& by, rank to, const far_offer& offered, error cause) {
  by.refuse(to.value(), offered, cause.what);
  raise(std::move(cause));
}

}  // namespace

rank place_on_this_node(const world& w, rank other, std::source_location where) {
  const world_member& that = w.member(other, where);
  if (other == w.self()) raise(errc::invalid_argument, "a queue of " + to_string(other) + " with itself", where);
  return that.node == w.member(w.self()).node ? that.local : rank{-1};
}

far_receiver offer_far_receiving(const world& w, rank from, std::uint64_t channel, const message_type& type,
                                 const queue_options& options, std::source_location where) {
  const called_from here{where};
  check_shared(options, transfer_mode::network, where);
  const auto& by = internals::queues(w);
  const region_header header = describe(type, options);
  far_side made = value_or_raise(make_far_side(by, from.value(), queue_side::receiving, header, options));
  value_or_raise(by->offer(made.end, channel, header));
  feed(by, made);
  return made;
}

void await_accepted(const world& w, const far_receiver& offered, const connect_options& how,
                    std::source_location where) {
  const called_from here{where};
  value_or_raise(internals::queues(w)->await_answer(*offered.end, deadline_after(steady_now(), how.timeout), how.stop));
}

connected_sender connect_far_sender(const world& w, rank to, std::uint64_t channel, const message_type& type,
                                    const queue_options& options, const connect_options& how,
                                    std::source_location where) {
  const called_from here{where};
  check_shared(options, transfer_mode::network, where);
  const auto& by = internals::queues(w);
  const wait_deadline until = deadline_after(steady_now(), how.timeout);
  for (;;) {
    const auto offered = value_or_raise(by->await_offer(to.value(), channel, until, how.stop));
    auto header = read_header(offered.header.data(), offered.header.size(), type);
    if (!header) refuse(*by, to, offered, std::move(header).error());
    if (auto taken = accept(*header, options, how); !taken) refuse(*by, to, offered, std::move(taken).error());
    auto made = make_far_side(by, to.value(), queue_side::sending, *header, options);
    if (!made) refuse(*by, to, offered, std::move(made).error());
    by->take(made->end, offered);
    feed(by, *made);
    // Whether the receiver still waits decides about the next offer; without an answer in time this one stands.
    const auto waits = by->await_receiver(*made->end, until, how.stop);
    if (!waits && waits.error().code != errc::timed_out && waits.error().code != errc::cancelled) raise(waits.error());
    if (!waits || *waits) return {made->queue, &made->queue->lanes.front()->sender};
  }
}

}  // namespace weft::detail
