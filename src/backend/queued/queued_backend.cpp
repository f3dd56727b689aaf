// SPDX-License-Identifier: Apache-2.0
#include "backend/queued/queued_backend.hpp"

#include "backend/address.hpp"
#include "core/make_error.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <unistd.h>
#include <utility>

namespace weft::queued {
namespace {

error no_stream() { return make_error(errc::not_found, "the stream was destroyed, or belongs to another machine"); }

error no_memory() { return make_error(errc::out_of_memory, "the host has no memory left for an event"); }

}  // namespace

queued_backend::queued_backend(device_id first, topology machine, std::vector<device_description> devices,
                               std::string forked)
    : first_(first),
      machine_(std::move(machine)),
      descriptions_(std::move(devices)),
      traffic_(machine_, first_),
      forked_(std::move(forked)),
      default_streams_(descriptions_.size(), stream_handle::none) {}

void queued_backend::start(std::shared_ptr<queue_driver> driver, const backend_options& options) {
  scheduler_.emplace(std::move(driver), first_, descriptions_.size(), this, options.wait_policy,
                     [this](const link_path& path, std::uint64_t count) { traffic_.add(path, count); });
  if (options.epoch) scheduler_->count_from(*options.epoch);
}

// ---- what a call names ----------------------------------------------------------------------------------------------

bool queued_backend::known(device_id id) const noexcept {
  return id >= first_ && id.value() < first_.value() + static_cast<int>(descriptions_.size());
}

std::optional<error> queued_backend::check_call(std::initializer_list<device_id> ids) noexcept {
  if (here_.forked()) {
    return make_error(errc::closed, "this machine belongs to process " + std::to_string(::getppid()) + ": " + forked_);
  }
  if (scheduler_->closed()) return closed_machine();
  for (const device_id id : ids) {
    if (known(id)) continue;
    return make_error(errc::invalid_device, "there is no " + to_string(id) + ": this machine has " +
                                                std::to_string(descriptions_.size()) + " devices, from " +
                                                to_string(first_));
  }
  return std::nullopt;
}

result<queued_stream*> queued_backend::stream_of(stream_handle handle) noexcept {
  if (auto cause = check_call({})) return *cause;
  queued_stream* const found = scheduler_->find(handle);
  if (found == nullptr) return no_stream();
  if (auto cause = scheduler_->lost(found->device())) return error{*cause};
  return found;
}

result<event_ref> queued_backend::submitted(queued_stream& to, std::unique_ptr<command> made) noexcept {
  event_ref event = scheduler_->submit(to, std::move(made));
  if (!event) return closed_machine();
  return event;
}

void queued_backend::see_ends(device_id device) noexcept {
  for (queued_stream* order : scheduler_->streams_of(device)) static_cast<void>(scheduler_->idle(*order));
}

// ---- order ----------------------------------------------------------------------------------------------------------

result<stream_handle> queued_backend::create_stream(device_id device, int priority, bool told) noexcept {
  if (auto cause = check_call({device})) return *cause;
  if (auto cause = scheduler_->lost(device)) return error{*cause};
  try {
    auto made = scheduler_->create(device, priority, told);
    if (!made) {
      made.error().what = "a stream on " + to_string(device) + ": " + made.error().what;
      return noticed(device, std::move(made).error());
    }
    return (*made)->handle();
  } catch (const std::exception& failed) {
    return make_error(errc::resource_exhausted, "a stream on " + to_string(device) + ": " + failed.what());
  }
}

void queued_backend::destroy_stream(stream_handle stream) noexcept {
  if (!here_.forked()) scheduler_->destroy(stream);
}

result<stream_handle> queued_backend::default_stream(device_id device) noexcept {
  if (auto cause = check_call({device})) return *cause;
  const std::lock_guard lock{default_mutex_};
  stream_handle& place = default_streams_[local(device)];
  if (place == stream_handle::none) {
    auto made = create_stream(device, 0, true);
    if (!made) return made;
    place = *made;
  }
  return place;
}

result<event_ref> queued_backend::record(stream_handle handle) noexcept {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  try {
    event_ref event = scheduler_->record(**order);
    if (!event) return closed_machine();
    return event;
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
}

result<void> queued_backend::wait_event(stream_handle handle, const event_ref& event) noexcept {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  if (!event || (event->finished() && !event->cause())) return {};
  try {
    if (!scheduler_->wait_for(**order, event)) return closed_machine();
    return {};
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
}

result<event_ref> queued_backend::create_gate() noexcept {
  if (auto cause = check_call({})) return *cause;
  event_ref gate = scheduler_->create_gate();
  if (!gate) return closed_machine();
  return gate;
}

void queued_backend::open_gate(const event_ref& gate, std::shared_ptr<const error> cause) noexcept {
  scheduler_->open_gate(*gate, std::move(cause));
}

wait_outcome queued_backend::wait(event_record& event, wait_deadline deadline, const std::stop_token& stop) noexcept {
  if (here_.forked()) {
    // nobody here completes it
    if (!event.finished()) event.complete(shared_error(*check_call({})));
    return event.cause() ? wait_outcome::failed : wait_outcome::ok;
  }
  return scheduler_->wait(event, deadline, stop);
}

bool queued_backend::ready(event_record& event) noexcept {
  return here_.forked() ? event.finished() : scheduler_->ready(event);
}

bool queued_backend::idle(stream_handle handle) noexcept {
  if (here_.forked()) return true;  // nothing runs here, and what was ending when it forked never says so
  queued_stream* const order = scheduler_->find(handle);
  if (order != nullptr && !scheduler_->idle(*order)) return false;
  looked();
  return true;
}

bool queued_backend::settled(stream_handle handle) noexcept {
  if (here_.forked()) return true;
  queued_stream* const order = scheduler_->find(handle);
  return order == nullptr || scheduler_->settled(*order);
}

result<wait_outcome> queued_backend::synchronize(stream_handle handle, wait_deadline deadline,
                                                 const std::stop_token& stop) noexcept {
  if (auto cause = check_call({})) return *cause;
  queued_stream* const order = scheduler_->find(handle);
  if (order == nullptr) return no_stream();
  auto ended = scheduler_->synchronize(*order, deadline, stop);
  looked();
  return ended;
}

bool queued_backend::drain(device_id device, wait_deadline deadline) noexcept {
  if (scheduler_->closed() || here_.forked()) return true;
  for (queued_stream* order : scheduler_->streams_of(device)) {
    if (!scheduler_->drain(*order, deadline)) return false;
  }
  looked();
  return true;
}

std::vector<stream_handle> queued_backend::streams_of(device_id device) {
  std::vector<stream_handle> handles;
  for (const queued_stream* order : scheduler_->streams_of(device)) handles.push_back(order->handle());
  std::sort(handles.begin(), handles.end());
  return handles;
}

// ---- watch ----------------------------------------------------------------------------------------------------------

std::shared_ptr<const error> queued_backend::lost(device_id device) noexcept {
  return known(device) ? scheduler_->cause_of_loss(device) : nullptr;
}

void queued_backend::end_work() noexcept {
  if (!here_.forked()) scheduler_->close();
}

}  // namespace weft::queued
