// SPDX-License-Identifier: Apache-2.0
// What backends over a scheduler do alike: which devices and streams a call names, the whole of `order`, and what has
// crossed their links.
#pragma once

#include "backend/fork_watch.hpp"
#include "backend/queued/scheduler.hpp"
#include "backend/traffic_account.hpp"

#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
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
  // discover
  [[nodiscard]] std::span<const device_description> devices() const noexcept override { return descriptions_; }
  [[nodiscard]] device_id first_device() const noexcept override { return first_; }
  [[nodiscard]] const topology& layout() const noexcept override { return machine_; }

  // order
  [[nodiscard]] result<stream_handle> create_stream(device_id device, int priority, bool told) noexcept override;
  void destroy_stream(stream_handle stream) noexcept override;
  [[nodiscard]] result<stream_handle> default_stream(device_id device) noexcept override;
  [[nodiscard]] result<event_ref> record(stream_handle stream) noexcept override;
  [[nodiscard]] result<void> wait_event(stream_handle stream, const event_ref& event) noexcept override;
  [[nodiscard]] result<event_ref> create_gate() noexcept override;
  void open_gate(const event_ref& gate, std::shared_ptr<const error> cause) noexcept override;
  [[nodiscard]] wait_outcome wait(event_record& event, wait_deadline deadline,
                                  const std::stop_token& stop) noexcept override;
  [[nodiscard]] bool ready(event_record& event) noexcept override;
  [[nodiscard]] bool idle(stream_handle stream) noexcept override;
  [[nodiscard]] bool settled(stream_handle stream) noexcept override;
  [[nodiscard]] result<wait_outcome> synchronize(stream_handle stream, wait_deadline deadline,
                                                 const std::stop_token& stop) noexcept override;
  [[nodiscard]] bool drain(device_id device, wait_deadline deadline) noexcept override;
  [[nodiscard]] std::vector<stream_handle> streams_of(device_id device) override;
  [[nodiscard]] std::chrono::nanoseconds now() noexcept override { return scheduler_->now(); }

  // watch
  [[nodiscard]] link_traffic traffic() override { return traffic_.now(); }
  [[nodiscard]] std::uint64_t watch_traffic(const traffic_source& source) noexcept override {
    return traffic_.watch(source);
  }
  void unwatch_traffic(std::uint64_t id) noexcept override { traffic_.unwatch(id); }
  void trace_to(std::shared_ptr<trace_sink> sink) noexcept override { scheduler_->trace_to(std::move(sink)); }
  [[nodiscard]] std::shared_ptr<const error> lost(device_id device) noexcept override;
  [[nodiscard]] bool on_worker() noexcept override { return scheduler_->on_worker(); }
  void end_work() noexcept override;

 protected:
  /// `forked` is what a call in the child of a fork is told, behind whose machine it is.
  queued_backend(device_id first, topology machine, std::vector<device_description> devices, std::string forked);
  void start(std::shared_ptr<queue_driver> driver, const backend_options& options);
  void stop() noexcept { scheduler_.reset(); }

  /// An error of the driver, which may lose the device. Gives it back, complete.
  [[nodiscard]] virtual error noticed(device_id, error cause) noexcept { return cause; }
  /// Somebody has looked at streams: they may have come to their end.
  virtual void looked() noexcept {}

  [[nodiscard]] std::size_t local(device_id id) const { return static_cast<std::size_t>(id.value() - first_.value()); }
  [[nodiscard]] bool known(device_id id) const noexcept;
  /// Why nothing can be asked of these devices, if so.
  [[nodiscard]] std::optional<error> check_call(std::initializer_list<device_id> ids) noexcept;
  [[nodiscard]] result<queued_stream*> stream_of(stream_handle handle) noexcept;
  [[nodiscard]] result<event_ref> submitted(queued_stream& to, std::unique_ptr<command> made) noexcept;
  /// Has it seen what has ended: memory goes back with the work that used it.
  void see_ends(device_id device) noexcept;

  device_id first_;
  topology machine_;
  std::vector<device_description> descriptions_;
  detail::fork_watch here_;
  detail::traffic_account traffic_;
  std::optional<scheduler> scheduler_;  // from start() to stop()

 private:
  std::string forked_;
  std::mutex default_mutex_;
  std::vector<stream_handle> default_streams_;  // made when first asked for
};

}  // namespace weft::queued
