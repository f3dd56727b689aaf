// SPDX-License-Identifier: Apache-2.0
#include "backends/queued/queued_backend.hpp"

#include "backend/address.hpp"
#include "core/errors/make_error.hpp"

#include <algorithm>
#include <utility>
#include <variant>

namespace weft::queued {
namespace {

error no_stream() { return make_error(errc::not_found, "the stream was destroyed, or belongs to another machine"); }

}  // namespace

queued_backend::queued_backend(backend_identity what)
    : backend(std::move(what)),
      traffic_(layout(), first_device()),
      default_streams_(devices().size(), stream_handle::none) {}

void queued_backend::start(std::shared_ptr<queue_driver> driver, const backend_options& options) {
  scheduler_.emplace(std::move(driver), first_device(), devices().size(), this, options.wait_policy,
                     [this](const link_path& path, std::uint64_t count) { traffic_.add(path, count); });
  if (options.epoch) scheduler_->count_from(*options.epoch);
}

// ---- what a call names ----------------------------------------------------------------------------------------------

result<queued_stream*> queued_backend::stream_of(stream_handle handle) {
  queued_stream* const found = scheduler_->find(handle);
  if (found == nullptr) return no_stream();
  if (auto cause = scheduler_->lost(found->device())) return error{*cause};
  return found;
}

result<event_ref> queued_backend::submitted(queued_stream& to, std::unique_ptr<command> made) {
  event_ref event = scheduler_->submit(to, std::move(made));
  if (!event) return closed_machine();
  return event;
}

void queued_backend::see_ends(device_id device) {
  for (queued_stream* order : scheduler_->streams_of(device)) static_cast<void>(scheduler_->idle(*order));
}

// ---- order ----------------------------------------------------------------------------------------------------------

result<stream_handle> queued_backend::do_create_stream(device_id device, int priority, bool told) {
  if (auto cause = scheduler_->lost(device)) return error{*cause};
  auto made = scheduler_->create(device, priority, told);
  if (!made) {
    made.error().what = "a stream on " + to_string(device) + ": " + made.error().what;
    return noticed(device, std::move(made).error());
  }
  return (*made)->handle();
}

void queued_backend::do_destroy_stream(stream_handle stream) { scheduler_->destroy(stream); }

result<stream_handle> queued_backend::do_default_stream(device_id device) {
  const std::lock_guard lock{default_mutex_};
  stream_handle& place = default_streams_[local(device)];
  if (place == stream_handle::none) {
    auto made = do_create_stream(device, 0, true);
    if (!made) return made;
    place = *made;
  }
  return place;
}

result<event_ref> queued_backend::do_record(stream_handle handle) {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  event_ref event = scheduler_->record(**order);
  if (!event) return closed_machine();
  return event;
}

result<void> queued_backend::do_wait_event(stream_handle handle, const event_ref& event) {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  if (!event || (event->finished() && !event->cause())) return {};
  if (!scheduler_->wait_for(**order, event)) return closed_machine();
  return {};
}

result<event_ref> queued_backend::do_create_gate() {
  event_ref gate = scheduler_->create_gate();
  if (!gate) return closed_machine();
  return gate;
}

void queued_backend::do_open_gate(const event_ref& gate, std::shared_ptr<const error> cause) {
  scheduler_->open_gate(*gate, std::move(cause));
}

wait_outcome queued_backend::do_wait(event_record& event, wait_deadline deadline,
                                     const std::stop_token& stop) noexcept {
  return scheduler_->wait(event, deadline, stop);
}

bool queued_backend::do_ready(event_record& event) { return scheduler_->ready(event); }

bool queued_backend::do_idle(stream_handle handle) {
  queued_stream* const order = scheduler_->find(handle);
  if (order != nullptr && !scheduler_->idle(*order)) return false;
  looked();
  return true;
}

bool queued_backend::do_settled(stream_handle handle) {
  queued_stream* const order = scheduler_->find(handle);
  return order == nullptr || scheduler_->settled(*order);
}

result<wait_outcome> queued_backend::do_synchronize(stream_handle handle, wait_deadline deadline,
                                                    const std::stop_token& stop) {
  queued_stream* const order = scheduler_->find(handle);
  if (order == nullptr) return no_stream();
  auto ended = scheduler_->synchronize(*order, deadline, stop);
  looked();
  return ended;
}

bool queued_backend::do_drain(device_id device, wait_deadline deadline) {
  for (queued_stream* order : scheduler_->streams_of(device)) {
    if (!scheduler_->drain(*order, deadline)) return false;
  }
  looked();
  return true;
}

std::vector<stream_handle> queued_backend::do_streams_of(device_id device) {
  std::vector<stream_handle> handles;
  for (const queued_stream* order : scheduler_->streams_of(device)) handles.push_back(order->handle());
  std::sort(handles.begin(), handles.end());
  return handles;
}

bool queued_backend::do_tells(stream_handle handle) {
  queued_stream* const order = scheduler_->find(handle);
  return order == nullptr || scheduler_->tells(*order);
}

// ---- run ------------------------------------------------------------------------------------------------------------

result<event_ref> queued_backend::do_call(stream_handle handle, std::function<result<void>()> function) {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  using call = host_command<std::monostate>;  // keeps no memory
  auto made = std::make_unique<call>([f = std::move(function)]() -> std::shared_ptr<const error> {
    auto done = f();
    return done ? nullptr : shared_error(std::move(done).error());
  });
  made->note.kind = trace_kind::host_call;
  return submitted(**order, std::move(made));
}

// ---- watch ----------------------------------------------------------------------------------------------------------

std::shared_ptr<const error> queued_backend::do_lost(device_id device) { return scheduler_->cause_of_loss(device); }

void queued_backend::do_end_work() noexcept { scheduler_->close(); }

}  // namespace weft::queued
