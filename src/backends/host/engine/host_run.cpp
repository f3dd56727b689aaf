// SPDX-License-Identifier: Apache-2.0
// The host backend: kernels and host functions.
#include "backend/address.hpp"
#include "backend/kernels/kernel_outcome.hpp"
#include "backends/host/host_backend.hpp"
#include "core/errors/make_error.hpp"
#include "core/text/hex.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace weft::host {
namespace {

/// A duration that a model may have; false for NaN too.
bool is_time(double seconds) { return seconds >= 0 && std::isfinite(seconds); }

/// Indices of a range; the largest number when that is more than 64 bits hold.
std::int64_t items_of(const kernel_range& range) {
  std::int64_t items = 1;
  for (std::size_t d = 0; d < std::min(static_cast<std::size_t>(range.dimensions), range.end.size()); ++d) {
    const std::int64_t extent = std::max<std::int64_t>(range.end[d] - range.begin[d], 0);
    if (__builtin_mul_overflow(items, extent, &items)) return std::numeric_limits<std::int64_t>::max();
  }
  return items;
}

}  // namespace

cost host_backend::cost_of(const launch_request& request, device_id by) const noexcept {
  const topology_device& device = layout().devices[local(by)];
  cost price;
  price.computes = true;
  if (request.model) {
    const double items = static_cast<double>(items_of(request.range));
    price.seconds = (request.model->seconds + items * request.model->seconds_per_item) / device.speed;
    return price;
  }
  // what is read and written passes its memory twice, as in a copy inside a device
  double touched = 0;
  for (const kernel_argument& argument : request.arguments) {
    if (argument.direction == parameter_direction::scalar) continue;
    const double times = argument.direction == parameter_direction::inout ? 2 : 1;
    touched += times * static_cast<double>(argument.count) * static_cast<double>(size_of(argument.type));
  }
  if (device.bytes_per_second > 0) price.seconds = touched / device.bytes_per_second;
  return price;
}

result<event_ref> host_backend::do_launch(stream_handle handle, launch_request request) {
  auto stream = stream_of("launch", handle);
  if (!stream) return std::move(stream).error();
  if (request.kernel->host == nullptr) {
    return make_error(errc::unsupported, "the kernel '" + request.kernel->name +
                                             "' has no host version; it runs where its text or source does");
  }
  if (request.model && !(is_time(request.model->seconds) && is_time(request.model->seconds_per_item))) {
    return make_error(errc::invalid_argument, "the model of the kernel '" + request.kernel->name +
                                                  "' takes times that are neither negative nor infinite, not " +
                                                  std::to_string(request.model->seconds) + " s and " +
                                                  std::to_string(request.model->seconds_per_item) + " s per item");
  }
  struct boxed_launch {
    launch_request request;
    std::array<pin, 6> few;  // one for each argument; empty for scalars
    std::vector<pin> many;   // of a kernel that takes more
    [[nodiscard]] std::span<pin> memory() { return many.empty() ? std::span<pin>{few} : std::span<pin>{many}; }
  };
  auto boxed = std::make_unique<boxed_launch>();
  if (request.arguments.size() > boxed->few.size()) boxed->many.resize(request.arguments.size());
  const std::span<pin> memory_of = boxed->memory();
  for (std::size_t i = 0; i < request.arguments.size(); ++i) {
    const kernel_argument& argument = request.arguments[i];
    if (argument.direction != parameter_direction::scalar && argument.count != 0) {
      const std::uint64_t extent = static_cast<std::uint64_t>(argument.count) * size_of(argument.type);
      auto memory = memory_.find(argument.address, extent);
      if (!memory) {
        return not_allocated("argument " + std::to_string(i + 1) + " of '" + request.kernel->name + "' at " +
                             hex(argument.address));
      }
      const auto offset = static_cast<std::uint64_t>(static_cast<std::byte*>(argument.address) - memory->user);
      if (extent > memory->size - offset) {
        return make_error(errc::out_of_range, "argument " + std::to_string(i + 1) + " of '" + request.kernel->name +
                                                  "' passes the end of its allocation of " +
                                                  to_string(bytes{memory->size}));
      }
      memory_of[i] = pin{std::move(memory)};
    }
  }
  const device_id by = (*stream)->device();
  operation_note note;
  note.kind = trace_kind::kernel;
  note.items = items_of(request.range);
  note.launch = request.launch;
  note.name = request.kernel->name;
  auto mark = order_ ? order_->launch(handle, by, request) : nullptr;
  auto talk = order_ && has_ring(*request.kernel) ? order_->talks(handle) : nullptr;
  const bool is_brief = note.items > 0 && note.items <= request.kernel->brief_items;
  const cost price = scheduler_.on_wall_clock() ? cost{} : cost_of(request, by);
  auto stop = request.stop;
  boxed->request = std::move(request);
  return submitted(
      scheduler_.submit_or_run(
          **stream, is_brief,
          [this, by, boxed = std::move(boxed), talk = std::move(talk)]() -> work::outcome {
            if (talk) talk->begins();
            launch_request& r = boxed->request;
            for (std::size_t i = 0; i < r.arguments.size(); ++i) {
              allocation* memory = boxed->memory()[i].get();
              if (memory == nullptr) continue;
              const bool writes = r.arguments[i].direction != parameter_direction::in;
              auto at = memory_.resolve(by, *memory, r.arguments[i].address, writes);
              if (!at) {
                error cause = std::move(at).error();
                cause.what =
                    "kernel '" + r.kernel->name + "' on " + to_string(by) + ", argument " + std::to_string(i + 1) +
                    (i < r.kernel->parameters.size() ? " (" + r.kernel->parameters[i].name + ")" : std::string{}) +
                    ": " + cause.what;
                if (cause.code == errc::illegal_access) cause.scope = error_scope::device;
                return shared_error(std::move(cause));
              }
              r.arguments[i].address = *at;
              if (memory->owner != by && (memory->kind == memory_kind::device || memory->kind == memory_kind::block)) {
                const std::uint64_t size =
                    static_cast<std::uint64_t>(r.arguments[i].count) * size_of(r.arguments[i].type);
                const auto direction = r.arguments[i].direction;
                if (direction != parameter_direction::out) transfers_.account(memory->owner, by, size);
                if (direction != parameter_direction::in) transfers_.account(by, memory->owner, size);
              }
            }
            auto failed = kernel_outcome(*r.kernel, r.range, r.arguments, check_access_, by);
            return failed ? shared_error(*std::move(failed)) : nullptr;
          },
          note, price, std::move(stop)),
      std::move(mark));
}

result<event_ref> host_backend::do_call(stream_handle handle, std::function<result<void>()> function) {
  auto stream = stream_of("call", handle);
  if (!stream) return std::move(stream).error();
  operation_note note;
  note.kind = trace_kind::host_call;
  auto mark = order_ ? order_->recorded(handle) : nullptr;
  auto talk = order_ ? order_->talks(handle) : nullptr;
  return submitted(scheduler_.submit(
                       **stream,
                       [f = std::move(function), talk = std::move(talk)]() -> work::outcome {
                         if (talk) talk->begins();
                         auto done = f();
                         return done ? nullptr : shared_error(std::move(done).error());
                       },
                       note),
                   std::move(mark));
}

}  // namespace weft::host
