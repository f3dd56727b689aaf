// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/launch.hpp"

#include "exec/kernel_table.hpp"

#include <algorithm>

namespace weft::detail {
namespace {

[[noreturn]] void misfit(const kernel_code& code, std::size_t position, const std::string& what,
                         std::source_location where) {
  std::string text = signature_of(code) + ": argument " + std::to_string(position + 1);
  if (position < code.parameters.size() && !code.parameters[position].name.empty())
    text += " (" + code.parameters[position].name + ")";
  raise(errc::incompatible, text + " " + what, where);
}

kernel_argument checked(const kernel_code& code, std::size_t position, const launch_argument& given,
                        const kernel_range& over, std::source_location where) {
  const kernel_parameter& wanted = code.parameters[position];
  const bool scalar = wanted.direction == parameter_direction::scalar;
  if (scalar == given.is_memory)
    misfit(code, position, scalar ? "must be a value, not memory" : "must be device memory, not a value", where);
  const auto count = static_cast<std::int64_t>(given.memory.size / size_of(given.type));
  if (wanted.is_ring && (given.type != wanted.type || count != ring_words)) {
    misfit(code, position, "must be " + ring_mismatch(given.type, count), where);
  }
  if (given.type != wanted.type) {
    misfit(code, position,
           "is " + std::string{name_of(given.type)} + ", the kernel takes " + std::string{name_of(wanted.type)}, where);
  }
  if (given.is_const && wanted.direction != parameter_direction::in) {
    misfit(code, position, "is const, and the kernel writes it", where);
  }
  kernel_argument made;
  made.type = given.type;
  made.direction = wanted.direction;
  if (scalar) {
    made.scalar = given.scalar;
    return made;
  }
  made.address = given.memory.address;
  made.count = count;
  // What a one-to-one access declares can be checked before anything runs.
  std::int64_t items = 1;
  for (int d = 0; d < over.dimensions; ++d)
    items *= over.end[static_cast<std::size_t>(d)] - over.begin[static_cast<std::size_t>(d)];
  if (wanted.access.kind == access_kind::one_to_one && over.dimensions == 1 && made.count < items) {
    raise(errc::out_of_range,
          signature_of(code) + ": argument " + std::to_string(position + 1) + " (" + wanted.name + ") has " +
              std::to_string(made.count) + " elements, the range " + std::to_string(items),
          where);
  }
  const std::int64_t outer = over.end[static_cast<std::size_t>(over.dimensions - 1)];
  made.slab = slab_of(wanted.access, made.count, outer);
  return made;
}

}  // namespace

event launch_in(const stream& order, std::shared_ptr<const kernel_code> code, const kernel_range& over,
                std::span<const launch_argument> arguments, const launch_options& options, std::source_location where) {
  const auto& state = order.state();
  if (!state) raise(errc::invalid_argument, "an empty stream: it was moved from", where);
  state->require_open();
  if (over.dimensions != code->dimensions) {
    raise(errc::incompatible,
          signature_of(*code) + " runs over " + std::to_string(code->dimensions) + " dimensions, the range has " +
              std::to_string(over.dimensions),
          where);
  }
  bool empty = false;
  for (int d = 0; d < over.dimensions; ++d) {
    const auto i = static_cast<std::size_t>(d);
    if (over.end[i] < over.begin[i]) raise(errc::invalid_argument, "a negative range for '" + code->name + "'", where);
    empty = empty || over.end[i] == over.begin[i];
  }
  if (arguments.size() != code->parameters.size()) {
    raise(errc::incompatible,
          signature_of(*code) + " takes " + std::to_string(code->parameters.size()) + " arguments, got " +
              std::to_string(arguments.size()),
          where);
  }
  launch_request request;
  request.range = over;
  request.stop = options.stop;
  request.arguments.reserve(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].is_memory && arguments[i].memory.state != nullptr && arguments[i].memory.state != state.get()) {
      raise(errc::wrong_device,
            "argument " + std::to_string(i + 1) + " of '" + code->name + "' belongs to another machine than the stream",
            where);
    }
    request.arguments.push_back(checked(*code, i, arguments[i], over, where));
  }
  if (empty) return order.record();
  request.kernel = std::move(code);
  return {state, value_or_raise(state->backend_of(order.on().id()).launch(order.native(), request), where)};
}

event launch_named(const stream& order, std::string_view name, const kernel_range& over,
                   std::span<const launch_argument> arguments, const launch_options& options,
                   std::source_location where) {
  const auto& state = order.state();
  if (!state) raise(errc::invalid_argument, "an empty stream: it was moved from", where);
  state->require_open();
  std::shared_ptr<const kernel_code> code;
  {
    kernel_table& table = kernels_of(*state);
    const std::shared_lock lock{table.mutex};
    if (const auto it = table.by_name.find(name); it != table.by_name.end()) code = it->second;
  }
  if (!code) code = kernel_registry{state}.at(name);
  return launch_in(order, std::move(code), over, arguments, options, where);
}

}  // namespace weft::detail
