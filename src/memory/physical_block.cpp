// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/physical_block.hpp"

#include "core/errors/called_from.hpp"
#include "memory/block_body.hpp"
#include "memory/memory_state.hpp"
#include "memory/sharing/ipc_event_body.hpp"
#include "weft/core/log.hpp"

#include <algorithm>
#include <optional>

namespace weft {
namespace detail {

void held_block_traits::release(type& held) noexcept {
  if (!held.state->closed()) {
    // not_found is no surprise here: a reset of the device took the block before
    const auto done = held.driver->release_block(held.id);
    if (!done && done.error().code != errc::not_found) log(log_level::warning, to_string(done.error()));
  }
  held = {};
}

block_body::~block_body() {
  const held_block& held = handle.get();
  if (key != 0 && !held.state->closed() && !held.state->forked()) {
    memory_of(*held.state).events().server.withdraw(key);
  }
}

bytes in_granules(machine_state& state, bytes size) {
  backend& driver = block_driver(state);
  std::uint64_t granule = 0;
  std::optional<error> none;
  for (std::size_t i = 0; i < driver.devices().size(); ++i) {
    const device_id id{driver.first_device().value() + static_cast<int>(i)};
    auto asked = driver.granularity(id);
    if (asked) {
      granule = std::max({granule, std::uint64_t{1}, asked->minimum.value()});
    } else if (asked.error().code == errc::unsupported) {
      none = std::move(asked).error();  // on a mixed machine others may have blocks
    } else {
      raise(std::move(asked).error());
    }
  }
  if (granule == 0) raise(none ? std::move(*none) : error{.code = errc::unsupported, .what = "no device has blocks"});
  const std::uint64_t most = ~std::uint64_t{0} / granule * granule;
  if (size.value() > most) raise(errc::invalid_argument, to_string(size) + " is more than there are addresses");
  return bytes{(size.value() + granule - 1) / granule * granule};
}

namespace {

std::shared_ptr<block_body> body_of(const std::shared_ptr<machine_state>& state, backend& driver, block_id id) {
  auto made = std::make_shared<block_body>();
  made->handle = unique_handle<held_block_traits>{held_block{state, &driver, id}};
  made->about = value_or_raise(driver.describe_block(id));
  return made;
}

std::shared_ptr<block_body> opened(const std::shared_ptr<machine_state>& state, std::optional<device_id> on,
                                   const descriptor& offered, bytes size) {
  state->require_open();
  if (!offered) raise(errc::invalid_argument, "opening a block without a descriptor");
  backend& driver = block_driver(*state);
  return body_of(state, driver, value_or_raise(driver.import_block(on, offered.get(), size)));
}

const block_body& held(const std::shared_ptr<block_body>& body) {
  if (!body) raise(errc::invalid_argument, "an empty physical_block: it was moved from, or never made");
  return *body;
}

}  // namespace
}  // namespace detail

block_granularity granularity(const machine& m, std::source_location where) {
  const called_from here{where};
  detail::machine_state& state = *detail::state_of(m);
  state.require_open();
  backend& driver = detail::block_driver(state);
  block_granularity most;
  for (std::size_t i = 0; i < driver.devices().size(); ++i) {
    const auto one = value_or_raise(driver.granularity(device_id{driver.first_device().value() + static_cast<int>(i)}));
    most.minimum = std::max(most.minimum, one.minimum);
    most.recommended = std::max(most.recommended, one.recommended);
  }
  return most;
}

physical_block::physical_block(const device& on, bytes size, sharing with, std::source_location where) {
  const called_from here{where};
  const auto& state = detail::state_of(on);
  state->require_open();
  if (size.value() == 0) raise(errc::invalid_argument, "a block of 0 bytes on " + to_string(on.id()));
  backend& driver = state->backend_of(on.id());
  const bytes whole = detail::in_granules(*state, size);
  body_ = detail::body_of(state, driver,
                          value_or_raise(driver.create_block(on.id(), whole, with == sharing::with_processes)));
}

physical_block physical_block::behind(const machine& m, const void* address, std::source_location where) {
  const called_from here{where};
  detail::state_of(m)->require_open();
  backend& driver = detail::block_driver(*detail::state_of(m));
  return physical_block{detail::body_of(detail::state_of(m), driver, value_or_raise(driver.block_of(address)))};
}

descriptor physical_block::share(std::source_location where) const {
  const called_from here{where};
  const auto& handle = detail::held(body_).handle.get();
  handle.state->require_open();
  return descriptor{value_or_raise(handle.driver->export_block(handle.id))};
}

physical_block physical_block::open(const machine& m, const descriptor& offered, bytes size,
                                    std::source_location where) {
  const called_from here{where};
  return physical_block{detail::opened(detail::state_of(m), {}, offered, size)};
}

physical_block physical_block::open(const device& taken_to_be_on, const descriptor& offered, bytes size,
                                    std::source_location where) {
  const called_from here{where};
  return physical_block{detail::opened(detail::state_of(taken_to_be_on), taken_to_be_on.id(), offered, size)};
}

bytes physical_block::size(std::source_location where) const {
  const called_from here{where};
  return detail::held(body_).about.size;
}
device physical_block::on(std::source_location where) const {
  const called_from here{where};
  return detail::make<device>(detail::held(body_).handle.get().state, body_->about.device);
}
bool physical_block::is_shareable(std::source_location where) const {
  const called_from here{where};
  return detail::held(body_).about.shareable;
}
bool physical_block::is_imported(std::source_location where) const {
  const called_from here{where};
  return detail::held(body_).about.imported;
}

bool operator==(const physical_block& a, const physical_block& b) {
  if (!a.body_ || !b.body_) return a.body_ == b.body_;
  return a.body_->handle.get().state == b.body_->handle.get().state &&
         a.body_->handle.get().id == b.body_->handle.get().id;
}

}  // namespace weft
