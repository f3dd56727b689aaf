// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/pool.hpp"

#include "core/errors/called_from.hpp"
#include "core/text/readable.hpp"
#include "memory/memory_state.hpp"
#include "memory/pool_body.hpp"
#include "memory/sharing/ipc_event_body.hpp"
#include "processes/share_server.hpp"

#include <algorithm>
#include <bit>
#include <unistd.h>

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
    : state_(std::move(state)), on_(on), options_(options) {
  if (options_.shareable) memory_of(*state_).has_own_access.store(true, std::memory_order_relaxed);
}

pool_body::~pool_body() {
  if (key_ != 0 && !state_->closed() && !state_->forked()) memory_of(*state_).events().server.withdraw(key_);
  trim_locked(0);
}

result<void*> pool_body::fresh(std::uint64_t size) {
  backend& memory = state_->backend_of(on_);
  if (!options_.shareable) return memory.allocate(on_, bytes{size}, memory_kind::device);
  auto got = memory.allocate_shareable(on_, bytes{size}, handle_family::pool);
  if (!got) return got;
  std::vector<device_right> rights;
  rights.reserve(rights_.size());
  for (const auto& [device, right] : rights_) rights.push_back({device, right});
  if (auto set = memory.set_memory_access(*got, rights); !set) {
    static_cast<void>(memory.release(*got));
    return std::move(set).error();
  }
  return got;
}

void* pool_body::take(std::size_t size) {
  if (size > (std::uint64_t{1} << 60))
    raise(errc::out_of_memory, "a pool on " + to_string(on_) + " was asked for " + to_string(bytes{size}));
  std::uint64_t rounded = size_class(size);
  const std::lock_guard lock{mutex_};
  const auto hand_out = [&](void* block, std::uint64_t of) {
    numbers_.used += bytes{of};
    numbers_.used_high = std::max(numbers_.used_high, numbers_.used);
    return block;
  };
  // Rather than take what will not be kept, a block that wastes more.
  const bool is_short = rounded > options_.keep.value() || idle() > options_.keep.value() - rounded;
  const auto last = free_.upper_bound(is_short ? 4 * rounded : rounded + rounded / 2);
  for (auto it = free_.lower_bound(size); it != last;) {  // one that was not rounded serves its size again
    const std::uint64_t of = it->first;
    void* const block = it->second.block;
    const auto known = state_->backend_of(on_).find(block);
    if (!known && known.error().code == errc::not_found) {  // a reset of the device took it, but for its address
      static_cast<void>(state_->backend_of(on_).release(block));
      numbers_.reserved = numbers_.reserved - bytes{of};
      sizes_.erase(block);
      it = forget(it);
      continue;
    }
    if (!known || known->pending != 0) {  // work submitted with it has not ended
      ++it;
      continue;
    }
    forget(it);
    state_->backend_of(on_).note_reuse(block);
    ++numbers_.hits;
    return hand_out(block, of);
  }
  ++numbers_.misses;
  const auto has_room = [&](std::uint64_t more) {
    return more <= options_.max_size.value() && numbers_.reserved.value() <= options_.max_size.value() - more;
  };
  if (!has_room(rounded)) {
    trim_locked(0);
    if (!has_room(rounded)) rounded = size;  // what was asked for may still fit
    if (!has_room(rounded)) {
      raise(errc::out_of_memory, "a pool on " + to_string(on_) + " has " + to_string(numbers_.used) +
                                     " in use of at most " + detail::size_beside(options_.max_size.value(), size) +
                                     ", asked for " + detail::size_beside(size, options_.max_size.value()));
    }
  }
  auto got = fresh(rounded);
  if (!got && got.error().code == errc::out_of_memory) {
    trim_locked(0);
    got = fresh(rounded);
  }
  void* block = value_or_raise(std::move(got));
  try {
    sizes_.emplace(block, rounded);
  } catch (...) {
    static_cast<void>(state_->backend_of(on_).release(block));
    throw;
  }
  numbers_.reserved += bytes{rounded};
  numbers_.reserved_high = std::max(numbers_.reserved_high, numbers_.reserved);
  return hand_out(block, rounded);
}

