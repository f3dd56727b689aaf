// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/backend/order_violation.hpp"
#include "weft/backend/registry.hpp"
#include "weft/core/internals.hpp"
#include "weft/core/link_traffic.hpp"
#include "weft/core/raise.hpp"
#include "weft/core/topology.hpp"
#include "weft/core/trace.hpp"
#include "weft/runtime/device.hpp"
#include "weft/runtime/device_query.hpp"
#include "weft/runtime/machine_options.hpp"

#include <initializer_list>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

namespace detail {
class machine_state;

/// A device's id with the place of the call: operator[] has no other parameter for it.
struct placed_id {
  device_id id;
  std::source_location where;
  // NOLINTBEGIN(google-explicit-constructor)
  placed_id(device_id given, std::source_location at = std::source_location::current()) : id(given), where(at) {}
  placed_id(int given, std::source_location at = std::source_location::current()) : id(given), where(at) {}
  // NOLINTEND(google-explicit-constructor)
};
}  // namespace detail

/// One backend of this build on this machine.
struct backend_status {
  std::string name;
  bool available = false;  // it has devices, perhaps all under an earlier backend
  std::string why;         // it is absent, was not looked at, or has no device of its own here; else empty
  bool looked_at = false;  // false: nobody opened it, so that nobody knows
};

/// Several devices as one machine: the GPUs of one backend, N virtual devices of the host with any topology, or those
/// of several backends together (docs/reference/opencl.md has what a mixed machine does and what it costs).
///
/// Copies share the machine. When the last copy goes, or at close(), pending work ends as cancelled and memory is
/// returned; buffers and streams that outlive it fail with machine_closed.
/// Thread: any.
class machine {
 public:
  /// The machine that the environment and this computer give. Errors: not_found, unsupported, invalid_topology;
  /// invalid_argument for a variable or an option with a wrong value.
  machine(std::source_location where = std::source_location::current());  // NOLINT(google-explicit-constructor)
  explicit machine(const machine_options& options, std::source_location where = std::source_location::current());

  /// A topology by name ("dgx_h100") or file, played by the host backend.
  [[nodiscard]] static machine load(std::string_view name_or_file,
                                    std::source_location where = std::source_location::current());

  /// All devices in their stable order: that of the topology, or of PCI addresses.
  [[nodiscard]] std::vector<device> devices() const;
  /// Errors: invalid_device for an unknown id; not_found, with every reason, when none is left.
  [[nodiscard]] device_list devices(const device_query& where,
                                    std::source_location caller = std::source_location::current()) const;
  /// Like devices(where), but an empty list is a value.
  [[nodiscard]] device_list find_devices(const device_query& where,
                                         std::source_location caller = std::source_location::current()) const;
  /// By id or number. Errors: invalid_device.
  [[nodiscard]] device operator[](const detail::placed_id& which) const;
  [[nodiscard]] int device_count() const;
  /// Devices of one backend, by its name; 0 when it is absent.
  [[nodiscard]] int device_count(std::string_view backend) const;

  /// Every backend of this build, with the reason if it is absent.
  [[nodiscard]] const std::vector<backend_status>& backends() const;
  /// Remarks about how the machine was put together: a fallback, a device left out since two backends see it, an
  /// unknown WEFT_ variable, a WEFT_BACKEND, WEFT_TOPOLOGY or WEFT_DEVICES that what the program asks for rules out,
  /// options without effect, the driver of a variable that cannot be used, what a backend left out.
  [[nodiscard]] const std::vector<std::string>& notes() const;

  /// All devices, in their order. On a mixed machine the layouts of the backends, joined at the host's sockets: no peer
  /// access from one to the other, and links that begin with those of the first.
  [[nodiscard]] const topology& layout() const;
  [[nodiscard]] bool simulated() const;
  [[nodiscard]] clock_kind clock() const;
  /// The machine's clock. Virtual time is simulated: never publish it as a measurement.
  [[nodiscard]] std::chrono::nanoseconds now() const;

  /// Waits for everything on every device. Errors: the first failure that no wait has reported yet.
  void synchronize(std::source_location where = std::source_location::current()) const;
  /// Like synchronize(), but gives up: timed_out. Errors as synchronize().
  [[nodiscard]] wait_outcome synchronize_for(std::chrono::nanoseconds timeout,
                                             std::source_location where = std::source_location::current()) const;

  /// Accesses to the same bytes, one of them a write, that no stream, event or wait orders: what was found so far with
  /// machine_options::check_order, each pair of source lines once and at most 1,000; the log hook is told of all.
  [[nodiscard]] std::vector<order_violation> order_violations() const;

  /// Bytes that have crossed each link of layout(), by link index.
  [[nodiscard]] link_traffic traffic() const;

  /// From now on records what each operation did and when; null ends that. The sink may serve several machines.
  /// Cost: a copy of a record for each operation, nothing without a sink. weft::profile reads them.
  void trace_to(const std::shared_ptr<trace_sink>& sink) const;

  void close();
  [[nodiscard]] bool closed() const;

  friend bool operator==(const machine& a, const machine& b) { return a.state_ == b.state_; }

 private:
  friend struct detail::internals;
  /// The state that owners share with the machine; for the library's own layers.
  [[nodiscard]] const std::shared_ptr<detail::machine_state>& state() const {
    return detail::not_moved_from(state_, "machine");
  }

  std::shared_ptr<detail::machine_state> state_;
  std::shared_ptr<void> lease_;  // the last copy of this closes the state
};

}  // namespace weft
