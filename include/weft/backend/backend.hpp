// SPDX-License-Identifier: Apache-2.0
// The one virtual class of weft: what a driver must offer, in seven groups. Plain values go in, result<T> comes out,
// nothing throws but what gives a list, which throws std::bad_alloc where there is no memory for it. What a backend
// cannot do keeps the default body, which answers `unsupported` with the reason. src/backends/null is the smallest
// backend there is; the conformance suite says whether yours is right.
#pragma once

#include "weft/backend/event_record.hpp"
#include "weft/backend/kernel_code.hpp"
#include "weft/backend/order_violation.hpp"
#include "weft/backend/shared_bytes.hpp"
#include "weft/core/bytes.hpp"
#include "weft/core/capability.hpp"
#include "weft/core/ids.hpp"
#include "weft/core/result.hpp"
#include "weft/core/topology.hpp"
#include "weft/core/trace.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

/// `mixed` is several of the others as one; no device is of it.
enum class backend_kind : std::uint8_t { host, cuda, hip, opencl, null, mixed };
[[nodiscard]] std::string_view to_string(backend_kind kind);

// ---- discover -------------------------------------------------------------------------------------------------------

struct device_description {
  std::string name;
  backend_kind kind = backend_kind::host;
  std::string uuid;
  std::string pci_address;  // empty when it has none
  std::string driver;       // the computer's, with its version; empty for what a program brought itself
  std::optional<int> numa_node;
  bytes memory;
  int compute_units = 0;
  bool own_compute_units = true;  // false: parts of one device run on the same, and the number is a share
  capability capabilities = capability::none;
  bool simulated = false;
  /// Kernels are compiled for images of rings (WEFT_RING_BY_COMMANDS), and take none that lies in memory.
  bool rings_by_commands = false;
  std::string part_of;  // the uuid of the whole device where this is one of several parts of it; else empty
};

struct memory_use {
  bytes total;
  bytes free;
};

/// How a device is at this moment. What no sensor tells is empty.
struct device_health {
  std::optional<double> celsius;
  std::optional<double> watts;
  std::optional<double> busy;  // share of the last moments in which a kernel ran, 0 to 1
  /// Why its clocks are lower than they could be; no reason: they are not.
  std::optional<std::vector<std::string>> held_down_by;
  std::optional<std::uint64_t> memory_errors;  // that could not be corrected, since the driver was loaded
  std::optional<std::uint64_t> link_errors;    // to peers: repeats, recoveries, wrong checksums
  std::optional<int> pcie_generation;          // of the bus as it runs now, which rests at a lower one
  std::optional<int> pcie_lanes;
};

/// What is known of one directed pair: may `from` read and write the memory of `to`?
struct peer_description {
  bool can_access = false;
  /// The driver copies from one to the other by one command, access or not, and no worse than by way of the host. CUDA
  /// copies between any two devices, but stages where its peer attribute says no: false there.
  bool can_copy = false;
  link_kind kind = link_kind::unknown;
  std::optional<int> performance_rank;  // 0 is best
  std::optional<int> native_rank;       // the vendor's own number, unchanged
  int hops = 0;                         // links passed; 0 when there is no path
  bool atomics = false;
  bool native_atomics = false;             // all that kernels may use
  bool partial_native_atomics = false;     // some of them: peer_atomics() tells which
  bool array_access = false;               // images and textures of the peer can be used as well
  std::optional<double> bytes_per_second;  // of the link, as published; never invented
  std::optional<std::chrono::nanoseconds> latency;
  std::string why;  // why access or a figure is absent
};

/// A way in which data goes from one device into the memory of another. A driver may get one of them wrong and the
/// others right.
enum class peer_way : std::uint8_t {
  commands,     // a copy command between two allocations
  allocations,  // stores and loads of a kernel in an allocation
  pools,        // a copy, stores and loads in memory of a pool, by the right to it
  blocks,       // a copy, stores and loads in a mapped block, by the right to it
};
[[nodiscard]] std::string_view to_string(peer_way way);
inline constexpr std::size_t peer_way_count = 4;

/// Whether what was written over a pair was there when it was read back.
struct peer_delivery {
  bool arrived = true;
  std::string why;  // the first bad byte; or what could not be tried, and why
};

/// An atomic operation of a kernel on the memory of a peer.
enum class atomic_operation : std::uint8_t {
  integer_add,
  integer_min,
  integer_max,
  integer_increment,
  integer_decrement,
  bit_and,
  bit_or,
  bit_xor,
  exchange,
  compare_exchange,
  float_add,
  float_min,
  float_max,
};
[[nodiscard]] std::string_view to_string(atomic_operation operation);
inline constexpr std::size_t atomic_operation_count = 13;

