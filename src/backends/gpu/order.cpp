// SPDX-License-Identifier: Apache-2.0
// Streams, events, gates and waits of the CUDA backend: queued::scheduler over stream_driver does them.
#include "backends/gpu/gpu_backend.hpp"

#include <algorithm>
#include <exception>
#include <new>

namespace weft::gpu {
namespace {

error closed_machine() { return make_error(errc::machine_closed, "the machine is closed"); }

error no_stream() { return make_error(errc::not_found, "the stream was destroyed, or belongs to another machine"); }

}  // namespace

result<queued::queued_stream*> gpu_backend::stream_of(stream_handle handle) noexcept {
  if (auto cause = check_call({})) return *cause;
  queued::queued_stream* const found = scheduler_.find(handle);
  if (found == nullptr) return no_stream();
  if (auto cause = scheduler_.lost(found->device())) return error{*cause};
  return found;
}

result<event_ref> gpu_backend::submitted(queued::queued_stream& to, std::unique_ptr<queued::command> made) noexcept {
  event_ref event = scheduler_.submit(to, std::move(made));
  if (!event) return closed_machine();
  return event;
}

result<stream_handle> gpu_backend::create_stream(device_id device, int priority, bool told) noexcept {
  if (auto cause = check_call({device})) return *cause;
  if (auto cause = scheduler_.lost(device)) return error{*cause};
  try {
    auto made = scheduler_.create(device, priority, told);
    if (!made) {
      made.error().what = "a stream on " + to_string(device) + ": " + made.error().what;
      return noticed(device, std::move(made).error());
    }
    return (*made)->handle();
  } catch (const std::exception& failed) {
    return make_error(errc::resource_exhausted, "a stream on " + to_string(device) + ": " + failed.what());
  }
}

result<stream_handle> gpu_backend::adopt_stream(device_id device, void* driver_queue) noexcept {
  if (auto cause = check_call({device})) return *cause;
  if (auto cause = scheduler_.lost(device)) return error{*cause};
  try {
    auto made = scheduler_.adopt(device, driver_queue);
    if (!made) return noticed(device, std::move(made).error());
    return (*made)->handle();
  } catch (const std::bad_alloc&) {
    return make_error(errc::out_of_memory, "the host has no memory left for a stream");
  }
}

result<void*> gpu_backend::driver_queue(stream_handle stream) noexcept {
  auto order = stream_of(stream);
  if (!order) return std::move(order).error();
  return scheduler_.share_queue(**order);
}

void gpu_backend::destroy_stream(stream_handle stream) noexcept {
  if (!here_.forked()) scheduler_.destroy(stream);
}

result<stream_handle> gpu_backend::default_stream(device_id device) noexcept {
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

result<event_ref> gpu_backend::record(stream_handle handle) noexcept {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  try {
    event_ref event = scheduler_.record(**order);
    if (!event) return closed_machine();
    return event;
  } catch (const std::bad_alloc&) {
    return make_error(errc::out_of_memory, "the host has no memory left for an event");
  }
}

result<void> gpu_backend::wait_event(stream_handle handle, const event_ref& event) noexcept {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  if (!event || (event->finished() && !event->cause())) return {};
  try {
    if (!scheduler_.wait_for(**order, event)) return closed_machine();
    return {};
  } catch (const std::bad_alloc&) {
    return make_error(errc::out_of_memory, "the host has no memory left to wait for an event");
  }
}

result<event_ref> gpu_backend::create_gate() noexcept {
  if (auto cause = check_call({})) return *cause;
  event_ref gate = scheduler_.create_gate();
  if (!gate) return closed_machine();
  return gate;
}

void gpu_backend::open_gate(const event_ref& gate, std::shared_ptr<const error> cause) noexcept {
  scheduler_.open_gate(*gate, std::move(cause));
}

wait_outcome gpu_backend::wait(event_record& event, wait_deadline deadline, const std::stop_token& stop) noexcept {
  if (here_.forked()) {
    // nobody here completes it
    if (!event.finished()) event.complete(shared_error(*check_call({})));
    return event.cause() ? wait_outcome::failed : wait_outcome::ok;
  }
  return scheduler_.wait(event, deadline, stop);
}

bool gpu_backend::ready(event_record& event) noexcept {
  return here_.forked() ? event.finished() : scheduler_.ready(event);
}

bool gpu_backend::idle(stream_handle handle) noexcept {
  queued::queued_stream* const order = scheduler_.find(handle);
  if (order != nullptr && !scheduler_.idle(*order)) return false;
  part_peers();
  return true;
}

bool gpu_backend::settled(stream_handle handle) noexcept {
  queued::queued_stream* const order = scheduler_.find(handle);
  return order == nullptr || scheduler_.settled(*order);
}

result<wait_outcome> gpu_backend::synchronize(stream_handle handle, wait_deadline deadline,
                                              const std::stop_token& stop) noexcept {
  if (auto cause = check_call({})) return *cause;
  queued::queued_stream* const order = scheduler_.find(handle);
  if (order == nullptr) return no_stream();
  auto ended = scheduler_.synchronize(*order, deadline, stop);
  part_peers();
  return ended;
}

bool gpu_backend::drain(device_id device, wait_deadline deadline) noexcept {
  if (scheduler_.closed() || here_.forked()) return true;
  for (queued::queued_stream* order : scheduler_.streams_of(device)) {
    if (!scheduler_.drain(*order, deadline)) return false;
  }
  part_peers();
  return true;
}

std::vector<stream_handle> gpu_backend::streams_of(device_id device) noexcept {
  std::vector<stream_handle> handles;
  for (const queued::queued_stream* order : scheduler_.streams_of(device)) handles.push_back(order->handle());
  std::sort(handles.begin(), handles.end());
  return handles;
}

}  // namespace weft::gpu
