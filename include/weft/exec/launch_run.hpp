// SPDX-License-Identifier: Apache-2.0
// One kernel over several devices: launch(machine, "name", range(n), x, y) divides the range by what the parameters
// declare and by what the devices can do, brings the data, runs the pieces, and orders itself after earlier launches
// that use the same arrays.
#pragma once

#include "weft/exec/array.hpp"
#include "weft/exec/balance.hpp"
#include "weft/exec/launch.hpp"
#include "weft/exec/launch_report.hpp"

#include <array>
#include <chrono>
#include <coroutine>
#include <cstdint>
#include <memory>
#include <optional>
#include <ranges>
#include <source_location>
#include <span>
#include <stop_token>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft {

/// What happens to a launch when a device fails in the middle of it.
enum class failure_policy : std::uint8_t {
  fail_fast,        // what has not begun is not begun; the first cause is the launch's
  retry_elsewhere,  // the pieces of a lost device run on the others, if their inputs are still somewhere
};

struct memory_limit {
  device_id device;
  bytes most;  // that the launch may use there
};

/// How a launch is spread over devices. All of it has a default that a newcomer can leave.
struct spread_options {
  device_query devices{};  // which; all of the machine unless said
  balance strategy = balance::automatic;
  std::vector<double> weights{};  // of the chosen devices, in their order: balance::weighted
  std::vector<memory_limit> memory_limits{};
  bool keep_on_device = true;         // false: results of arrays go to the host, and the devices' memory back
  bool asynchronous = true;           // false: the call returns when the launch has ended
  bool unified_memory = false;        // host memory is used where it is, by devices that can; nothing is copied
  bool peer_to_peer = true;           // false: data between devices goes through the host
  std::array<int, 3> block{0, 0, 0};  // as of launch_options; borders are multiples of its outermost extent
  std::int64_t granularity = 1;       // the same for other reasons: borders are multiples of it as well
  failure_policy on_failure = failure_policy::fail_fast;
  std::stop_token stop{};              // pieces that have not begun are not begun; the launch ends as cancelled
  std::optional<kernel_cost> model{};  // what the kernel costs on a virtual clock
};

namespace detail {

class launch_job;

/// One argument of a launch over devices.
struct spread_argument {
  launch_argument plain;
  std::shared_ptr<array_body> array;  // of an array<T>
  bool is_host = false;
};

template <class T>
struct is_array : std::false_type {};
template <class T>
struct is_array<array<T>> : std::true_type {};

template <class A>
spread_argument make_spread_argument(A&& a) {
  using plain = std::remove_cvref_t<A>;
  spread_argument made;
  if constexpr (std::is_arithmetic_v<plain>) {
    made.plain = make_argument(a);
  } else if constexpr (is_array<plain>::value) {
    made.plain.type = element_type_of<typename plain::value_type>();
    made.plain.is_memory = true;
    made.plain.is_const = std::is_const_v<std::remove_reference_t<A>>;
    made.plain.memory.size = a.size_bytes().value();
    made.array = detail::internals::body(a);
  } else {
    const auto span = borrow(a);
    using span_type = std::remove_cvref_t<decltype(span)>;
    if constexpr (is_device_span<span_type>::value) {
      made.plain = make_argument(span);
    } else {
      static_assert(std::is_lvalue_reference_v<A> || std::ranges::borrowed_range<plain>,
                    "host memory has to outlive the launch: pass a variable or a span, not a temporary");
      using element = typename span_type::element_type;
      made.plain.type = element_type_of<std::remove_cv_t<element>>();
      made.plain.is_memory = true;
      made.plain.is_const = std::is_const_v<element>;
      made.plain.memory = untyped(span);
      made.is_host = true;
    }
  }
  return made;
}

/// Does an argument fit a parameter? As fits(), with arrays and host memory.
template <class P, class A>
constexpr bool fits_spread() {
  using plain = std::remove_cvref_t<A>;
  using traits = parameter_traits<P>;
  if constexpr (is_array<plain>::value) {
    return traits::direction != parameter_direction::scalar &&
           std::is_same_v<typename plain::value_type, typename traits::element> &&
           (traits::direction == parameter_direction::in || !std::is_const_v<std::remove_reference_t<A>>);
  } else if constexpr (std::is_arithmetic_v<plain>) {
    return fits<P, plain>();
  } else {
    using given = typename std::remove_cvref_t<decltype(borrow(std::declval<A&>()))>::element_type;
    return traits::direction != parameter_direction::scalar &&
           std::is_same_v<std::remove_cv_t<given>, typename traits::element> &&
           (traits::direction == parameter_direction::in || !std::is_const_v<given>);
  }
}

template <class... Args, class... P>
constexpr void check_spread(parameter_list<P...>) {
  static_assert(sizeof...(Args) == sizeof...(P), "the number of arguments is not that of the kernel's parameters");
  if constexpr (sizeof...(Args) == sizeof...(P)) {
    static_assert((fits_spread<P, Args>() && ...),
                  "an argument does not fit its parameter: type, constness, or memory where a value belongs");
  }
}

}  // namespace detail

/// A launch over devices that has been submitted. Letting it go neither stops it nor loses its error, which
/// machine::synchronize() then reports; but with host memory among its arguments, letting it go waits, since that
/// memory may go next. Thread: any.
class launch_run {
 public:
  launch_run() = default;
  explicit launch_run(std::shared_ptr<detail::launch_job> job) : job_(std::move(job)) {}
  /// A launch that was one operation on one device.
  explicit launch_run(event only) : only_(std::move(only)) {}
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
  /// Pieces that have not begun are not begun.
  void cancel() const;
  /// What was expected of each device, what happened and why. Errors: not_ready before it has ended; unsupported for a
  /// launch of one operation on memory of one device, which keeps no account: event times tell.
  [[nodiscard]] launch_report report(std::source_location where = std::source_location::current()) const;

  [[nodiscard]] bool await_ready() const { return ready(); }
  void await_suspend(std::coroutine_handle<> waiter) const { done().await_suspend(waiter); }
  void await_resume() const { wait(std::source_location{}); }

 private:
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
/// streams of the chosen devices hold. Raw device memory is not followed: order launches that share it by done().
/// Errors: not_found (kernel, with the nearest names; devices, with the reasons), incompatible (count, type, constness,
///   with the position), out_of_range (a range past an array), invalid_argument (options, elements never written),
///   out_of_memory (a limit that does not hold one step), now; what fails later at wait.
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
