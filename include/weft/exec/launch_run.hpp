// SPDX-License-Identifier: Apache-2.0
// One kernel over several devices: launch(machine, "name", range(n), x, y) divides the range by what the parameters
// declare and by what the devices can do, brings the data, runs the pieces, and orders itself after earlier launches
// that use the same arrays.
#pragma once

#include "weft/core/internals.hpp"
#include "weft/exec/launch.hpp"
#include "weft/exec/launch_report.hpp"
#include "weft/exec/spread_argument.hpp"
#include "weft/exec/spread_options.hpp"

#include <array>
#include <chrono>
#include <coroutine>
#include <memory>
#include <source_location>
#include <span>
#include <utility>

namespace weft {

namespace detail {
class launch_job;
}

/// A launch over devices that has been submitted. Letting it go neither stops it nor loses its error, which
/// machine::synchronize() then reports; but with host memory among its arguments, letting it go waits, since that
/// memory may go next. Thread: any.
class launch_run {
 public:
  launch_run() = default;
  launch_run(launch_run&&) noexcept = default;
  launch_run& operator=(launch_run&& other) noexcept;
  launch_run(const launch_run&) = delete;
  launch_run& operator=(const launch_run&) = delete;
  ~launch_run();

  /// Returns when every result is where it belongs: in the arrays, in the host memory of the arguments.
  /// Errors: the first cause; cancelled.
  void wait(std::source_location where = std::source_location::current()) const;
  /// timed_out when `timeout` on the machine's clock has passed first. Errors: as wait().
  wait_outcome wait_for(std::chrono::nanoseconds timeout,
                        std::source_location where = std::source_location::current()) const;
  /// True once it has ended, well or not.
  [[nodiscard]] bool ready() const;
  /// Ends with the launch: for streams that come after it, and for co_await.
  [[nodiscard]] event done() const;
  /// Pieces that have not begun are not begun. A launch on memory of one device, which has no report() either, is one
  /// piece in the device's stream: `stop` of its options ends that.
  void cancel() const;
  /// What was expected of each device, what happened and why. Errors: not_ready before it has ended; unsupported for a
  /// launch of one operation on memory of one device, which keeps no account: event times tell; invalid_argument for a
  /// run that was moved from.
  [[nodiscard]] launch_report report(std::source_location where = std::source_location::current()) const;

  [[nodiscard]] bool await_ready() const { return ready(); }
  void await_suspend(std::coroutine_handle<> waiter) const { done().await_suspend(waiter); }
  void await_resume() const { wait(std::source_location{}); }

 private:
  friend struct detail::internals;
  explicit launch_run(std::shared_ptr<detail::launch_job> job) : job_(std::move(job)) {}
  /// A launch that was one operation on one device.
  explicit launch_run(event only) : only_(std::move(only)) {}
  std::shared_ptr<detail::launch_job> job_;
  event only_;
};

namespace detail {
launch_run spread(const machine& m, std::shared_ptr<const kernel_code> code, const kernel_range& over,
                  std::span<spread_argument> arguments, const spread_options& options, std::source_location where);
launch_run spread_named(const machine& m, std::string_view name, const kernel_range& over,
                        std::span<spread_argument> arguments, const spread_options& options,
                        std::source_location where);
}  // namespace detail

/// Runs a kernel of the machine's registry, by name, over devices of the machine.
///
/// Arguments: arrays, whose parts stay where they were last used; host memory (spans, vectors, C++ arrays that are
/// variables), copied in and out, visible after wait(); memory of one device, copied from and to it where other
/// devices take part; scalars. Scalars have exactly the parameter's type.
///
/// Order: after every earlier launch over devices that uses the same array in conflict, and after what the default
/// streams of the chosen devices hold when it is submitted. Raw device memory is not followed: order launches that
/// share it by done().
/// Errors: not_found (kernel, with the nearest names; devices, with the reasons), incompatible (count, type, constness,
///   with the position), out_of_range (a range past an array), invalid_argument (a negative range; options; elements
///   never written, which a reduction over several devices, or a launch behind one, tells at wait), out_of_memory (a
///   limit that does not hold one step), now; what fails later at wait.
/// Cost: on one device with everything there, that of the launch in a stream.
template <class... Args>
launch_run launch(const machine& m, const spread_options& options, const detail::placed_name& kernel,
                  const kernel_range& over, Args&&... args) {
  std::array<detail::spread_argument, sizeof...(Args)> list{detail::make_spread_argument(std::forward<Args>(args))...};
  return detail::spread_named(m, kernel.name, over, list, options, kernel.where);
}
template <class... Args>
launch_run launch(const machine& m, const detail::placed_name& kernel, const kernel_range& over, Args&&... args) {
  return launch(m, spread_options{}, kernel, over, std::forward<Args>(args)...);
}

/// The same by type: wrong arguments do not compile, and nothing needs to be registered.
template <class Kernel, class... Args>
launch_run launch(const machine& m, const spread_options& options, const detail::placed_range& over, Args&&... args) {
  detail::check_spread<Args...>(detail::parameters_of<Kernel>{});
  std::array<detail::spread_argument, sizeof...(Args)> list{detail::make_spread_argument(std::forward<Args>(args))...};
  return detail::spread(m, detail::code_of<Kernel>(), over.over, list, options, over.where);
}
template <class Kernel, class... Args>
launch_run launch(const machine& m, const detail::placed_range& over, Args&&... args) {
  return launch<Kernel>(m, spread_options{}, over, std::forward<Args>(args)...);
}

}  // namespace weft
