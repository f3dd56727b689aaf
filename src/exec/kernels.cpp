// SPDX-License-Identifier: Apache-2.0
#include "weft/exec/kernels.hpp"

#include "core/errors/called_from.hpp"
#include "core/text/nearest.hpp"
#include "exec/kernel_table.hpp"

namespace weft {

kernel_registry kernels(const machine& m) { return detail::make<kernel_registry>(detail::state_of(m)); }

detail::machine_state& kernel_registry::owned() const { return *detail::not_moved_from(state_, "kernel registry"); }

kernel_registry& kernel_registry::add(std::shared_ptr<const kernel_code> code, std::source_location where) {
  const called_from here{where};
  owned().require_open();
  if (!code) raise(errc::invalid_argument, "a kernel to register is null");
  detail::kernel_table& table = detail::kernels_of(owned());
  const std::unique_lock lock{table.mutex};
  const auto [it, fresh] = table.by_name.try_emplace(code->name, code);
  if (!fresh && it->second->hash != code->hash) {
    raise(errc::incompatible,
          "the kernel name '" + code->name + "' is taken by another definition: " + it->second->file + ":" +
              std::to_string(it->second->line) + " and " + code->file + ":" + std::to_string(code->line));
  }
  return *this;
}

std::shared_ptr<const kernel_code> kernel_registry::at(std::string_view name, std::source_location where) const {
  const called_from here{where};
  detail::kernel_table& table = detail::kernels_of(owned());
  const std::shared_lock lock{table.mutex};
  if (const auto it = table.by_name.find(name); it != table.by_name.end()) return it->second;
  std::vector<std::string_view> known;
  known.reserve(table.by_name.size());
  for (const auto& [key, code] : table.by_name) known.push_back(key);
  std::string text = "no kernel is registered as '" + std::string{name} + "'";
  if (const auto close = nearest_name(name, known)) {
    text += "; did you mean '" + std::string{*close} + "'?";
  } else if (known.empty()) {
    text += "; register it first: weft::kernels(m).add<" + std::string{name} + ">()";
  }
  raise(errc::not_found, std::move(text));
}

std::vector<std::string> kernel_registry::names() const {
  detail::kernel_table& table = detail::kernels_of(owned());
  const std::shared_lock lock{table.mutex};
  std::vector<std::string> known;
  known.reserve(table.by_name.size());
  for (const auto& [key, code] : table.by_name) known.push_back(key);
  return known;
}

}  // namespace weft
