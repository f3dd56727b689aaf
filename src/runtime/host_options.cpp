// SPDX-License-Identifier: Apache-2.0
#include "runtime/host_options.hpp"

#include "core/errors/make_error.hpp"

namespace weft::detail {
namespace {

/// "a", "a and b", "a, b and c".
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  return text;
}

}  // namespace

std::optional<error> contradiction(const machine_options& asked) {
  const auto wrong = [](std::string what) { return make_error(errc::invalid_argument, std::move(what)); };
  if (asked.sim && asked.machine)
    return wrong("machine_options::sim and machine are both a topology: a machine plays one");
  if (asked.devices && (asked.sim || asked.machine)) {
    return wrong("machine_options::devices is " + std::to_string(*asked.devices) +
                 ", and the topology has devices of its own: leave one of them out");
  }
  if (asked.max_in_flight < 0)
    return wrong("machine_options::max_in_flight is " + std::to_string(asked.max_in_flight) + "; 0 is no limit");
  if (asked.model.delay.count() > 0 && asked.model.shuffle == 0)
    return wrong("simulation::delay delays what shuffle draws, and that is 0");
  return std::nullopt;
}

host_options::host_options(const machine_options& asked) {
  const auto note = [](std::vector<std::string>& list, bool is_set, const char* name) {
    if (is_set) list.push_back(std::string{"machine_options::"} + name);
  };
  note(demands_, asked.check_access.value_or(false), "check_access");
  note(demands_, asked.check_order, "check_order");
  note(demands_, asked.fill_new_memory.has_value(), "fill_new_memory");
  note(demands_, asked.max_in_flight != 0, "max_in_flight");
  note(wishes_, asked.devices.has_value(), "devices");
  note(wishes_, asked.strict.has_value(), "strict");
  note(wishes_, !(asked.model == simulation{}), "model");
}

std::optional<error> host_options::refusal(std::string_view backend) const {
  if (demands_.empty()) return std::nullopt;
  return make_error(errc::unsupported, listed(demands_) + (demands_.size() == 1 ? " has" : " have") +
                                           " no effect on the backend '" + std::string{backend} +
                                           "': only the host backend has it; open that one, or leave it off");
}

std::vector<std::string> host_options::notes(std::string_view backend, bool is_mixed) const {
  std::vector<std::string> made;
  const auto add = [&](const std::vector<std::string>& names) {
    for (const std::string& name : names)
      made.push_back(name + " has no effect on the devices of the backend '" + std::string{backend} + "'");
  };
  if (is_mixed) add(demands_);
  add(wishes_);
  return made;
}

}  // namespace weft::detail
