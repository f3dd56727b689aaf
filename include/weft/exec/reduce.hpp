// SPDX-License-Identifier: Apache-2.0
// Many elements made into one number by all devices: sum(machine, x). Each device reduces blocks of its part, the host
// combines the blocks in an order that follows from their indices, so the result does not depend on who computed what.
#pragma once

#include "weft/core/internals.hpp"
#include "weft/core/raise.hpp"
#include "weft/exec/launch_run.hpp"

#include <cstdint>
#include <memory>
#include <source_location>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft {

/// What a reduction of elements of type T computes in: double for float and double, else 64 bits of T's signedness.
template <class T>
using reduced = std::conditional_t<std::is_floating_point_v<T>, double,
                                   std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>;

namespace detail {

template <class R>
struct element_of {
  using type = std::remove_cv_t<typename borrowed<R>::element_type>;
};
template <class T>
struct element_of<array<T>> {
  using type = T;
};
template <class R>
using element_of_t = typename element_of<std::remove_cvref_t<R>>::type;

/// Elements that one item of a reduction's kernel makes one number of. The results of a reduction depend on it.
inline constexpr std::int64_t reduction_block = 1024;

/// The kernel for elements of a type: (values, rows(1024)), (results: double or uint64), count, op.
[[nodiscard]] const std::shared_ptr<const kernel_code>& reduction_kernel(element_type type);

/// The numbers of the blocks, and what becomes of them. Thread: the launches that write it have ended before it is
/// read.
class reduction {
 public:
  /// Errors: invalid_argument for the least or greatest of no elements.
  reduction(element_type type, reduce_op op, std::int64_t count, std::source_location where);

  /// Reduces the blocks that lie in elements begin … end - 1, which are on the border of one or the last.
  /// Shape: `values` has at least `end` elements, counted as the reduction's.
  launch_run start(const machine& m, const spread_options& options, const spread_argument& values, std::int64_t begin,
                   std::int64_t end, std::source_location where);
  template <class V>
  [[nodiscard]] V result() const {
    if constexpr (std::is_same_v<V, double>) {
      return combined_reals();
    } else {
      return static_cast<V>(combined_integers());
    }
  }

 private:
  [[nodiscard]] double combined_reals() const;
  [[nodiscard]] std::uint64_t combined_integers() const;

  element_type type_;
  reduce_op op_;
  std::vector<double> reals_;
  std::vector<std::uint64_t> integers_;
};

}  // namespace detail

/// A reduction that has been submitted. Letting it go waits where launch_run's would.
/// Thread: any.
template <class V>
class reduce_run {
 public:
  using value_type = V;

  reduce_run() = default;
  reduce_run(reduce_run&&) noexcept = default;
  reduce_run& operator=(reduce_run&& other) noexcept {
    if (this != &other) {
      run_ = std::move(other.run_);  // first: it waits for what still writes the numbers
      numbers_ = std::move(other.numbers_);
    }
    return *this;
  }
  reduce_run(const reduce_run&) = delete;
  reduce_run& operator=(const reduce_run&) = delete;
  ~reduce_run() = default;

  /// The result, once it is there. Errors: as launch_run::wait(); invalid_argument for one that was moved from.
  V wait(std::source_location where = std::source_location::current()) const {
    if (!numbers_) raise(errc::invalid_argument, "an empty reduction: it was moved from, or never made", where);
    run_.wait(where);
    return numbers_->template result<V>();
  }
  /// timed_out when `timeout` on the machine's clock has passed first. Errors: as wait().
  wait_outcome wait_for(std::chrono::nanoseconds timeout,
                        std::source_location where = std::source_location::current()) const {
    return run_.wait_for(timeout, where);
  }
  [[nodiscard]] bool ready() const { return run_.ready(); }
  [[nodiscard]] event done() const { return run_.done(); }
  void cancel() const { run_.cancel(); }
  [[nodiscard]] launch_report report(std::source_location where = std::source_location::current()) const {
    return run_.report(where);
  }

  [[nodiscard]] bool await_ready() const { return run_.await_ready(); }
  void await_suspend(std::coroutine_handle<> waiter) const { run_.await_suspend(waiter); }
  V await_resume() const { return wait(std::source_location{}); }

