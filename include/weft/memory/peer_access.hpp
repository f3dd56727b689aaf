// SPDX-License-Identifier: Apache-2.0
// Who may read and write whose memory. Everything here is directional: `from` is the device that accesses, `to` the
// device that owns the memory.
#pragma once

#include "weft/core/internals.hpp"
#include "weft/core/peer_description.hpp"
#include "weft/core/topology.hpp"
#include "weft/core/unique_handle.hpp"
#include "weft/memory/span.hpp"
#include "weft/runtime/machine.hpp"
#include "weft/runtime/stream.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

/// Whether `from` can map the memory of `to`. A device is not a peer of itself. Asking changes nothing.
/// Errors: invalid_device for an unknown id in either place.
[[nodiscard]] bool can_access_peer(const machine& m, device_id from, device_id to,
                                   std::source_location where = std::source_location::current());

enum class enable_outcome : std::uint8_t { enabled, already_enabled };
enum class disable_outcome : std::uint8_t { disabled, not_enabled };

/// Sets the driver's own, uncounted state; prefer peer_access. Covers memory that exists and memory that will.
/// Errors, first that applies: invalid_argument (flags not 0, even for the device itself), invalid_device (unknown id,
///   or the device itself), peer_unsupported (no path, or data does not arrive), too_many_peers.
enable_outcome enable_peer(const machine& m, device_id from, device_id to, unsigned flags = 0,
                           std::source_location where = std::source_location::current());
/// One call ends the access, however often it was enabled. Later access by a kernel loses the device.
/// Errors: invalid_device, peer_unsupported.
disable_outcome disable_peer(const machine& m, device_id from, device_id to,
                             std::source_location where = std::source_location::current());
[[nodiscard]] bool peer_enabled(const machine& m, device_id from, device_id to,
                                std::source_location where = std::source_location::current());

/// The same in stream order, for the device of `order`: after the work before it in the stream, and before what comes
/// next. A stop request is honoured until its turn comes. That access was enabled, or ended, already is no failure.
/// Errors: at the call those of the arguments and of a pair that loses data; by the event the others, and cancelled.
event enable_peer(const stream& order, device_id to, std::stop_token stop = {},
                  std::source_location where = std::source_location::current());
event disable_peer(const stream& order, device_id to, std::stop_token stop = {},
                   std::source_location where = std::source_location::current());

namespace detail {
struct access_lease {
  std::shared_ptr<machine_state> state;
  device_id from, to;
  bool operator==(const access_lease& other) const {
    return state == other.state && from == other.from && to == other.to;
  }
};
struct access_traits {
  using type = access_lease;
  static type none() { return {}; }
  static void release(type& lease) noexcept;
};
}  // namespace detail

/// A counted lease over peer access: the first enables, the last waits for both devices and disables. Access that
/// somebody else enabled is used, and never disabled.
/// Thread: any; the object itself one at a time.
class peer_access {
 public:
  peer_access() = default;
  /// Errors: as enable_peer, but not for a pair whose data does not arrive: its copies go another way, and kernels get
  ///   none of its memory.
  peer_access(const machine& m, device_id from, device_id to,
              std::source_location where = std::source_location::current())
      : peer_access(detail::state_of(m), from, to, where) {}

  [[nodiscard]] device_id from() const { return lease_.get().from; }
  [[nodiscard]] device_id to() const { return lease_.get().to; }
  explicit operator bool() const { return static_cast<bool>(lease_); }
  void end() { lease_.reset(); }

 private:
  friend struct detail::internals;
  peer_access(const std::shared_ptr<detail::machine_state>& state, device_id from, device_id to,
              std::source_location where = std::source_location::current());
  unique_handle<detail::access_traits> lease_;
};

/// Leases for every ordered pair that offers access, as far as the devices' tables of peers hold them: the usual start
/// of a program that uses all devices as one. Copies between the other pairs are staged.
[[nodiscard]] std::vector<peer_access> enable_all_peers(const machine& m,
                                                        std::source_location where = std::source_location::current());

/// The link that moves data between two devices; `device_memory` between parts of one GPU.
enum class peer_link : std::uint8_t {
  none,
  pcie,
  nvlink,
  infinity_fabric,
  xe_link,
  unified_memory,
  unknown,
  device_memory
};
[[nodiscard]] std::string_view to_string(peer_link link);

/// All that is known of one directed pair. What is not known is empty, with the reason in `why`.
struct peer_capability {
  device_id from;
  device_id to;
  bool supported = false;
  bool enabled = false;   // now, whoever enabled it
  bool can_copy = false;  // copies are direct even without access
  peer_link link = peer_link::none;
  std::optional<double> bytes_per_second;
  std::optional<std::chrono::nanoseconds> latency;
  bool atomics = false;
  bool native_atomics = false;
  bool partial_native_atomics = false;  // some operations only: peer_atomics() tells which
  bool array_access = false;            // images and textures of the peer can be used as well
  std::optional<int> performance_rank;  // 0 is best
  std::optional<int> native_rank;       // as the vendor counts it
  int hops = 0;
  bool measured = false;  // bandwidth and latency: by measure_peers(), else published
  bool trusted = true;    // false once data of `from` was found not to arrive: machine_options::verify_peers
  std::string why;
};

