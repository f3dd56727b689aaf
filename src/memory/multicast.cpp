// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/multicast.hpp"

#include "core/errors/called_from.hpp"
#include "core/errors/make_error.hpp"
#include "memory/block_body.hpp"
#include "memory/memory_state.hpp"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <stop_token>

namespace weft {
namespace detail {

struct multicast_body {
  std::shared_ptr<machine_state> state;
  backend* driver = nullptr;
  multicast_id id = multicast_id::none;
  bytes size;
  std::vector<device_id> team;
  std::mutex mutex;
  std::condition_variable_any joined;
  std::vector<device_id> members;
  std::vector<physical_block> replicas;  // by member; kept while they are bound

  multicast_body() = default;
  multicast_body(const multicast_body&) = delete;
  multicast_body& operator=(const multicast_body&) = delete;
  ~multicast_body() {
    if (id != multicast_id::none && !state->closed()) driver->release_multicast(id);
  }
  [[nodiscard]] bool complete() const { return members.size() == team.size(); }
};

namespace {

std::string names_of(const std::vector<device_id>& devices) {
  std::string text;
  for (const device_id id : devices) text += (text.empty() ? "" : ", ") + to_string(id);
  return text;
}

multicast_body& held(const std::shared_ptr<multicast_body>& body, std::source_location where) {
  if (!body) raise(errc::invalid_argument, "an empty multicast_object: it was never made", where);
  body->state->require_open(where);
  return *body;
}

backend& of_stream(multicast_body& body, const stream& order, std::source_location where) {
  if (!detail::state_of(order)) raise(errc::invalid_argument, "an empty stream: it was moved from", where);
  if (detail::state_of(order) != body.state)
    raise(errc::wrong_device, "the stream belongs to another machine than the multicast object", where);
  return *body.driver;
}

/// What the backend does not find it takes for memory of the host: memory of a device must be there.
void require_memory(const multicast_body& body, const memory_ref& memory, std::source_location where) {
  if (memory.state == nullptr) return;
  if (memory.state != body.state.get())
    raise(errc::wrong_device, "the memory belongs to another machine than the multicast object", where);
  if (memory.size != 0) static_cast<void>(value_or_raise(body.driver->find(memory.address), where));
}

}  // namespace

std::uint64_t multicast_offset(std::size_t index, std::size_t element, std::source_location where) {
  std::uint64_t offset = 0;
  if (__builtin_mul_overflow(index, element, &offset))
    raise(errc::out_of_range, "element " + std::to_string(index) + " of a multicast object", where);
  return offset;
}

event multicast_store(const std::shared_ptr<multicast_body>& body, const stream& order, std::uint64_t offset,
                      const memory_ref& src, std::source_location where) {
  multicast_body& group = held(body, where);
  backend& driver = of_stream(group, order, where);
  require_memory(group, src, where);
  return detail::make<event>(group.state, value_or_raise(driver.multicast_store(order.native(), group.id, bytes{offset},
                                                                                src.address, bytes{src.size}),
                                                         where));
}

event multicast_load(const std::shared_ptr<multicast_body>& body, const stream& order, const memory_ref& dst,
                     std::uint64_t offset, std::size_t count, element_type type, multicast_reduction how,
                     std::source_location where) {
  multicast_body& group = held(body, where);
  backend& driver = of_stream(group, order, where);
  require_memory(group, dst, where);
  return detail::make<event>(group.state, value_or_raise(driver.multicast_load(order.native(), dst.address, group.id,
                                                                               bytes{offset}, count, type, how),
                                                         where));
}

}  // namespace detail

multicast_object::multicast_object(const machine& m, std::span<const device_id> team, bytes size,
                                   std::source_location where) {
  const called_from here{where};
  const auto& state = detail::state_of(m);
  state->require_open();
  if (size.value() == 0) raise(errc::invalid_argument, "a multicast object of 0 bytes");
  auto made = std::make_shared<detail::multicast_body>();
  made->state = state;
  made->driver = &detail::block_driver(*state);
  made->team.assign(team.begin(), team.end());
  for (const device_id id : team) {
    static_cast<void>(state->description_of(id));
    if (std::count(team.begin(), team.end(), id) != 1)
      raise(errc::invalid_argument, to_string(id) + " is named twice in the team of a multicast object");
  }
  const std::uint64_t granule = value_or_raise(made->driver->multicast_granularity(team)).value();
  if (size.value() > ~std::uint64_t{0} - granule)
    raise(errc::invalid_argument, to_string(size) + " is more than there are addresses");
  made->size = bytes{(size.value() + granule - 1) / granule * granule};
  made->id = value_or_raise(made->driver->create_multicast(team.size(), made->size));
  body_ = std::move(made);
}

void multicast_object::add(device_id member, std::source_location where) {
  const called_from here{where};
  detail::multicast_body& body = detail::held(body_, where);
  if (std::find(body.team.begin(), body.team.end(), member) == body.team.end()) {
    raise(errc::wrong_device,
          to_string(member) + " is not in the team of this multicast object: " + detail::names_of(body.team));
  }
  {
    const std::lock_guard lock{body.mutex};
    value_or_raise(body.driver->add_multicast_device(body.id, member));
    body.members.push_back(member);
  }
  body.joined.notify_all();
}

result<void> multicast_object::wait_joined(std::chrono::nanoseconds timeout, const std::stop_token& stop,
                                           std::source_location where) const {
  const called_from here{where};
  detail::multicast_body& body = detail::held(body_, where);
  // a limit that the clock cannot hold is none
  const auto now = std::chrono::steady_clock::now();
  const auto until = timeout > std::chrono::hours{24 * 365} ? now + std::chrono::hours{24 * 365} : now + timeout;
  const std::stop_callback wake{detail::memory_of(*body.state).closing.get_token(), [&] {
                                  {
                                    const std::lock_guard lock{body.mutex};
                                  }  // a waiter that saw the old state sleeps by now
                                  body.joined.notify_all();
                                }};
  std::unique_lock lock{body.mutex};
  const bool is_over =
      body.joined.wait_until(lock, stop, until, [&] { return body.complete() || body.state->closed(); });
  if (body.state->closed()) {
    return make_error(errc::machine_closed, "the machine was closed while a multicast object over " +
                                                detail::names_of(body.team) + " waited for its devices to join");
  }
  if (is_over) return {};
  std::vector<device_id> missing;
  for (const device_id id : body.team) {
    if (std::find(body.members.begin(), body.members.end(), id) == body.members.end()) missing.push_back(id);
  }
  return make_error(stop.stop_requested() ? errc::cancelled : errc::timed_out,
                    "a multicast object over " + detail::names_of(body.team) + " waits for " +
                        detail::names_of(missing) + " to join");
}

result<void> multicast_object::bind(const physical_block& memory, std::chrono::nanoseconds timeout,
                                    const std::stop_token& stop, std::source_location where) {
  const called_from here{where};
  detail::multicast_body& body = detail::held(body_, where);
  const device on = memory.on();
  if (detail::state_of(on) != body.state)
    raise(errc::wrong_device, "binding a block of one machine to a multicast object of another");
  if (memory.size() < body.size) {
    raise(errc::invalid_argument,
          "a block of " + to_string(memory.size()) + " is too small for a multicast object of " + to_string(body.size));
  }
  if (std::find(body.team.begin(), body.team.end(), on.id()) == body.team.end())
    raise(errc::wrong_device,
          to_string(on.id()) + " is not in the team of this multicast object: " + detail::names_of(body.team));
  if (auto all = wait_joined(timeout, stop, where); !all) return all;
  const std::lock_guard lock{body.mutex};
  value_or_raise(body.driver->bind_multicast(body.id, detail::internals::body(memory)->handle.get().id));
  body.replicas.push_back(memory);
  return {};
}

void multicast_object::unbind(device_id member, std::source_location where) {
  const called_from here{where};
  detail::multicast_body& body = detail::held(body_, where);
  const std::lock_guard lock{body.mutex};
  value_or_raise(body.driver->unbind_multicast(body.id, member));
  std::erase_if(body.replicas, [&](const physical_block& one) { return one.on().id() == member; });
}

bytes multicast_object::size(std::source_location where) const { return detail::held(body_, where).size; }

const std::vector<device_id>& multicast_object::team(std::source_location where) const {
  return detail::held(body_, where).team;
}

}  // namespace weft
