// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/core/bytes.hpp"
#include "weft/core/capability.hpp"
#include "weft/core/device_description.hpp"
#include "weft/core/error.hpp"
#include "weft/core/ids.hpp"
#include "weft/core/internals.hpp"
#include "weft/core/raise.hpp"
#include "weft/core/waiting.hpp"

#include <chrono>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>

namespace weft {

namespace detail {
class machine_state;
}
class stream;

/// One device of a machine: a small value that names it. Thread: any.
class device {
 public:
  [[nodiscard]] device_id id() const { return id_; }
  /// A device is taken wherever its id is. The id names it on its own machine alone.
  operator device_id() const { return id_; }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] const std::string& name() const;
  [[nodiscard]] backend_kind kind() const;
  /// Stays the same over runs, and differs between equal models.
  [[nodiscard]] const std::string& uuid() const;
  /// Empty when the device has none.
  [[nodiscard]] const std::string& pci_address() const;
  [[nodiscard]] std::optional<int> numa_node() const;
  /// The driver with its version; empty for a device that has none, as those of the host backend.
  [[nodiscard]] const std::string& driver() const;
  [[nodiscard]] bytes total_memory() const;
  [[nodiscard]] bytes free_memory(std::source_location where = std::source_location::current()) const;
  [[nodiscard]] int compute_units() const;
  /// False for a part of a device that shares them with the other parts: what one runs slows the others, and
  /// compute_units() is no more than its share.
  [[nodiscard]] bool has_own_compute_units() const;
  /// The uuid of the whole device where this is one of several parts of it (machine_options::logical_devices); else
  /// empty.
  [[nodiscard]] const std::string& part_of() const;
  [[nodiscard]] capability capabilities() const;
  [[nodiscard]] bool has(capability wanted) const { return has_all(capabilities(), wanted); }
  [[nodiscard]] bool simulated() const;
  /// Temperature, power, errors: what sensors tell now. Errors: unsupported where nothing tells.
  /// Cost: some milliseconds of the management library; starts nothing on the device.
  [[nodiscard]] device_health health(std::source_location where = std::source_location::current()) const;

  /// The stream of work that names none; shared by all who use this device.
  [[nodiscard]] stream default_stream(std::source_location where = std::source_location::current()) const;
  /// Waits for all streams of the device. Errors: the first failure that no wait has reported yet.
  void synchronize(std::source_location where = std::source_location::current()) const;
  [[nodiscard]] wait_outcome synchronize_for(std::chrono::nanoseconds timeout,
                                             std::source_location where = std::source_location::current()) const;

  [[nodiscard]] bool is_lost() const;
  /// Why the device is lost; empty when it is not.
  [[nodiscard]] std::optional<error> lost_cause() const;
  /// Brings a lost device back. Its memory and peer relations are gone: buffers on it fail with not_found. Pinned,
  /// unified and adopted memory is the host's too, and stays; but for unified memory of CUDA and HIP, and adopted
  /// memory that the program had page-locked itself, which go with a reset of their whole GPU. Ends what waits for the
  /// device, then waits for copies by other backends of a mixed machine of host memory that is this device's.
  /// Errors: device_lost where the vendor serves this process no more, which has to be started anew.
  void reset(std::source_location where = std::source_location::current()) const;

  friend bool operator==(const device& a, const device& b) { return a.id_ == b.id_ && a.state_ == b.state_; }

 private:
  friend struct detail::internals;
  device(std::shared_ptr<detail::machine_state> state, device_id id);
  [[nodiscard]] const std::shared_ptr<detail::machine_state>& state() const {
    return detail::not_moved_from(state_, "device");
  }

  std::shared_ptr<detail::machine_state> state_;
  device_id id_;
};

}  // namespace weft
