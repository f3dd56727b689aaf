// SPDX-License-Identifier: Apache-2.0
#include "conformance/case_tools.hpp"

#include <algorithm>
#include <set>

namespace weft::conformance {
namespace {

verdict every_device_is_described(context& c) {
  const auto devices = c.m().devices();
  require_equal(static_cast<int>(devices.size()), c.m().device_count(), "devices listed and counted");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const device& d = devices[i];
    const std::string name = to_string(d.id());
    require_equal(d.id().index(), i, "place of " + name);
    require(!d.name().empty(), name + " has no name");
    require(d.total_memory().value() > 0, name + " has no memory");
    require(d.free_memory() <= d.total_memory(), name + " has more free memory than memory");
    require(d.compute_units() > 0, name + " has no compute units");
  }
  return holds();
}

verdict equal_models_have_different_ids(context& c) {
  std::set<std::string> uuids;
  std::set<std::string> addresses;
  std::size_t with_address = 0;
  for (const device& d : c.m().devices()) {
    require(!d.uuid().empty(), to_string(d.id()) + " has no uuid");
    uuids.insert(d.uuid());
    if (!d.pci_address().empty()) {
      ++with_address;
      addresses.insert(d.pci_address());
    }
  }
  require_equal(uuids.size(), c.m().devices().size(), "different uuids");
  require_equal(addresses.size(), with_address, "different PCI addresses");
  return holds();
}

verdict ids_are_the_same_at_the_next_discovery(context& c) {
  const machine again = c.open();
  require_equal(again.device_count(), c.m().device_count(), "number of devices");
  for (int i = 0; i < again.device_count(); ++i) {
    require(again[i].uuid() == c.m()[i].uuid(),
            "gpu" + std::to_string(i) + " had uuid " + c.m()[i].uuid() + " and has now " + again[i].uuid());
    require(again[i].pci_address() == c.m()[i].pci_address(), "gpu" + std::to_string(i) + " changed its PCI address");
  }
  return holds();
}

verdict counts_per_backend_match(context& c) {
  int total = 0;
  for (const backend_status& b : c.m().backends()) {
    const int counted = c.m().device_count(b.name);
    total += counted;
    require(b.available || !b.why.empty(), "backend " + b.name + " is absent without a reason");
    require(b.available || !b.looked_at || counted == 0, "backend " + b.name + " is absent and has devices");
    device_query named;
    named.backend = b.name;
    require_equal(counted, static_cast<int>(c.m().find_devices(named).size()), "devices of backend " + b.name);
  }
  require_equal(total, c.m().device_count(), "devices of all backends");
  require_equal(c.m().device_count("abacus"), 0, "devices of a backend that does not exist");
  return holds();
}

verdict an_id_list_gives_exactly_these(context& c) {
  const int last = c.m().device_count() - 1;
  const auto one = c.m().devices({.ids = {device_id{last}}});
  require_equal(one.size(), 1U, "devices of a list of one");
  require_equal(one[0].id().value(), last, "the device asked for");
  if (last > 0) {
    const auto two = c.m().devices({.ids = {device_id{last}, device_id{0}}});
    require_equal(two.size(), 2U, "devices of a list of two");
    require(two[0].id().value() == last && two[1].id().value() == 0, "the order of the list is not kept");
    require_equal(two.rejected().size(), static_cast<std::size_t>(last - 1), "rejected devices");
  }
  return holds();
}

verdict an_empty_list_means_all(context& c) {
  const auto all = c.m().devices(device_query{});
  require_equal(static_cast<int>(all.size()), c.m().device_count(), "devices without a condition");
  require(all.rejected().empty(), "a device was rejected without a condition");
  return holds();
}

verdict an_unknown_id_is_an_error(context& c) {
  for (const device_id bad : {unknown_device(c.m()), device_id{-1}}) {
    const std::string what = expect_error({errc::invalid_device}, "asking for " + to_string(bad),
                                          [&] { static_cast<void>(c.m().devices({.ids = {bad}})); });
    require(what.find(std::to_string(bad.value())) != std::string::npos, "the error does not name the id: " + what);
    expect_error({errc::invalid_device}, "indexing " + to_string(bad), [&] { static_cast<void>(c.m()[bad]); });
  }
  return holds();
}

verdict each_condition_excludes_and_says_why(context& c) {
  const auto check = [&](const device_query& query, const std::string& name,
                         const std::function<bool(const device&)>& fits) {
    const device_list found = c.m().find_devices(query);
    std::size_t fitting = 0;
    for (const device& d : c.m().devices()) fitting += fits(d) ? 1U : 0U;
    require_equal(found.size(), fitting, "devices with " + name);
    for (const device& d : found) require(fits(d), to_string(d.id()) + " does not fit " + name);
    require_equal(found.size() + found.rejected().size(), c.m().devices().size(), "chosen and rejected with " + name);
    for (const rejected_device& r : found.rejected()) {
      require(!r.why.empty(), to_string(r.id) + " was rejected without a reason");
    }
  };
  int most_units = 0;
  bytes most_memory;
  for (const device& d : c.m().devices()) {
    most_units = std::max(most_units, d.compute_units());
    most_memory = std::max(most_memory, d.free_memory());
  }
  check({.min_compute_units = most_units}, "the most compute units",
        [&](const device& d) { return d.compute_units() >= most_units; });
  check({.min_compute_units = most_units + 1}, "more compute units than there are",
        [](const device&) { return false; });
  check({.min_memory = most_memory}, "the most memory",
        [&](const device& d) { return d.free_memory() >= most_memory; });
  check({.min_memory = bytes{~std::uint64_t{0}}}, "more memory than there is", [](const device&) { return false; });
  for (const capability wanted : {capability::peer_to_peer, capability::unified_memory, capability::native_atomics,
                                  capability::pinned_memory, capability::kernels}) {
    check({.needs = wanted}, std::string{names_of(wanted).front()}, [&](const device& d) { return d.has(wanted); });
  }
  check({.exclude = {device_id{0}}}, "gpu0 excluded", [](const device& d) { return d.id().value() != 0; });
  return holds();
}

verdict none_left_is_an_error_with_every_reason(context& c) {
  const std::string what = expect_error({errc::not_found}, "asking for a million compute units",
                                        [&] { static_cast<void>(c.m().devices({.min_compute_units = 1000000})); });
  for (const device& d : c.m().devices()) {
    require(what.find(to_string(d.id())) != std::string::npos, "the error does not name " + to_string(d.id()));
  }
  require(c.m().find_devices({.min_compute_units = 1000000}).empty(), "find_devices found what devices() did not");
  return holds();
}

verdict a_scorer_orders_and_ties_keep_the_order(context& c) {
  const auto backwards = c.m().devices({.score = [](const device& d) { return static_cast<double>(d.id().value()); }});
  for (std::size_t i = 0; i < backwards.size(); ++i) {
    require_equal(backwards[i].id().index(), backwards.size() - 1 - i, "place by score");
  }
  const auto level = c.m().devices({.score = [](const device&) { return 1.0; }});
  for (std::size_t i = 0; i < level.size(); ++i) require_equal(level[i].id().index(), i, "place in a tie");
  const auto best =
      c.m().devices({.score = [](const device& d) { return static_cast<double>(d.id().value()); }, .at_most = 1});
  require_equal(best.size(), 1U, "at most one");
  require_equal(best[0].id().value(), c.m().device_count() - 1, "the best");
  return holds();
}

verdict an_absent_backend_is_refused_or_replaced(context& c) {
  expect_error({errc::not_found, errc::unsupported}, "requiring a backend that does not exist",
               [&] { static_cast<void>(c.m().devices({.backend = "abacus"})); });
  const auto others = c.m().devices({.backend = "abacus", .backend_required = false});
  require_equal(static_cast<int>(others.size()), c.m().device_count(), "devices instead of the preferred");
  require(!others.notes().empty(), "the fallback is not mentioned");
  return holds();
}

verdict peer_to_peer_is_claimed_exactly_by_those_who_have_it(context& c) {
  for (const device& d : c.m().devices()) {
    bool any = false;
    bool native = false;
    for (const device& other : c.m().devices()) {
      if (d == other) continue;
      any = any || can_access_peer(c.m(), d.id(), other.id());
      const auto known = capability_between(c.m(), d.id(), other.id());
      native = native || (known && known->supported && known->native_atomics);
    }
    require_equal(d.has(capability::peer_to_peer), any, to_string(d.id()) + ": capability peer_to_peer");
    require_equal(d.has(capability::native_atomics), native, to_string(d.id()) + ": capability native_atomics");
  }
  return holds();
}

}  // namespace