/// In which forms a link carries an atomic operation by itself; a set of these is a bit mask.
enum class atomic_support : std::uint32_t {
  none = 0,
  signed_integers = 1U << 0,
  unsigned_integers = 1U << 1,
  reduction = 1U << 2,  // without giving the old value back
  scalar_32 = 1U << 3,
  scalar_64 = 1U << 4,
  scalar_128 = 1U << 5,
  vector_4x32 = 1U << 6,
};
[[nodiscard]] constexpr atomic_support operator|(atomic_support a, atomic_support b) {
  return static_cast<atomic_support>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}
[[nodiscard]] constexpr bool has_all(atomic_support have, atomic_support wanted) {
  return (static_cast<std::uint32_t>(have) & static_cast<std::uint32_t>(wanted)) == static_cast<std::uint32_t>(wanted);
}

// ---- allocate -------------------------------------------------------------------------------------------------------

enum class memory_kind : std::uint8_t { device, pinned, unified, adopted, mapped, block };
[[nodiscard]] std::string_view to_string(memory_kind kind);

/// The allocation that an address lies in.
struct memory_description {
  void* base = nullptr;
  bytes size;
  memory_kind kind = memory_kind::device;
  device_id device;           // owner; for mapped memory, the device that may use this address; for a block, its device
  std::uint64_t pending = 0;  // operations submitted with it that have not ended
};

enum class memory_advice : std::uint8_t { read_mostly, preferred_location, accessed_by, none };

// ---- share ----------------------------------------------------------------------------------------------------------

// blocks and mappings

/// Names memory of a device that has no address of its own. 0 is no block.
enum class block_id : std::uint64_t { none = 0 };

/// What a device may do with a mapping.
enum class access_right : std::uint8_t { none, read, read_write };
[[nodiscard]] std::string_view to_string(access_right right);

struct device_right {
  device_id device;
  access_right right = access_right::none;
};

/// Sizes and addresses of blocks are multiples of `minimum`; those of `recommended` run best.
struct block_granularity {
  bytes minimum;
  bytes recommended;
};

struct block_description {
  device_id device;  // whose memory it is
  bytes size;
  bool shareable = false;
  bool imported = false;  // made by another process, and counted there
};

// multicast

/// Names a multicast object of a driver. 0 is none.
enum class multicast_id : std::uint64_t { none = 0 };

/// How a reading joins the replicas.
enum class multicast_reduction : std::uint8_t { sum, min, max };

// handles of memory

/// Whose rules memory follows that is shared by a handle: that of allocations, or that of a pool.
enum class handle_family : std::uint8_t { allocation, pool };

/// What open_memory() made.
struct opened_memory_description {
  void* address = nullptr;
  bytes size;       // of what the handle names, from the address on
  device_id owner;  // whose memory it is
};

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
  bool wait = false;             // the caller waits: the backend may do it on this thread and return a null event
  std::source_location where{};  // the caller's; for check modes
};

/// The two steps of a copy through a slot, in which the piece lies without gaps.
[[nodiscard]] std::pair<copy_request, copy_request> two_steps(const copy_request& piece, void* slot);

struct fill_request {
  void* dst = nullptr;
  std::uint64_t count = 0;  // patterns
  std::array<std::byte, 16> pattern{};
  std::uint32_t pattern_size = 1;  // 1, 2, 4, 8 or 16
  std::stop_token stop;
  std::source_location where{};
};

/// What a stream waits for in a word w of memory, given a value v of the same size. Both are unsigned.
enum class word_comparison : std::uint8_t {
  greater_equal,  // w - v, as a signed number, is not negative: cyclic, so that a counter may wrap around
  equal,          // w == v
  bits_any,       // (w & v) != 0
  nor,            // ~(w | v) != 0
};
[[nodiscard]] std::string_view to_string(word_comparison comparison);

/// A word of memory that a stream writes, or waits for.
struct word_request {
  void* address = nullptr;
  std::uint32_t size = 4;  // 4 or 8; the address is a multiple of it
  std::uint64_t value = 0;
  word_comparison comparison = word_comparison::greater_equal;  // of a wait
};

/// What a kernel is taken to cost on a virtual clock, on a device of speed 1. A model, never a measurement.
/// Units: seconds.
struct kernel_cost {
  double seconds = 0;  // of every piece, whatever its size
  double seconds_per_item = 0;
};

