// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/launch.hpp"

#include "core/errors/decision_log.hpp"
#include "exec/launch_check.hpp"
#include "runtime/launch_escort.hpp"
#include "runtime/peer_checks.hpp"

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

/// A launch with rings whose device is reached by commands only: what they bring goes before it, what it did goes back
/// behind it.
result<event_ref> launch_escorted(backend& driver, stream_handle order, launch_request request,
                                  std::span<const std::shared_ptr<launch_escort>> escorts) {
  for (const auto& escort : escorts) {
    if (auto laid = escort->before(driver, order); !laid) return std::move(laid).error();
  }
  auto done = driver.launch(order, std::move(request));
  for (std::size_t i = 0; done && i < escorts.size(); ++i) done = escorts[i]->behind(driver, order);
  return done;
}

/// Stores of a kernel into memory of another device must arrive there. Memory with rights of its own was verified
/// when the right was given.
void require_arrival(machine_state& state, device_id on, const memory_ref& memory, const kernel_code& code,
                     std::size_t position, std::source_location where) {
  if (memory.device == on || memory.device.value() < 0) return;
  if (memory.kind != memory_kind::device || !state.backend_of(on).peer_enabled(on, memory.device)) return;
  const auto why = peers_of(state).refusal(on, memory.device, peer_way::allocations);
  if (!why) return;
  raise(errc::peer_unsupported,
        signature_of(code) + ": argument " + std::to_string(position + 1) + " is memory of " +
            to_string(memory.device) + ", and " + *why + "; copy it to " + to_string(on) + " first",
        where);
}

}  // namespace

std::vector<std::shared_ptr<launch_escort>> escorts_for(machine_state& state, const kernel_code& code,
                                                        std::span<const launch_argument> arguments) {
  std::vector<std::shared_ptr<launch_escort>> found;
  for (std::size_t i = 0; i < arguments.size() && has_ring(code); ++i) {
    if (!code.parameters[i].is_ring) continue;
    auto escort = escorts_of(state).find(arguments[i].memory.address);
    // one end for two parameters is laid out once
    if (escort && std::find(found.begin(), found.end(), escort) == found.end()) found.push_back(std::move(escort));
  }
  return found;
}

kernel_argument checked_argument(const kernel_code& code, std::size_t position, const launch_argument& given,
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
  if (wanted.access.kind == access_kind::one_to_one && over.dimensions == 1 && over.begin[0] < over.end[0] &&
      (over.begin[0] < 0 || made.count < over.end[0])) {
    raise(errc::out_of_range,
          signature_of(code) + ": argument " + std::to_string(position + 1) + " (" + wanted.name + ") has " +
              std::to_string(made.count) + " elements, the range " +
              (over.begin[0] < 0 ? "begins at " + std::to_string(over.begin[0])
                                 : "ends at " + std::to_string(over.end[0])),
          where);
  }
  const std::int64_t outer = over.end[static_cast<std::size_t>(over.dimensions - 1)];
  made.slab = slab_of(wanted.access, made.count, outer);
  return made;
}

const kernel_parameter* periodic_parameter(const kernel_code& code) {
  const auto found = std::find_if(code.parameters.begin(), code.parameters.end(),
                                  [](const kernel_parameter& p) { return p.access.kind == access_kind::wrap; });
  return found == code.parameters.end() ? nullptr : &*found;
}

bool takes_any_device(const device_query& query) {
  return query.ids.empty() && query.needs == capability::none && query.min_compute_units == 0 &&
         query.min_memory == bytes{} && query.exclude.empty() && !query.backend && !query.score && query.at_most > 0;
}

void check_block(const kernel_code& code, const std::array<int, 3>& block, std::source_location where) {
  if (block == std::array<int, 3>{}) return;
  constexpr std::int64_t largest = 1024;  // no vendor has larger blocks
  const auto refuse = [&](errc as, const std::string& why) {
    raise(as,
          "a block of " + std::to_string(block[0]) + " × " + std::to_string(block[1]) + " × " +
              std::to_string(block[2]) + " for '" + code.name + "': " + why,
          where);
  };
  std::int64_t items = 1;
  for (std::size_t d = 0; d < block.size(); ++d) {
    items *= std::clamp<std::int64_t>(block[d], 1, largest + 1);
    if (block[d] < 0 || items > largest)
      refuse(errc::invalid_argument, "a block has 1 to " + std::to_string(largest) + " items");
    if (block[d] > 1 && d >= static_cast<std::size_t>(code.dimensions)) {
      refuse(errc::invalid_argument, "the kernel runs over " + std::to_string(code.dimensions) +
                                         (code.dimensions == 1 ? " dimension" : " dimensions"));
    }
  }
  const bool reduces = std::any_of(code.parameters.begin(), code.parameters.end(),
                                   [](const kernel_parameter& p) { return p.access.kind == access_kind::reduce; });
  if (reduces) {
    refuse(errc::unsupported,
           "the blocks of a kernel that reduces are the library's, since the bits of its result depend on them");
  }
}