/// Empty for a device and itself. Errors: invalid_device.
[[nodiscard]] std::optional<peer_capability> capability_between(
    const machine& m, device_id from, device_id to, std::source_location where = std::source_location::current());

/// How kernels of `from` carry out atomic operations on the memory of `to` natively, one answer for each operation;
/// none for what is made of others, or is not possible at all.
/// Errors: invalid_device (unknown, or the device itself); invalid_argument for no operation, or an unknown one.
[[nodiscard]] std::vector<atomic_support> peer_atomics(const machine& m, device_id from, device_id to,
                                                       std::span<const atomic_operation> operations,
                                                       std::source_location where = std::source_location::current());

struct peer_check {
  device_id from;
  device_id to;
  bool offered = false;
  bool arrived = false;
  std::string why;  // first bad byte, expected, got; or what was not tried or failed, and why
  peer_outcome outcome = peer_outcome::not_tried;
};

/// Tries every ordered pair that offers access: copies, and stores and loads of a kernel, in allocations, pools and
/// blocks as far as the driver offers them. A pair that loses data, or over which a copy or a kernel fails, is not used
/// from then on, as with machine_options::verify_peers, which does the same for the pairs that a program uses. A pair
/// that could not be tried, or whose check did not end within 30 s, is left as it was. Cached: `again` repeats it.
/// After `stop` it returns the pairs tried so far.
[[nodiscard]] std::vector<peer_check> verify_peers(const machine& m, bool again = false,
                                                   const std::stop_token& stop = {},
                                                   std::source_location where = std::source_location::current());

/// Measures bandwidth and latency of every directed pair that offers access or direct copies, as far as the devices'
/// tables of peers hold them, and of the paths through the host, on the machine's clock; fills capability_between() and
/// the routes. After `stop` it leaves the rest as it is.
void measure_peers(const machine& m, bytes size = bytes{std::uint64_t{16} << 20}, const std::stop_token& stop = {},
                   std::source_location where = std::source_location::current());

namespace detail {
struct peer_view {
  std::shared_ptr<machine_state> state;
  device_id by;
  void* mapped = nullptr;
  bool operator==(const peer_view& other) const { return mapped == other.mapped && by == other.by; }
};
struct peer_view_traits {
  using type = peer_view;
  static type none() { return {}; }
  static void release(type& view) noexcept;
};
}  // namespace detail

/// Raw form: an address through which `by` reads and writes exactly these bytes. Needs enabled access and does not
/// enable it. Errors: invalid_argument (null, zero), invalid_device, not_enabled, peer_unsupported, out_of_range,
///   not_found; wrong_device when the memory is not of `owner`; peer_unsupported also where data does not arrive.
[[nodiscard]] void* map_peer_memory(const machine& m, void* address, device_id owner, device_id by, bytes size,
                                    std::source_location where = std::source_location::current());
/// Errors: not_found for an address that is not mapped or already unmapped; wrong_device for another device's.
void unmap_peer_memory(const machine& m, void* mapped, device_id by,
                       std::source_location where = std::source_location::current());

/// A mapping that is made in stream order.
class peer_mapping_in_stream {
 public:
  peer_mapping_in_stream(event done, std::shared_ptr<const std::atomic<void*>> address)
      : done_(std::move(done)), address_(std::move(address)) {}

  [[nodiscard]] const event& done() const { return done_; }
  /// Null until it is made; functions that come later in the stream see it.
  [[nodiscard]] void* address() const { return address_->load(std::memory_order_acquire); }

 private:
  event done_;
  std::shared_ptr<const std::atomic<void*>> address_;
};

/// The raw forms in stream order, for the device of `order`. Access may be enabled earlier in the same stream.
/// Errors of mapping: at the call invalid_argument, invalid_device, not_found, wrong_device, and peer_unsupported where
///   data does not arrive; by the event the others, and cancelled. All of unmapping come by the event.
[[nodiscard]] peer_mapping_in_stream map_peer_memory(const stream& order, void* address, device_id owner, bytes size,
                                                     std::stop_token stop = {},
                                                     std::source_location where = std::source_location::current());
event unmap_peer_memory(const stream& order, void* mapped, std::stop_token stop = {},
                        std::source_location where = std::source_location::current());

/// A range of one device's memory made visible to another, for kernels of that device; unmapped when it ends.
template <class T>
class peer_mapping {
 public:
  peer_mapping() = default;
  peer_mapping(const machine& m, device_span<T> range, device_id by,
               std::source_location where = std::source_location::current())
      : view_(detail::peer_view{detail::state_of(m), by,
                                map_peer_memory(m, const_cast<std::remove_cv_t<T>*>(range.data()), range.on(), by,
                                                range.size_bytes(), where)}),
        count_(range.size()) {}

  /// The range as `by` sees it.
  [[nodiscard]] device_span<T> span() const {
    return detail::make<device_span<T>>(view_.get().state.get(), view_.get().by, static_cast<T*>(view_.get().mapped),
                                        view_ ? count_ : 0, memory_kind::mapped);
  }

 private:
  unique_handle<detail::peer_view_traits> view_;
  std::size_t count_ = 0;
};

struct peer_pair {
  device_id from;
  device_id to;
  bool supported = false;
};
/// Every ordered pair of different devices: N (N − 1) entries, by from and then to.
[[nodiscard]] std::vector<peer_pair> peer_topology(const machine& m);

}  // namespace weft