struct launch_request {
  std::shared_ptr<const kernel_code> kernel;
  kernel_range range;
  std::vector<kernel_argument> arguments;
  std::stop_token stop;
  std::optional<kernel_cost> model;  // virtual clock; without it the bytes of the arguments say what it costs
  std::uint64_t launch = 0;          // number of the launch over devices that this is a piece of; for the trace
  std::source_location where{};
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
  /// What was left out or is not as it was asked for when this was opened, and why. They stay as long as the backend.
  [[nodiscard]] virtual std::span<const std::string> notes() const noexcept;
  [[nodiscard]] virtual result<memory_use> memory(device_id device) noexcept;
  [[nodiscard]] virtual result<peer_description> peer(device_id from, device_id to) noexcept;
  /// Starts nothing on the device. Errors: unsupported where nothing tells.
  [[nodiscard]] virtual result<device_health> health(device_id device) noexcept;

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
  /// Writes a pattern from `from` into memory of `to` and reads it back, in a few microseconds: it waits for no other
  /// work, and neither traffic(), a virtual clock nor the count of an injected fault sees it. Not offered where only
  /// commands can tell: the caller then gives them. Errors: invalid_device; unsupported; out_of_memory.
  [[nodiscard]] virtual result<peer_delivery> verify_peer(device_id from, device_id to, peer_way way) noexcept;
  /// How the pair carries one operation natively; none where it is made of others, or not at all.
  [[nodiscard]] virtual result<atomic_support> peer_atomics(device_id from, device_id to,
                                                            atomic_operation operation) noexcept;

  // share, blocks and mappings: memory, addresses and rights are made apart from each other. Sizes and addresses are
  // multiples of the granularity. Peer access neither gives these rights nor takes them.
  [[nodiscard]] virtual result<block_granularity> granularity(device_id device) noexcept;
  /// One reference. Errors: invalid_argument (size), unsupported (not shareable here), out_of_memory.
  [[nodiscard]] virtual result<block_id> create_block(device_id device, bytes size, bool shareable) noexcept;
  [[nodiscard]] virtual result<void> retain_block(block_id block) noexcept;
  /// The memory goes back when neither references nor mappings are left.
  [[nodiscard]] virtual result<void> release_block(block_id block) noexcept;
  [[nodiscard]] virtual result<block_description> describe_block(block_id block) noexcept;
  /// Address space without memory. `alignment` is 0 or a power of two; `hint` is a wish.
  [[nodiscard]] virtual result<void*> reserve(bytes size, bytes alignment, void* hint) noexcept;
  /// Exactly what reserve() gave. Errors: not_found; invalid_argument while anything is mapped in it, or for a part.
  [[nodiscard]] virtual result<void> free_reservation(void* base, bytes size) noexcept;
  /// Puts the first `size` bytes of a block at an address inside one reservation where nothing is mapped; nobody has
  /// any right to it. Errors: invalid_argument, not_found; not_ready while work uses what was mapped there before.
  [[nodiscard]] virtual result<void> map_block(void* address, bytes size, block_id block) noexcept;
  /// One or several whole mappings that touch. Not ordered with work: what has not run yet loses its right.
  [[nodiscard]] virtual result<void> unmap_block(void* address, bytes size) noexcept;
  /// All or nothing, over one or several whole mappings that touch; devices that are not listed keep what they have.
  /// Errors: invalid_argument, invalid_device; peer_unsupported where a device cannot reach the block's.
  [[nodiscard]] virtual result<void> set_access(void* address, bytes size,
                                                std::span<const device_right> rights) noexcept;
  /// Errors: not_found where nothing is mapped.
  [[nodiscard]] virtual result<access_right> access_of(device_id device, const void* address) noexcept;
  /// The block behind any address of a mapping, with one more reference.
  [[nodiscard]] virtual result<block_id> block_of(const void* address) noexcept;
  /// A new descriptor each time; the caller closes it. Errors: not_found; invalid_argument for a block that was not
  /// made shareable.
  [[nodiscard]] virtual result<int> export_block(block_id block) noexcept;
  /// One reference. The descriptor stays the caller's. `device` is the one whose memory it is taken to be. Errors:
  /// corrupt, incompatible; resource_exhausted.
  [[nodiscard]] virtual result<block_id> import_block(device_id device, int descriptor) noexcept;

