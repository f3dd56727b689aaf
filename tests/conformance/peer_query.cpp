// SPDX-License-Identifier: Apache-2.0
#include "conformance/case_tools.hpp"

#include <algorithm>

namespace weft::conformance {
namespace {

verdict a_device_is_not_its_own_peer(context& c) {
  for (const device& d : c.m().devices()) {
    require(!can_access_peer(c.m(), d.id(), d.id()), to_string(d.id()) + " is a peer of itself");
    require(!capability_between(c.m(), d.id(), d.id()), to_string(d.id()) + " has a peer capability with itself");
  }
  return holds();
}

verdict a_query_of_an_unknown_device_is_an_error(context& c) {
  const device_id good{0};
  for (const device_id bad : {device_id{-1}, unknown_device(c.m())}) {
    for (const auto& [from, to] : {std::pair{bad, good}, std::pair{good, bad}, std::pair{bad, bad}}) {
      const std::string pair = text({from, to});
      expect_error({errc::invalid_device}, "asking whether " + pair + " has access",
                   [&] { static_cast<void>(can_access_peer(c.m(), from, to)); });
      expect_error({errc::invalid_device}, "asking for the capability of " + pair,
                   [&] { static_cast<void>(capability_between(c.m(), from, to)); });
      expect_error({errc::invalid_device}, "asking whether " + pair + " is enabled",
                   [&] { static_cast<void>(peer_enabled(c.m(), from, to)); });
    }
  }
  return holds();
}

verdict the_answer_is_that_of_the_layout(context& c) {
  for (const device_pair& pair : all_pairs(c.m())) {
    require_equal(can_access_peer(c.m(), pair.from, pair.to), c.m().layout().can_access(pair.from, pair.to),
                  "access of " + text(pair));
  }
  return holds();
}

verdict asking_changes_nothing(context& c) {
  const auto ask_everything = [&] {
    for (const device_pair& pair : all_pairs(c.m())) {
      static_cast<void>(can_access_peer(c.m(), pair.from, pair.to));
      static_cast<void>(capability_between(c.m(), pair.from, pair.to));
      static_cast<void>(peer_enabled(c.m(), pair.from, pair.to));
    }
    static_cast<void>(peer_topology(c.m()));
  };
  ask_everything();
  for (const device_pair& pair : all_pairs(c.m())) {
    require(!peer_enabled(c.m(), pair.from, pair.to), "asking enabled " + text(pair));
    if (can_access_peer(c.m(), pair.from, pair.to)) {
      require(disable_peer(c.m(), pair.from, pair.to) == disable_outcome::not_enabled, "asking enabled " + text(pair));
    }
  }
  const device_pair pair = offered_pair(c.m());
  if (can_access_peer(c.m(), pair.from, pair.to)) {
    enable_peer(c.m(), pair.from, pair.to);
    ask_everything();
    require(peer_enabled(c.m(), pair.from, pair.to), "asking disabled " + text(pair));
  }
  return holds();
}

verdict the_record_of_a_pair_is_complete(context& c) {
  for (const device_pair& pair : all_pairs(c.m())) {
    const auto known = capability_between(c.m(), pair.from, pair.to);
    require(known.has_value(), text(pair) + " has no record");
    require(known->from == pair.from && known->to == pair.to, text(pair) + ": the record is of another pair");
    require_equal(known->supported, can_access_peer(c.m(), pair.from, pair.to), text(pair) + ": supported");
    require_equal(known->enabled, peer_enabled(c.m(), pair.from, pair.to), text(pair) + ": enabled");
    require_equal(known->link == peer_link::none, !known->supported, text(pair) + ": no link if and only if no access");
    require(!known->measured, text(pair) + " claims figures that nobody measured");
    require(!known->native_atomics || known->atomics, text(pair) + ": native atomics without atomics");
    const bool complete = known->supported && known->bytes_per_second && known->latency && known->performance_rank;
    require(complete || !known->why.empty(), text(pair) + ": something is empty, without a reason");
    require(!known->bytes_per_second || *known->bytes_per_second > 0, text(pair) + ": a bandwidth of zero");
    if (known->supported) {
      require(known->hops > 0, text(pair) + ": access over " + std::to_string(known->hops) + " hops");
    } else {
      require(!known->enabled && !known->performance_rank && !known->atomics && !known->native_atomics,
              text(pair) + " has no access, and properties of one");
    }
  }
  return holds();
}

verdict a_better_rank_means_more_bandwidth(context& c) {
  struct entry {
    int rank;
    double rate;
    device_pair pair;
  };
  std::vector<entry> entries;
  for (const device_pair& pair : all_pairs(c.m())) {
    const auto known = capability_between(c.m(), pair.from, pair.to);
    if (known && known->performance_rank && known->bytes_per_second) {
      entries.push_back({*known->performance_rank, *known->bytes_per_second, pair});
    }
  }
  if (entries.empty()) not_here("no pair has both a rank and a bandwidth");
  const auto best = std::min_element(entries.begin(), entries.end(), [](auto& a, auto& b) { return a.rank < b.rank; });
  require_equal(best->rank, 0, "the best rank");
  for (const entry& a : entries) {
    for (const entry& b : entries) {
      require(!(a.rank < b.rank && a.rate < b.rate), text(a.pair) + " ranks before " + text(b.pair) + " and is slower");
    }
  }
  return holds();
}

verdict links_look_the_same_from_both_ends(context& c) {
  int seen = 0;
  for (const device_pair& pair : all_pairs(c.m())) {
    const auto there = capability_between(c.m(), pair.from, pair.to);
    const auto back = capability_between(c.m(), pair.to, pair.from);
    if (!there->supported || !back->supported) continue;
    ++seen;
    require(there->link == back->link, text(pair) + ": the kind of link depends on the direction");
    require_equal(there->hops, back->hops, text(pair) + ": hops there and back");
  }
  if (seen == 0) not_here("no pair has access in both directions");
  return holds();
}

verdict the_list_of_pairs_is_complete_and_ordered(context& c) {
  const auto listed = peer_topology(c.m());
  const auto pairs = all_pairs(c.m());
  require_equal(listed.size(), pairs.size(), "ordered pairs");
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    require(listed[i].from == pairs[i].from && listed[i].to == pairs[i].to,
            "pair " + std::to_string(i) + " is " + text({listed[i].from, listed[i].to}));
    require_equal(listed[i].supported, can_access_peer(c.m(), listed[i].from, listed[i].to), text(pairs[i]));
  }
  return holds();
}

verdict measuring_fills_the_record_and_says_so(context& c) {
  const device_pair pair = offered_pair(c.m());
  if (!can_access_peer(c.m(), pair.from, pair.to)) enable_peer(c.m(), pair.from, pair.to);
  require_time(c.m());
  measure_peers(c.m(), bytes{1U << 18});
  for (const device_pair& each : all_pairs(c.m())) {
    const auto known = capability_between(c.m(), each.from, each.to);
    if (!known->supported) {
      require(!known->measured || known->can_copy, text(each) + " has no access and claims to be measured");
      continue;
    }
    require(known->measured, text(each) + " was not measured");
    require(known->bytes_per_second && *known->bytes_per_second > 0, text(each) + " has no bandwidth");
    require(known->latency && known->latency->count() > 0, text(each) + " has no latency");
    require(!peer_enabled(c.m(), each.from, each.to), "measuring left " + text(each) + " enabled");
  }
  return holds();
}

verdict every_offered_pair_delivers(context& c) {
  const device_pair pair = offered_pair(c.m());
  if (!can_access_peer(c.m(), pair.from, pair.to)) enable_peer(c.m(), pair.from, pair.to);
  const auto checks = verify_peers(c.m());
  require_equal(checks.size(), all_pairs(c.m()).size(), "checked pairs");
  for (const peer_check& check : checks) {
    const device_pair each{check.from, check.to};
    require_equal(check.offered, can_access_peer(c.m(), check.from, check.to), text(each) + ": offered");
    if (check.offered) {
      require(check.arrived, text(each) + " loses data: " + check.why);
    } else {
      require(!check.why.empty(), text(each) + " was not tried, without a reason");
    }
    require(capability_between(c.m(), each.from, each.to)->trusted, text(each) + " is not trusted");
    require(!peer_enabled(c.m(), each.from, each.to), "the check left " + text(each) + " enabled");
  }
  return holds();
}

}  // namespace

