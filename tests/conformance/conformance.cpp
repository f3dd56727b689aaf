// SPDX-License-Identifier: Apache-2.0
#include "conformance/conformance.hpp"

#include "conformance/case_tools.hpp"

#include <array>
#include <chrono>
#include <exception>
#include <optional>

namespace weft {
namespace conformance {
namespace {

/// True for what a machine refuses by an error when it is tried; the rest cannot even be tried.
bool refuses(feature what) {
  return what == feature::peer_access || what == feature::unified_memory || what == feature::pinned_memory ||
         what == feature::kernels;
}

std::string lacking(const machine& m, capability wanted, std::string_view name) {
  for (const device& d : m.devices()) {
    if (!d.has(wanted)) return to_string(d.id()) + " (" + d.name() + ") does not have " + std::string{name};
  }
  return {};
}

}  // namespace

std::string_view to_string(feature what) {
  switch (what) {
    case feature::none:
      return "nothing";
    case feature::devices:
      return "a device";
    case feature::two_devices:
      return "two devices";
    case feature::peer_access:
      return "peer access";
    case feature::unified_memory:
      return "unified memory";
    case feature::pinned_memory:
      return "pinned memory";
    case feature::timing:
      return "timing";
    case feature::priorities:
      return "priorities of streams";
    case feature::kernels:
      return "kernels";
    case feature::peer_limit:
      return "a limited table of peers";
    case feature::missing_path:
      return "a pair of devices without access";
  }
  return "";
}

std::string absence(const machine& m, feature what) {
  const int devices = m.device_count();
  if (what == feature::none) return {};
  if (devices == 0) return "the machine has no device";
  switch (what) {
    case feature::two_devices:
      return devices >= 2 ? "" : "the machine has one device";
    case feature::peer_access:
      if (devices < 2) return "the machine has one device";
      for (const device& d : m.devices()) {
        if (d.has(capability::peer_to_peer)) return {};
      }
      return "no device has peer access to another";
    case feature::unified_memory:
      return lacking(m, capability::unified_memory, "unified memory");
    case feature::pinned_memory:
      return lacking(m, capability::pinned_memory, "pinned memory");
    case feature::timing:
      return lacking(m, capability::timing, "timing");
    case feature::priorities:
      return lacking(m, capability::priorities, "priorities");
    case feature::kernels:
      return lacking(m, capability::kernels, "kernels");
    case feature::peer_limit:
      for (const topology_device& d : m.layout().devices) {
        if (d.max_peers > 0 && d.max_peers < devices - 1) return {};
      }
      return "no device limits how many peers it may have";
    case feature::missing_path:
      if (devices < 2) return "the machine has one device";
      return pair_without_path(m) ? "" : "every device has access to every other";
    case feature::none:
    case feature::devices:
      break;
  }
  return {};
}

std::span<const feature> always_offered(backend_kind kind) {
  static constexpr std::array host{feature::devices, feature::kernels, feature::pinned_memory, feature::timing,
                                   feature::priorities};
  static constexpr std::array vendor{feature::devices, feature::kernels, feature::pinned_memory, feature::timing,
                                     feature::priorities};
  static constexpr std::array opencl{feature::devices, feature::kernels};
  switch (kind) {
    case backend_kind::host:
      return host;
    case backend_kind::cuda:
    case backend_kind::hip:
      return vendor;
    case backend_kind::opencl:
      return opencl;
    case backend_kind::mixed:
      return opencl;  // what every one of them has
    case backend_kind::null:
      return {};
  }
  return {};
}

machine& context::m() {
  if (first_.empty()) first_.push_back((*open_)());
  return first_.front();
}

namespace {

/// A backend of which nothing is expected yet may refuse anything, as long as it says so.
verdict run_wanted(const conformance_case& one, context& c, backend_kind kind) {
  try {
    return one.run(c);
  } catch (const absent& a) {
    return {verdict_kind::not_offered, a.why};
  } catch (const shortfall& s) {
    return {verdict_kind::falls_short, s.why};
  } catch (const error_exception& e) {
    if (e.code() == errc::unsupported && always_offered(kind).empty())
      return {verdict_kind::not_offered, e.cause().what};
    return {verdict_kind::falls_short, "it failed: " + to_string(e.cause())};
  } catch (const std::exception& e) {
    return {verdict_kind::falls_short, std::string{"it failed: "} + e.what()};
  }
}

/// The machine says that it lacks what the case needs: then trying must be refused as unsupported. Anything else, a
/// pass above all, contradicts what the machine says.
verdict run_unwanted(const conformance_case& one, context& c, const std::string& absence_of) {
  const std::string name{to_string(one.needs)};
  try {
    const verdict v = one.run(c);
    if (v.kind == verdict_kind::holds) {
      return {verdict_kind::falls_short, "it holds, but the machine says: " + absence_of +
                                             "; let the capabilities of the device say that it has " + name};
    }
    return v;
  } catch (const error_exception& e) {
    if (e.code() == errc::unsupported || e.code() == errc::peer_unsupported) {
      return {verdict_kind::not_offered, absence_of};
    }
    return {verdict_kind::falls_short,
            absence_of + ", and trying gave " + to_string(e.cause()) + " instead of unsupported"};
  } catch (const absent& a) {
    return {verdict_kind::not_offered, a.why};
  } catch (const shortfall& s) {
    return {verdict_kind::falls_short, absence_of + ", and trying was not refused as unsupported: " + s.why};
  } catch (const std::exception& e) {
    return {verdict_kind::falls_short, std::string{"it failed: "} + e.what()};
  }
}

/// Of all devices, or `mixed`.
backend_kind kind_of(const machine& m) {
  const backend_kind first = m[0].kind();
  for (const device& d : m.devices()) {
    if (d.kind() != first) return backend_kind::mixed;
  }
  return first;
}

verdict judge(const conformance_case& one, context& c) {
  std::string missing;
  backend_kind kind = backend_kind::null;
  try {
    missing = absence(c.m(), one.needs);
    if (c.m().device_count() > 0) kind = kind_of(c.m());
  } catch (const error_exception& e) {
    return {verdict_kind::falls_short, "the machine did not open: " + to_string(e.cause())};
  }
  if (missing.empty()) return run_wanted(one, c, kind);
  for (const feature promised : always_offered(kind)) {
    if (promised == one.needs) {
      return {verdict_kind::falls_short, missing + ", but every machine of the backend " +
                                             std::string{to_string(kind)} + " is expected to have it"};
    }
  }
  if (!refuses(one.needs) || c.m().device_count() == 0) return {verdict_kind::not_offered, missing};
  return run_unwanted(one, c, missing);
}

}  // namespace
}  // namespace conformance

std::string_view to_string(verdict_kind kind) {
  switch (kind) {
    case verdict_kind::holds:
      return "holds";
    case verdict_kind::not_offered:
      return "not_offered";
    case verdict_kind::falls_short:
      return "falls_short";
  }
  return "";
}

bool is_among(const conformance_case& one, std::string_view filter) {
  return one.name.find(filter) != std::string_view::npos || one.group.find(filter) != std::string_view::npos;
}

std::vector<conformance_case> conformance_cases() {
  using namespace conformance;
  case_list list;
  add_selection(list);
  add_memory(list);
  add_address_range(list);
  add_streams_events(list);
  add_barriers(list);
  add_kernels(list);
  add_faults(list);
  add_peer_query(list);
  add_peer_enable(list);
  add_peer_copy(list);
  add_peer_map(list);
  add_blocks(list);
  add_routes(list);
  add_library_wide(list);
  return list;
}

case_result run_case(const conformance_case& one, const std::function<machine()>& open,
                     const std::optional<verdict>& fault) {
  const auto begin = std::chrono::steady_clock::now();
  verdict v;
  try {
    conformance::context c{open, fault};
    v = conformance::judge(one, c);
  } catch (const std::exception& e) {
    v = {verdict_kind::falls_short, std::string{"closing the machine failed: "} + e.what()};
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  return {std::string{one.name}, std::string{one.group}, v.kind, v.why, taken.count()};
}

std::vector<case_result> run_conformance(const std::function<machine()>& open, const run_options& options) {
  std::vector<case_result> results;
  for (const conformance_case& one : conformance_cases()) {
    if (!is_among(one, options.filter)) continue;
    results.push_back(run_case(one, open, options.fault));
    if (options.after_each) options.after_each(results.back());
  }
  return results;
}

}  // namespace weft
