// SPDX-License-Identifier: Apache-2.0
#include "channel/rings/ring_image.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace weft::detail {
namespace {

// Distances from the begin of an image.
constexpr std::uint64_t credit_at = isolation;
constexpr std::uint64_t fin_at = credit_at + sizeof(std::uint64_t);
constexpr std::uint64_t stop_at = fin_at + sizeof(std::uint64_t);
constexpr std::uint64_t slots_at = 2 * isolation;
static_assert(sizeof(weft_ring) <= credit_at && stop_at + sizeof(std::uint32_t) <= slots_at);

/// The queue's ring as far as one launch may go, which is never further than the ring itself.
ring_shape image_of(const queue_state& queue) {
  const std::uint64_t fit = queue.options.staging_size.value() / std::max<std::uint32_t>(queue.shape.bytes, 1);
  ring_shape shape = queue.shape;
  shape.capacity = std::min(queue.shape.capacity, std::bit_floor(std::max<std::uint64_t>(fit, 16)));
  shape.places =
      shape.per_line == 0 ? shape.capacity : std::bit_ceil((shape.capacity + shape.per_line - 1) / shape.per_line + 1);
  return shape;
}

}  // namespace

/// What the host does around a launch, in a thread of the backend. Plain memory: whichever thread lets go of it last.
struct ring_image::body {
  std::mutex mutex;
  queue_state* queue = nullptr;  // null once the loan has ended, and with it what may be touched
  queue_end* end = nullptr;
  std::byte* here = nullptr;
  bool sends = false;
  ring_shape shape;
  std::uint64_t offered = 0;  // messages that the launch may move
  std::uint64_t written = 0;  // bytes of slots that the launch before was given

  result<void> lay_out();
  result<void> take_back();

 private:
  [[nodiscard]] weft_ring at_host() const noexcept {
    queue_end made;
    set_end(made, {here + slots_at, word(credit_at), word(fin_at), reinterpret_cast<std::uint32_t*>(here + stop_at)},
            shape);
    return made.ring;
  }
  [[nodiscard]] std::uint64_t* word(std::uint64_t at) const noexcept {
    return reinterpret_cast<std::uint64_t*>(here + at);
  }
  void offer_messages();
  void offer_space(weft_ring& image);
  result<void> bring(std::uint64_t count);
  result<void> drop(std::uint64_t count);
  [[nodiscard]] error over() const {
    return *queue_error(errc::closed,
                        "the end of a queue that the launch was lent was taken back before the launch ended",
                        error_scope::call);
  }
  error damaged(const char* what) {
    auto cause = queue_error(errc::corrupt, std::string{what} + " of an end of the queue from " +
                                                to_string(queue->facts.source) + " to " +
                                                to_string(queue->facts.destination) + " that was lent to a kernel");
    queue->stop(cause);
    return *cause;
  }
};

void ring_image::body::offer_messages() {
  std::memset(here + slots_at, 0, written);
  weft_ring from = end->ring;
  weft_ring to = at_host();
  for (offered = 0; offered < shape.capacity; ++offered) {
    const void* message = peek_message(from);
    if (message == nullptr) break;
    put_message(to, message);
    pass_message(from);
  }
  written = to.stride == 0 ? (to.line + (to.index == 0 ? 0 : 1)) * WEFT_RING_LINE : offered * to.stride;
  const std::uint64_t fin = WEFT_RING_LOAD_64(WEFT_RING_WORD_64(&from, fin));
  *word(fin_at) = fin == from.position ? offered : WEFT_RING_OPEN;
  *word(credit_at) = 0;
}

void ring_image::body::offer_space(weft_ring& image) {
  weft_ring& ring = end->ring;
  const int seen = weft_ring_look_for_space(&ring, 1);
  const bool has_space = seen == WEFT_RING_OK && !queue->stopped();
  offered = has_space ? std::min(shape.capacity, ring.capacity - (ring.position - ring.credit_seen)) : 0;
  image.capacity = offered;
  *word(fin_at) = WEFT_RING_OPEN;
  *word(credit_at) = seen == WEFT_RING_CLOSED ? WEFT_RING_CLOSED_BIT : 0;
}

