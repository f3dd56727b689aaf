// SPDX-License-Identifier: Apache-2.0
// The one virtual class of weft: what a driver must offer, in seven groups. Plain values go in, result<T> comes out,
// nothing throws. What a backend cannot do keeps the default body, which answers `unsupported` with the reason.
// src/backends/null is the smallest backend there is; the conformance suite says whether yours is right.
#pragma once

#include "weft/backend/event_record.hpp"
#include "weft/backend/kernel_code.hpp"
#include "weft/core/bytes.hpp"
#include "weft/core/capability.hpp"
#include "weft/core/ids.hpp"
#include "weft/core/result.hpp"
#include "weft/core/topology.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

enum class backend_kind : std::uint8_t { host, cuda, hip, opencl, null };
[[nodiscard]] std::string_view to_string(backend_kind kind);

// ---- discover -------------------------------------------------------------------------------------------------------

struct device_description {
  std::string name;
  backend_kind kind = backend_kind::host;
  std::string uuid;
  std::string pci_address;  // empty when it has none
  std::optional<int> numa_node;
  bytes memory;
  int compute_units = 0;
  capability capabilities = capability::none;
  bool simulated = false;
};

struct memory_holder {
  const void* base = nullptr;
  bytes size;
};

struct memory_use {
  bytes total;
  bytes free;
  std::vector<memory_holder> largest;  // at most three, largest first
};

/// What is known of one directed pair: may `from` read and write the memory of `to`?
struct peer_description {
  bool can_access = false;
  link_kind kind = link_kind::unknown;
  std::optional<int> performance_rank;  // 0 is best
  std::optional<int> native_rank;       // the vendor's own number, unchanged
  int hops = 0;                         // links passed; 0 when there is no path
  bool atomics = false;
  bool native_atomics = false;
  std::optional<double> bytes_per_second;  // of the link, as published; never invented
  std::optional<std::chrono::nanoseconds> latency;
  std::string why;  // why access or a figure is absent
};

// ---- allocate -------------------------------------------------------------------------------------------------------

enum class memory_kind : std::uint8_t { device, pinned, unified, adopted, mapped };
[[nodiscard]] std::string_view to_string(memory_kind kind);

/// The allocation that an address lies in.
struct memory_description {
  void* base = nullptr;
  bytes size;
  memory_kind kind = memory_kind::device;
  device_id device;           // owner; for mapped memory, the device that may use this address
  std::uint64_t pending = 0;  // operations submitted with it that have not ended
};

enum class memory_advice : std::uint8_t { read_mostly, preferred_location, accessed_by, none };

// ---- order, move, run -----------------------------------------------------------------------------------------------

/// Names a stream inside its backend. 0 is no stream.
enum class stream_handle : std::uint64_t { none = 0 };

/// A box of bytes: `width` contiguous bytes, `height` rows a pitch apart, `depth` slices a slice apart.
struct copy_shape {
  std::uint64_t width = 0;
  std::uint64_t height = 1;
  std::uint64_t depth = 1;
  std::uint64_t dst_pitch = 0, dst_slice = 0;
  std::uint64_t src_pitch = 0, src_slice = 0;

  /// Bytes that are copied; the largest number when that is more than 64 bits hold.
  [[nodiscard]] std::uint64_t total() const { return times(times(width, height), depth); }
  /// Bytes from the first to one past the last that are touched on a side with this pitch and slice.
  [[nodiscard]] std::uint64_t extent(std::uint64_t pitch, std::uint64_t slice) const {
    return total() == 0 ? 0 : plus(plus(times(depth - 1, slice), times(height - 1, pitch)), width);
  }

 private:
  // Saturating: a shape from outside must not wrap around into one that fits.
  static std::uint64_t times(std::uint64_t a, std::uint64_t b) {
    std::uint64_t product = 0;
    return __builtin_mul_overflow(a, b, &product) ? ~std::uint64_t{0} : product;
  }
  static std::uint64_t plus(std::uint64_t a, std::uint64_t b) {
    std::uint64_t sum = 0;
    return __builtin_add_overflow(a, b, &sum) ? ~std::uint64_t{0} : sum;
  }
};

/// One copy that the backend does in one step.
struct copy_request {
  void* dst = nullptr;
  const void* src = nullptr;
  bool dst_is_host = false;  // may lie in no allocation; without it an unknown address is an error
  bool src_is_host = false;
  copy_shape shape;
  std::stop_token stop;
  bool wait = false;  // the caller waits: the backend may do it on this thread and return a null event
};

