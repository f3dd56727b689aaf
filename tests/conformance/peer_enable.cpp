// SPDX-License-Identifier: Apache-2.0
#include "conformance/case_tools.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/pool.hpp"

#include <array>
#include <atomic>
#include <exception>
#include <latch>
#include <stop_token>
#include <thread>

namespace weft::conformance {
namespace {

constexpr std::size_t some = 5003;

verdict access_lets_a_kernel_read_and_write(context& c) {
  const device_pair pair = offered_pair(c.m());
  require(enable_peer(c.m(), pair.from, pair.to) == enable_outcome::enabled, "the first enable");
  const buffer<std::uint32_t> theirs{c.m()[pair.to], some};
  require_reach(c, pair.from, theirs, text(pair));
  return holds();
}

verdict access_has_one_direction(context& c) {
  const device_pair pair = offered_pair(c.m());
  enable_peer(c.m(), pair.from, pair.to);
  require(peer_enabled(c.m(), pair.from, pair.to), text(pair) + " is not enabled");
  require(!peer_enabled(c.m(), pair.to, pair.from), text({pair.to, pair.from}) + " was enabled as well");
  const buffer<std::uint32_t> mine{c.m()[pair.from], some};
  fill(mine, 3U);
  expect_fault(c, pair.to, mine, "a kernel of " + to_string(pair.to) + " over memory of " + to_string(pair.from));
  return holds();
}

verdict a_second_enable_says_so(context& c) {
  const device_pair pair = offered_pair(c.m());
  enable_peer(c.m(), pair.from, pair.to);
  require(enable_peer(c.m(), pair.from, pair.to) == enable_outcome::already_enabled, "the second enable");
  const buffer<std::uint32_t> theirs{c.m()[pair.to], some};
  require_reach(c, pair.from, theirs, text(pair) + " after a second enable");
  return holds();
}

verdict disable_says_when_it_was_off(context& c) {
  const device_pair pair = offered_pair(c.m());
  if (!can_access_peer(c.m(), pair.from, pair.to)) disable_peer(c.m(), pair.from, pair.to);
  require(disable_peer(c.m(), pair.from, pair.to) == disable_outcome::not_enabled, "a disable without enable");
  enable_peer(c.m(), pair.from, pair.to);
  require(disable_peer(c.m(), pair.from, pair.to) == disable_outcome::disabled, "the first disable");
  require(disable_peer(c.m(), pair.from, pair.to) == disable_outcome::not_enabled, "the second disable");
  require(enable_peer(c.m(), pair.from, pair.to) == enable_outcome::enabled, "an enable after a disable");
  return holds();
}

verdict one_disable_ends_two_enables(context& c) {
  const device_pair pair = offered_pair(c.m());
  const buffer<std::uint32_t> theirs{c.m()[pair.to], some};
  fill(theirs, 3U);
  enable_peer(c.m(), pair.from, pair.to);
  enable_peer(c.m(), pair.from, pair.to);
  require(disable_peer(c.m(), pair.from, pair.to) == disable_outcome::disabled, "the disable");
  require(!peer_enabled(c.m(), pair.from, pair.to), "access is counted in the raw state");
  expect_fault(c, pair.from, theirs, "a kernel after enable, enable, disable");
  return holds();
}

verdict flags_come_first(context& c) {
  const device_id zero{0};
  expect_error({errc::invalid_argument}, "enable with flags for the device itself",
               [&] { enable_peer(c.m(), zero, zero, ~0U); });
  expect_error({errc::invalid_argument}, "enable with flags for an unknown device",
               [&] { enable_peer(c.m(), zero, unknown_device(c.m()), 1U); });
  for (const device_pair& pair : all_pairs(c.m())) {
    expect_error({errc::invalid_argument}, "enable " + text(pair) + " with flags",
                 [&] { enable_peer(c.m(), pair.from, pair.to, 1U); });
    require(!peer_enabled(c.m(), pair.from, pair.to), "an enable that failed enabled " + text(pair));
  }
  return holds();
}

verdict a_device_cannot_enable_itself(context& c) {
  for (const device& d : c.m().devices()) {
    expect_error({errc::invalid_device}, "enable " + to_string(d.id()) + " for itself",
                 [&] { enable_peer(c.m(), d.id(), d.id()); });
    expect_error({errc::invalid_device}, "disable " + to_string(d.id()) + " for itself",
                 [&] { disable_peer(c.m(), d.id(), d.id()); });
    expect_error({errc::invalid_device}, "a lease of " + to_string(d.id()) + " for itself",
                 [&] { const peer_access lease(c.m(), d.id(), d.id()); });
  }
  return holds();
}

verdict enabling_an_unknown_device_is_an_error(context& c) {
  const device_id good{0};
  for (const device_id bad : {device_id{-1}, unknown_device(c.m())}) {
    for (const auto& [from, to] : {std::pair{bad, good}, std::pair{good, bad}}) {
      expect_error({errc::invalid_device}, "enable " + text({from, to}), [&] { enable_peer(c.m(), from, to); });
      expect_error({errc::invalid_device}, "disable " + text({from, to}), [&] { disable_peer(c.m(), from, to); });
    }
  }
  return holds();
}

verdict a_pair_without_path_is_refused(context& c) {
  const auto pair = pair_without_path(c.m());
  if (!pair) not_here("every pair has access");
  for (const auto& [doing, act] :
       {std::pair<std::string, std::function<void()>>{"enable", [&] { enable_peer(c.m(), pair->from, pair->to); }},
        {"disable", [&] { disable_peer(c.m(), pair->from, pair->to); }},
        {"a lease of", [&] { const peer_access lease(c.m(), pair->from, pair->to); }}}) {
    const std::string what = expect_error({errc::peer_unsupported}, doing + " " + text(*pair), act);
    require(
        what.find(to_string(pair->from)) != std::string::npos && what.find(to_string(pair->to)) != std::string::npos,
        "the error does not name both devices: " + what);
  }
  return holds();
}

verdict memory_before_and_after_enable_is_covered(context& c) {
  const device_pair pair = offered_pair(c.m());
  const buffer<std::uint32_t> before{c.m()[pair.to], some};
  enable_peer(c.m(), pair.from, pair.to);
  const buffer<std::uint32_t> after{c.m()[pair.to], some};
  const memory_pool pool{c.m()[pair.to]};
  const buffer<std::uint32_t> pooled{pool, some};
  require_reach(c, pair.from, before, "memory from before the enable");
  require_reach(c, pair.from, after, "memory from after the enable");
  require_reach(c, pair.from, pooled, "memory from a pool");
  return holds();
}

verdict access_after_disable_is_a_fault_that_stays(context& c) {
  const device_pair pair = offered_pair(c.m());
  const buffer<std::uint32_t> theirs{c.m()[pair.to], some};
  enable_peer(c.m(), pair.from, pair.to);
  require_reach(c, pair.from, theirs, "while enabled");
  std::vector<std::uint32_t> before(some);
  copy(before, theirs);
  disable_peer(c.m(), pair.from, pair.to);
  expect_fault(c, pair.from, theirs, "a kernel after disable");
  const device lost = c.m()[pair.from];
  expect_error({errc::device_lost, errc::illegal_access}, "more work on the lost device", [&] {
    const buffer<std::uint32_t> more{lost, some};
    fill(more, 1U);
  });
  expect_error({errc::device_lost, errc::illegal_access}, "and again", [&] {
    const stream order{lost};
    order.record().wait();
    order.call([] {}).wait();
  });
  std::vector<std::uint32_t> after(some);
  copy(after, theirs);  // the other device goes on, with its memory as it was
  require_all<std::uint32_t>(after, [&](std::size_t i) { return before[i]; }, "memory of the device that is well");
  return holds();
}

verdict a_reset_brings_a_device_back_without_its_relations(context& c) {
  const device_pair pair = offered_pair(c.m());
  enable_peer(c.m(), pair.from, pair.to);
  const device_pair back{pair.to, pair.from};
  const bool both = can_access_peer(c.m(), back.from, back.to);
  if (both) enable_peer(c.m(), back.from, back.to);
  const buffer<std::uint32_t> theirs{c.m()[pair.to], some};
  fill(theirs, 3U);
  disable_peer(c.m(), pair.from, pair.to);
  expect_fault(c, pair.from, theirs, "a kernel after disable");
  c.m()[pair.from].reset();
  require(!c.m()[pair.from].is_lost(), "the device is lost after its reset");
  require(!peer_enabled(c.m(), pair.from, pair.to), "the device kept its access over a reset");
  require(!both || !peer_enabled(c.m(), back.from, back.to), "others kept their access to the device over its reset");
  require(enable_peer(c.m(), pair.from, pair.to) == enable_outcome::enabled, "enable after a reset");
  require_reach(c, pair.from, theirs, "after the reset");
  return holds();
}

verdict access_changes_in_stream_order(context& c) {
  const device_pair pair = offered_pair(c.m());
  const buffer<std::uint32_t> theirs{c.m()[pair.to], some};
  fill(theirs, 3U);
  const auto enabled = [&] { return peer_enabled(c.m(), pair.from, pair.to); };
  const stream order{c.m()[pair.from]};
  gate closed{c.m(), order};
  const event on = enable_peer(order, pair.to);
  require(!enabled(), "access was enabled before its turn");
  closed.open();
  on.wait();
  require(enabled(), "access was not enabled in its turn");
  require_reach(c, pair.from, theirs, "after an enable in a stream");
  enable_peer(order, pair.to).wait();
  disable_peer(order, pair.to).wait();
  require(!enabled(), "access was not disabled in its turn");
  disable_peer(order, pair.to).wait();
  {
    std::stop_source stop;
    gate again{c.m(), order};
    const event late = enable_peer(order, pair.to, stop.get_token());
    stop.request_stop();
    again.open();
    expect_error({errc::cancelled}, "an enable that was cancelled before its turn", [&] { late.wait(); });
  }
  require(!enabled(), "a cancelled enable has enabled");
  expect_error({errc::invalid_device}, "a device that enables itself in a stream",
               [&] { enable_peer(order, pair.from).wait(); });
  return holds();
}

verdict leases_are_counted(context& c) {
  const device_pair pair = offered_pair(c.m());
  peer_access first{c.m(), pair.from, pair.to};
  require(peer_enabled(c.m(), pair.from, pair.to), "a lease does not enable");
  peer_access second{c.m(), pair.from, pair.to};
  first.end();
  require(!first, "an ended lease still claims to be one");
  require(peer_enabled(c.m(), pair.from, pair.to), "the first of two leases to end disabled");
  peer_access moved{std::move(second)};
  require(peer_enabled(c.m(), pair.from, pair.to), "moving a lease disabled");
  moved.end();
  require(!peer_enabled(c.m(), pair.from, pair.to), "the last lease to end did not disable");
  moved.end();
  return holds();
}

verdict a_lease_leaves_what_it_did_not_enable(context& c) {
  const device_pair pair = offered_pair(c.m());
  enable_peer(c.m(), pair.from, pair.to);
  {
    const peer_access lease{c.m(), pair.from, pair.to};
  }
  require(peer_enabled(c.m(), pair.from, pair.to), "a lease disabled what somebody else had enabled");
  return holds();
}

verdict all_peers_at_once(context& c) {
  const device_pair any = offered_pair(c.m());
  if (!can_access_peer(c.m(), any.from, any.to)) enable_peer(c.m(), any.from, any.to);
  std::size_t offered = 0;
  {
    const auto leases = enable_all_peers(c.m());
    for (const device_pair& pair : all_pairs(c.m())) {
      const bool can = can_access_peer(c.m(), pair.from, pair.to);
      offered += can ? 1U : 0U;
      require_equal(peer_enabled(c.m(), pair.from, pair.to), can, text(pair) + " under enable_all_peers");
    }
    require_equal(leases.size(), offered, "leases");
  }
  for (const device_pair& pair : all_pairs(c.m())) {
    require(!peer_enabled(c.m(), pair.from, pair.to), text(pair) + " is enabled without its lease");
  }
  return holds();
}

verdict one_of_many_threads_enables(context& c) {
  const device_pair pair = offered_pair(c.m());
  if (!can_access_peer(c.m(), pair.from, pair.to)) enable_peer(c.m(), pair.from, pair.to);
  constexpr int workers = 8;
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> enabled{0};
    std::atomic<int> disabled{0};
    const auto together = [&](const std::function<void()>& act) {
      std::latch start{workers};
      std::array<std::exception_ptr, workers> failures;  // a driver that fails is no reason to end the suite
      {
        std::vector<std::jthread> threads;
        for (std::exception_ptr& failed : failures) {
          threads.emplace_back([&] {
            start.arrive_and_wait();
            try {
              act();
            } catch (...) {
              failed = std::current_exception();
            }
          });
        }
      }
      for (const std::exception_ptr& failed : failures) {
        if (failed) std::rethrow_exception(failed);
      }
    };
    together([&] {
      if (enable_peer(c.m(), pair.from, pair.to) == enable_outcome::enabled) ++enabled;
    });
    require_equal(enabled.load(), 1, "threads that enabled");
    together([&] {
      if (disable_peer(c.m(), pair.from, pair.to) == disable_outcome::disabled) ++disabled;
    });
    require_equal(disabled.load(), 1, "threads that disabled");
  }
  return holds();
}

verdict the_record_follows_the_raw_state(context& c) {
  const device_pair pair = offered_pair(c.m());
  const auto enabled = [&] { return capability_between(c.m(), pair.from, pair.to)->enabled; };
  require(!enabled(), "enabled from the start");
  enable_peer(c.m(), pair.from, pair.to);
  require(enabled(), "not enabled after enable");
  disable_peer(c.m(), pair.from, pair.to);
  require(!enabled(), "enabled after disable");
  {
    const peer_access lease{c.m(), pair.from, pair.to};
    require(enabled(), "not enabled under a lease");
  }
  require(!enabled(), "enabled after the lease");
  return holds();
}

verdict a_full_table_says_so(context& c) {
  for (const device& d : c.m().devices()) {
    const int limit = c.m().layout().devices[d.id().index()].max_peers;
    if (limit <= 0) continue;
    std::vector<device_id> peers;
    for (const device& other : c.m().devices()) {
      if (can_access_peer(c.m(), d.id(), other.id())) peers.push_back(other.id());
    }
    if (static_cast<int>(peers.size()) <= limit) continue;
    for (int i = 0; i < limit; ++i) enable_peer(c.m(), d.id(), peers[static_cast<std::size_t>(i)]);
    const device_id one_more = peers[static_cast<std::size_t>(limit)];
    expect_error({errc::too_many_peers}, "one peer more than the table holds",
                 [&] { enable_peer(c.m(), d.id(), one_more); });
    require(enable_peer(c.m(), d.id(), peers[0]) == enable_outcome::already_enabled, "a full table forgot a peer");
    disable_peer(c.m(), d.id(), peers[0]);
    require(enable_peer(c.m(), d.id(), one_more) == enable_outcome::enabled, "disabling one freed no place");
    return holds();
  }
  not_here("no device has fewer places than peers");
}

}  // namespace