result<void> ring_image::body::lay_out() {
  const std::lock_guard lock{mutex};
  if (queue == nullptr) return over();
  weft_ring image = at_host();
  image.slots = slots_at;
  image.credit = credit_at;
  image.fin = fin_at;
  image.stop = stop_at;
  if (sends) {
    offer_space(image);
  } else {
    offer_messages();
  }
  const std::uint32_t stop = WEFT_RING_LOAD_32(WEFT_RING_WORD_32(&end->ring, stop));
  std::memcpy(here + stop_at, &stop, sizeof stop);
  std::memcpy(here, &image, sizeof image);
  return {};
}

/// What the kernel sent goes into the ring, where there is space for it: nobody else sends.
result<void> ring_image::body::bring(std::uint64_t count) {
  weft_ring from = at_host();
  for (std::uint64_t n = 0; n < count; ++n) {
    const void* message = peek_message(from);
    if (message == nullptr) return damaged("a stamp");  // or that of an earlier launch, which nobody can tell
    put_message(end->ring, message);
    pass_message(from);
  }
  if (*word(fin_at) != WEFT_RING_OPEN) weft_ring_close_writer(&end->ring);
  return {};
}

/// What the kernel received is gone from the ring, and its space is the sender's at once: no later look gives it.
result<void> ring_image::body::drop(std::uint64_t count) {
  for (std::uint64_t n = 0; n < count; ++n) pass_message(end->ring);
  // a kernel's close lasts: a credit would take one of an earlier launch back
  const std::uint64_t closed = *word(credit_at) | WEFT_RING_LOAD_64(WEFT_RING_WORD_64(&end->ring, credit));
  if ((closed & WEFT_RING_CLOSED_BIT) != 0) {
    weft_ring_close_reader(&end->ring);
  } else {
    weft_ring_give_credit(&end->ring);
  }
  return {};
}

result<void> ring_image::body::take_back() {
  const std::lock_guard lock{mutex};
  if (queue == nullptr) return over();
  weft_ring image;
  std::memcpy(&image, here, sizeof image);
  if (image.position > std::exchange(offered, 0)) return damaged("the position");
  WEFT_RING_KEEP_64(&end->ring.waits, end->ring.waits + image.waits);
  auto done = sends ? bring(image.position) : drop(image.position);
  queue->wake(*end->other_waits);
  return done;
}

ring_image::ring_image(queue_state& queue, queue_end& end, const device& on) : body_(std::make_shared<body>()) {
  body_->queue = &queue;
  body_->end = &end;
  body_->sends = &end == &queue.lanes[end.lane]->sender;
  body_->shape = image_of(queue);
  const std::uint64_t size = slots_at + body_->shape.slots_size();
  there_ = buffer<std::uint64_t>{on, size / sizeof(std::uint64_t)};
  here_ = pinned_buffer<std::byte>{on, size};
  body_->here = here_.data();
  std::memset(body_->here, 0, size);
}

void ring_image::end() noexcept {
  const std::lock_guard lock{body_->mutex};
  body_->queue = nullptr;
}

device_span<std::uint64_t> ring_image::words() const { return there_.subspan(0, static_cast<std::size_t>(ring_words)); }
std::size_t ring_image::capacity() const noexcept { return body_->shape.capacity; }

result<void> ring_image::before(backend& driver, stream_handle order) {
  if (last_ && order != last_order_ && !driver.ready(*last_)) {
    if (auto follows = driver.wait_event(order, last_); !follows) return follows;
  }
  auto laid = driver.call(order, [b = body_] { return b->lay_out(); });
  if (!laid) return std::move(laid).error();
  copy_request out;
  out.dst = there_.data();
  out.src = here_.data();
  out.shape.width = body_->sends ? slots_at : here_.size();
  auto brought = driver.copy(order, out);
  if (!brought) return std::move(brought).error();
  remember(order, *brought);  // a launch that is refused ends with it
  return {};
}

result<event_ref> ring_image::behind(backend& driver, stream_handle order) {
  copy_request back;
  back.dst = here_.data();
  back.src = there_.data();
  back.shape.width = body_->sends ? here_.size() : slots_at;
  auto brought = driver.copy(order, back);
  if (!brought) return brought;
  auto taken = driver.call(order, [b = body_] { return b->take_back(); });
  if (taken) remember(order, *taken);
  return taken;
}

}  // namespace weft::detail
