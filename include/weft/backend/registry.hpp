// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/backend/clock_hold.hpp"
#include "weft/backend/event_record.hpp"
#include "weft/backend/kernel_code.hpp"
#include "weft/core/device_description.hpp"
#include "weft/core/result.hpp"
#include "weft/core/topology.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace weft {

/// Which clock the host backend lives by.
enum class clock_kind : std::uint8_t { wall, virtual_time };

/// How the virtual clock models what a topology does not say. Figures of a model: nothing here was measured.
struct simulation {
  std::chrono::nanoseconds launch_latency{5000};  // of every kernel, before its items
  double noise = 0;                               // relative standard deviation of a kernel's time
  std::uint64_t seed = 1;                         // of the noise: hash of (seed, device, number of the kernel there)
  /// Not 0: what is ready at the same instant is granted in an order drawn from this seed, and operations are delayed
  /// at random by up to `delay`, so that a program that lacks an order shows it. Same seed, same schedule.
  std::uint64_t shuffle = 0;
  std::chrono::nanoseconds delay{0};

  friend bool operator==(const simulation&, const simulation&) = default;
};

/// What a machine tells a backend when it opens it. A backend reads what concerns it.
struct backend_options {
  device_id first_device{0};
  std::optional<topology> machine{};         // host: the machine to play; empty plays this host
  int device_count = 4;                      // host, without a topology
  std::optional<bytes> memory_per_device{};  // host: limits each device
  int logical_devices = 1;  // each device is offered as so many; where it cannot be split, notes() say so
  clock_kind clock = clock_kind::wall;
  std::optional<bool> strict{};                // host: device pointers fault on the host
  bool check_access = false;                   // host: kernels check each access
  bool check_order = false;                    // host: accesses that nothing orders are reported
  std::optional<std::byte> fill_new_memory{};  // host: pattern of new memory; debug builds have one by default
  int max_in_flight = 0;                       // host: operations at a time per device; 0 is no limit
  waiting wait_policy = waiting::adaptive;
  simulation model{};                // host, virtual clock
  std::shared_ptr<clock_hold> hold;  // host, virtual clock: does not go on while it is held
  /// Where now() counts from on the wall clock, so that the backends of one machine have one clock; empty: from when
  /// the backend is opened.
  std::optional<std::chrono::steady_clock::time_point> epoch{};
  /// Asked once about each device that the backend finds, in its order; true: it stays out, since an earlier backend of
  /// the machine has it. Empty: all are wanted.
  std::function<bool(const device_description&)> leave_out{};
};

/// A backend that weft knows.
struct backend_entry {
  backend_kind kind;
  std::string_view name;
  result<std::unique_ptr<backend>> (*open)(const backend_options& options) noexcept;
  bool is_built = true;  // false: open() only says why this build lacks it
  /// Compiles a kernel's text where open() finds no device; null where that takes one. Errors: unsupported where the
  /// compiler is missing, or the kernel has no text for it; incompatible with the compiler's words.
  result<void> (*compile)(const kernel_code& code) noexcept = nullptr;
};

/// Every backend of this build, vendors first, in the order in which a default machine prefers them.
[[nodiscard]] std::span<const backend_entry> built_backends();

/// The entry of a name, or null.
[[nodiscard]] const backend_entry* find_backend(std::string_view name);

}  // namespace weft
