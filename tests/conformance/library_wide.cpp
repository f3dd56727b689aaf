// SPDX-License-Identifier: Apache-2.0
#include "conformance/case_tools.hpp"
#include "weft/memory/fill.hpp"

#include <atomic>
#include <thread>

namespace weft::conformance {
namespace {

verdict two_machines_do_not_disturb_each_other(context& c) {
  const device_pair pair = offered_pair(c.m());
  const machine other = c.open();
  enable_peer(c.m(), pair.from, pair.to);
  const peer_access lease{other, pair.from, pair.to};
  const buffer<std::uint32_t> theirs{c.m()[pair.to], 1000};
  disable_peer(other, pair.from, pair.to);
  require(peer_enabled(c.m(), pair.from, pair.to), "one machine disabled the access of another");
  require_reach(c, pair.from, theirs, "after another machine disabled its own access");
  return holds();
}

verdict owners_may_outlive_their_machine(context& c) {
  std::optional<machine> brief{c.open()};
  buffer<std::uint8_t> memory = filled((*brief)[0], pattern(257, 1));
  const stream order{(*brief)[0]};
  const event done = order.record();
  done.wait();
  const device on = (*brief)[0];
  brief.reset();
  expect_error({errc::machine_closed}, "reading memory of a closed machine",
               [&] { static_cast<void>(contents(memory)); });
  expect_error({errc::machine_closed}, "work in a stream of a closed machine", [&] { order.call([] {}).wait(); });
  expect_error({errc::machine_closed}, "memory of a closed machine", [&] { const buffer<std::uint8_t> more(on, 10); });
  require(done.ready(), "an event that had ended is not ready any more");
  memory = buffer<std::uint8_t>{};
  return holds();
}

verdict closing_ends_pending_work_as_cancelled(context& c) {
  machine brief = c.open();
  device_barrier never{brief, {device_id{0}, device_id{1}}};
  const stream held{brief[0]};
  const auto old = pattern(257, 2);
  const buffer<std::uint8_t> memory = filled(brief[0], old);
  never.arrive_and_order(held);  // gpu1 never comes
  std::vector<event> pending;
  for (int i = 0; i < 20; ++i) pending.push_back(fill(held, memory, static_cast<std::uint8_t>(i)));
  require(!pending.back().ready(), "work of a held stream is done");
  brief.close();
  require(brief.closed(), "a closed machine does not say so");
  for (const event& e : pending) {
    require(e.ready(), "closing left work pending");
    expect_error({errc::cancelled, errc::machine_closed}, "work that was pending", [&] { e.wait(); });
  }
  brief.close();
  expect_error({errc::machine_closed}, "a device of a closed machine", [&] { const stream more{brief[0]}; });
  return holds();
}

verdict many_threads_share_a_machine(context& c) {
  constexpr int workers = 6;
  const stream probe{c.m()[0]};
  const auto leases = enable_all_peers(c.m());
  std::atomic<int> wrong{0};
  std::vector<std::string> reasons(workers);
  {
    std::vector<std::jthread> threads;
    for (int w = 0; w < workers; ++w) {
      threads.emplace_back([&, w] {
        try {
          const device a = c.m()[w % c.m().device_count()];
          const device b = c.m()[(w + 1) % c.m().device_count()];
          const stream order{a};
          for (int round = 0; round < 20; ++round) {
            const std::size_t size = static_cast<std::size_t>(1 + (w * 977 + round * 331) % 20000);
            const auto data = pattern(size, static_cast<std::uint64_t>(w * 1000 + round));
            const buffer<std::uint8_t> src{a, size};
            const buffer<std::uint8_t> dst{b, size};
            std::vector<std::uint8_t> got(size);
            copy(order, src, data);
            copy(order, dst, src);
            copy(order, got, dst).wait();
            require_same(got, data, "thread " + std::to_string(w));
          }
        } catch (const shortfall& s) {
          ++wrong;
          reasons[static_cast<std::size_t>(w)] = s.why;
        } catch (const std::exception& e) {
          ++wrong;
          reasons[static_cast<std::size_t>(w)] = e.what();
        }
      });
    }
  }
  for (const std::string& why : reasons) require(why.empty(), why);
  require_equal(wrong.load(), 0, "threads that failed");
  return holds();
}

verdict traffic_is_counted_on_links(context& c) {
  const device_pair pair = offered_pair(c.m());
  const auto known = capability_between(c.m(), pair.from, pair.to);
  if (!known->supported && !known->can_copy) not_here("no copy between devices is direct");
  const auto leases = enable_all_peers(c.m());
  constexpr std::size_t size = 1000003;
  const buffer<std::uint8_t> src = filled(c.m()[pair.from], pattern(size, 3));
  const buffer<std::uint8_t> dst{c.m()[pair.to], size};
  copy(dst, src, by_way(copy_path::direct));  // the first use of a pair verifies it, which may take commands
  const link_traffic before = c.m().traffic();
  require_equal(before.bytes_on_link.size(), c.m().layout().links.size(), "links counted");
  if (before.bytes_on_link.empty()) not_here("the layout has no links");
  copy(dst, src, by_way(copy_path::direct));
  const link_traffic after = c.m().traffic();
  std::vector<bool> on_path(after.bytes_on_link.size(), false);
  for (const int link : c.m().layout().peer_paths[c.m().layout().pair(pair.from, pair.to)].links) {
    on_path[static_cast<std::size_t>(link)] = true;
  }
  for (std::size_t i = 0; i < on_path.size(); ++i) {
    require_equal(after.bytes_on_link[i] - before.bytes_on_link[i], on_path[i] ? size : 0U,
                  "bytes on link " + std::to_string(i));
  }
  return holds();
}

verdict messages_name_their_objects(context& c) {
  const device_id bad = unknown_device(c.m());
  const std::string what = expect_error({errc::invalid_device}, "an unknown device",
                                        [&] { static_cast<void>(can_access_peer(c.m(), bad, bad)); });
  require(what.find(to_string(bad)) != std::string::npos, "the error does not name " + to_string(bad) + ": " + what);
  return holds();
}

verdict what_is_simulated_says_so(context& c) {
  const bool virtual_clock = c.m().clock() == clock_kind::virtual_time;
  require_equal(c.m().simulated(), c.m().layout().simulated || virtual_clock, "simulated");
  for (const device& d : c.m().devices()) {
    require(!d.simulated() || c.m().simulated(), to_string(d.id()) + " is simulated and its machine is not");
  }
  const auto begin = c.m().now();
  const stream order{c.m()[0]};
  const buffer<std::uint8_t> memory{c.m()[0], 1U << 20};
  copy(order, memory, pattern(memory.size(), 1)).wait();
  require_time(c.m());
  require(c.m().now() > begin, "the machine's clock stands still");
  return holds();
}

}  // namespace

void add_library_wide(case_list& list) {
  constexpr std::string_view group = "library_wide";
  list.insert(list.end(),
              {{"two machines do not disturb each other's peer access", group, two_machines_do_not_disturb_each_other,
                feature::peer_access},
               {"owners that outlive their machine fail with machine_closed", group, owners_may_outlive_their_machine},
               {"closing a machine ends pending work as cancelled", group, closing_ends_pending_work_as_cancelled,
                feature::two_devices},
               {"many threads share a machine", group, many_threads_share_a_machine},
               {"what crosses each link is counted, once", group, traffic_is_counted_on_links, feature::two_devices},
               {"messages name the objects", group, messages_name_their_objects, feature::none},
               {"a machine has a clock, and what is simulated says so", group, what_is_simulated_says_so}});
}

}  // namespace weft::conformance