 private:
  friend struct detail::internals;
  reduce_run(std::unique_ptr<detail::reduction> numbers, launch_run run)
      : numbers_(std::move(numbers)), run_(std::move(run)) {}
  std::unique_ptr<detail::reduction> numbers_;  // before run_, whose end waits for what writes them
  launch_run run_;
};

/// Starts to reduce all elements of an array, of host memory, or of memory of one device.
///
/// The result has the same bits for any number of devices, strategy and chunking, on every backend:
/// - sum of float and double: at most 2^-46 Σ|x| + 2^-53 |sum| from the exact sum, up to 2^36 elements, if nothing
///   overflows a double on the way;
/// - product of float and double: relative error at most 2^-53 for each element, if nothing leaves double's range;
/// - integers: exact, modulo 2^64;
/// - min and max pass over what is not a number, unless nothing else is there; which zero comes out of +0 and -0 is
/// open. A result that is not a number is always the same quiet NaN.
///
/// A step of the options (granularity, block, items of the report) is a block of 1,024 elements. float and double need
/// devices that have double.
/// Order: as launch(). Errors: invalid_argument for min and max of nothing; resource_exhausted (host memory); as
/// launch().
/// Cost: one launch, 8 bytes to the host for each 1,024 elements; host memory passes through the devices.
template <class R>
[[nodiscard]] reduce_run<reduced<detail::element_of_t<R>>> launch_reduce(
    const machine& m, const spread_options& options, R&& values, reduce_op op,
    std::source_location where = std::source_location::current()) {
  using element = detail::element_of_t<R>;
  static_assert(kernel_element<element>, "a reduction takes 8- to 64-bit integers, float or double");
  const detail::spread_argument given = detail::make_spread_argument(std::forward<R>(values));
  const auto count = static_cast<std::int64_t>(given.plain.memory.size / sizeof(element));
  auto numbers = std::make_unique<detail::reduction>(element_type_of<element>(), op, count, where);
  launch_run run = numbers->start(m, options, given, 0, count, where);
  return detail::make<reduce_run<reduced<element>>>(std::move(numbers), std::move(run));
}
template <class R>
[[nodiscard]] reduce_run<reduced<detail::element_of_t<R>>> launch_reduce(
    const machine& m, R&& values, reduce_op op, std::source_location where = std::source_location::current()) {
  return launch_reduce(m, spread_options{}, std::forward<R>(values), op, where);
}

/// All elements made into one number. As launch_reduce(), and waits.
template <class R>
[[nodiscard]] reduced<detail::element_of_t<R>> reduce(const machine& m, const spread_options& options, const R& values,
                                                      reduce_op op,
                                                      std::source_location where = std::source_location::current()) {
  return launch_reduce(m, options, values, op, where).wait(where);
}
template <class R>
[[nodiscard]] reduced<detail::element_of_t<R>> reduce(const machine& m, const R& values, reduce_op op,
                                                      std::source_location where = std::source_location::current()) {
  return launch_reduce(m, spread_options{}, values, op, where).wait(where);
}

/// The sum of all elements; 0 for none. Errors and accuracy: as launch_reduce().
template <class R>
[[nodiscard]] reduced<detail::element_of_t<R>> sum(const machine& m, const R& values,
                                                   std::source_location where = std::source_location::current()) {
  return reduce(m, values, reduce_op::sum, where);
}
/// The least element. Errors: invalid_argument when there is none; as launch_reduce().
template <class R>
[[nodiscard]] detail::element_of_t<R> minimum(const machine& m, const R& values,
                                              std::source_location where = std::source_location::current()) {
  return static_cast<detail::element_of_t<R>>(reduce(m, values, reduce_op::min, where));
}
/// The greatest element. Errors: invalid_argument when there is none; as launch_reduce().
template <class R>
[[nodiscard]] detail::element_of_t<R> maximum(const machine& m, const R& values,
                                              std::source_location where = std::source_location::current()) {
  return static_cast<detail::element_of_t<R>>(reduce(m, values, reduce_op::max, where));
}

}  // namespace weft
