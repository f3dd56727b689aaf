// SPDX-License-Identifier: Apache-2.0
#include "backends/host/memory/multicast.hpp"

#include "core/errors/make_error.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

namespace weft::host {
namespace {

template <class T>
T joined(T a, T b, multicast_reduction how) {
  switch (how) {
    case multicast_reduction::sum:
      if constexpr (std::is_integral_v<T>) {  // wraps, as hardware does
        using plain = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<plain>(static_cast<plain>(a) + static_cast<plain>(b)));
      } else {
        return a + b;
      }
    case multicast_reduction::min:
      return std::min(a, b);
    case multicast_reduction::max:
      return std::max(a, b);
  }
  return a;
}

template <class T>
void join_as(std::byte* to, const std::vector<std::shared_ptr<replica>>& from, std::uint64_t offset, std::size_t count,
             multicast_reduction how) {
  for (std::size_t i = 0; i < count; ++i) {
    T sum{};
    for (std::size_t r = 0; r < from.size(); ++r) {
      T one;
      std::memcpy(&one, from[r]->view.get().base + offset + i * sizeof(T), sizeof(T));
      sum = r == 0 ? one : joined(sum, one, how);
    }
    std::memcpy(to + i * sizeof(T), &sum, sizeof(T));
  }
}

}  // namespace

result<void> multicast_group::add(device_id device) {
  const std::lock_guard lock{mutex_};
  if (bound_.contains(device))
    return make_error(errc::invalid_argument, to_string(device) + " was added to this multicast object before");
  if (bound_.size() == devices_) {
    return make_error(errc::invalid_argument, to_string(device) +
                                                  " is one too many: the multicast object was made for " +
                                                  std::to_string(devices_) + " devices");
  }
  bound_.emplace(device, nullptr);
  return {};
}

result<void> multicast_group::bind(std::shared_ptr<block_memory> memory) {
  const std::lock_guard lock{mutex_};
  const auto mine = bound_.find(memory->device);
  if (mine == bound_.end())
    return make_error(errc::wrong_device, to_string(memory->device) + " was not added to this multicast object");
  if (bound_.size() < devices_) {
    return make_error(errc::not_ready, "binding memory of " + to_string(memory->device) + ": " +
                                           std::to_string(bound_.size()) + " of " + std::to_string(devices_) +
                                           " devices were added so far");
  }
  if (mine->second)
    return make_error(errc::invalid_argument,
                      to_string(memory->device) + " has bound its memory before; unbind that first");
  if (memory->size < size_) {
    return make_error(errc::invalid_argument, "a block of " + to_string(bytes{memory->size}) +
                                                  " is too small for a multicast object of " + to_string(bytes{size_}));
  }
  auto view = map_file(memory->file.get(), 0, size_, true);
  if (!view) return std::move(view).error();
  auto made = std::make_shared<replica>();
  made->device = memory->device;
  made->memory = std::move(memory);
  made->view = std::move(*view);
  mine->second = std::move(made);
  return {};
}

result<void> multicast_group::unbind(device_id device) {
  const std::lock_guard lock{mutex_};
  const auto mine = bound_.find(device);
  if (mine == bound_.end() || !mine->second)
    return make_error(errc::not_found, to_string(device) + " has bound no memory to this multicast object");
  mine->second = nullptr;
  return {};
}

result<std::vector<std::shared_ptr<replica>>> multicast_group::reach(device_id by, std::uint64_t offset,
                                                                     std::uint64_t size) {
  const std::lock_guard lock{mutex_};
  if (!bound_.contains(by))
    return make_error(errc::wrong_device, to_string(by) + " was not added to this multicast object");
  if (offset > size_ || size > size_ - offset) {
    return make_error(errc::out_of_range, to_string(bytes{size}) + " at offset " + std::to_string(offset) +
                                              " of a multicast object of " + to_string(bytes{size_}));
  }
  std::vector<std::shared_ptr<replica>> all;
  for (const auto& [device, one] : bound_) {
    if (!one)
      return make_error(errc::not_ready, to_string(device) + " has not bound its memory to the multicast object yet");
    all.push_back(one);
  }
  if (all.size() < devices_) {
    return make_error(errc::not_ready, std::to_string(all.size()) + " of " + std::to_string(devices_) +
                                           " devices were added to the multicast object so far");
  }
  return all;
}

void join(std::byte* to, const std::vector<std::shared_ptr<replica>>& from, std::uint64_t offset, std::size_t count,
          element_type type, multicast_reduction how) noexcept {
  switch (type) {
    case element_type::int8:
      return join_as<std::int8_t>(to, from, offset, count, how);
    case element_type::int16:
      return join_as<std::int16_t>(to, from, offset, count, how);
    case element_type::int32:
      return join_as<std::int32_t>(to, from, offset, count, how);
    case element_type::int64:
      return join_as<std::int64_t>(to, from, offset, count, how);
    case element_type::uint8:
      return join_as<std::uint8_t>(to, from, offset, count, how);
    case element_type::uint16:
      return join_as<std::uint16_t>(to, from, offset, count, how);
    case element_type::uint32:
      return join_as<std::uint32_t>(to, from, offset, count, how);
    case element_type::uint64:
      return join_as<std::uint64_t>(to, from, offset, count, how);
    case element_type::float32:
      return join_as<float>(to, from, offset, count, how);
    case element_type::float64:
      return join_as<double>(to, from, offset, count, how);
  }
}

multicast_id multicast_table::add(std::shared_ptr<multicast_group> made) {
  const std::lock_guard lock{mutex_};
  const multicast_id id{++last_};
  groups_.emplace(id, std::move(made));
  return id;
}

std::shared_ptr<multicast_group> multicast_table::find(multicast_id id) {
  const std::lock_guard lock{mutex_};
  const auto it = groups_.find(id);
  return it == groups_.end() ? nullptr : it->second;
}

void multicast_table::remove(multicast_id id) {
  std::shared_ptr<multicast_group> gone;
  const std::lock_guard lock{mutex_};
  const auto it = groups_.find(id);
  if (it == groups_.end()) return;
  gone = std::move(it->second);
  groups_.erase(it);
}

void multicast_table::clear() {
  std::map<multicast_id, std::shared_ptr<multicast_group>> gone;
  const std::lock_guard lock{mutex_};
  gone.swap(groups_);
}

}  // namespace weft::host
