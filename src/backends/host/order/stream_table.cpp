// SPDX-License-Identifier: Apache-2.0
#include "backends/host/order/stream_table.hpp"

#include "backends/host/order/scheduler.hpp"

namespace weft::host {

stream_table::stream_table() = default;
stream_table::~stream_table() = default;

host_stream* stream_table::at(std::uint64_t place) const noexcept {
  const chunk* part = chunks_[place / chunk_size].load(std::memory_order_acquire);  // pairs with release in add
  return part == nullptr ? nullptr : (*part)[place % chunk_size].load(std::memory_order_acquire);
}

bool stream_table::is_open(const host_stream& stream) noexcept { return stream.handle() != stream_handle::none; }

host_stream* stream_table::find(stream_handle handle) const noexcept {
  if (handle == stream_handle::none) return nullptr;
  host_stream* s = at(static_cast<std::uint64_t>(handle) & ((std::uint64_t{1} << place_bits) - 1));
  return s != nullptr && s->handle() == handle ? s : nullptr;
}

host_stream* stream_table::add(const std::function<std::unique_ptr<host_stream>()>& make) {
  const std::lock_guard lock{mutex_};
  host_stream* stream = nullptr;
  if (!idle_.empty()) {
    stream = idle_.back();
    idle_.pop_back();
  } else {
    const std::uint64_t place = count_.load(std::memory_order_relaxed);
    if (place >> place_bits != 0) return nullptr;
    if (place % chunk_size == 0) {
      owned_chunks_.push_back(std::make_unique<chunk>());
      chunks_[place / chunk_size].store(owned_chunks_.back().get(), std::memory_order_release);
    }
    owned_.push_back(make());
    stream = owned_.back().get();
    stream->place_ = place;
    (*owned_chunks_.back())[place % chunk_size].store(stream, std::memory_order_release);
    count_.store(place + 1, std::memory_order_release);
  }
  stream->handle_.store((++generation_ << place_bits) | stream->place_, std::memory_order_release);
  return stream;
}

void stream_table::remove(host_stream& stream) noexcept {
  const std::lock_guard lock{mutex_};
  if (stream.handle_.exchange(0, std::memory_order_acq_rel) == 0) return;
  try {
    idle_.push_back(&stream);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the object is not used again, no more
  }
}

}  // namespace weft::host
