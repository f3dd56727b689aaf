// SPDX-License-Identifier: Apache-2.0
#include "backends/opencl/cl_queue_driver.hpp"

#include <array>
#include <utility>

namespace weft::opencl {

cl_queue_driver::cl_queue_driver(std::shared_ptr<const api> cl, const discovery& found, device_id first)
    : cl_(std::move(cl)), first_(first) {
  for (const device_place& one : found.devices) {
    auto made = std::make_unique<device_state>();
    made->id = one.id;
    made->context = found.contexts[one.context].context.get();
    made->context_index = one.context;
    devices_.push_back(std::move(made));
  }
}

// ---- queues ---------------------------------------------------------------------------------------------------------

// Priorities are an extension that few drivers have: all queues are alike.
result<queued::native_queue> cl_queue_driver::create_queue(device_id id, int) {
  device_state& device = state_of(id);
  cl_int status = CL_SUCCESS;
  cl_command_queue made = nullptr;
  if (cl_->clCreateCommandQueueWithProperties != nullptr) {
    const std::array<cl_queue_properties, 3> properties{CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
    made = cl_->clCreateCommandQueueWithProperties(device.context, device.id, properties.data(), &status);
  }
  if (made == nullptr)  // a loader or a platform before 2.0
    made = cl_->clCreateCommandQueue(device.context, device.id, CL_QUEUE_PROFILING_ENABLE, &status);
  if (made == nullptr) return cl_error(status, "a command queue");
  std::call_once(device.calibrated, [&] { calibrate(device, made); });
  return made;
}

void cl_queue_driver::destroy_queue(device_id, queued::native_queue queue) noexcept {
  static_cast<void>(cl_->clReleaseCommandQueue(queue_of(queue)));
}

// Device times count from where the driver likes. A few markers say where that is on our clock, to some microseconds.
void cl_queue_driver::calibrate(device_state& device, cl_command_queue queue) const {
  auto shortest = std::chrono::nanoseconds::max();
  for (int i = 0; i < 5; ++i) {
    cl_event raw = nullptr;
    const auto before = clock::now().time_since_epoch();
    if (cl_->clEnqueueMarkerWithWaitList(queue, 0, nullptr, &raw) != CL_SUCCESS) return;
    const event_handle marker{cl_, raw};
    if (cl_->clWaitForEvents(1, &raw) != CL_SUCCESS) return;
    const auto after = clock::now().time_since_epoch();
    cl_ulong ended = 0;
    if (cl_->clGetEventProfilingInfo(raw, CL_PROFILING_COMMAND_END, sizeof ended, &ended, nullptr) != CL_SUCCESS)
      return;
    if (after - before >= shortest) continue;
    shortest = after - before;
    device.offset = before + (after - before) / 2 - std::chrono::nanoseconds{static_cast<std::int64_t>(ended)};
    device.timed = true;
  }
}

void cl_queue_driver::flush(device_id, queued::native_queue queue) noexcept {
  static_cast<void>(cl_->clFlush(queue_of(queue)));
}

void cl_queue_driver::finish(device_id, queued::native_queue queue) noexcept {
  static_cast<void>(cl_->clFinish(queue_of(queue)));
}

// ---- events ---------------------------------------------------------------------------------------------------------

result<queued::native_event> cl_queue_driver::mark(device_id, queued::native_queue queue, queued::native_event after) {
  cl_event before = event_of(after);
  cl_event made = nullptr;
  if (before == nullptr) {
    const cl_int status = cl_->clEnqueueMarkerWithWaitList(queue_of(queue), 0, nullptr, &made);
    if (status != CL_SUCCESS) return cl_error(status, "a marker");
  } else {
    const cl_int status = cl_->clEnqueueBarrierWithWaitList(queue_of(queue), 1, &before, &made);
    if (status != CL_SUCCESS) return cl_error(status, "waiting for another stream");
  }
  return made;
}

bool cl_queue_driver::can_wait(device_id by, device_id of) const noexcept {
  return state_of(by).context_index == state_of(of).context_index;
}

cl_int cl_queue_driver::status_of(cl_event event) const {
  cl_int status = CL_COMPLETE;
  const cl_int asked = cl_->clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr);
  return asked == CL_SUCCESS ? status : asked;
}

queued::event_state cl_queue_driver::state(device_id, queued::native_event event) noexcept {
  const cl_int status = status_of(event_of(event));
  if (status > CL_COMPLETE) return queued::event_state::running;
  return status == CL_COMPLETE ? queued::event_state::ended : queued::event_state::failed;
}

error cl_queue_driver::failure(device_id, queued::native_event event, std::string doing, errc otherwise) {
  return cl_error(status_of(event_of(event)), std::move(doing), otherwise);
}

void cl_queue_driver::wait(device_id, queued::native_event event) noexcept {
  cl_event one = event_of(event);
  static_cast<void>(cl_->clWaitForEvents(1, &one));
}

std::optional<queued::event_times> cl_queue_driver::times(device_id id, queued::native_event event) noexcept {
  const device_state& device = state_of(id);
  if (!device.timed) return std::nullopt;
  const auto read = [&](cl_profiling_info what) -> std::optional<clock::time_point> {
    cl_ulong time = 0;
    if (cl_->clGetEventProfilingInfo(event_of(event), what, sizeof time, &time, nullptr) != CL_SUCCESS)
      return std::nullopt;
    return clock::time_point{device.offset + std::chrono::nanoseconds{static_cast<std::int64_t>(time)}};
  };
  const auto ended = read(CL_PROFILING_COMMAND_END);
  if (!ended) return std::nullopt;
  return queued::event_times{read(CL_PROFILING_COMMAND_START), *ended};
}

void cl_queue_driver::release(device_id, queued::native_event event) noexcept {
  static_cast<void>(cl_->clReleaseEvent(event_of(event)));
}

bool cl_queue_driver::call_at_end(device_id, queued::native_event event, const queued::end_call& call) noexcept {
  const auto told = [](cl_event, cl_int, void* data) {
    const auto& made = *static_cast<const queued::end_call*>(data);
    made.function(made.data);
  };
  // the driver wants no const, and gives back what it was given
  return cl_->clSetEventCallback(event_of(event), CL_COMPLETE, told, const_cast<queued::end_call*>(&call)) ==
         CL_SUCCESS;
}

}  // namespace weft::opencl