void check_granularity(const kernel_code& code, std::int64_t granularity, std::source_location where) {
  if (granularity >= 1) return;
  raise(errc::invalid_argument,
        "a granularity of " + std::to_string(granularity) + " for '" + code.name + "': it is a number of steps from 1",
        where);
}

bool checked_range(const kernel_code& code, const kernel_range& over, std::size_t arguments,
                   std::source_location where) {
  if (over.dimensions != code.dimensions) {
    raise(errc::incompatible,
          signature_of(code) + " runs over " + std::to_string(code.dimensions) + " dimensions, the range has " +
              std::to_string(over.dimensions),
          where);
  }
  bool empty = false;
  for (int d = 0; d < over.dimensions; ++d) {
    const auto i = static_cast<std::size_t>(d);
    if (over.end[i] < over.begin[i]) raise(errc::invalid_argument, "a negative range for '" + code.name + "'", where);
    empty = empty || over.end[i] == over.begin[i];
  }
  if (arguments != code.parameters.size()) {
    raise(errc::incompatible,
          signature_of(code) + " takes " + std::to_string(code.parameters.size()) + " arguments, got " +
              std::to_string(arguments),
          where);
  }
  return !empty;
}

std::shared_ptr<const kernel_code> registered_kernel(const std::shared_ptr<machine_state>& state, std::string_view name,
                                                     std::source_location where) {
  return detail::make<kernel_registry>(state).at(name, where);
}

std::string model_without_virtual_clock(const kernel_code& code) {
  return "the model of the kernel '" + code.name + "' has no effect: it is for virtual clocks, and this one is real";
}

event launch_on(const std::shared_ptr<machine_state>& state, device_id on, stream_handle order,
                std::shared_ptr<const kernel_code> code, const kernel_range& over,
                std::span<const launch_argument> arguments, const launch_options& options, std::source_location where) {
  state->require_open(where);
  const bool some = checked_range(*code, over, arguments.size(), where);
  launch_request request;
  request.range = over;
  request.stop = options.stop;
  request.model = options.model;
  if (options.model && state->options().clock != clock_kind::virtual_time && is_logged(log_level::info))
    log_decision(model_without_virtual_clock(*code));
  check_block(*code, options.block, where);
  if (const kernel_parameter* periodic = periodic_parameter(*code)) {
    raise(errc::unsupported,
          "'" + periodic->name + "' of '" + code->name +
              "' has a periodic halo, which a stream does not bring: launch it over devices, launch(machine, …)",
          where);
  }
  request.block = options.block;
  request.where = where;
  request.arguments.reserve(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].is_memory && arguments[i].memory.state != nullptr && arguments[i].memory.state != state.get()) {
      raise(errc::wrong_device,
            "argument " + std::to_string(i + 1) + " of '" + code->name + "' belongs to another machine than the stream",
            where);
    }
    request.arguments.push_back(checked_argument(*code, i, arguments[i], over, where));
    if (arguments[i].is_memory) require_arrival(*state, on, arguments[i].memory, *code, i, where);
  }
  backend& driver = state->backend_of(on);
  if (!some) return detail::make<event>(state, value_or_raise(driver.record(order), where));
  const auto escorts = escorts_for(*state, *code, arguments);
  request.kernel = std::move(code);
  auto done = escorts.empty() ? driver.launch(order, std::move(request))
                              : launch_escorted(driver, order, std::move(request), escorts);
  return detail::make<event>(state, value_or_raise(std::move(done), where));
}

event launch_in(const stream& order, std::shared_ptr<const kernel_code> code, const kernel_range& over,
                std::span<const launch_argument> arguments, const launch_options& options, std::source_location where) {
  const auto& state = state_of(order);
  if (!state) raise(errc::invalid_argument, "an empty stream: it was moved from", where);
  return launch_on(state, order.on_id(), order.native(), std::move(code), over, arguments, options, where);
}

void prepare_on(const device& on, const kernel_code& code, std::source_location where) {
  const auto& state = state_of(on);
  state->require_open(where);
  value_or_raise(state->backend_of(on.id()).prepare(on.id(), code), where);
}

void prepare_named(const device& on, std::string_view name, std::source_location where) {
  state_of(on)->require_open(where);
  prepare_on(on, *registered_kernel(state_of(on), name, where), where);
}

event launch_named(const stream& order, std::string_view name, const kernel_range& over,
                   std::span<const launch_argument> arguments, const launch_options& options,
                   std::source_location where) {
  const auto& state = state_of(order);
  if (!state) raise(errc::invalid_argument, "an empty stream: it was moved from", where);
  state->require_open(where);
  return launch_in(order, registered_kernel(state, name, where), over, arguments, options, where);
}

}  // namespace weft::detail
