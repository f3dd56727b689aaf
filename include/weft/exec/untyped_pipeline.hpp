// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/exec/launch.hpp"
#include "weft/exec/pipeline_options.hpp"
#include "weft/exec/pipeline_report.hpp"
#include "weft/memory/span.hpp"
#include "weft/runtime/event.hpp"
#include "weft/runtime/machine.hpp"
#include "weft/runtime/stream.hpp"

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <vector>

namespace weft::detail {

struct untyped_stage {
  std::string name;
  std::size_t out_element = 0;
  stage_options options;
  std::function<void(const stream&, memory_ref in, std::size_t in_count, memory_ref out, std::size_t out_count)> work;
};

class pipeline_body;

/// A pipeline without its types.
class untyped_pipeline {
 public:
  untyped_pipeline(const machine& m, std::size_t max_items, std::size_t in_element, std::vector<untyped_stage> stages,
                   const pipeline_options& options, std::source_location where);
  ~untyped_pipeline();
  untyped_pipeline(const untyped_pipeline&) = delete;
  untyped_pipeline& operator=(const untyped_pipeline&) = delete;

  [[nodiscard]] std::optional<event> push(std::span<const std::byte> batch, std::size_t items,
                                          std::span<std::byte> result, std::size_t results,
                                          std::optional<std::chrono::nanoseconds> timeout, std::source_location where);
  [[nodiscard]] wait_outcome drain(std::optional<std::chrono::nanoseconds> timeout, std::source_location where);
  [[nodiscard]] pipeline_report report() const;
  [[nodiscard]] std::size_t results_of(std::size_t items, std::source_location where) const;

 private:
  std::shared_ptr<pipeline_body> body_;
};

template <class T>
device_span<T> typed(const memory_ref& memory, std::size_t count) {
  return detail::make<device_span<T>>(memory.state, memory.device, static_cast<T*>(memory.address), count, memory.kind);
}

/// Element types of a kernel that takes what comes in, what goes out, and values.
template <class List>
struct stage_elements {
  static constexpr bool fit = false;
  using in = void;
  using out = void;
};
template <class First, class Second, class... Rest>
struct stage_elements<parameter_list<First, Second, Rest...>> {
  using in = typename parameter_traits<First>::element;
  using out = typename parameter_traits<Second>::element;
  static constexpr bool fit = parameter_traits<First>::direction == parameter_direction::in &&
                              parameter_traits<Second>::direction == parameter_direction::out;
};

}  // namespace weft::detail