void pool_body::give(void* block) noexcept {
  const std::lock_guard lock{mutex_};
  const auto it = sizes_.find(block);
  if (it == sizes_.end()) return;
  numbers_.used = numbers_.used - bytes{it->second};
  if (exported_.erase(block) != 0 || it->second > options_.keep.value()) {
    // Whoever still has it open would see the data of the next owner: it goes back, and they are told. And one that
    // alone is too much pushes out no others.
    if (!state_->closed()) static_cast<void>(state_->backend_of(on_).release(block));
    numbers_.reserved = numbers_.reserved - bytes{it->second};
    sizes_.erase(it);
    return;
  }
  try {
    const auto made = free_.emplace(it->second, free_block{block, ++freed_});
    try {
      by_age_.emplace_hint(by_age_.end(), freed_, made);
    } catch (const std::bad_alloc&) {
      free_.erase(made);
      throw;
    }
  } catch (const std::bad_alloc&) {  // not even a note that it is free: it goes back to the device
    if (!state_->closed()) static_cast<void>(state_->backend_of(on_).release(block));
    numbers_.reserved = numbers_.reserved - bytes{it->second};
    sizes_.erase(it);
    return;
  }
  // what was used least lately: the largest may be what every call needs first
  while (!by_age_.empty() && idle() > options_.keep.value()) give_back(by_age_.begin()->second);
}

pool_body::free_blocks::iterator pool_body::forget(free_blocks::iterator one) noexcept {
  by_age_.erase(one->second.freed);
  return free_.erase(one);
}

void pool_body::give_back(free_blocks::iterator one) noexcept {
  void* const block = one->second.block;
  if (!state_->closed()) static_cast<void>(state_->backend_of(on_).release(block));
  numbers_.reserved = numbers_.reserved - bytes{one->first};
  sizes_.erase(block);
  forget(one);
}

void pool_body::trim(std::uint64_t kept) noexcept {
  const std::lock_guard lock{mutex_};
  trim_locked(kept);
}

void pool_body::trim_locked(std::uint64_t kept) noexcept {
  // largest first: the fewest calls for the most memory
  while (!free_.empty() && idle() > kept) give_back(std::prev(free_.end()));
}

pool_statistics pool_body::statistics() const {
  const std::lock_guard lock{mutex_};
  return numbers_;
}

void pool_body::require_shareable() const {
  if (!options_.shareable) {
    raise(errc::invalid_argument, "this pool on " + to_string(on_) +
                                      " follows peer access and is not shared: make it with pool_options::shareable");
  }
}

namespace {

void require_of_machine(const machine_state& state, const device& by) {
  if (detail::state_of(by).get() != &state)
    raise(errc::wrong_device, to_string(by.id()) + " is a device of another machine");
}

}  // namespace

void check_pool_right(machine_state& state, device_id on, const device& by, access_right right) {
  state.require_open();
  require_of_machine(state, by);
  if (by.id() == on && right != access_right::read_write) {
    raise(errc::invalid_device,
          "the right of " + to_string(on) + " to a pool of its own memory cannot be " + std::string{to_string(right)});
  }
  if (by.id() == on || right == access_right::none) return;
  const auto pair = value_or_raise(state.backend_of(by.id()).peer(by.id(), on));
  if (!pair.can_access) {
    raise(errc::peer_unsupported, to_string(by.id()) + " cannot use a pool on " + to_string(on) + ": " + pair.why);
  }
  peers_of(state).require(by.id(), on, peer_way::pools, to_string(by.id()) + " cannot use a pool on " + to_string(on));
}

void pool_body::set_access(device_id by, access_right right) {
  const std::lock_guard lock{mutex_};
  if (by == on_) return;
  const device_right one{by, right};
  for (const auto& [block, size] : sizes_) {
    const auto set = state_->backend_of(on_).set_memory_access(block, {&one, 1});
    // a reset of the device took it
    if (!set && set.error().code != errc::not_found) raise(set.error());
  }
  rights_[by] = right;
}

access_right pool_body::access(device_id by) const {
  require_shareable();
  if (by == on_) return access_right::read_write;
  const std::lock_guard lock{mutex_};
  const auto it = rights_.find(by);
  return it == rights_.end() ? access_right::none : it->second;
}

bool pool_body::owns(const void* base) const {
  const std::lock_guard lock{mutex_};
  return sizes_.find(const_cast<void*>(base)) != sizes_.end();
}

