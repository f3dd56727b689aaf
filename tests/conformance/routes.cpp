// SPDX-License-Identifier: Apache-2.0
#include "conformance/case_tools.hpp"

namespace weft::conformance {
namespace {

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

verdict every_pair_has_a_way_with_reasons(context& c) {
  const route_facts facts = route_facts_of(c.m().layout());
  require_equal(facts.devices, static_cast<std::size_t>(c.m().device_count()), "devices");
  for (const device_pair& pair : all_pairs(c.m())) {
    for (const std::uint64_t size : {std::uint64_t{1}, std::uint64_t{4096}, mebibyte, 256 * mebibyte + 3}) {
      const auto chosen = route(facts, pair.from, pair.to, bytes{size});
      require(chosen.has_value(), text(pair) + " has no way");
      const auto explained = explain_route(facts, pair.from, pair.to, bytes{size});
      require(explained.has_value(), text(pair) + " is not explained");
      require(explained->chosen.path == chosen->path, text(pair) + ": the explanation is of another way");
      require_equal(chosen->path == copy_path::direct && !can_access_peer(c.m(), pair.from, pair.to) &&
                        !can_access_peer(c.m(), pair.to, pair.from),
                    false, text(pair) + ": direct without access");
      for (const route_alternative& other : explained->rejected) {
        require(!other.why.empty(), text(pair) + ": " + std::string{to_string(other.path)} + " lost without a reason");
        if (other.predicted_seconds && chosen->predicted_seconds > 0) {
          require(*other.predicted_seconds >= chosen->predicted_seconds, text(pair) + ": a faster way lost");
        }
      }
      if (chosen->path == copy_path::staged || chosen->path == copy_path::relayed) {
        require(chosen->chunk > 0, text(pair) + ": chunks of nothing");
        require(chosen->depth > 0 && chosen->depth < 1000, text(pair) + ": the depth is not bounded");
      }
    }
  }
  return holds();
}

verdict the_same_facts_give_the_same_way(context& c) {
  const route_facts facts = route_facts_of(c.m().layout());
  for (const device_pair& pair : all_pairs(c.m())) {
    const auto once = route(facts, pair.from, pair.to, bytes{mebibyte});
    const auto again = route(facts, pair.from, pair.to, bytes{mebibyte});
    require(once.has_value() && again.has_value() && once->path == again->path && once->chunk == again->chunk &&
                once->via == again->via,
            text(pair) + ": two answers");
  }
  return holds();
}

verdict a_wish_is_honoured_or_refused_with_the_reason(context& c) {
  const route_facts facts = route_facts_of(c.m().layout());
  for (const device_pair& pair : all_pairs(c.m())) {
    for (const copy_path wish : {copy_path::direct, copy_path::staged, copy_path::relayed}) {
      const auto chosen = route(facts, pair.from, pair.to, bytes{mebibyte}, by_way(wish).route);
      if (chosen) {
        require(chosen->path == wish, text(pair) + ": another way than " + std::string{to_string(wish)});
      } else {
        require(chosen.error().code == errc::peer_unsupported,
                text(pair) + ": refused as " + to_string(chosen.error()));
        require(!chosen.error().what.empty(), text(pair) + ": refused without a reason");
        require(wish != copy_path::staged, text(pair) + ": staging was refused");
      }
    }
  }
  return holds();
}

verdict a_device_and_itself_is_the_same_device(context& c) {
  const route_facts facts = route_facts_of(c.m().layout());
  for (const device& d : c.m().devices()) {
    const auto chosen = route(facts, d.id(), d.id(), bytes{4096});
    require(chosen.has_value() && chosen->path == copy_path::same_device, to_string(d.id()) + " and itself");
  }
  return holds();
}

verdict staging_works_for_every_size(context& c) {
  const device_pair pair = offered_pair(c.m());
  for (const std::size_t size : sizes_to_try()) {
    const auto data = pattern(size, size);
    const buffer<std::uint8_t> src = filled(c.m()[pair.from], data);
    const buffer<std::uint8_t> dst{c.m()[pair.to], size};
    const copy_report report = copy(dst, src, by_way(copy_path::staged));
    require(size == 0 || report.path == copy_path::staged, "staging became " + std::string{to_string(report.path)});
    require_same(contents(dst), data, "staged, " + std::to_string(size) + " bytes");
  }
  return holds();
}

verdict relaying_delivers_where_it_is_possible(context& c) {
  const auto leases = enable_all_peers(c.m());
  const auto data = pattern((3U << 20) + 7, 4);
  int tried = 0;
  for (const device_pair& pair : all_pairs(c.m())) {
    for (const device& via : c.m().devices()) {
      if (via.id() == pair.from || via.id() == pair.to || tried >= 6) continue;
      const buffer<std::uint8_t> src = filled(c.m()[pair.from], data);
      const buffer<std::uint8_t> dst{c.m()[pair.to], data.size()};
      try {
        const copy_report report = copy(dst, src, by_way(copy_path::relayed, via.id()));
        require(report.path == copy_path::relayed, "relaying became " + std::string{to_string(report.path)});
        require(report.via == via.id(), "relayed by " + to_string(report.via) + " instead of " + to_string(via.id()));
        require_same(contents(dst), data, "relayed " + text(pair) + " by " + to_string(via.id()));
        ++tried;
      } catch (const error_exception& e) {
        require(e.code() == errc::peer_unsupported, "relaying was refused as " + to_string(e.cause()));
      }
    }
  }
  if (tried == 0) not_here("no device has access that lets it relay for two others");
  return holds();
}

}  // namespace

void add_routes(case_list& list) {
  constexpr std::string_view group = "routes";
  constexpr auto pair = feature::two_devices;
  list.insert(
      list.end(),
      {{"every pair has a way, and every other way a reason why it lost", group, every_pair_has_a_way_with_reasons,
        pair},
       {"the same facts give the same way", group, the_same_facts_give_the_same_way, pair},
       {"a wish is honoured, or refused with the reason", group, a_wish_is_honoured_or_refused_with_the_reason, pair},
       {"the way from a device to itself is the device", group, a_device_and_itself_is_the_same_device},
       {"staging delivers every size", group, staging_works_for_every_size, pair},
       {"relaying through a third device delivers", group, relaying_delivers_where_it_is_possible, pair}});
}

}  // namespace weft::conformance
