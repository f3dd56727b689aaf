// SPDX-License-Identifier: Apache-2.0
// Kernels handed to a backend by hand: no registry, no check of types, every field of the request at the test's
// disposal.
#pragma once

#include "runtime/machine_state.hpp"
#include "support/samples.hpp"

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>

namespace samples {

/// A kernel of bytes, the first arguments read, the last one written.
inline std::shared_ptr<const weft::kernel_code> byte_kernel(std::string name, weft::host_entry host) {
  weft::raw_kernel made;
  made.name = std::move(name);
  made.host = host;
  made.entry = "entry";
  return weft::make_kernel_code(made);
}

/// Does nothing.
inline std::shared_ptr<const weft::kernel_code> idle_kernel() {
  return byte_kernel("idle", [](const weft::kernel_range&, std::span<const weft::kernel_argument>) {});
}

inline weft::kernel_argument argument(weft::parameter_direction direction, const byte_buffer& memory) {
  weft::kernel_argument made;
  made.type = weft::element_type::uint8;
  made.direction = direction;
  made.address = memory.data();
  made.count = static_cast<std::int64_t>(memory.size());
  return made;
}

struct raw_launch {
  std::shared_ptr<const weft::kernel_code> kernel = idle_kernel();
  std::int64_t items = 1;
  std::vector<weft::kernel_argument> arguments{};
  std::optional<weft::kernel_cost> model{};
  std::uint64_t launch = 0;

  [[nodiscard]] weft::event in(const weft::machine& m, const weft::stream& order) const {
    weft::launch_request request;
    request.kernel = kernel;
    request.range = {1, {0, 0, 0}, {items, 1, 1}};
    request.arguments = arguments;
    request.model = model;
    request.launch = launch;
    auto event = weft::detail::state_of(m)->backend_of(order.on().id()).launch(order.native(), request);
    return weft::detail::make<weft::event>(weft::detail::state_of(m), weft::value_or_raise(std::move(event)));
  }
};

/// A topology in virtual time.
inline weft::machine simulated(weft::topology layout, const weft::simulation& model = {}) {
  weft::machine_options options;
  options.machine = std::move(layout);
  options.clock = weft::clock_kind::virtual_time;
  options.model = model;
  return weft::machine{options};
}

/// What happened on `m` in the course of `f`.
template <class F>
std::vector<weft::trace_record> traced(const weft::machine& m, F&& f) {
  auto sink = std::make_shared<weft::trace_sink>();
  m.trace_to(sink);
  f();
  m.trace_to(nullptr);
  return sink->take();
}

}  // namespace samples