void add_peer_query(case_list& list) {
  constexpr std::string_view group = "peer_query";
  list.insert(
      list.end(),
      {{"a device is not a peer of itself", group, a_device_is_not_its_own_peer},
       {"an unknown device is invalid_device in either place", group, a_query_of_an_unknown_device_is_an_error},
       {"access of each ordered pair is what the layout says", group, the_answer_is_that_of_the_layout,
        feature::two_devices},
       {"asking enables and disables nothing", group, asking_changes_nothing, feature::two_devices},
       {"the record of a pair is complete, or says why it is not", group, the_record_of_a_pair_is_complete,
        feature::two_devices},
       {"rank 0 is best, and a better rank is never slower", group, a_better_rank_means_more_bandwidth,
        feature::two_devices},
       {"a link is of the same kind and length from both ends", group, links_look_the_same_from_both_ends,
        feature::two_devices},
       {"the list of pairs has every ordered pair once, in order", group, the_list_of_pairs_is_complete_and_ordered},
       {"measuring fills bandwidth and latency, says that they are measured, and leaves nothing enabled", group,
        measuring_fills_the_record_and_says_so, feature::peer_access},
       {"what is written over every offered pair arrives", group, every_offered_pair_delivers, feature::peer_access}});
}

}  // namespace weft::conformance
