// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/opened_pool.hpp"

#include "core/errors/called_from.hpp"
#include "memory/pool_body.hpp"
#include "processes/share_server.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

namespace weft {
namespace detail {

class opened_pool_body {
 public:
  std::shared_ptr<machine_state> state;
  device_id on;
  std::uint32_t process = 0;
  mutable std::mutex mutex;
  std::map<device_id, access_right> rights;
  struct opened {
    void* address;
    std::shared_ptr<opened_mark> mark;  // once it is closed, another may have come to the address
  };
  std::vector<opened> places;
};

}  // namespace detail

opened_pool::opened_pool(const std::shared_ptr<detail::machine_state>& state, const pool_handle& handle,
                         std::chrono::nanoseconds timeout, std::source_location where) {
  const called_from here{where};
  state->require_open();
  const auto h = value_or_raise(detail::decode(handle.bytes()));
  if (h.kind != detail::share_kind::pool) raise(errc::invalid_argument, "this is no handle of a pool");
  const auto got = value_or_raise(detail::fetch_share(h, timeout));
  body_ = std::make_shared<detail::opened_pool_body>();
  body_->state = state;
  body_->process = h.process;
  for (int i = 0; i < state->device_count(); ++i) {
    if (detail::identity_of(state->description_of(device_id{i}).uuid) == got.reply.device) {
      body_->on = device_id{i};
      return;
    }
  }
  raise(errc::not_found,
        "the pool of process " + std::to_string(h.process) + " is memory of a device that this machine lacks");
}

device opened_pool::on(std::source_location where) const {
  const called_from here{where};
  return detail::make<device>(detail::not_moved_from(body_, "opened_pool")->state, body_->on);
}

detail::opened_place opened_pool::open_bytes(const pool_memory_handle& handle, std::chrono::nanoseconds timeout,
                                             std::size_t element, std::size_t alignment,
                                             std::source_location where) const {
  const called_from here{where};
  const std::uint32_t process = detail::not_moved_from(body_, "opened_pool")->process;
  if (static_cast<std::uint32_t>(handle.process()) != process && handle.process() != 0) {
    raise(errc::invalid_argument, "this memory is of process " + std::to_string(handle.process()) +
                                      ", the pool of process " + std::to_string(process));
  }
  auto place = detail::open_memory(body_->state, body_->on, handle.bytes(), handle_family::pool, timeout, element,
                                   alignment, where);
  const std::lock_guard lock{body_->mutex};
  backend& own = body_->state->backend_of(body_->on);
  std::vector<device_right> rights;
  for (const auto& [device, right] : body_->rights) rights.push_back({device, right});
  if (auto set = own.set_memory_access(place.address, rights); !set) {
    detail::opened_traits::release(place);
    raise(std::move(set).error());
  }
  try {
    place.mark = std::make_shared<detail::opened_mark>();
    std::erase_if(body_->places, [](const auto& one) {
      const std::lock_guard opened{one.mark->mutex};
      return !one.mark->is_open;
    });
    body_->places.push_back({place.address, place.mark});
  } catch (...) {
    detail::opened_traits::release(place);
    throw;
  }
  return place;
}

void opened_pool::set_access(const device& by, access_right right, std::source_location where) const {
  const called_from here{where};
  detail::check_pool_right(*detail::not_moved_from(body_, "opened_pool")->state, body_->on, by, right);
  const std::lock_guard lock{body_->mutex};
  backend& own = body_->state->backend_of(body_->on);
  const device_right one{by.id(), right};
  for (const auto& place : body_->places) {
    const std::lock_guard opened{place.mark->mutex};
    if (!place.mark->is_open) continue;
    const auto set = own.set_memory_access(place.address, {&one, 1});
    // a reset of the device took it
    if (!set && set.error().code != errc::not_found) raise(set.error());
  }
  body_->rights[by.id()] = right;
}

access_right opened_pool::access(const device& by, std::source_location where) const {
  const called_from here{where};
  if (by.id() == detail::not_moved_from(body_, "opened_pool")->on) return access_right::read_write;
  const std::lock_guard lock{body_->mutex};
  const auto it = body_->rights.find(by.id());
  return it == body_->rights.end() ? access_right::none : it->second;
}

}  // namespace weft
