// SPDX-License-Identifier: Apache-2.0
#include "backends/host/engine/fault_plan.hpp"

#include <algorithm>

namespace weft::host {

fault_plan::fault_plan(const topology& machine, device_id first) {
  for (topology_fault f : machine.faults) {
    for (std::optional<device_id>* id : {&f.device, &f.from, &f.to}) {
      if (*id) *id = device_id{(*id)->value() + first.value()};
    }
    entries_.push_back(std::make_unique<entry>(std::move(f)));
  }
}

std::optional<error> fault_plan::on_call(std::string_view function, std::span<const device_id> devices) noexcept {
  for (auto& e : entries_) {
    if (e->fault.what != topology_fault::kind::call_fails) continue;
    if (!e->fault.call.empty() && e->fault.call != function) continue;
    if (e->fault.device && std::find(devices.begin(), devices.end(), *e->fault.device) == devices.end()) continue;
    if (!e->strikes()) continue;
    error cause;
    cause.code = errc::resource_exhausted;
    cause.what = "injected fault: call of " + std::string{function} + " fails";
    cause.where = {};
    return cause;
  }
  return std::nullopt;
}

bool fault_plan::entry::is_on_way(std::span<const int> links, device_id from, device_id to) const noexcept {
  if (fault.link && std::find(links.begin(), links.end(), *fault.link) == links.end()) return false;
  return (!fault.from || *fault.from == from) && (!fault.to || *fault.to == to);
}

fault_plan::copy_verdict fault_plan::on_copy(std::span<const int> links, device_id from, device_id to,
                                             bool through_host) noexcept {
  copy_verdict verdict;
  for (auto& e : entries_) {
    const topology_fault& f = e->fault;
    const bool fails = f.what == topology_fault::kind::copy_fails;
    if (!fails && f.what != topology_fault::kind::corrupts) continue;
    if (!fails && through_host && f.from && f.to) continue;
    if (!e->is_on_way(links, from, to) || !e->strikes()) continue;
    (fails ? verdict.fails : verdict.corrupts) = true;
    if (fails && f.link) verdict.link = *f.link;
  }
  return verdict;
}

bool fault_plan::always_corrupts(std::span<const int> links, device_id from, device_id to) const noexcept {
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& e) {
    return e->fault.what == topology_fault::kind::corrupts && e->fault.nth == 0 && e->is_on_way(links, from, to);
  });
}

fault_plan::operation_verdict fault_plan::on_operation(device_id device) noexcept {
  operation_verdict verdict;
  for (auto& e : entries_) {
    const topology_fault& f = e->fault;
    if (f.device && *f.device != device) continue;
    if (f.what == topology_fault::kind::device_stalls && e->strikes()) verdict.stall += f.duration;
    if (f.what == topology_fault::kind::device_lost && e->strikes()) verdict.lost = true;
  }
  return verdict;
}

bool fault_plan::drops(device_id from, device_id to) const noexcept {
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& e) {
    return e->fault.what == topology_fault::kind::drops_data && e->fault.from == from && e->fault.to == to;
  });
}

}  // namespace weft::host
