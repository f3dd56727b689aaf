// SPDX-License-Identifier: Apache-2.0
// Batches through stages on several devices: in order, with a bounded number of them under way. Everything that a batch
// needs is submitted when it is pushed; devices hand it on by events, and no thread of the host stands between them.
#pragma once

#include "weft/exec/launch.hpp"
#include "weft/exec/untyped_pipeline.hpp"
#include "weft/memory/span.hpp"
#include "weft/runtime/event.hpp"
#include "weft/runtime/machine.hpp"
#include "weft/runtime/stream.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft {

/// Stages that work on different batches at the same time, one behind the other, on the devices of a machine.
///
/// Going out of scope waits for what is under way, as a stream does. It does not keep the machine open.
/// Order: results come in the order of push(); a stage sees batches in that order.
/// Errors: a batch that fails ends its own event, with the cause and the stage named. Those behind it still come
///   through: they wait until the line is clear, and are taken up where they stopped. A lost device, a stop or the end
///   of the machine ends the pipeline: every event ends, and later calls fail.
/// Thread: one pushes at a time; everything else any.
/// Cost: up to depth buffers on each edge, allocated once; a push is a few calls of the backend for each stage.
template <class In, class Out>
class pipeline {
 public:
  /// Sends a batch through; the event ends when all of `result` is in place. Both must live until then. Waits while
  /// the first edge is full.
  /// Shape: at most max_items in `batch`; `result` as results_of() says.
  /// Errors: out_of_range, incompatible (sizes), cancelled, device_lost, machine_closed; what a stage throws while it
  ///   submits, and then the batch is not taken; now. It is thrown once no copy uses `batch` or `result` any more,
  ///   which may be later than a timeout.
  event push(std::span<const In> batch, std::span<Out> result,
             std::source_location where = std::source_location::current()) {
    return *owned(where).push(std::as_bytes(batch), batch.size(), std::as_writable_bytes(result), result.size(),
                              std::nullopt, where);
  }
  /// Nothing when the pipeline is full now. Errors: as push().
  [[nodiscard]] std::optional<event> try_push(std::span<const In> batch, std::span<Out> result,
                                              std::source_location where = std::source_location::current()) {
    return push_for(batch, result, std::chrono::nanoseconds{0}, where);
  }
  /// Nothing when it is still full after `timeout` on the machine's clock. Errors: as push().
  [[nodiscard]] std::optional<event> push_for(std::span<const In> batch, std::span<Out> result,
                                              std::chrono::nanoseconds timeout,
                                              std::source_location where = std::source_location::current()) {
    return owned(where).push(std::as_bytes(batch), batch.size(), std::as_writable_bytes(result), result.size(), timeout,
                             where);
  }

  /// Waits for all batches that were pushed before. Errors: the first failure since the last drain.
  void drain(std::source_location where = std::source_location::current()) {
    static_cast<void>(owned(where).drain(std::nullopt, where));
  }
  /// timed_out when `timeout` on the machine's clock came first. Errors: as drain().
  [[nodiscard]] wait_outcome drain_for(std::chrono::nanoseconds timeout,
                                       std::source_location where = std::source_location::current()) {
    return owned(where).drain(timeout, where);
  }

  /// Elements of the result of so many. Errors: out_of_range when they are more than a batch may have.
  [[nodiscard]] std::size_t results_of(std::size_t items,
                                       std::source_location where = std::source_location::current()) const {
    return owned(where).results_of(items, where);
  }
  [[nodiscard]] pipeline_report report() const { return owned().report(); }

 private:
  template <class, class>
  friend class pipeline_builder;
  explicit pipeline(std::unique_ptr<detail::untyped_pipeline> line) : line_(std::move(line)) {}
  [[nodiscard]] detail::untyped_pipeline& owned(std::source_location where = {}) const {
    return *detail::not_moved_from(line_, "pipeline", where);
  }

  std::unique_ptr<detail::untyped_pipeline> line_;
};