  // share, multicast: one memory on each of several devices, written and read as one. No order is implied among
  // several stores.
  [[nodiscard]] virtual result<bytes> multicast_granularity(std::span<const device_id> team) noexcept;
  [[nodiscard]] virtual result<multicast_id> create_multicast(std::size_t devices, bytes size) noexcept;
  virtual void release_multicast(multicast_id group) noexcept;
  [[nodiscard]] virtual result<void> add_multicast_device(multicast_id group, device_id device) noexcept;
  /// The whole of the object's size from the start of a block of a device that was added. Errors: not_ready before
  /// every device has been added: drivers block here without end, so callers wait first.
  [[nodiscard]] virtual result<void> bind_multicast(multicast_id group, block_id block) noexcept;
  [[nodiscard]] virtual result<void> unbind_multicast(multicast_id group, device_id device) noexcept;
  /// Writes to every replica. Errors: not_ready before each device has bound its block.
  [[nodiscard]] virtual result<event_ref> multicast_store(stream_handle stream, multicast_id group, bytes offset,
                                                          const void* src, bytes size) noexcept;
  /// Joins `count` elements of all replicas into `dst`.
  [[nodiscard]] virtual result<event_ref> multicast_load(stream_handle stream, void* dst, multicast_id group,
                                                         bytes offset, std::size_t count, element_type type,
                                                         multicast_reduction how) noexcept;

  // share, handles of memory: between processes, 64 bytes over any channel. What is exported must stay until all who
  // opened it have closed it; a backend that can tell says so where it is used.
  /// Memory that has no neighbours in its pages, which an export would hand over with it. Ended by release().
  /// That of a pool is its device's alone at first, whatever peer access there is: see set_memory_access().
  [[nodiscard]] virtual result<void*> allocate_shareable(device_id device, bytes size, handle_family family) noexcept;
  /// Names `size` bytes from `address` on, which may lie inside an allocation; the same handle each time, another one
  /// once the memory was freed. Errors: not_found; out_of_range; invalid_argument for what cannot be exported (memory
  /// with neighbours, mappings, blocks, host memory, memory of the other family); resource_exhausted.
  [[nodiscard]] virtual result<shared_bytes> export_memory(const void* address, bytes size,
                                                           handle_family family) noexcept;
  /// The memory behind a handle as a device may use it; without a device, that which owns it. Opened twice on one
  /// device it has one address, and is closed twice. Other devices get no right by it. Errors: corrupt, incompatible;
  /// invalid_argument, native 201, for a handle of this process; closed, peer_dead, timed_out for an exporter that has
  /// freed it, is gone, or does not answer within `limit`; peer_unsupported; resource_exhausted.
  [[nodiscard]] virtual result<opened_memory_description> open_memory(std::optional<device_id> device,
                                                                      const shared_bytes& handle, handle_family family,
                                                                      std::chrono::nanoseconds limit) noexcept;
  /// Any address of it. The memory goes once work submitted with it has ended. Errors: not_found; invalid_argument for
  /// memory of this process.
  [[nodiscard]] virtual result<void> close_memory(void* address) noexcept;
  /// Which devices may use memory of a pool, or opened memory, in place of peer access; those that are not listed keep
  /// what they have. Errors: not_found; invalid_argument for other memory; invalid_device, and for the owner, whose
  /// right cannot be taken; peer_unsupported.
  [[nodiscard]] virtual result<void> set_memory_access(void* address, std::span<const device_right> rights) noexcept;
  /// What a device may do with memory, by whichever rule it follows. Errors: not_found.
  [[nodiscard]] virtual result<access_right> memory_access(device_id device, const void* address) noexcept;

  // order: work in one stream runs in the order of submission; a failed operation fails what follows it in its stream
  // and what waits for it elsewhere, with the first cause, until a wait has reported that cause.
  /// Failures in a stream that is not `told` surface at its events only: the library's own, behind an operation of the
  /// user.
  [[nodiscard]] virtual result<stream_handle> create_stream(device_id device, int priority, bool told = true) noexcept;
  /// A stream over a queue of the driver that the program made and keeps until destroy_stream(): what both put into it
  /// runs in the order in which it came there, and events and waits of the stream cover both.
  /// Errors: wrong_device; unsupported.
  [[nodiscard]] virtual result<stream_handle> adopt_stream(device_id device, void* driver_queue) noexcept;
  /// The driver's queue of a stream, for other libraries to put work into; it stays until destroy_stream(), or reset()
  /// of its device. What is held back, behind a host function or an event of another backend, is not in it yet.
  /// Errors: not_found; unsupported.
  [[nodiscard]] virtual result<void*> driver_queue(stream_handle stream) noexcept;
  virtual void destroy_stream(stream_handle stream) noexcept;
  /// The device's stream for work that names none.
  [[nodiscard]] virtual result<stream_handle> default_stream(device_id device) noexcept;
  [[nodiscard]] virtual result<event_ref> record(stream_handle stream) noexcept;
  [[nodiscard]] virtual result<void> wait_event(stream_handle stream, const event_ref& event) noexcept;
  /// Writes the word by one store, in order: who sees the value, on any device or the host, sees what the stream did
  /// before. Errors: invalid_argument (size, alignment); not_found; out_of_range; unsupported. Without a right to the
  /// memory the event fails as a kernel with such an argument does.
  [[nodiscard]] virtual result<event_ref> write_value(stream_handle stream, const word_request& request) noexcept;
  /// Later operations of the stream start once the word compares, whoever writes it, and see what its writer had done.
  /// Where the value does not come this ends with close(), and with the loss or the reset of the device, as work that
  /// has not run does; a driver that cannot take a wait back then finds a value that compares in the word. Errors:
  /// those of write_value(); invalid_argument for a comparison that no word passes.
  [[nodiscard]] virtual result<event_ref> wait_value(stream_handle stream, const word_request& request) noexcept;
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
  [[nodiscard]] virtual std::vector<stream_handle> streams_of(device_id device);
  /// The clock of deadlines, events and records; on the wall clock it counts from backend_options::epoch.
  [[nodiscard]] virtual std::chrono::nanoseconds now() noexcept;