void add_peer_enable(case_list& list) {
  constexpr std::string_view group = "peer_enable";
  constexpr auto access = feature::peer_access;
  list.insert(
      list.end(),
      {{"enabled access lets a kernel read and write the other device's memory", group,
        access_lets_a_kernel_read_and_write, access},
       {"access has one direction", group, access_has_one_direction, access},
       {"a second enable says already_enabled, and access goes on", group, a_second_enable_says_so, access},
       {"disable says not_enabled when access is off, the second time too", group, disable_says_when_it_was_off,
        access},
       {"one disable ends access, however often it was enabled", group, one_disable_ends_two_enables, access},
       {"flags other than 0 are invalid_argument before anything else", group, flags_come_first},
       {"a device cannot enable itself", group, a_device_cannot_enable_itself},
       {"an unknown device is invalid_device in enable and disable", group, enabling_an_unknown_device_is_an_error},
       {"a pair without a path is peer_unsupported, and both devices are named", group, a_pair_without_path_is_refused,
        feature::missing_path},
       {"memory from before and after the enable is covered, that of a pool too", group,
        memory_before_and_after_enable_is_covered, access},
       {"an access after disable loses the device for good, and others go on", group,
        access_after_disable_is_a_fault_that_stays, access},
       {"a reset brings a lost device back, without its peer relations", group,
        a_reset_brings_a_device_back_without_its_relations, access},
       {"access is enabled and disabled in the order of a stream, and a cancelled one is not", group,
        access_changes_in_stream_order, access},
       {"leases are counted, and the last one disables", group, leases_are_counted, access},
       {"a lease never disables what somebody else enabled", group, a_lease_leaves_what_it_did_not_enable, access},
       {"leases for all peers cover every offered pair, and end with their owner", group, all_peers_at_once, access},
       {"of many threads that enable or disable at once, exactly one does it", group, one_of_many_threads_enables,
        access},
       {"the record of a pair follows the raw state", group, the_record_follows_the_raw_state, access},
       {"a full table of peers is too_many_peers, and disabling one frees a place", group, a_full_table_says_so,
        feature::peer_limit}});
}

}  // namespace weft::conformance
