// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/collective/collective_options.hpp"
#include "weft/core/internals.hpp"
#include "weft/runtime/event.hpp"

#include <chrono>
#include <memory>
#include <source_location>
#include <utility>

namespace weft {

/// A collective that has been submitted. Letting it go neither waits nor cancels; synchronize() reports what failed.
/// Thread: any.
class collective_run {
 public:
  struct body;
  collective_run() = default;

  /// Waits until every rank has its result. Errors: the first cause, with the rank and its device named; timed_out,
  /// with the ranks that have not ended named, once the timeout of the call has passed; cancelled where abort() has
  /// ended a part of it.
  void wait(std::source_location where = std::source_location::current()) const;
  /// timed_out when `timeout` on the machine's clock has passed first. Errors: as wait().
  [[nodiscard]] wait_outcome wait_for(std::chrono::nanoseconds timeout,
                                      std::source_location where = std::source_location::current()) const;
  [[nodiscard]] bool ready() const;
  /// When that rank's memory is done with. Errors: invalid_argument.
  [[nodiscard]] event done(rank of, std::source_location where = std::source_location::current()) const;
  /// Which algorithm was taken, and why not the others.
  [[nodiscard]] collective_algorithm algorithm() const;
  [[nodiscard]] collective_choice choice() const;

 private:
  friend struct detail::internals;
  explicit collective_run(std::shared_ptr<const body> made) : body_(std::move(made)) {}
  std::shared_ptr<const body> body_;
};

}  // namespace weft