  // move
  [[nodiscard]] virtual result<event_ref> copy(stream_handle stream, const copy_request& request) noexcept;
  /// Many copies as one operation, not ordered among themselves.
  [[nodiscard]] virtual result<event_ref> copy_batch(stream_handle stream,
                                                     std::span<const copy_request> requests) noexcept;
  /// True where copy_through() is worth asking for between the memories of two devices.
  [[nodiscard]] virtual bool copies_through(device_id from, device_id to) noexcept;
  /// A copy by way of `slot`, both steps as one operation, so that a piece crosses no cache but that of one core. Where
  /// it is not offered the caller makes the steps itself, in two streams.
  [[nodiscard]] virtual result<event_ref> copy_through(stream_handle stream, void* slot,
                                                       const copy_request& request) noexcept;
  [[nodiscard]] virtual result<event_ref> fill(stream_handle stream, const fill_request& request) noexcept;

  // run
  /// Compiles and loads a kernel for a device, so that its first launch does not: a driver may do that only once all
  /// work of the device has ended. Errors: those of launch().
  [[nodiscard]] virtual result<void> prepare(device_id device, const kernel_code& kernel) noexcept;
  [[nodiscard]] virtual result<event_ref> launch(stream_handle stream, launch_request request) noexcept;
  /// Runs a host function in stream order. The function must not call the library.
  [[nodiscard]] virtual result<event_ref> call(stream_handle stream, std::function<result<void>()> function) noexcept;

  // watch
  [[nodiscard]] virtual link_traffic traffic();
  /// Adds what moves without commands to the account; `count` is read by traffic(). Its id, 0 where no account is kept.
  [[nodiscard]] virtual std::uint64_t watch_traffic(const traffic_source& source) noexcept;
  /// Reads `count` a last time and keeps the sum.
  virtual void unwatch_traffic(std::uint64_t id) noexcept;
  /// Records go to `sink` from now on, one for each operation that ends; null: nowhere.
  virtual void trace_to(std::shared_ptr<trace_sink> sink) noexcept;
  /// Accesses that nothing orders; none where nobody looks (backend_options::check_order).
  [[nodiscard]] virtual std::vector<order_violation> order_violations();
  /// Says, for check modes, that a copy begins here in `order` whose steps the caller makes in streams that are not
  /// told, and that its end will be waited for there.
  virtual void note_copy(stream_handle order, const copy_request& whole) noexcept;
  /// Says, for check modes, that memory serves anew, as that of a pool: what was done with it is over.
  virtual void note_reuse(void* base) noexcept;
  /// The cause if the device is lost.
  [[nodiscard]] virtual std::shared_ptr<const error> lost(device_id device) noexcept;
  /// Brings a lost device back: its allocations, peers and failures are gone.
  [[nodiscard]] virtual result<void> reset(device_id device) noexcept;
  /// True on a thread that runs this backend's work, where nothing may wait for that work.
  [[nodiscard]] virtual bool on_worker() noexcept;
  /// Ends all work as close() does, and keeps memory, for who closes several backends that use each other's.
  virtual void end_work() noexcept {}
  /// Ends everything: pending work completes as cancelled, threads are joined, memory is returned. Later calls fail
  /// with machine_closed.
  virtual void close() noexcept = 0;

 protected:
  [[nodiscard]] error not_offered(std::string_view what) const;
};

}  // namespace weft
