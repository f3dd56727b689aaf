// SPDX-License-Identifier: Apache-2.0
#include "collective/fold/fold.hpp"

#include "backend/kernels/kernel_outcome.hpp"
#include "weft/core/raise.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

namespace weft::detail {

element_type stored_as(data_type type) {
  switch (type) {
    case data_type::int8:
      return element_type::int8;
    case data_type::int16:
      return element_type::int16;
    case data_type::int32:
      return element_type::int32;
    case data_type::int64:
      return element_type::int64;
    case data_type::uint8:
      return element_type::uint8;
    case data_type::uint16:
    case data_type::float16:
    case data_type::bfloat16:
      return element_type::uint16;
    case data_type::uint32:
      return element_type::uint32;
    case data_type::uint64:
      return element_type::uint64;
    case data_type::float32:
      return element_type::float32;
    case data_type::float64:
      break;
  }
  return element_type::float64;
}

namespace {

constexpr std::size_t scalars = 5;
constexpr std::size_t parameters = 2 * fold_width + scalars;

/// One launch of a fold kernel: at most fold_width of each.
struct fold_pass {
  data_type type;
  reduction_op::kind op;
  std::int64_t count;
  std::int64_t divide_by;
  std::span<void* const> inputs, outputs;
};

kernel_range blocks_of(std::int64_t count) { return range(count / fold_block + (count % fold_block != 0 ? 1 : 0)); }

/// What is copied is not looked at: a half that is not a number keeps its bits.
data_type read_as(const fold_pass& pass) {
  const bool copies = pass.inputs.size() == 1 && pass.divide_by <= 1;
  return copies && stored_as(pass.type) == element_type::uint16 ? data_type::uint16 : pass.type;
}

/// Calls memory(position, address or null) and scalar(position, value) for each parameter of a fold kernel.
template <class Memory, class Scalar>
void for_each_argument(const fold_pass& pass, Memory&& memory, Scalar&& scalar) {
  for (std::size_t n = 0; n < fold_width; ++n) {
    memory(n, n < pass.inputs.size() ? pass.inputs[n] : nullptr);
    memory(fold_width + n, n < pass.outputs.size() ? pass.outputs[n] : nullptr);
  }
  scalar(2 * fold_width, pass.count);
  scalar(2 * fold_width + 1, static_cast<std::int32_t>(pass.inputs.size()));
  scalar(2 * fold_width + 2, static_cast<std::int32_t>(pass.outputs.size()));
  scalar(2 * fold_width + 3, static_cast<std::int32_t>(pass.op));
  scalar(2 * fold_width + 4, pass.divide_by);
}

/// On the calling thread.
struct here {
  bool checks_access;

  void run(const fold_pass& pass) const {
    // Kept, as making it anew would cost as much as folding a few hundred elements. Of what is left from the call
    // before, a fold kernel looks at nothing.
    static constinit thread_local std::array<kernel_argument, parameters> list{};
    for_each_argument(
        pass, [&](std::size_t at, void* address) { list[at].address = address; },
        [&](std::size_t at, auto value) { std::memcpy(list[at].scalar.data(), &value, sizeof value); });
    fold_kernel(read_as(pass))->host(blocks_of(pass.count), list);
  }

  void apply(const std::shared_ptr<const kernel_code>& user, data_type type, std::int64_t count, void* into,
             void* more) const {
    std::array<kernel_argument, 2> list;
    list[0].direction = parameter_direction::inout;
    list[0].address = into;
    list[1].direction = parameter_direction::in;
    list[1].address = more;
    for (kernel_argument& each : list) {
      each.type = stored_as(type);
      each.count = count;
      each.slab = 1;
    }
    if (auto failed = kernel_outcome(*user, range(count), list, checks_access, {})) raise(*std::move(failed));
  }
};

/// In a stream, whose device checks its right to each address.
struct in_stream {
  const stream& order;
  const launch_options& options;
  std::source_location where;
  event last;

  [[nodiscard]] launch_argument memory_at(void* address, data_type type, std::int64_t count) const {
    launch_argument made;
    made.type = stored_as(type);
    made.is_memory = true;
    made.memory.state = state_of(order).get();
    made.memory.address = address;
    made.memory.size = address != nullptr ? static_cast<std::uint64_t>(count) * size_of(type) : 0;
    made.memory.device = order.on_id();
    return made;
  }

  void run(const fold_pass& pass) {
    std::array<launch_argument, parameters> list;
    for_each_argument(
        pass, [&](std::size_t at, void* address) { list[at] = memory_at(address, pass.type, pass.count); },
        [&](std::size_t at, auto value) { list[at] = make_argument(value); });
    last = launch_in(order, fold_kernel(read_as(pass)), blocks_of(pass.count), list, options, where);
  }

  void apply(const std::shared_ptr<const kernel_code>& user, data_type type, std::int64_t count, void* into,
             void* more) {
    const std::array<launch_argument, 2> list{memory_at(into, type, count), memory_at(more, type, count)};
    last = launch_in(order, user, range(count), list, options, where);
  }
};

/// Nowhere: told of what would run.
struct listed {
  std::vector<fold_launch>& into;

