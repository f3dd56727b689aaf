// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/pool.hpp"

#include "memory/pool_body.hpp"

#include <algorithm>
#include <bit>

namespace weft {
namespace detail {
namespace {

/// Four sizes per power of two, from 256 bytes.
std::uint64_t size_class(std::uint64_t size) {
  if (size <= 256) return 256;
  const std::uint64_t step = std::bit_ceil(size) / 8;  // a quarter of the power of two below
  return (size + step - 1) / step * step;
}

}  // namespace

pool_body::pool_body(std::shared_ptr<machine_state> state, device_id on, const pool_options& options)
    : state_(std::move(state)), on_(on), options_(options) {}

pool_body::~pool_body() { trim_locked(0); }

void* pool_body::take(std::size_t size) {
  if (size > (std::uint64_t{1} << 62))
    raise(errc::out_of_memory, "a pool on " + to_string(on_) + " was asked for " + to_string(bytes{size}));
  const std::uint64_t rounded = size_class(size);
  const std::lock_guard lock{mutex_};
  const auto hand_out = [&](void* block) {
    numbers_.used += bytes{rounded};
    numbers_.used_high = std::max(numbers_.used_high, numbers_.used);
    return block;
  };
  const auto [first, last] = free_.equal_range(rounded);
  for (auto it = first; it != last;) {
    void* block = it->second;
    const auto known = state_->backend_of(on_).find(block);
    if (!known && known.error().code == errc::not_found) {  // a reset of the device took it
      numbers_.reserved = numbers_.reserved - bytes{rounded};
      sizes_.erase(block);
      it = free_.erase(it);
      continue;
    }
    if (!known || known->pending != 0) {  // work submitted with it has not ended
      ++it;
      continue;
    }
    free_.erase(it);
    ++numbers_.hits;
    return hand_out(block);
  }
  ++numbers_.misses;
  if (rounded > options_.max_size.value() || numbers_.reserved.value() > options_.max_size.value() - rounded) {
    trim_locked(0);
    if (rounded > options_.max_size.value() || numbers_.reserved.value() > options_.max_size.value() - rounded) {
      raise(errc::out_of_memory, "a pool on " + to_string(on_) + " has " + to_string(numbers_.used) +
                                     " in use of at most " + to_string(options_.max_size) + ", asked for " +
                                     to_string(bytes{size}));
    }
  }
  backend& memory = state_->backend_of(on_);
  auto got = memory.allocate(on_, bytes{rounded}, memory_kind::device);
  if (!got && got.error().code == errc::out_of_memory) {
    trim_locked(0);
    got = memory.allocate(on_, bytes{rounded}, memory_kind::device);
  }
  void* block = value_or_raise(std::move(got));
  sizes_.emplace(block, rounded);
  numbers_.reserved += bytes{rounded};
  numbers_.reserved_high = std::max(numbers_.reserved_high, numbers_.reserved);
  return hand_out(block);
}

void pool_body::give(void* block) noexcept {
  const std::lock_guard lock{mutex_};
  const auto it = sizes_.find(block);
  if (it == sizes_.end()) return;
  numbers_.used = numbers_.used - bytes{it->second};
  free_.emplace(it->second, block);
  if (idle() > options_.keep.value()) trim_locked(options_.keep.value());
}

void pool_body::trim(std::uint64_t kept) noexcept {
  const std::lock_guard lock{mutex_};
  trim_locked(kept);
}

void pool_body::trim_locked(std::uint64_t kept) noexcept {
  // largest first: the fewest calls for the most memory
  while (!free_.empty() && idle() > kept) {
    const auto it = std::prev(free_.end());
    if (!state_->closed()) static_cast<void>(state_->backend_of(on_).release(it->second));
    numbers_.reserved = numbers_.reserved - bytes{it->first};
    sizes_.erase(it->second);
    free_.erase(it);
  }
}

pool_statistics pool_body::statistics() const {
  const std::lock_guard lock{mutex_};
  return numbers_;
}

}  // namespace detail

memory_pool::memory_pool(const device& on, pool_options options) {
  on.state()->require_open();
  body_ = std::make_shared<detail::pool_body>(on.state(), on.id(), options);
}

device memory_pool::on() const { return {body_->state(), body_->on()}; }
pool_statistics memory_pool::statistics() const { return body_->statistics(); }
void memory_pool::trim_to(bytes kept) { body_->trim(kept.value()); }

}  // namespace weft
