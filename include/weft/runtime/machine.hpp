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

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
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

/// When a machine finds out whether what one device writes into the memory of another arrives there.
enum class peer_verification : std::uint8_t {
  never,      // only by verify_peers()
  first_use,  // once for each ordered pair that is used; what another process found since the boot holds
  always,     // the same, and what other processes found is not believed
};

/// How a machine is put together. Everything has a default; the environment fills what is left open: WEFT_BACKEND,
/// WEFT_TOPOLOGY (name or file), WEFT_DEVICES (number of host devices), WEFT_LOGICAL_DEVICES, WEFT_VERIFY_PEERS
/// (never, first_use or always), WEFT_STRICT, WEFT_CHECK and WEFT_CHECK_ORDER (0 or 1).
///
/// Some options only the host backend has. Where a program relies on one (check_access, check_order, fill_new_memory,
/// max_in_flight), another backend is not opened: unsupported, or the host where none was named. What changes no
/// result there (devices, strict, model, and all that the environment says) is a remark in notes().
struct machine_options {
  /// "host", "opencl", …; empty is the best one present. Several, as in "host,opencl", make a mixed machine: the
  /// devices of the first come first. Errors: not_found, or what a backend says, naming it; unsupported with virtual
  /// time or check_order, which are the host backend's alone.
  std::optional<std::string> backend{};
  bool backend_required = true;      // false: what is absent is left out or replaced, and notes() say so
  bool keep_duplicates = false;      // true: a device that two backends see appears with both, not with the first alone
  std::optional<std::string> sim{};  // topology, by name or file, played by the host backend
  std::optional<topology> machine{};  // the same, as a value
  std::optional<int> devices{};       // number of host devices without a topology; 4 unless set
  std::optional<bytes> memory_per_device{};
  /// Each device is offered as so many, with a part of its compute units each; 1 unless set. One that cannot be split
  /// so stays whole, and notes() say why; so do those of the host, of which there are as many as `devices` asks for.
  std::optional<int> logical_devices{};
  clock_kind clock = clock_kind::wall;
  std::optional<bool> strict{};  // device pointers fault when the host follows them; see docs/reference/memory.md
  /// Kernels on the host backend check every access to their views; unless set, so they do in a debug build of weft.
  std::optional<bool> check_access{};
  bool check_order = false;  // the host backend reports accesses that nothing orders; see docs/reference/memory.md
  std::optional<std::byte> fill_new_memory{};
  int max_in_flight = 0;
  /// Backends of the program's own, asked before those of the build: how a port is tried out without changing weft.
  std::vector<backend_entry> more_backends{};
  /// first_use unless set. A pair that loses data is reported by the log hook, and not used any more: copies take
  /// another route, and kernels get no memory over it.
  std::optional<peer_verification> verify_peers{};
  waiting wait_policy = waiting::adaptive;
  simulation model{};  // of the virtual clock
};

/// One backend of this build on this machine.
struct backend_status {
  std::string name;
  bool available = false;  // it was opened, and has devices
  std::string why;         // why it is absent, or was not looked at; empty when it is there
  bool looked_at = false;  // false: nobody opened it, so that nobody knows
};

/// Which devices are wanted. Every condition must hold; what is left is ordered by `score`, highest first, when given.
struct device_query {
  std::vector<device_id> ids{};  // exactly these, in this order; empty is all
  capability needs = capability::none;
  int min_compute_units = 0;
  bytes min_memory{};  // free now
  std::vector<device_id> exclude{};
  std::optional<std::string> backend{};
  bool backend_required = true;  // false: when it has no device, use the others and say so
  std::function<double(const device&)> score{};
  std::size_t at_most = static_cast<std::size_t>(-1);
};

struct rejected_device {
  device_id id;
  std::string why;
};

/// The devices that a query found, the others with the reason, and remarks about fallbacks.
class device_list {
 public:
  device_list() = default;
  device_list(std::vector<device> chosen, std::vector<rejected_device> rejected, std::vector<std::string> notes)
      : chosen_(std::move(chosen)), rejected_(std::move(rejected)), notes_(std::move(notes)) {}

  [[nodiscard]] auto begin() const { return chosen_.begin(); }
  [[nodiscard]] auto end() const { return chosen_.end(); }
  [[nodiscard]] std::size_t size() const { return chosen_.size(); }
  [[nodiscard]] bool empty() const { return chosen_.empty(); }
  [[nodiscard]] const device& operator[](std::size_t i) const { return chosen_[i]; }
  [[nodiscard]] const std::vector<rejected_device>& rejected() const { return rejected_; }
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

 private:
  std::vector<device> chosen_;
  std::vector<rejected_device> rejected_;
  std::vector<std::string> notes_;
};

/// Several devices as one machine: the GPUs of one backend, N virtual devices of the host with any topology, or those
/// of several backends together (docs/reference/opencl.md has what a mixed machine does and what it costs).
///
/// Copies share the machine. When the last copy goes, or at close(), pending work ends as cancelled and memory is
/// returned; buffers and streams that outlive it fail with machine_closed.
/// Thread: any.
class machine {
 public:
  /// The machine that the environment and this computer give. Errors: not_found, unsupported, invalid_topology.
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
  /// Devices of one backend; 0 when it is absent.
  [[nodiscard]] int device_count(std::string_view backend) const;

  /// Every backend of this build, with the reason if it is absent.
  [[nodiscard]] const std::vector<backend_status>& backends() const;
  /// Remarks about how the machine was put together: a fallback, a device left out since two backends see it, an
  /// unknown WEFT_ variable, what a backend left out.
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
  [[nodiscard]] const std::shared_ptr<detail::machine_state>& state() const { return state_; }

  std::shared_ptr<detail::machine_state> state_;
  std::shared_ptr<void> lease_;  // the last copy of this closes the state
};

}  // namespace weft