void add_selection(case_list& list) {
  constexpr std::string_view group = "selection";
  list.insert(list.end(),
              {{"every device is described", group, every_device_is_described},
               {"devices of one model have different ids", group, equal_models_have_different_ids},
               {"the ids are the same at the next discovery", group, ids_are_the_same_at_the_next_discovery},
               {"the devices of a backend are counted, and an absent backend has none", group, counts_per_backend_match,
                feature::none},
               {"a list of ids gives exactly these devices in this order", group, an_id_list_gives_exactly_these},
               {"an empty list of ids means all devices", group, an_empty_list_means_all},
               {"an unknown id is an error that names it", group, an_unknown_id_is_an_error, feature::none},
               {"each condition excludes strictly, and says why", group, each_condition_excludes_and_says_why},
               {"a selection that leaves no device is an error with every reason", group,
                none_left_is_an_error_with_every_reason},
               {"a scorer orders the devices, and ties keep the order", group, a_scorer_orders_and_ties_keep_the_order},
               {"a required backend that is absent is an error, a preferred one is replaced and mentioned", group,
                an_absent_backend_is_refused_or_replaced},
               {"a device claims peer access and native atomics if and only if a pair has them", group,
                peer_to_peer_is_claimed_exactly_by_those_who_have_it}});
}

}  // namespace weft::conformance
