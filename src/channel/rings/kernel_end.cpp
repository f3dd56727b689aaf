// SPDX-License-Identifier: Apache-2.0
#include "weft/channel/kernel_end.hpp"

#include "channel/queue_progress.hpp"
#include "channel/queue_state.hpp"
#include "channel/rings/ring_feed.hpp"
#include "channel/rings/ring_image.hpp"
#include "weft/memory/copy.hpp"

#include <array>
#include <cstring>

namespace weft {

std::string_view to_string(ring_visibility visibility) {
  return visibility == ring_visibility::immediate ? "immediate" : "launch_boundary";
}

std::string_view to_string(ring_delivery delivery) {
  switch (delivery) {
    case ring_delivery::in_place:
      return "in_place";
    case ring_delivery::stores:
      return "stores";
    case ring_delivery::copies:
      return "copies";
  }
  return "?";
}

}  // namespace weft

namespace weft::detail {

namespace {

void require_end(const queue_state* queue, std::source_location where) {
  if (queue == nullptr)
    raise(errc::invalid_argument, "an end of no queue, or one that was moved from, cannot be lent to a kernel", where);
}

}  // namespace

queue_end& lendable(const std::shared_ptr<queue_state>& queue, queue_end* only, std::source_location where) {
  require_end(queue.get(), where);
  if (only == nullptr) {
    raise(errc::unsupported, "a receiver that is closed or has several producers cannot be lent to a kernel", where);
  }
  return *only;
}

device device_of(const std::shared_ptr<queue_state>& queue, device_id queue_facts::* end, std::source_location where) {
  require_end(queue.get(), where);
  if (queue->machine != nullptr) return detail::make<device>(queue->machine, queue->facts.*end);
  raise(errc::invalid_argument,
        "an end of a queue between processes has no device of its own: name the one whose kernels it is lent to, as in "
        "kernel_end{end, machine[0]}",
        where);
}

void loan::check(const queue_end& end, std::source_location where) const {
  const auto refuse = [&](const char* why) {
    raise(errc::unsupported, std::string{"this end of a queue cannot be lent to a kernel: "} + why, where);
  };
  const bool sends = &end == &queue_->lanes[end.lane]->sender;
  if (queue_->machine != nullptr) {
    const device_id own = sends ? queue_->facts.source : queue_->facts.destination;
    if (on_ != detail::make<device>(queue_->machine, own)) {
      raise(errc::wrong_device,
            "this end of the queue is one of " + to_string(own) + ", and is lent to kernels of that device only",
            where);
    }
  }
  if (!sends && queue_->holds) {
    raise(errc::not_ready,
          "this end of a queue cannot be lent to a kernel: front() or try_peek() took a message out of the ring, "
          "which the kernel would not see: receive it first",
          where);
  }
  if (end.lent) refuse("it is lent already");
  if (end.closed) refuse("it is closed");
  if (!kernels_know(queue_->options)) refuse("kernels know neither checksums nor overwriting, spill and samples");
}

// Delegates, so that what is laid down before something fails is taken up again.
loan::loan(std::shared_ptr<queue_state> queue, queue_end& end, const device& on, std::source_location where)
    : loan(std::move(queue), on) {
  check(end, where);
  machine_state& machine = *state_of(on);
  const bool between_processes = queue_->machine == nullptr;
  if (machine.description_of(on.id()).rings_by_commands) {
    image_ = std::make_shared<ring_image>(*queue_, end, on);
    escorts_of(machine).add(words().data(), image_);
  } else {
    if (const std::string why = between_processes ? why_not_in_region() : why_not_in_place(end); !why.empty()) {
      const bool is_gone = queue_->lies_with_devices;
      if (is_gone) queue_->stop(queue_error(errc::device_lost, why));
      raise(is_gone ? errc::device_lost : errc::unsupported,
            "this end of a queue cannot be lent to kernels of " + to_string(on.id()) + ": " + why, where);
    }
    words_ = buffer<std::uint64_t>{on, std::tuple_size_v<end_words>};
    feed_ = new_feed(end);
    weft_ring ring = end.ring;
    if (feed_) feed_->redirect(ring);
    end_words words;
    std::memcpy(words.data(), &ring, sizeof words);
    copy(words_, words);
  }
  if (between_processes) {
    channels_of(machine).remember(queue_);
    watch_ = make_peer_watch(*queue_, on);
    if (!channels_of(machine).progress().add(watch_)) {
      raise(errc::resource_exhausted,
            "no thread could be started that watches the process at the other end of the queue; raise the limit of "
            "threads (ulimit -u)",
            where);
    }
  }
  if (feed_ && !channels_of(machine).progress().add(feed_)) {
    raise(errc::resource_exhausted,
          "no thread could be started that brings messages to kernels; raise the limit of threads (ulimit -u)", where);
  }
  end_ = &end;
  was_plain_ = end.is_plain();
  end.plain = false;
  end.lent = true;
  if (image_) return;  // the host looks after it, and wakes whom it has to
  if (between_processes) {
    WEFT_RING_STORE_32(queue_->own_loan, 1);
  } else {
    queue_->lent.fetch_add(1, std::memory_order_relaxed);
    channels_of(machine).progress().count_loan(1);
  }
  if (feed_) feed_from_now();
  queue_->wake(*end.other_waits);  // who sleeps there sleeps for as long as somebody would wake it
}

/// Where kernels would ask for messages across the bus, and the queue may bring them: asked to be direct always, else
/// where that takes no copies; null for no feed, as for the packed layout. Errors: out_of_memory, resource_exhausted.
std::shared_ptr<ring_feed> loan::new_feed(const queue_end& end) const {
  queue_lane& lane = *queue_->lanes[end.lane];
  const bool receives = &end == &lane.receiver;
  if (!receives || queue_->machine == nullptr || !queue_->out_of_reach(on_.id()) || queue_->lies_with_devices)
    return nullptr;
  if (queue_->options.mode == transfer_mode::host_staged) return nullptr;
  if (queue_->shape.stride == 0) return nullptr;  // a feed brings slots, not packed lines
  const bool only_by_stores = queue_->options.mode == transfer_mode::adaptive;
  const bytes words{words_.size() * ring_word};
  if (only_by_stores && !state_of(on_)->backend_of(on_.id()).open_bus_window(words_.data(), words)) return nullptr;
  auto feed = std::make_shared<ring_feed>(*queue_, lane, on_);
  if (only_by_stores && feed->delivery() != ring_delivery::stores) return nullptr;
  return feed;
}

/// Tells the sender's thread that it brings what it sends.
void loan::feed_from_now() noexcept {
  queue_->feed_from(feed_, *queue_->receiver_waits);
  // a sender that has not seen this leaves what it sends to the progress thread, which looks again and again
  static_cast<void>(feed_->bring());
}

/// Why kernels do not use a ring of this process where it lies; empty if they do.
std::string loan::why_not_in_place(const queue_end& end) {
  if (!queue_->out_of_reach(on_.id())) return {};  // what the host reaches was put within the devices' reach
  for (const weft_uint64 word : {end.ring.slots, end.ring.credit, end.ring.fin, end.ring.stop}) {
    if (queue_->is_open_to_kernels(on_.id(), reinterpret_cast<const void*>(word))) continue;
    return queue_->lies_with_devices
               ? "its ring lay in the memory of " + to_string(queue_->facts.source) + " and " +
                     to_string(queue_->facts.destination) + ", and went with a reset: make a new queue"
               : "they reach no memory that its ring lies in";
  }
  return {};
}

/// Why kernels do not use the memory of a queue between processes where it lies, under the addresses that the host has;
/// empty if they do.
std::string loan::why_not_in_region() {
  backend& driver = state_of(on_)->backend_of(on_.id());
  std::byte* const base = queue_->region.data();
  try {
    region_.emplace(on_, queue_->region);
  } catch (const error_exception& refused) {
    return "its memory is not taken: " + refused.cause().what;
  }
  const auto seen = driver.host_window(on_.id(), base, bytes{queue_->region.size()});
  if (!seen) return seen.error().what;
  const auto right = driver.memory_access(on_.id(), base);
  if (seen->get() == base && right && *right == access_right::read_write) return {};
  return "they do not know the memory of two processes by the host's addresses";
}

device_span<std::uint64_t> loan::words() const { return image_ ? image_->words() : words_.span(); }

ring_delivery loan::delivery() const noexcept { return feed_ ? feed_->delivery() : ring_delivery::in_place; }

std::optional<std::size_t> loan::per_launch() const noexcept {
  return image_ ? std::optional{image_->capacity()} : std::nullopt;
}

/// Only what is the end's own: where the ring lies cannot have changed.
void loan::fetch(queue_end& back) noexcept {
  try {
    end_words words;
    copy(words, words_);
    weft_ring now;
    std::memcpy(&now, words.data(), sizeof now);
    back.ring.credit_seen = now.credit_seen;
    back.ring.line = now.line;
    back.ring.index = now.index;
    WEFT_RING_KEEP_64(&back.ring.waits, now.waits);
    WEFT_RING_KEEP_64(&back.ring.position, now.position);
  } catch (const std::exception& failed) {
    // the device is gone, and with it the knowledge how far its kernels got
    queue_->stop(
        queue_error(errc::device_lost, std::string{"a lent end of a queue did not come back: "} + failed.what()));
  }
}

void loan::end() noexcept {
  machine_state& machine = *state_of(on_);
  if (watch_) {
    channels_of(machine).progress().remove(watch_.get());
    watch_ = nullptr;
    channels_of(machine).forget(queue_);
  }
  if (image_) {
    escorts_of(machine).remove(words().data());
    image_->end();
  }
  if (const auto feed = std::exchange(feed_, nullptr)) {
    queue_->feed_from(nullptr, *queue_->receiver_waits);
    channels_of(machine).progress().remove(feed.get());
    feed->end();
  }
  if (end_ == nullptr) return;
  queue_end& back = *std::exchange(end_, nullptr);
  if (!image_) {
    fetch(back);
    if (queue_->own_loan != nullptr) {
      WEFT_RING_STORE_32(queue_->own_loan, 0);
    } else {
      queue_->lent.fetch_sub(1, std::memory_order_relaxed);
      channels_of(machine).progress().count_loan(-1);
    }
  }
  region_.reset();
  back.lent = false;
  back.plain.store(was_plain_ && !back.closed, std::memory_order_seq_cst);
  if (queue_->is_over()) back.plain.store(false, std::memory_order_seq_cst);
  close_if_meant(*queue_, back);
  queue_->wake(*back.other_waits);
}

}  // namespace weft::detail
