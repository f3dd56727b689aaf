// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/mapping.hpp"

#include "core/errors/called_from.hpp"
#include "memory/block_body.hpp"
#include "runtime/peer_checks.hpp"
#include "weft/core/log.hpp"

#include <algorithm>
#include <optional>

namespace weft {
namespace detail {

/// When the wait for work with a mapping is over, once it has begun: all blocks share it.
struct mapping_end {
  std::optional<wait_deadline> until;
};

namespace {

/// Waits for work that was submitted with a mapping: unmapping is not ordered with it.
constexpr std::chrono::seconds unmap_limit{10};

bool is_in_use(backend& driver, const void* address) {
  const auto known = driver.find(address);
  return known && known->pending != 0;
}

void drain(backend& driver, const mapped_block& mapped) noexcept {
  if (!is_in_use(driver, mapped.address) || driver.on_worker()) return;
  if (!mapped.end->until) mapped.end->until = driver.now() + unmap_limit;
  // devices that have a right first, then those that have lost it: others may be busy with what never ends
  for (const bool has_right : {true, false}) {
    for (std::size_t i = 0; i < driver.devices().size(); ++i) {
      const device_id id{driver.first_device().value() + static_cast<int>(i)};
      const auto right = driver.access_of(id, mapped.address);
      if ((right && *right != access_right::none) == has_right) static_cast<void>(driver.drain(id, *mapped.end->until));
      if (!is_in_use(driver, mapped.address)) return;
    }
  }
  log(log_level::warning, "a mapping of " + to_string(mapped.size) +
                              " ends while work that was submitted with it is still pending; that work will fail");
}

}  // namespace

void mapped_block_traits::release(type& mapped) noexcept {
  const held_range& range = mapped.range->handle.get();
  if (!range.state->closed()) {
    drain(*range.driver, mapped);
    const auto done = range.driver->unmap_block(mapped.address, mapped.size);
    // not_found is no surprise here: a reset of the device took the block before
    if (!done && done.error().code != errc::not_found) log(log_level::warning, to_string(done.error()));
  }
  mapped = {};
}

void require_block_arrival(machine_state& state, const device_right& wanted, device_id owner) {
  if (wanted.right == access_right::none || wanted.device == owner) return;
  const auto pair = state.backend_of(wanted.device).peer(wanted.device, owner);
  if (!pair || !pair->can_access) return;  // the driver refuses the right, and says why
  peers_of(state).require(wanted.device, owner, peer_way::blocks,
                          "giving " + to_string(wanted.device) + " a right to a block of " + to_string(owner));
}

void raise_empty_mapping() {
  raise(errc::invalid_argument, "an empty mapping: it was moved from, ended, or never made");
}

namespace {

unique_handle<mapped_block_traits> mapped_at(const std::shared_ptr<reservation_body>& where,
                                             const std::shared_ptr<block_body>& what, bytes offset, bytes size,
                                             std::shared_ptr<mapping_end> end) {
  if (!where || !what) {
    raise(errc::invalid_argument, std::string{"mapping an empty "} +
                                      (where ? "physical_block" : "address_reservation") + ": it was never made");
  }
  const held_range& range = where->handle.get();
  const held_block& block = what->handle.get();
  range.state->require_open();
  if (range.state != block.state) raise(errc::wrong_device, "mapping a block of one machine at addresses of another");
  const bytes length = size.value() == 0 ? what->about.size : size;
  if (offset > range.size || length > range.size - offset) {
    raise(errc::invalid_argument, "mapping " + to_string(length) + " at offset " + std::to_string(offset.value()) +
                                      " of a reservation of " + to_string(range.size) + ": reserve more");
  }
  void* address = static_cast<std::byte*>(range.base) + offset.value();
  value_or_raise(range.driver->map_block(address, length, block.id));
  return unique_handle<mapped_block_traits>{mapped_block{what, where, address, length, std::move(end)}};
}

}  // namespace
}  // namespace detail

mapping::mapping(const physical_block& what, std::source_location where)
    : mapping(address_reservation{what.on(where), what.size(where), {}, nullptr, where}, what, {}, {}, where) {}

mapping::mapping(const address_reservation& where, const physical_block& what, bytes offset, bytes size,
                 std::source_location caller) {
  const called_from here{caller};
  parts_.push_back(detail::mapped_at(detail::internals::body(where), detail::internals::body(what), offset, size,
                                     std::make_shared<detail::mapping_end>()));
}

void mapping::grow(const physical_block& next, std::source_location where) {
  const called_from here{where};
  if (parts_.empty()) detail::raise_empty_mapping();
  const detail::mapped_block& last = parts_.back().get();
  const detail::held_range& range = last.range->handle.get();
  const auto behind =
      static_cast<std::uint64_t>(static_cast<std::byte*>(last.address) - static_cast<std::byte*>(range.base)) +
      last.size.value();
  auto more = detail::mapped_at(last.range, detail::internals::body(next), bytes{behind}, {}, last.end);
  for (const device_right& given : rights_)
    detail::require_block_arrival(*range.state, given, more.get().block->about.device);
  if (!rights_.empty()) value_or_raise(range.driver->set_access(more.get().address, more.get().size, rights_));
  parts_.push_back(std::move(more));
}

void mapping::grant(std::span<const device_right> rights, std::source_location where) {
  const called_from here{where};
  if (parts_.empty()) detail::raise_empty_mapping();
  const detail::held_range& range = parts_.front().get().range->handle.get();
  range.state->require_open();
  std::vector<device_right> all = rights_;
  for (const device_right& wanted : rights) {
    static_cast<void>(range.state->description_of(wanted.device));
    for (const auto& part : parts_) detail::require_block_arrival(*range.state, wanted, part.get().block->about.device);
    const auto known =
        std::find_if(all.begin(), all.end(), [&](const device_right& r) { return r.device == wanted.device; });
    if (known == all.end()) {
      all.push_back(wanted);
    } else {
      known->right = wanted.right;
    }
  }
  value_or_raise(range.driver->set_access(address(), size(), rights));
  rights_ = std::move(all);
}

access_right mapping::access_of(device_id by, std::source_location where) const {
  const called_from here{where};
  if (parts_.empty()) detail::raise_empty_mapping();
  const detail::held_range& range = parts_.front().get().range->handle.get();
  range.state->require_open();
  return value_or_raise(range.driver->access_of(by, address()));
}

void* mapping::address() const { return parts_.empty() ? nullptr : parts_.front().get().address; }

bytes mapping::size() const {
  bytes sum;
  for (const auto& part : parts_) sum += part.get().size;
  return sum;
}

void mapping::end() {
  parts_.clear();
  rights_.clear();
}

detail::machine_state* mapping::state() const {
  return parts_.empty() ? nullptr : parts_.front().get().range->handle.get().state.get();
}

device_id mapping::home() const { return parts_.empty() ? device_id{} : parts_.front().get().block->about.device; }

}  // namespace weft
