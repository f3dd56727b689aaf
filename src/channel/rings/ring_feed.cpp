// SPDX-License-Identifier: Apache-2.0
#include "channel/rings/ring_feed.hpp"

#include "weft/memory/copy.hpp"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

namespace weft::detail {
ring_feed::ring_feed(queue_state& queue, queue_lane& lane, const device& on)
    : queue_(queue),
      lane_(lane),
      on_(on),
      driver_(&state_of(on)->backend_of(on.id())),
      here_(reinterpret_cast<const std::byte*>(lane.receiver.ring.slots)),
      slots_size_(round_up(queue.shape.slots_size(), isolation)),
      there_(on, (slots_size_ + 2 * isolation) / ring_word, for_running_kernels),
      words_(on, most_under_way),
      brought_(lane.receiver.ring.position) {
  const std::array<std::uint64_t, 1> arrived{brought_}, open{WEFT_RING_OPEN};
  weft::copy(there_.subspan(tail_at() / ring_word, 1), arrived);
  weft::copy(there_.subspan(fin_at() / ring_word, 1), open);
  if (auto window = driver_->open_bus_window(there_.data(), bytes{there_.size() * ring_word});
      window && is_whole(**window))
    window_ = std::move(*window);
  // its own: where a copy fails, what comes behind it in the stream fails too
  order_ = value_or_raise(driver_->create_stream(on.id(), aside_priority, false));
}

/// Whether what is stored through a window is what copies find there.
bool ring_feed::is_whole(bus_window& window) const {
  std::vector<std::uint64_t> made(std::min<std::size_t>(slots_size_, most_stored) / ring_word), found(made.size());
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = (i + 1) * 0x9e3779b97f4a7c15u;
  window.store(0, made.data(), made.size() * ring_word);
  weft::copy(found, there_.subspan(0, made.size()));
  return found == made;
}

void ring_feed::redirect(weft_ring& end) const noexcept {
  const auto base = reinterpret_cast<std::uintptr_t>(there_.data());
  end.slots = base;
  end.tail = base + tail_at();
  end.fin = base + fin_at();
}

/// Whether the sender has written the message, with everything that belongs to it.
bool ring_feed::is_sent(std::uint64_t message) const noexcept {
  const weft_ring& ring = lane_.receiver.ring;
  const std::byte* const slot = here_ + (message & ring.mask) * ring.stride;
  const auto lap = static_cast<std::uint32_t>(message >> ring.shift) + 1;
  const auto has = [lap](const std::byte* stamp) {
    return WEFT_RING_LOAD_32(reinterpret_cast<const std::uint32_t*>(stamp)) == lap;
  };
  for (std::uint32_t i = 0; i < ring.pieces; ++i) {
    if (!has(slot + i * WEFT_RING_PIECE + WEFT_RING_PIECE_PAYLOAD)) return false;
  }
  return ring.pieces != 0 || has(slot + ring.stride - sizeof lap);
}

std::array<ring_feed::piece, 2> ring_feed::pieces_of(std::uint64_t count) const noexcept {
  const weft_ring& ring = lane_.receiver.ring;
  const std::uint64_t first = brought_ & ring.mask;
  const std::uint64_t to_end = std::min(count, ring.mask + 1 - first);
  return {piece{first * ring.stride, to_end * ring.stride}, piece{0, (count - to_end) * ring.stride}};
}

void ring_feed::store(std::uint64_t count) noexcept {
  for (const piece& one : pieces_of(count)) {
    if (one.size != 0) window_->store(one.offset, here_ + one.offset, one.size);
  }
  const std::uint64_t arrived = brought_ + count;
  window_->store(tail_at(), &arrived, sizeof arrived);
  lane_.fed_by_stores.add(count);
}

result<void> ring_feed::copy(std::uint64_t count) {
  for (const piece& one : pieces_of(count)) {
    if (one.size == 0) continue;
    auto brought = bring_bytes(one.offset, here_ + one.offset, one.size);
    if (!brought) return std::move(brought).error();
  }
  auto told = tell(tail_at(), brought_ + count);
  if (told) lane_.fed_by_copies.add(count);
  return told;
}

result<event_ref> ring_feed::bring_bytes(std::uint64_t offset, const void* from, std::uint64_t size) {
  copy_request request;
  request.dst = reinterpret_cast<std::byte*>(there_.data()) + offset;
  request.src = from;
  request.shape.width = size;
  return driver_->copy(order_, request);
}

/// Writes a word behind everything that was brought before.
result<void> ring_feed::tell(std::uint64_t offset, std::uint64_t value) {
  result<event_ref> told = event_ref{};
  if (writes_words_) {
    word_request request;
    request.address = reinterpret_cast<std::byte*>(there_.data()) + offset;
    request.size = ring_word;
    request.value = value;
    told = driver_->write_value(order_, request);
    writes_words_ = told || told.error().code != errc::unsupported;
  }
  if (!writes_words_) {
    words_.data()[next_] = value;
    told = bring_bytes(offset, words_.data() + next_, ring_word);
  }
  if (!told) return std::move(told).error();
  under_way_[next_] = std::move(*told);
  next_ = (next_ + 1) % most_under_way;
  return {};
}

result<void> ring_feed::look_at_copies() {
  for (event_ref& one : under_way_) {
    if (!one || !driver_->ready(*one)) continue;
    const event_ref ended = std::exchange(one, {});
    if (ended->cause()) return error{*ended->cause()};
  }
  return {};
}

result<bool> ring_feed::bring_more() {
  if (auto looked = look_at_copies(); !looked) return std::move(looked).error();
  bool is_idle = std::none_of(under_way_.begin(), under_way_.end(), [](const event_ref& one) { return bool{one}; });
  const weft_ring& ring = lane_.receiver.ring;
  std::uint64_t count = 0;
  while (count < ring.capacity && is_sent(brought_ + count)) ++count;
  if (count != 0) {
    if (window_ && is_idle && count * ring.stride <= most_stored) {
      store(count);
    } else {
      if (under_way_[next_]) return false;  // a later look brings more at a time
      if (auto copied = copy(count); !copied) return std::move(copied).error();
      is_idle = false;
    }
    brought_ += count;
  }
  if (!told_end_ && !under_way_[next_]) {
    const std::uint64_t fin = WEFT_RING_LOAD_64(reinterpret_cast<const std::uint64_t*>(ring.fin));
    if (fin != WEFT_RING_OPEN) {
      told_end_ = true;
      if (window_ && is_idle) {
        window_->store(fin_at(), &fin, sizeof fin);
      } else if (auto told = tell(fin_at(), fin); !told) {
        return std::move(told).error();
      }
    }
  }
  return count != 0;
}

bool ring_feed::bring() noexcept {
  std::shared_ptr<const error> failed;
  try {
    const std::lock_guard lock{mutex_};
    if (over_) return false;
    auto brought = bring_more();
    if (brought) return *brought;
    over_ = true;
    failed = std::make_shared<const error>(std::move(brought).error());
  } catch (const std::bad_alloc&) {
    return false;  // a later look tries again
  }
  queue_.stop(std::move(failed));
  return false;
}

void ring_feed::end() noexcept {
  const std::lock_guard lock{mutex_};
  over_ = true;
  for (event_ref& one : under_way_) {
    if (one) static_cast<void>(driver_->wait(*one, no_deadline, {}));
    one = {};
  }
  driver_->destroy_stream(std::exchange(order_, stream_handle::none));
}

}  // namespace weft::detail
