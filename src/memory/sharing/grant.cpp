// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/grant.hpp"

#include "core/errors/called_from.hpp"
#include "core/errors/make_error.hpp"
#include "memory/block_body.hpp"
#include "memory/memory_state.hpp"
#include "memory/pool_body.hpp"
#include "memory/sharing/opened_share.hpp"
#include "weft/core/log.hpp"
#include "weft/memory/peer_access.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <vector>

namespace weft {

std::string_view to_string(grant_way way) {
  switch (way) {
    case grant_way::not_needed:
      return "not needed";
    case grant_way::peer_access:
      return "peer access";
    case grant_way::mapping:
      return "mapping";
    case grant_way::pool:
      return "pool";
  }
  return "not needed";
}

namespace detail {
namespace {

/// As a mapping: a right must not end under running work, since a kernel that meets it loses its device.
constexpr std::chrono::seconds drain_limit{10};

/// What carries rights: a mapping or a pool.
struct carrier {
  grant_key key;
  std::function<result<access_right>()> look;  // not_found once it is gone
  std::function<result<void>(access_right)> set;
};

}  // namespace

class grant_body {
 public:
  grant_body(std::shared_ptr<machine_state> state, device_id to) : state_(std::move(state)), to_(to) {}
  grant_body(const grant_body&) = delete;
  grant_body& operator=(const grant_body&) = delete;
  ~grant_body() { end(); }

  [[nodiscard]] const std::shared_ptr<machine_state>& state() const { return state_; }
  void lease(device_id owner) { lease_ = detail::make<peer_access>(state_, to_, owner); }
  void take(carrier from, access_right wanted);

  grant_way way = grant_way::not_needed;
  access_right right = access_right::none;
  std::string exposes;

 private:
  struct taken {
    carrier from;
    access_right wanted;
  };
  void end() noexcept;
  /// Withdraws the right that nobody else needs, or only counts.
  void give_back(const taken& one, bool withdraws);

