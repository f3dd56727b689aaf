// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/launch_run.hpp"

#include "core/errors/called_from.hpp"
#include "core/profiler_range.hpp"
#include "exec/launch_check.hpp"
#include "exec/split_launch/launch_job.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace weft {
namespace detail {
namespace {

void check_options(const kernel_code& code, const spread_options& options, std::size_t devices,
                   std::source_location where) {
  check_block(code, options.block, where);
  check_granularity(code, options.granularity, where);
  if (options.strategy != balance::weighted && !options.weights.empty()) {
    raise(errc::invalid_argument,
          "weights for '" + code.name + "' with balance::" + std::string{to_string(options.strategy)} +
              ": they are of balance::weighted",
          where);
  }
  if (options.strategy == balance::weighted && options.weights.size() != devices) {
    raise(errc::invalid_argument,
          std::to_string(options.weights.size()) + " weights for " + std::to_string(devices) +
              " devices: balance::weighted takes one for each, in the order of the devices chosen",
          where);
  }
  // also for a launch that needs no plan, which would look at them
  const auto refuse = [&](const std::string& why) {
    raise(errc::invalid_argument, "the weights for '" + code.name + "': " + why, where);
  };
  bool is_any_positive = options.weights.empty();
  for (const double w : options.weights) {
    if (!std::isfinite(w) || w < 0) refuse(std::to_string(w) + " is neither 0 nor a positive number");
    is_any_positive = is_any_positive || w > 0;
  }
  if (!is_any_positive) refuse("all are 0: give one of the devices a share");
}

void check_limits(const machine& m, const spread_options& options, const device_list& chosen,
                  std::source_location where) {
  for (std::size_t i = 0; i < options.memory_limits.size(); ++i) {
    const device_id id = m[placed_id{options.memory_limits[i].device, where}].id();  // must exist
    const auto refuse = [&](const std::string& why) {
      raise(errc::invalid_argument, "a memory limit for " + to_string(id) + ", " + why, where);
    };
    if (std::none_of(chosen.begin(), chosen.end(), [&](const device& d) { return d.id() == id; }))
      refuse("which this launch does not use");
    for (std::size_t k = 0; k < i; ++k) {
      if (options.memory_limits[k].device == id) refuse("which has one already");
    }
  }
}

/// Why a launch must stay on one device, or nothing.
std::string indivisible(const kernel_code& code, std::span<const job_argument> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const kernel_parameter& p = code.parameters[i];
    if (p.is_ring) return "'" + p.name + "' is a ring";
    if (!arguments[i].writes || arguments[i].reduces) continue;
    if (p.access.kind == access_kind::whole) return "'" + p.name + "' is written as a whole by every item";
    if (p.access.kind == access_kind::halo) return "'" + p.name + "' is written beyond an item's own elements";
    if (arguments[i].slab == 0) {
      return "the " + std::to_string(arguments[i].array->count()) + " elements of '" + p.name +
             "' do not divide by the outermost extent";
    }
  }
  return {};
}

/// Errors: incompatible for a periodic halo that is written, that goes round more than once, or that has no steps.
void check_period(const job_argument& a, std::int64_t outer, const std::string& who, std::source_location where) {
  const auto refuse = [&](const std::string& why) { raise(errc::incompatible, who + " " + why, where); };
  if (a.writes) refuse("is written, and a periodic halo is only read");
  if (a.slab == 0) {
    refuse("has " + std::to_string(a.plain.count) + " elements, which do not divide by the outermost extent of " +
           std::to_string(outer) + ": its periodic halo needs whole steps");
  }
  if (a.plain.count > std::numeric_limits<std::int64_t>::max() / 4) refuse("is too long for a periodic halo");
  if (a.access.amount > a.plain.count / a.slab) {
    refuse("has " + std::to_string(a.plain.count / a.slab) + " steps, and a periodic halo of " +
           std::to_string(a.access.amount) + " goes round more than once");
  }
}

/// A ring of which each launch gets an image belongs to launches in a stream: pieces have streams of their own.
void refuse_images(machine_state& state, const kernel_code& code, std::span<const spread_argument> arguments,
                   std::source_location where) {
  std::vector<launch_argument> plain;
  for (const spread_argument& given : arguments) plain.push_back(given.plain);
  if (escorts_for(state, code, plain).empty()) return;
  raise(errc::unsupported,
        "the kernel '" + code.name +
            "' is lent an end of a queue on a device that the host reaches by commands only: launch it in a stream of "
            "that device",
        where);
}

}  // namespace