/// The two steps of a copy through a slot, in which the piece lies without gaps.
[[nodiscard]] std::pair<copy_request, copy_request> two_steps(const copy_request& piece, void* slot);

struct fill_request {
  void* dst = nullptr;
  std::uint64_t count = 0;  // patterns
  std::array<std::byte, 16> pattern{};
  std::uint32_t pattern_size = 1;  // 1, 2, 4, 8 or 16
  std::stop_token stop;
};

struct launch_request {
  std::shared_ptr<const kernel_code> kernel;
  kernel_range range;
  std::vector<kernel_argument> arguments;
  std::stop_token stop;
};

// ---- watch ----------------------------------------------------------------------------------------------------------

/// What has crossed the links of the backend's topology since it was opened, by link index.
struct link_traffic {
  std::vector<std::uint64_t> bytes_on_link;
};

/// Messages that one thread counts in a word of its own: they need no command, and so pass no backend.
struct traffic_source {
  device_id from, to;                    // none: the host
  const std::uint64_t* count = nullptr;  // messages so far; read atomically
  std::uint64_t bytes_each = 0;
};

// ---------------------------------------------------------------------------------------------------------------------

/// A driver. Device ids are those of the machine: this backend's devices are first_device() … + devices().size() − 1.
/// Thread: any, for every function.
class backend {
 public:
  backend() = default;
  backend(const backend&) = delete;
  backend& operator=(const backend&) = delete;
  virtual ~backend() = default;

  // discover: looking at the machine starts nothing on it.
  [[nodiscard]] virtual backend_kind kind() const noexcept = 0;
  [[nodiscard]] virtual std::span<const device_description> devices() const noexcept = 0;
  [[nodiscard]] virtual device_id first_device() const noexcept = 0;
  [[nodiscard]] virtual const topology& layout() const noexcept = 0;
  [[nodiscard]] virtual result<memory_use> memory(device_id device) noexcept;
  [[nodiscard]] virtual result<peer_description> peer(device_id from, device_id to) noexcept;

  // allocate: addresses are values that the host must not follow, except for pinned, unified and adopted memory.
  [[nodiscard]] virtual result<void*> allocate(device_id device, bytes size, memory_kind kind) noexcept;
  /// The memory goes back once work submitted before has ended. Errors: not_found for what was not allocated here.
  [[nodiscard]] virtual result<void> release(void* base) noexcept;
  [[nodiscard]] virtual result<memory_description> find(const void* address) noexcept;
  /// Registers memory that the caller owns, so that the device may use it. Ended by release(), which frees nothing.
  [[nodiscard]] virtual result<void> adopt(device_id device, void* base, bytes size) noexcept;
  [[nodiscard]] virtual result<event_ref> prefetch(stream_handle stream, void* base, bytes size) noexcept;
  [[nodiscard]] virtual result<void> advise(void* base, bytes size, memory_advice advice, device_id device) noexcept;

  /// Where the host's own loads and stores reach the bytes as device `by` does, coherent with the devices'. The memory
  /// stays while anybody holds this, released or not, as long as the backend exists. Not offered where the memory of a
  /// device is reached by commands only. Errors: not_found, out_of_range, illegal_access without peer access.
  [[nodiscard]] virtual result<std::shared_ptr<std::byte>> host_window(device_id by, void* address,
                                                                       bytes size) noexcept;

  // share: the raw, uncounted state of the driver. Leases are made above.
  [[nodiscard]] virtual result<void> enable_peer(device_id from, device_id to) noexcept;
  [[nodiscard]] virtual result<void> disable_peer(device_id from, device_id to) noexcept;
  [[nodiscard]] virtual bool peer_enabled(device_id from, device_id to) noexcept;
  /// Changes whenever peer_enabled() may have changed: what was computed from it holds as long as this stays.
  [[nodiscard]] virtual std::uint64_t peer_epoch() noexcept;
  [[nodiscard]] virtual result<void*> map_peer(device_id by, void* address, bytes size) noexcept;
  [[nodiscard]] virtual result<void> unmap_peer(device_id by, void* mapped) noexcept;