  std::shared_ptr<machine_state> state_;
  device_id to_;
  peer_access lease_;
  std::vector<taken> taken_;
};

void grant_body::take(carrier from, access_right wanted) {
  taken_.reserve(taken_.size() + 1);
  memory_state& memory = memory_of(*state_);
  const std::lock_guard lock{memory.grants_mutex};
  const access_right now = value_or_raise(from.look());
  const access_right then = std::max(now, wanted);
  auto& entry = memory.grants[from.key];
  const bool is_first = entry.readers + entry.writers == 0;
  if (then != now) {
    if (auto done = from.set(then); !done) {
      if (is_first) memory.grants.erase(from.key);
      raise(std::move(done).error());
    }
  }
  if (is_first || now != entry.given) entry.before = now;  // somebody else has set it since
  entry.given = then;
  ++(wanted == access_right::read_write ? entry.writers : entry.readers);
  right = taken_.empty() ? then : std::min(right, then);
  taken_.push_back({std::move(from), wanted});
}

void grant_body::give_back(const taken& one, bool withdraws) {
  memory_state& memory = memory_of(*state_);
  const std::lock_guard lock{memory.grants_mutex};
  const auto it = memory.grants.find(one.from.key);
  if (it == memory.grants.end()) return;
  memory_state::grant_entry& entry = it->second;
  --(one.wanted == access_right::read_write ? entry.writers : entry.readers);
  const auto now = one.from.look();
  if (withdraws && now && *now == entry.given) {  // else it is gone, or set by somebody else since
    access_right then = entry.before;
    if (entry.writers != 0) then = access_right::read_write;
    if (entry.readers != 0) then = std::max(then, access_right::read);
    then = std::min(then, *now);  // an end gives nothing: who set less meant it
    if (then != *now) {
      if (const auto done = one.from.set(then); done) {
        entry.given = then;
      } else if (done.error().code != errc::not_found) {
        log(log_level::warning, "a right of " + to_string(to_) + " could not be withdrawn: " + to_string(done.error()));
      }
    }
  }
  if (entry.readers + entry.writers == 0) memory.grants.erase(it);
}

void grant_body::end() noexcept {
  lease_.end();
  if (taken_.empty() || state_->closed() || state_->forked()) return;
  backend& own = state_->backend_of(to_);
  const bool is_done = own.on_worker() || own.drain(to_, own.now() + drain_limit);
  if (!is_done) {
    log(log_level::warning,
        "a right of " + to_string(to_) + " stays: work of it was still pending when its grant ended");
  }
  for (auto it = taken_.rbegin(); it != taken_.rend(); ++it) {
    try {
      give_back(*it, is_done);
    } catch (const std::exception& failed) {
      log(log_level::warning, std::string{"a right could not be withdrawn: "} + failed.what());
    }
  }
}

namespace {

/// What a call that raises gives as a value.
template <class F>
auto as_result(F&& f) -> result<decltype(f())> {
  try {
    if constexpr (std::is_void_v<decltype(f())>) {
      f();
      return {};
    } else {
      return f();
    }
  } catch (const error_exception& failed) {
    return failed.cause();
  }
}

/// Whether that is still what lies there: another thing at that address later is not meant.
bool is_there(backend& driver, const memory_description& known) {
  const auto now = driver.find(known.base);
  return now && now->serial == known.serial;
}

carrier mapping_at(backend& driver, const memory_description& known, device_id to) {
  carrier made;
  made.key = {known.base, known.serial, to};
  made.look = [&driver, known, to]() -> result<access_right> {
    if (!is_there(driver, known)) return make_error(errc::not_found, "the mapping has ended");
    return driver.access_of(to, known.base);
  };
  made.set = [&driver, known, to](access_right right) {
    const device_right one{to, right};
    return driver.set_access(known.base, known.size, {&one, 1});
  };
  return made;
}

/// Memory of another process's pool: whatever has it open here has one address for it, and one list of rights.
carrier opened_at(backend& driver, const memory_description& known, device_id owner, const device& to) {
  carrier made;
  made.key = {known.base, known.serial, to.id()};
  made.look = [&driver, known, to = to.id()]() -> result<access_right> {
    if (!is_there(driver, known)) return make_error(errc::not_found, "what was opened is closed");
    return driver.memory_access(to, known.base);
  };
  made.set = [&driver, known, owner, to](access_right right) {
    return as_result([&] {
      check_pool_right(*detail::state_of(to), owner, to, right);
      const device_right one{to.id(), right};
      value_or_raise(driver.set_memory_access(known.base, {&one, 1}));
    });
  };
  return made;
}

carrier pool_carrier(const std::shared_ptr<pool_body>& pool, const device& to) {
  carrier made;
  made.key = {pool.get(), 0, to.id()};  // the weak reference keeps its address from being used again
  made.look = [weak = std::weak_ptr{pool}, to = to.id()]() -> result<access_right> {
    const auto alive = weak.lock();
    if (alive) return alive->access(to);
    return make_error(errc::not_found, "the pool has ended");
  };
  made.set = [weak = std::weak_ptr{pool}, state = detail::state_of(to), to = to.id()](access_right right) {
    return as_result([&] {
      const auto alive = weak.lock();
      if (!alive) return;
      check_pool_right(*state, alive->on(), detail::make<device>(state, to), right);
      alive->set_access(to, right);
    });
  };
  return made;
}

held_grant started(const machine_state* of, const device& to, access_right right) {
  detail::state_of(to)->require_open();
  static_cast<void>(detail::state_of(to)->description_of(to.id()));
  if (of != detail::state_of(to).get()) {
    raise(errc::wrong_device, to_string(to.id()) + " is a device of another machine than the memory to grant");
  }
  if (right == access_right::none)
    raise(errc::invalid_argument, "granting no right to " + to_string(to.id()) + ": end the grant to withdraw it");
  return std::make_shared<grant_body>(detail::state_of(to), to.id());
}

access_grant finished(held_grant body) { return detail::make<access_grant>(std::move(body)); }

void take_mappings(grant_body& body, machine_state& state, void* address, std::uint64_t size, device_id to,
                   access_right right) {
  auto* at = static_cast<std::byte*>(address);
  const auto* end = at + size;
  std::uint64_t whole = 0;
  while (at < end) {
    backend& driver = state.backend_of(at);
    const auto known = value_or_raise(driver.find(at));
    if (known.kind != memory_kind::block) raise(errc::not_found, "a span reaches past the end of its mapping");
    require_block_arrival(state, {to, right}, known.device);
    body.take(mapping_at(driver, known, to), right);
    whole += known.size.value();
    at = static_cast<std::byte*>(known.base) + known.size.value();
  }
  body.way = grant_way::mapping;
  if (whole > size) {
    body.exposes = "rights are those of whole mappings: " + to_string(to) + " can use all " + to_string(bytes{whole}) +
                   " that the span of " + to_string(bytes{size}) + " lies in, and no other mapping";
  }
}

void take_pool(grant_body& body, const std::shared_ptr<pool_body>& pool, const device& to, access_right right) {
  if (to.id() == pool->on()) {
    body.right = access_right::read_write;
    return;
  }
  body.take(pool_carrier(pool, to), right);
  body.way = grant_way::pool;
  body.exposes = to_string(to.id()) + " can use all memory of this pool on " + to_string(pool->on()) +
                 ", handed out before or after; for less, give the memory a pool of its own, or map a "
                 "weft::physical_block";
}

void take_peer(grant_body& body, device_id owner, device_id to) {
  body.right = access_right::read_write;
  if (owner == to) return;
  body.lease(owner);
  peers_of(*body.state())
      .require(to, owner, peer_way::allocations,
               "giving " + to_string(to) + " a right to memory of " + to_string(owner));
  body.way = grant_way::peer_access;
  body.exposes = to_string(to) + " can read and write all buffers of " + to_string(owner) +
                 ", those that exist and those that will, whatever right was asked for; for less, map a "
                 "weft::physical_block or use a pool with pool_options::shareable";
}

}  // namespace

access_grant grant_memory(const memory_ref& memory, const device& to, access_right right, std::source_location where) {
  const called_from here{where};
  if (memory.state == nullptr) {
    raise(errc::invalid_argument,
          "granting a right to nothing, or to host memory that no device has: put it into a weft::buffer");
  }
  auto body = started(memory.state, to, right);
  if (memory.size == 0) raise(errc::invalid_argument, "granting a right to 0 bytes");
  machine_state& state = *memory.state;
  backend& own = state.backend_of(memory.address);
  const auto known = value_or_raise(own.find(memory.address));
  switch (known.kind) {
    case memory_kind::block:
      take_mappings(*body, state, memory.address, memory.size, to.id(), right);
      break;
    case memory_kind::device:
      if (const auto pool = pool_of(state, known.base)) {
        take_pool(*body, pool, to, right);
      } else {
        take_peer(*body, known.device, to.id());
      }
      break;
    case memory_kind::mapped:
    case memory_kind::pinned:
    case memory_kind::unified:
    case memory_kind::adopted: {
      body->right = value_or_raise(own.memory_access(to.id(), memory.address));
      if (body->right >= right) break;
      if (known.kind == memory_kind::mapped) {
        raise(errc::invalid_argument, "this memory is open for " + to_string(known.device) +
                                          " alone: map or open it for " + to_string(to.id()) +
                                          " too, by a weft::peer_mapping or by its handle");
      }
      raise(errc::invalid_argument, to_string(to.id()) + " cannot use " + std::string{to_string(known.kind)} +
                                        " memory of " + to_string(known.device) + ", and no right changes that");
    }
  }
  return finished(std::move(body));
}

access_grant grant_opened(const opened_view& memory, const device& to, access_right right, std::source_location where) {
  const called_from here{where};
  if (!memory.body) raise(errc::invalid_argument, "granting a right to what is not open");
  auto body = started(memory.state, to, right);
  switch (memory.way) {
    case sharing_way::block:
      take_mappings(*body, *memory.state, memory.address, memory.size, to.id(), right);
      break;
    case sharing_way::pool: {
      const device_id owner = memory.body->pool->on().id();
      if (to.id() == owner) {
        body->right = access_right::read_write;
        break;
      }
      backend& driver = memory.state->backend_of(owner);
      body->take(opened_at(driver, value_or_raise(driver.find(memory.address)), owner, to), right);
      body->way = grant_way::pool;
      break;
    }
    case sharing_way::allocation:
      if (memory.by != to.id()) {
        raise(errc::invalid_argument, "this memory of another process is open for " + to_string(memory.by) +
                                          " alone: open its handle on " + to_string(to.id()) + " too");
      }
      body->right = access_right::read_write;
      break;
  }
  return finished(std::move(body));
}

}  // namespace detail

// ---- the grant ------------------------------------------------------------------------------------------------------

const detail::grant_body& access_grant::body() const {
  if (!held_) raise(errc::invalid_argument, "an empty access_grant: it was moved from, ended, or never made");
  return *held_;
}

grant_way access_grant::way(std::source_location where) const {
  const called_from here{where};
  return body().way;
}
access_right access_grant::right(std::source_location where) const {
  const called_from here{where};
  return body().right;
}
const std::string& access_grant::exposes(std::source_location where) const {
  const called_from here{where};
  return body().exposes;
}

access_grant grant(const mapping& memory, const device& to, access_right right, std::source_location where) {
  const called_from here{where};
  if (!memory) detail::raise_empty_mapping();
  return detail::grant_memory(detail::untyped(memory.span<std::byte>()), to, right, where);
}

access_grant grant(const memory_pool& memory, const device& to, access_right right, std::source_location where) {
  const called_from here{where};
  const auto& pool = detail::internals::body(memory);
  auto body = detail::started(pool->state().get(), to, right);
  if (pool->is_shareable()) {
    detail::take_pool(*body, pool, to, right);
  } else {
    detail::take_peer(*body, pool->on(), to.id());
  }
  return detail::finished(std::move(body));
}

}  // namespace weft
