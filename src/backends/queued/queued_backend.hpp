// SPDX-License-Identifier: Apache-2.0
// The common part of the backends over a scheduler: which devices and streams a call names, the whole of `order`, host
// functions, and what has crossed their links.
#pragma once

#include "backend/traffic_account.hpp"
#include "backends/queued/scheduler.hpp"

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace weft::queued {

/// What is said of each of the places that a discovery found.
template <class Places>
[[nodiscard]] std::vector<device_description> descriptions_of(const Places& places) {
  std::vector<device_description> made;
  made.reserve(places.size());
  for (const auto& one : places) made.push_back(one.description);
  return made;
}

/// Thread: any. Who derives from it calls start() when its constructor ends, and stop() when its destructor does.
class queued_backend : public backend {
 public:
  // order
  [[nodiscard]] result<stream_handle> do_create_stream(device_id device, int priority, bool told) override;
  void do_destroy_stream(stream_handle stream) override;
  [[nodiscard]] result<stream_handle> do_default_stream(device_id device) override;
  [[nodiscard]] result<event_ref> do_record(stream_handle stream) override;
  [[nodiscard]] result<void> do_wait_event(stream_handle stream, const event_ref& event) override;
  [[nodiscard]] result<event_ref> do_create_gate() override;
  void do_open_gate(const event_ref& gate, std::shared_ptr<const error> cause) override;
  [[nodiscard]] wait_outcome do_wait(event_record& event, wait_deadline deadline,
                                     const std::stop_token& stop) noexcept override;
  [[nodiscard]] bool do_ready(event_record& event) override;
  [[nodiscard]] bool do_idle(stream_handle stream) override;
  [[nodiscard]] bool do_settled(stream_handle stream) override;
  [[nodiscard]] result<wait_outcome> do_synchronize(stream_handle stream, wait_deadline deadline,
                                                    const std::stop_token& stop) override;
  [[nodiscard]] bool do_drain(device_id device, wait_deadline deadline) override;
  [[nodiscard]] std::vector<stream_handle> do_streams_of(device_id device) override;
  [[nodiscard]] bool do_tells(stream_handle stream) override;
  [[nodiscard]] std::chrono::nanoseconds do_now() noexcept override { return scheduler_->now(); }

  // run
  [[nodiscard]] result<event_ref> do_call(stream_handle stream, std::function<result<void>()> function) override;

  // watch
  [[nodiscard]] link_traffic do_traffic() override { return traffic_.now(); }
  [[nodiscard]] std::uint64_t do_watch_traffic(const traffic_source& source) override { return traffic_.watch(source); }
  void do_unwatch_traffic(std::uint64_t id) override { traffic_.unwatch(id); }
  void do_trace_to(std::shared_ptr<trace_sink> sink) override { scheduler_->trace_to(std::move(sink)); }
  [[nodiscard]] std::shared_ptr<const error> do_lost(device_id device) override;
  [[nodiscard]] bool do_on_worker() noexcept override { return scheduler_->on_worker(); }
  void do_end_work() noexcept override;

 protected:
  explicit queued_backend(backend_identity what);
  void start(std::shared_ptr<queue_driver> driver, const backend_options& options);
  void stop() noexcept { scheduler_.reset(); }

  /// An error of the driver, which may lose the device. Gives it back, complete.
  [[nodiscard]] virtual error noticed(device_id, error cause) { return cause; }
  /// Somebody has looked at streams: they may have come to their end.
  virtual void looked() {}

  [[nodiscard]] result<queued_stream*> stream_of(stream_handle handle);
  [[nodiscard]] result<event_ref> submitted(queued_stream& to, std::unique_ptr<command> made);
  /// Has it seen what has ended: memory goes back with the work that used it.
  void see_ends(device_id device);

  detail::traffic_account traffic_;
  std::optional<scheduler> scheduler_;  // from start() to stop()

 private:
  std::mutex default_mutex_;
  std::vector<stream_handle> default_streams_;  // made when first asked for
};

}  // namespace weft::queued