std::shared_ptr<pool_body> pool_of(machine_state& state, const void* base) {
  memory_state& memory = memory_of(state);
  std::vector<std::shared_ptr<pool_body>> known;  // let go outside of the lock: one may end here
  {
    const std::lock_guard lock{memory.pools_mutex};
    for (const auto& one : memory.pools) {
      if (auto alive = one.lock()) known.push_back(std::move(alive));
    }
  }
  for (auto& one : known) {
    if (one->owns(base)) return one;
  }
  return nullptr;
}

pool_handle pool_body::handle() {
  require_shareable();
  auto& server = memory_of(*state_).events().server;
  share_ticket h;
  h.door = value_or_raise(server.door());
  const std::lock_guard lock{mutex_};
  if (key_ == 0) {
    struct held {
      descriptor file;
      share_grant grant;
    };
    auto made = std::make_shared<held>();
    made->file = value_or_raise(make_memory_file("weft-pool", 4096, memory_file_pages::all_there, "a pool"));
    made->grant.file = made->file.get();
    made->grant.size = 4096;
    made->grant.device = identity_of(state_->description_of(on_).uuid);
    key_ = random_number();
    server.offer(key_, share_kind::pool, [made] { return std::shared_ptr<const share_grant>{made, &made->grant}; });
  }
  h.kind = share_kind::pool;
  h.process = static_cast<std::uint32_t>(::getpid());
  h.boot = this_boot();
  h.key = key_;
  h.size = 4096;
  return pool_handle{encode(h)};
}

pool_memory_handle pool_body::handle_of(const void* address, std::uint64_t size) {
  require_shareable();
  const auto known = value_or_raise(state_->backend_of(on_).find(address));
  const std::lock_guard lock{mutex_};
  const auto block = sizes_.find(known.base);
  if (block == sizes_.end()) raise(errc::invalid_argument, "this memory is none of the pool on " + to_string(on_));
  const auto [first, last] = free_.equal_range(block->second);
  if (std::any_of(first, last, [&](const auto& one) { return one.second.block == known.base; }))
    raise(errc::not_found, "this memory was given back to the pool on " + to_string(on_));
  const auto made = value_or_raise(state_->backend_of(on_).export_memory(address, bytes{size}, handle_family::pool));
  exported_.insert(known.base);
  return pool_memory_handle{made};
}

}  // namespace detail

memory_pool::memory_pool(const device& on, pool_options options, std::source_location where) {
  const called_from here{where};
  detail::state_of(on)->require_open();
  body_ = std::make_shared<detail::pool_body>(detail::state_of(on), on.id(), options);
  if (!options.shareable) return;
  detail::memory_state& memory = detail::memory_of(*detail::state_of(on));
  const std::lock_guard lock{memory.pools_mutex};
  std::erase_if(memory.pools, [](const auto& one) { return one.expired(); });
  memory.pools.push_back(body_);
}

const std::shared_ptr<detail::pool_body>& memory_pool::body() const {
  if (!body_) raise(errc::invalid_argument, "an empty memory_pool: it was moved from");
  return body_;
}

device memory_pool::on() const { return detail::make<device>(body()->state(), body()->on()); }
pool_statistics memory_pool::statistics() const { return body()->statistics(); }
void memory_pool::set_access(const device& by, access_right right, std::source_location where) const {
  const called_from here{where};
  static_cast<void>(body()->access(by.id()));
  detail::check_pool_right(*body_->state(), body_->on(), by, right);
  body_->set_access(by.id(), right);
}
access_right memory_pool::access(const device& by, std::source_location where) const {
  const called_from here{where};
  const access_right right = body()->access(by.id());
  detail::require_of_machine(*body_->state(), by);
  return right;
}
pool_handle memory_pool::handle(std::source_location where) const {
  const called_from here{where};
  body()->state()->require_open();
  return body_->handle();
}
pool_memory_handle memory_pool::handle_of(const device_span<const std::byte>& memory,
                                          std::source_location where) const {
  const called_from here{where};
  body()->state()->require_open();
  return body_->handle_of(memory.data(), memory.size_bytes().value());
}
void memory_pool::trim_to(bytes kept) { body()->trim(kept.value()); }

}  // namespace weft