launch_run spread(const machine& m, std::shared_ptr<const kernel_code> code, const kernel_range& over,
                  std::span<spread_argument> arguments, const spread_options& options, std::source_location where) {
  const profiler_range range{[&] { return "launch " + code->name + " over devices"; }};
  const auto& state = detail::state_of(m);
  state->require_open(where);
  const bool some = checked_range(*code, over, arguments.size(), where);

  // One device that holds everything: a launch like any other, in the device's own stream.
  const bool plain =
      state->device_count() == 1 && takes_any_device(options.devices) && options.memory_limits.empty() &&
      options.asynchronous && options.strategy != balance::weighted && periodic_parameter(*code) == nullptr &&
      std::all_of(arguments.begin(), arguments.end(), [](const spread_argument& a) { return !a.array && !a.is_host; });
  if (plain) {
    check_options(*code, options, 1, where);
    constexpr std::size_t usual = 8;
    std::array<launch_argument, usual> few;
    std::vector<launch_argument> many(arguments.size() > usual ? arguments.size() : 0);
    const std::span<launch_argument> list =
        many.empty() ? std::span{few}.first(arguments.size()) : std::span<launch_argument>{many};
    for (std::size_t i = 0; i < list.size(); ++i) list[i] = arguments[i].plain;
    const stream_handle order = value_or_raise(state->default_stream(device_id{0}), where);
    return detail::make<launch_run>(launch_on(state, device_id{0}, order, std::move(code), over, list,
                                              {options.stop, options.model, options.block}, where));
  }

  const called_from here{where};
  if (has_ring(*code)) refuse_images(*state, *code, arguments, where);
  job_plan plan;
  plan.state = state;
  plan.code = std::move(code);
  plan.over = over;
  plan.options = options;
  plan.where = where;
  const device_list chosen = m.devices(options.devices, where);
  plan.devices.assign(chosen.begin(), chosen.end());
  check_options(*plan.code, options, plan.devices.size(), where);
  check_limits(m, options, chosen, where);

  for (std::size_t i = 0; i < arguments.size(); ++i) {
    spread_argument& given = arguments[i];
    const kernel_parameter& wanted = plan.code->parameters[i];
    const auto at_fault = [&] {
      return "argument " + std::to_string(i + 1) + " (" + wanted.name + ") of '" + plan.code->name + "'";
    };
    if (given.plain.memory.state != nullptr && given.plain.memory.state != state.get())
      raise(errc::wrong_device, at_fault() + " belongs to another machine", where);
    if (given.array && given.array->machine() != state)
      raise(errc::wrong_device, at_fault() + " is an array of another machine", where);
    job_argument made;
    made.plain = checked_argument(*plan.code, i, given.plain, over, where);
    made.access = wanted.access;
    made.name = wanted.name;
    if (wanted.direction != parameter_direction::scalar) {
      made.reads = wanted.direction != parameter_direction::out;
      made.writes = wanted.direction != parameter_direction::in;
      made.reduces = wanted.access.kind == access_kind::reduce;
      if (over.dimensions > 1 && made.access.kind != access_kind::whole && !made.reduces) {
        made.slab = slab_of(made.access, made.plain.count, over.end[plan.outer()]);
      }
      if (some && made.access.kind == access_kind::wrap) check_period(made, over.end[plan.outer()], at_fault(), where);
      made.array = given.array;
      if (!made.array) {
        made.is_temporary = true;
        made.array = std::make_shared<array_body>(
            state, array_shape{static_cast<std::uint64_t>(made.plain.count), size_of(made.plain.type)});
        made.array->pass_through();
        memory_ref home = given.plain.memory;
        if (given.is_host && options.unified_memory && home.size != 0) {
          for (const device& d : plan.devices) {
            if (!d.has(capability::unified_memory)) {
              raise(errc::unsupported,
                    to_string(d.id()) + " has no unified memory: leave it out, or let " + at_fault() + " be copied",
                    where);
            }
          }
          made.array->adopt(plan.devices.front(), home);
        } else {
          made.array->borrow(home);
        }
      }
    }
    plan.arguments.push_back(std::move(made));
  }
  for (std::size_t i = 0; i < plan.arguments.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      const job_argument& a = plan.arguments[i];
      const job_argument& b = plan.arguments[k];
      if (a.array && a.array == b.array && (a.writes || b.writes)) {
        raise(errc::incompatible,
              "arguments " + std::to_string(k + 1) + " and " + std::to_string(i + 1) + " of '" + plan.code->name +
                  "' are one array, and the kernel writes it: it may overlap only where it is read",
              where);
      }
    }
  }
  plan.one_device_because = indivisible(*plan.code, plan.arguments);
  if (!some) plan.over.end[plan.outer()] = plan.over.begin[plan.outer()];  // empty in any dimension is nothing to do

  auto job = std::make_shared<launch_job>(std::move(plan));
  job->begin();
  auto run = make<launch_run>(std::move(job));
  if (!options.asynchronous) run.wait(where);
  return run;
}

launch_run spread_named(const machine& m, std::string_view name, const kernel_range& over,
                        std::span<spread_argument> arguments, const spread_options& options,
                        std::source_location where) {
  detail::state_of(m)->require_open(where);
  return spread(m, registered_kernel(detail::state_of(m), name, where), over, arguments, options, where);
}

}  // namespace detail

launch_run& launch_run::operator=(launch_run&& other) noexcept {
  if (this != &other) {
    const launch_run gone{std::move(*this)};  // waits, if it has to
    job_ = std::move(other.job_);
    only_ = std::move(other.only_);
  }
  return *this;
}

launch_run::~launch_run() {
  if (job_ && job_->borrows_host_memory() && !job_->settled()) static_cast<void>(job_->wait_until(no_deadline));
}

void launch_run::wait(std::source_location where) const {
  if (!job_) return only_.wait(where);
  if (job_->wait_until(no_deadline) == wait_outcome::failed) detail::raise_failure(*job_->tell(), where);
}

wait_outcome launch_run::wait_for(std::chrono::nanoseconds timeout, std::source_location where) const {
  if (!job_) return only_.wait_for(timeout, where);
  const wait_outcome outcome = job_->wait_until(deadline_after(job_->state()->now(), timeout));
  if (outcome == wait_outcome::failed) detail::raise_failure(*job_->tell(), where);
  return outcome;
}

bool launch_run::ready() const {
  if (!job_) return only_.ready();
  if (!job_->settled()) job_->look();
  return job_->settled();
}

event launch_run::done() const { return job_ ? job_->done() : only_; }

void launch_run::cancel() const {
  if (job_) job_->cancel();
}

launch_report launch_run::report(std::source_location where) const {
  const called_from here{where};
  if (!job_) {
    if (!only_.is_recorded()) raise(errc::invalid_argument, "an empty launch: it was moved from, or never made");
    raise(errc::unsupported,
          "a launch on memory of one device keeps no account: its event's times say how long it took");
  }
  return job_->report();
}

}  // namespace weft