  // order: work in one stream runs in the order of submission; a failed operation fails what follows it in its stream
  // and what waits for it elsewhere, with the first cause, until a wait has reported that cause.
  /// Failures in a stream that is not `told` surface at its events only: the library's own, behind an operation of the
  /// user.
  [[nodiscard]] virtual result<stream_handle> create_stream(device_id device, int priority, bool told = true) noexcept;
  virtual void destroy_stream(stream_handle stream) noexcept;
  /// The device's stream for work that names none.
  [[nodiscard]] virtual result<stream_handle> default_stream(device_id device) noexcept;
  [[nodiscard]] virtual result<event_ref> record(stream_handle stream) noexcept;
  [[nodiscard]] virtual result<void> wait_event(stream_handle stream, const event_ref& event) noexcept;
  /// An event that the host completes with open_gate(): what waits for it in a stream waits for the host.
  [[nodiscard]] virtual result<event_ref> create_gate() noexcept;
  virtual void open_gate(const event_ref& gate, std::shared_ptr<const error> cause) noexcept;
  [[nodiscard]] virtual wait_outcome wait(event_record& event, wait_deadline deadline,
                                          const std::stop_token& stop) noexcept;
  [[nodiscard]] virtual bool ready(event_record& event) noexcept;
  /// True when all work of the stream has ended. Never waits.
  [[nodiscard]] virtual bool idle(stream_handle stream) noexcept;
  /// Idle, and without a failure that would skip what comes next: nothing to be ordered after. Never waits.
  [[nodiscard]] virtual bool settled(stream_handle stream) noexcept;
  /// Waits for all work of the stream; gives the first cause that no wait has reported, and forgets it.
  [[nodiscard]] virtual result<wait_outcome> synchronize(stream_handle stream, wait_deadline deadline,
                                                         const std::stop_token& stop) noexcept;
  /// Waits for what was submitted to the device, and reports no failure. False when `deadline` came first.
  [[nodiscard]] virtual bool drain(device_id device, wait_deadline deadline) noexcept;
  [[nodiscard]] virtual std::vector<stream_handle> streams_of(device_id device) noexcept;
  [[nodiscard]] virtual std::chrono::nanoseconds now() noexcept;

  // move
  [[nodiscard]] virtual result<event_ref> copy(stream_handle stream, const copy_request& request) noexcept;
  /// Many copies as one operation, not ordered among themselves.
  [[nodiscard]] virtual result<event_ref> copy_batch(stream_handle stream,
                                                     std::span<const copy_request> requests) noexcept;
  /// True where copy_through() is worth asking for.
  [[nodiscard]] virtual bool copies_through() noexcept;
  /// A copy by way of `slot`, both steps as one operation, so that a piece crosses no cache but that of one core. Where
  /// it is not offered the caller makes the steps itself, in two streams.
  [[nodiscard]] virtual result<event_ref> copy_through(stream_handle stream, void* slot,
                                                       const copy_request& request) noexcept;
  [[nodiscard]] virtual result<event_ref> fill(stream_handle stream, const fill_request& request) noexcept;

  // run
  [[nodiscard]] virtual result<event_ref> launch(stream_handle stream, const launch_request& request) noexcept;
  /// Runs a host function in stream order. The function must not call the library.
  [[nodiscard]] virtual result<event_ref> call(stream_handle stream, std::function<result<void>()> function) noexcept;

  // watch
  [[nodiscard]] virtual link_traffic traffic() noexcept;
  /// Adds what moves without commands to the account; `count` is read by traffic(). Its id, 0 where no account is kept.
  [[nodiscard]] virtual std::uint64_t watch_traffic(const traffic_source& source) noexcept;
  /// Reads `count` a last time and keeps the sum.
  virtual void unwatch_traffic(std::uint64_t id) noexcept;
  /// The cause if the device is lost.
  [[nodiscard]] virtual std::shared_ptr<const error> lost(device_id device) noexcept;
  /// Brings a lost device back: its allocations, peers and failures are gone.
  [[nodiscard]] virtual result<void> reset(device_id device) noexcept;
  /// True on a thread that runs this backend's work, where nothing may wait for that work.
  [[nodiscard]] virtual bool on_worker() noexcept;
  /// Ends everything: pending work completes as cancelled, threads are joined, memory is returned. Later calls fail
  /// with machine_closed.
  virtual void close() noexcept = 0;

 protected:
  [[nodiscard]] error not_offered(std::string_view what) const;
};

}  // namespace weft
