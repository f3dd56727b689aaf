// SPDX-License-Identifier: Apache-2.0
#include "channel/region_side.hpp"

#include "core/errors/make_error.hpp"
#include "weft/core/raise.hpp"

#include <utility>

namespace weft::detail {

void check_shared(const queue_options& o, transfer_mode own, std::source_location where) {
  check(o, where);
  if (o.mode != transfer_mode::adaptive && o.mode != own) {
    raise(errc::unsupported,
          (own == transfer_mode::direct ? "a queue between processes lies in memory that both reach"
                                        : "a queue between nodes has its messages carried by a network") +
              std::string{", and cannot be "} + std::string{to_string(o.mode)},
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

region_header describe(const message_type& type, const queue_options& options) {
  const bool overwrites = options.when_full == backpressure::overwrite_oldest;
  const ring_shape shape =
      shape_of(carried_size(type.size, options.validate, overwrites), type.alignment, options.capacity, !overwrites);
  return describe(type, shape,
                  (options.validate ? region_header::validates : 0) | (overwrites ? region_header::overwrites : 0));
}

result<void> accept(const region_header& header, const queue_options& options, const connect_options& how) {
  const bool overwrites = (header.flags & region_header::overwrites) != 0;
  if ((options.when_full == backpressure::overwrite_oldest) != overwrites) {
    return make_error(errc::incompatible, "queue_options::when_full is " + std::string{to_string(options.when_full)} +
                                              " at the sender, and the receiver asks " +
                                              (overwrites ? "for" : "for no") +
                                              " overwrite_oldest: both must ask for it, or neither");
  }
  const bytes size{region_size(shape_in(header))};
  if (size > how.largest) {
    return make_error(errc::resource_exhausted, "an offered queue takes " + to_string(size) +
                                                    ", and connect_options::largest accepts " + to_string(how.largest));
  }
  return {};
}

ring_view view_of(queue_side side, std::byte* region) noexcept {
  region_words* const words = words_in(region);
  ring_view view;
  view.slots = region + slots_offset;
  view.credit = &words->credit;
  view.fin = &words->fin;
  view.stop = side == queue_side::sending ? &words->sender_stop : &words->receiver_stop;
  return view;
}

std::shared_ptr<queue_state> make_region_side(queue_side side, const region_header& header, mapped_region region,
                                              const queue_options& options, parking::word_scope scope) {
  auto queue = std::make_shared<queue_state>();
  queue->side = side;
  queue->options = options;
  queue->options.validate = (header.flags & region_header::validates) != 0;
  queue->overwrites = (header.flags & region_header::overwrites) != 0;
  queue->size = header.size;
  queue->shape = shape_in(header);
  queue->facts.mode = transfer_mode::direct;
  queue->facts.capacity = header.capacity;
  queue->scope = scope;
  queue->fences = !parking::offers_heavy_fence(scope);
  queue->receiving.resize(header.bytes);
  queue->held.resize(header.size);

  auto made = std::make_unique<queue_lane>();
  queue_lane& l = *made;
  const bool sends = side == queue_side::sending;
  queue_end& end = sends ? l.sender : l.receiver;
  region_words* const words = words_in(region.get().base);
  set_end(end, view_of(side, region.get().base), queue->shape);
  end.plain = !queue->options.validate && !queue->overwrites && !queue->fences;
  l.sender_waits = &words->sender_waits;
  queue->receiver_waits = &words->receiver_waits;
  l.sender.other_waits = &words->receiver_waits;
  l.receiver.other_waits = &words->sender_waits;
  l.sending.resize(header.bytes);
  queue->region = {region.get().base, region.get().size};
  queue->region_of = region.get().mapped_by;
  l.memory.push_back(std::make_shared<mapped_region>(std::move(region)));
  queue->broken = sends ? &words->sender_broken : &words->receiver_broken;
  queue->own_loan = sends ? &words->sender_lent : &words->receiver_lent;
  queue->other_loan = sends ? &words->receiver_lent : &words->sender_lent;
  queue->lanes.push_back(std::move(made));
  return queue;
}

std::shared_ptr<const error> told_by_other(const region_words& words, queue_side own, const std::string& other) {
  const std::uint32_t state =
      WEFT_RING_LOAD_32(own == queue_side::sending ? &words.receiver_broken : &words.sender_broken);
  if (state == end_in_use) return nullptr;
  if (state == end_lost_kernels) {
    return queue_error(errc::device_lost, other + ", the other end of the queue, had lent it to kernels whose device " +
                                              "is lost or whose machine was closed");
  }
  return queue_error(errc::corrupt, other + ", the other end of the queue, has found it damaged");
}

}  // namespace weft::detail