  void run(const fold_pass& pass) const { into.push_back({pass.inputs.size(), pass.outputs.size()}); }
  void apply(const std::shared_ptr<const kernel_code>& /*user*/, data_type /*type*/, std::int64_t /*count*/,
             void* /*into*/, void* /*more*/) const {
    into.push_back({2, 1});
  }
};

[[noreturn]] void no_place(const char* what, std::source_location where) {
  raise(errc::unsupported,
        std::string{"a fold "} + what + " works in one of its outputs, and each of them is an input still to be read",
        where);
}

/// An output to work in: none of the inputs from `later` on. Null if there is none.
void* working_place(const fold_request& request, std::size_t later) {
  const auto unread = request.inputs.subspan(later);
  for (void* const output : request.outputs) {
    if (std::find(unread.begin(), unread.end(), output) == unread.end()) return output;
  }
  return nullptr;
}

/// Copies one input to all outputs but itself.
template <class Where>
void spread_out(Where& by, const fold_request& request, void* from, std::span<void* const> outputs) {
  const std::array<void*, 1> inputs{from};
  std::array<void*, fold_width> list{};
  std::size_t used = 0;
  const auto flush = [&] {
    if (used == 0) return;
    by.run({request.type, reduction_op::kind::sum, request.count, 1, inputs, std::span{list}.first(used)});
    used = 0;
  };
  for (void* const output : outputs) {
    if (output == from) continue;
    list[used++] = output;
    if (used == fold_width) flush();
  }
  flush();
}

template <class Where>
void fold_by_user(Where& by, const fold_request& request, std::source_location where) {
  const auto& user = request.user;
  if (request.type == data_type::float16 || request.type == data_type::bfloat16) {
    raise(errc::unsupported,
          "the operation '" + user->name + "': no kernel takes " + std::string{to_string(request.type)}, where);
  }
  if (user->parameters.at(0).type != stored_as(request.type)) {
    raise(errc::incompatible,
          signature_of(*user) + " combines no elements of type " + std::string{to_string(request.type)}, where);
  }
  // Its first parameter is read and written, so the result grows in an output: best in the one that is the first input.
  const bool in_place =
      std::find(request.outputs.begin(), request.outputs.end(), request.inputs[0]) != request.outputs.end();
  void* const place = in_place ? request.inputs[0] : working_place(request, 1);
  if (place == nullptr) no_place(("by '" + user->name + "'").c_str(), where);
  const std::array<void*, 1> places{place};
  spread_out(by, request, request.inputs[0], places);
  for (void* const more : request.inputs.subspan(1)) {
    by.apply(user, request.type, request.count, place, more);
  }
  if (request.divide_by > 1) {
    const std::array<void*, 1> made{place};
    by.run({request.type, reduction_op::kind::sum, request.count, request.divide_by, made, made});
  }
  spread_out(by, request, place, request.outputs);
}

template <class Where>
void fold_by(Where& by, const fold_request& request, std::source_location where) {
  if (request.op == reduction_op::kind::user) {
    fold_by_user(by, request, where);
    return;
  }
  if (request.inputs.size() == 1 && request.divide_by <= 1) {
    spread_out(by, request, request.inputs[0], request.outputs);
    return;
  }
  const auto first_outputs = request.outputs.first(std::min(request.outputs.size(), fold_width));
  if (request.inputs.size() <= fold_width) {
    by.run({request.type, request.op, request.count, request.divide_by, request.inputs, first_outputs});
  } else {
    void* const place = working_place(request, fold_width);
    if (place == nullptr) no_place("of more than eight inputs", where);
    const std::array<void*, 1> places{place};
    by.run({request.type, request.op, request.count, 1, request.inputs.first(fold_width), places});
    auto left = request.inputs.subspan(fold_width);
    while (!left.empty()) {
      std::array<void*, fold_width> inputs{place};
      const std::size_t taken = std::min(left.size(), fold_width - 1);
      std::copy_n(left.begin(), taken, inputs.begin() + 1);
      left = left.subspan(taken);
      const auto list = std::span{inputs}.first(taken + 1);
      if (left.empty()) {
        by.run({request.type, request.op, request.count, request.divide_by, list, first_outputs});
      } else {
        by.run({request.type, request.op, request.count, 1, list, places});
      }
    }
  }
  if (request.outputs.size() > fold_width)
    spread_out(by, request, request.outputs[0], request.outputs.subspan(fold_width));
}

}  // namespace

void fold_here(const fold_request& request) {
  if (request.count <= 0 || request.inputs.empty() || request.outputs.empty()) return;
  here by{request.checks_access};
  fold_by(by, request, {});
}

void launches_of(const fold_request& request, std::vector<fold_launch>& into) {
  if (request.count <= 0 || request.inputs.empty() || request.outputs.empty()) return;
  listed by{into};
  fold_by(by, request, {});
}

event fold_in(const stream& order, const fold_request& request, const launch_options& options,
              std::source_location where) {
  if (request.count <= 0 || request.inputs.empty() || request.outputs.empty()) return order.record();
  in_stream by{order, options, where, {}};
  fold_by(by, request, where);
  // Nothing to do, as when one memory is copied to itself, is an event all the same.
  return by.last.is_recorded() ? by.last : order.record();
}

}  // namespace weft::detail
