// SPDX-License-Identifier: Apache-2.0
#include "weft/channel/kernel_end.hpp"

#include "channel/queue_progress.hpp"
#include "channel/queue_state.hpp"
#include "channel/ring_image.hpp"
#include "weft/memory/copy.hpp"

#include <array>
#include <cstring>

namespace weft::detail {
namespace {

using ring_words = std::array<std::uint64_t, sizeof(weft_ring) / sizeof(std::uint64_t)>;
static_assert(sizeof(ring_words) == sizeof(weft_ring));

}  // namespace
}  // namespace weft::detail

namespace weft {

std::string_view to_string(ring_visibility visibility) {
  return visibility == ring_visibility::immediate ? "immediate" : "launch_boundary";
}

}  // namespace weft

namespace weft::detail {

queue_end& lendable(queue_end* only, std::source_location where) {
  if (only == nullptr) {
    raise(errc::unsupported, "a receiver that is closed or has several producers cannot be lent to a kernel", where);
  }
  return *only;
}

loan::loan(std::shared_ptr<queue_state> queue, queue_end& end, device_id on, std::source_location where)
    : queue_(std::move(queue)) {
  const auto refuse = [&](const char* why) {
    raise(errc::unsupported, std::string{"this end of a queue cannot be lent to a kernel: "} + why, where);
  };
  if (queue_->machine == nullptr) refuse("its other end is in another process");
  if (end.lent) refuse("it is lent already");
  if (!end.plain) refuse("kernels know neither checksums nor overwriting, spill and samples");
  if (queue_->out_of_reach(on) && !queue_->is_open_to_kernels(on, reinterpret_cast<const void*>(end.ring.slots))) {
    image_ = std::make_shared<ring_image>(*queue_, end, on);
    escorts_of(*queue_->machine).add(words().data(), image_);
  } else {
    words_ = buffer<std::uint64_t>{device{queue_->machine, on}, std::tuple_size_v<ring_words>};
    ring_words words;
    std::memcpy(words.data(), &end.ring, sizeof words);
    copy(words_, words);
  }
  end_ = &end;
  was_plain_ = end.plain;
  end.plain = false;
  end.lent = true;
  if (image_) return;  // the host looks after it, and wakes whom it has to
  queue_->lent.fetch_add(1, std::memory_order_relaxed);
  channels_of(*queue_->machine).progress().count_loan(1);
  queue_->wake(*end.other_waits);  // who sleeps there sleeps for as long as somebody would wake it
}

device_span<std::uint64_t> loan::words() const { return image_ ? image_->words() : words_.span(); }

std::optional<std::size_t> loan::per_launch() const noexcept {
  return image_ ? std::optional{image_->capacity()} : std::nullopt;
}

/// Only what is the end's own: where the ring lies cannot have changed.
void loan::fetch(queue_end& back) noexcept {
  try {
    ring_words words;
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
  if (end_ == nullptr) return;
  queue_end& back = *std::exchange(end_, nullptr);
  if (image_) {
    escorts_of(*queue_->machine).remove(words().data());
    image_->end();
  } else {
    fetch(back);
    queue_->lent.fetch_sub(1, std::memory_order_relaxed);
    channels_of(*queue_->machine).progress().count_loan(-1);
  }
  back.lent = false;
  back.plain = was_plain_ && !back.closed;
  close_if_meant(*queue_, back);
  queue_->wake(*back.other_waits);
}

}  // namespace weft::detail