/// Adds stages to a pipeline; Next is what the last one gives.
template <class First, class Next>
class pipeline_builder {
  static_assert(std::is_trivially_copyable_v<Next> && !std::is_const_v<Next>, "stages hand on plain values");

 public:
  /// `work(stream, device_span<const Next> in, device_span<Made> out)` submits the stage's work in the stream, and does
  /// not wait. It runs on the thread that pushes, and again elsewhere, each time a failure before it held up the
  /// batch.
  template <class Made, class F>
  [[nodiscard]] pipeline_builder<First, Made> stage(std::string name, F work, stage_options options = {}) && {
    static_assert(std::is_invocable_v<F&, const stream&, device_span<const Next>, device_span<Made>>,
                  "a stage takes a stream, what the stage before it gives, and what it gives itself");
    stages_.push_back({std::move(name), sizeof(Made), std::move(options),
                       [work = std::move(work)](const stream& order, detail::memory_ref in, std::size_t in_count,
                                                detail::memory_ref out, std::size_t out_count) mutable {
                         work(order, detail::typed<const Next>(in, in_count), detail::typed<Made>(out, out_count));
                       }});
    return {std::move(machine_), max_items_, std::move(options_), std::move(stages_)};
  }

  /// A kernel (IN, OUT, values…) as a stage, over the elements that it gives.
  template <class Kernel, class... Values>
  [[nodiscard]] auto kernel(std::string name, stage_options options, Values... values) && {
    using elements = detail::stage_elements<detail::parameters_of<Kernel>>;
    static_assert(elements::fit, "a kernel that is a stage takes IN, OUT and then values");
    static_assert(std::is_same_v<typename elements::in, Next>,
                  "the kernel does not take what the stage before it gives");
    using made = typename elements::out;
    launch_options launching;
    launching.model = options.cost;
    return std::move(*this).template stage<made>(
        std::move(name),
        [launching, values...](const stream& order, device_span<const Next> in, device_span<made> out) {
          const detail::placed_range over{range(static_cast<std::int64_t>(out.size())), {}};  // no line of this header
          launch<Kernel>(order, launching, over, in, out, values...);
        },
        std::move(options));
  }
  template <class Kernel, class... Values>
    requires(std::is_arithmetic_v<Values> && ...)
  [[nodiscard]] auto kernel(std::string name, Values... values) && {
    return std::move(*this).template kernel<Kernel>(std::move(name), stage_options{}, values...);
  }

  /// Places the stages and allocates.
  /// Errors: invalid_argument (no stage, depth, placement), invalid_device, not_found (no device), out_of_range (more
  ///   than memory can have), out_of_memory, machine_closed.
  [[nodiscard]] pipeline<First, Next> build(std::source_location where = std::source_location::current()) && {
    return pipeline<First, Next>{std::make_unique<detail::untyped_pipeline>(machine_, max_items_, sizeof(First),
                                                                            std::move(stages_), options_, where)};
  }

 private:
  template <class, class>
  friend class pipeline_builder;
  template <class T>
  friend pipeline_builder<T, T> make_pipeline(const machine& m, std::size_t max_items, pipeline_options options);

  pipeline_builder(machine m, std::size_t max_items, pipeline_options options,
                   std::vector<detail::untyped_stage> stages)
      : machine_(std::move(m)), max_items_(max_items), options_(std::move(options)), stages_(std::move(stages)) {}

  machine machine_;
  std::size_t max_items_;
  pipeline_options options_;
  std::vector<detail::untyped_stage> stages_;
};

/// A pipeline for batches of up to `max_items` elements, without stages yet.
/// Example: three_stages in tests/exec/pipeline_test.cpp.
template <class T>
[[nodiscard]] pipeline_builder<T, T> make_pipeline(const machine& m, std::size_t max_items,
                                                   pipeline_options options = {}) {
  return {m, max_items, std::move(options), {}};
}

}  // namespace weft
