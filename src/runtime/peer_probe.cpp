// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer_probe.hpp"

#include "backend/peer_pattern.hpp"
#include "weft/core/raise.hpp"
#include "weft/kernel/define.hpp"

#include <array>
#include <vector>

namespace weft::detail {
namespace {

WEFT_KERNEL(weft_peer_move, (WEFT_OUT(uint64_t) into, WEFT_IN(uint64_t) out_of), { into[i] = out_of[i]; });

constexpr std::size_t words = (std::size_t{64} << 10) / 8 + 1;  // not a multiple of anything
constexpr bytes size{words * 8};

const std::shared_ptr<const kernel_code>& move_code() {
  static const auto* const made = new std::shared_ptr<const kernel_code>{make_kernel_code<weft_peer_move>()};
  return *made;
}

kernel_argument in_memory(void* address, parameter_direction direction) {
  kernel_argument made;
  made.type = element_type::uint64;
  made.direction = direction;
  made.address = address;
  made.count = static_cast<std::int64_t>(words);
  return made;
}

}  // namespace

result<peer_delivery> peer_probe::run(device_id from, device_id to, peer_way way, std::chrono::nanoseconds timeout) {
  from_ = from;
  to_ = to;
  timeout_ = timeout;
  try {
    return tried(from, to, way);
  } catch (const error_exception& failed) {
    // commands that have not ended, or a device that was reset: the next run starts with new memory
    if (failed.code() != errc::unsupported && failed.code() != errc::not_ready) {
      places_.erase(from);
      places_.erase(to);
    }
    return failed.cause();
  }
}

peer_delivery peer_probe::tried(device_id from, device_id to, peer_way way) {
  place& source = place_on(from);
  const place& target = place_on(to);
  word* const near = source.plain;
  word* const far = way == peer_way::pools    ? pool_memory(to, from)
                    : way == peer_way::blocks ? block_memory(to, from)
                                              : target.plain;
  const auto lost = [](const char* how, const std::string& bad) { return peer_delivery{false, how + bad}; };
  write(source, near, false);
  if (way != peer_way::allocations) {
    write(target, far, true);
    // by the device that has the right, where that is not the owner's alone to give
    move(way == peer_way::commands ? target : source, far, near);
    if (std::string bad = difference(target, far); !bad.empty()) return lost("a copy: ", bad);
    if (way == peer_way::commands) return {};
  }
  try {
    load_kernel(from, source);
  } catch (const error_exception& refused) {
    if (refused.code() == errc::not_ready || refused.code() == errc::device_lost) raise(refused.cause());
    return {true, "stores and loads of kernels were not tried: " + refused.cause().what};
  }
  write(target, far, true);
  run_kernel(source, far, near);
  if (std::string bad = difference(target, far); !bad.empty()) return lost("stores: ", bad);
  write(source, near, true);
  write(target, far, false);
  run_kernel(source, near, far);
  if (std::string bad = difference(source, near); !bad.empty()) return lost("loads: ", bad);
  return {};
}

void peer_probe::load_kernel(device_id device, place& at) {
  if (at.has_kernel) return;
  for (const stream_handle other : driver_.streams_of(device)) {
    if (other != at.order && !driver_.idle(other))
      raise(errc::not_ready, to_string(device) + " has work, which loading a kernel may wait for");
  }
  value_or_raise(driver_.prepare(device, *move_code()));
  at.has_kernel = true;
}

bool peer_probe::is_gone(const word* memory) {
  const auto known = driver_.find(memory);
  return !known && known.error().code == errc::not_found;
}

peer_probe::place& peer_probe::place_on(device_id device) {
  const auto known = places_.find(device);
  if (known != places_.end() && !is_gone(known->second.plain)) return known->second;
  place made;
  made.order = value_or_raise(driver_.create_stream(device, 0, false));
  made.host = static_cast<word*>(value_or_raise(driver_.allocate(device, size, memory_kind::pinned)));
  made.plain = static_cast<word*>(value_or_raise(driver_.allocate(device, size, memory_kind::device)));
  return places_[device] = made;
}

peer_probe::word* peer_probe::pool_memory(device_id owner, device_id user) {
  word*& memory = places_[owner].pooled;
  if (memory == nullptr)
    memory = static_cast<word*>(value_or_raise(driver_.allocate_shareable(owner, size, handle_family::pool)));
  const device_right right{user, access_right::read_write};
  value_or_raise(driver_.set_memory_access(memory, {&right, 1}));
  return memory;
}

peer_probe::word* peer_probe::block_memory(device_id owner, device_id user) {
  place& at = places_[owner];
  if (at.block == nullptr) {
    const std::uint64_t granule = value_or_raise(driver_.granularity(owner)).minimum.value();
    at.block_size = bytes{(size.value() + granule - 1) / granule * granule};
    const block_id block = value_or_raise(driver_.create_block(owner, at.block_size, false));
    void* const base = value_or_raise(driver_.reserve(at.block_size, bytes{0}, nullptr));
    value_or_raise(driver_.map_block(base, at.block_size, block));
    at.block = static_cast<word*>(base);
  }
  const std::array rights{device_right{owner, access_right::read_write}, device_right{user, access_right::read_write}};
  value_or_raise(driver_.set_access(at.block, at.block_size, rights));
  return at.block;
}

void peer_probe::move(const place& by, word* into, const word* out_of) {
  copy_request request;
  request.dst = into;
  request.src = out_of;
  request.shape.width = size.value();
  finish(value_or_raise(driver_.copy(by.order, request)));
}

void peer_probe::run_kernel(const place& by, word* into, word* out_of) {
  launch_request request;
  request.kernel = move_code();
  request.range.end[0] = static_cast<std::int64_t>(words);
  request.arguments = {in_memory(into, parameter_direction::out), in_memory(out_of, parameter_direction::in)};
  finish(value_or_raise(driver_.launch(by.order, std::move(request))));
}

/// The pattern of the pair, or its opposite, which has no byte in common with it; by the device that owns the memory.
void peer_probe::write(const place& by, word* into, bool opposite) {
  for (std::size_t i = 0; i < words; ++i) {
    const word plain = pattern_word(i, from_, to_);
    by.host[i] = opposite ? ~plain : plain;
  }
  move(by, into, by.host);
}

std::string peer_probe::difference(const place& by, const word* in) {
  move(by, by.host, in);
  std::vector<word> expected(words);
  for (std::size_t i = 0; i < words; ++i) expected[i] = pattern_word(i, from_, to_);
  return first_difference(expected, {by.host, words});
}

void peer_probe::finish(const event_ref& done) {
  if (!done) return;
  const wait_outcome how = driver_.wait(*done, deadline_after(driver_.now(), timeout_), {});
  if (how == wait_outcome::timed_out)
    raise(errc::timed_out, to_string(from_) + " and " + to_string(to_) + " did not end a small copy in time");
  if (how == wait_outcome::failed) raise(error{*done->cause()});
  if (how == wait_outcome::cancelled) raise(errc::cancelled, "the machine was closed");
}

}  // namespace weft::detail
