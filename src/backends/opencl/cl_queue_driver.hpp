// SPDX-License-Identifier: Apache-2.0
// Queues and events of OpenCL, for the scheduler of src/backends/queued.
#pragma once

#include "backends/opencl/driver/discovery.hpp"
#include "backends/queued/queue_driver.hpp"

#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

namespace weft::opencl {

[[nodiscard]] inline cl_command_queue queue_of(queued::native_queue queue) {
  return static_cast<cl_command_queue>(queue);
}
[[nodiscard]] inline cl_event event_of(queued::native_event event) { return static_cast<cl_event>(event); }

class cl_queue_driver final : public queued::queue_driver {
 public:
  cl_queue_driver(std::shared_ptr<const api> cl, const discovery& found, device_id first);

  [[nodiscard]] result<queued::native_queue> create_queue(device_id device, int priority) override;
  void destroy_queue(device_id device, queued::native_queue queue) noexcept override;
  [[nodiscard]] result<queued::native_event> mark(device_id device, queued::native_queue queue,
                                                  queued::native_event after) override;
  [[nodiscard]] bool can_wait(device_id by, device_id of) const noexcept override;
  void flush(device_id device, queued::native_queue queue) noexcept override;
  void finish(device_id device, queued::native_queue queue) noexcept override;
  [[nodiscard]] queued::event_state state(device_id device, queued::native_event event) noexcept override;
  [[nodiscard]] error failure(device_id device, queued::native_event event, std::string doing, errc otherwise) override;
  void wait(device_id device, queued::native_event event) noexcept override;
  [[nodiscard]] std::optional<queued::event_times> times(device_id device,
                                                         queued::native_event event) noexcept override;
  void release(device_id device, queued::native_event event) noexcept override;
  [[nodiscard]] bool call_at_end(device_id device, queued::native_event event,
                                 const queued::end_call& call) noexcept override;
  [[nodiscard]] bool may_look_when_called() const noexcept override { return true; }

 private:
  using clock = std::chrono::steady_clock;

  struct device_state {
    cl_device_id id = nullptr;
    cl_context context = nullptr;
    std::size_t context_index = 0;
    std::once_flag calibrated;           // with the first queue
    bool timed = false;                  // offset is known
    std::chrono::nanoseconds offset{0};  // from times of the device to those of the clock
  };

  [[nodiscard]] device_state& state_of(device_id id) const {
    return *devices_[static_cast<std::size_t>(id.value() - first_.value())];
  }
  void calibrate(device_state& device, cl_command_queue queue) const;
  [[nodiscard]] cl_int status_of(cl_event event) const;

  std::shared_ptr<const api> cl_;
  device_id first_;
  std::vector<std::unique_ptr<device_state>> devices_;
};

}  // namespace weft::opencl
