// SPDX-License-Identifier: Apache-2.0
// Periodic halos: pieces at the ends of an array read its other end.
#include "support/periodic_grids.hpp"
#include "support/raw_launch.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/memory/peer_access.hpp"

#include <gtest/gtest.h>

#include <string_view>
#include <utility>
#include <vector>

namespace periodic_halo_test {

using samples::error_of;
using samples::periodic_line;
using samples::periodic_plane;
using weft::array;
using weft::balance;
using weft::device_id;
using weft::errc;
using weft::launch;
using weft::machine;
using weft::machine_options;
using weft::range;
using weft::spread_options;

WEFT_KERNEL(periodic_reach, (WEFT_IN(uint32_t, wrap(2)) from, WEFT_OUT(uint32_t) to, int64_t by),
            { to[i] = from[i + by]; });
WEFT_KERNEL(periodic_last_reach, (WEFT_IN(uint32_t, wrap(2)) from, WEFT_OUT(uint32_t) to, int64_t n),
            { to[i] = from[i == n - 1 ? i + 3 : i]; });
WEFT_KERNEL(periodic_add, (WEFT_INOUT(uint32_t) values, uint32_t by), { values[i] = values[i] + by; });

machine host(int devices, bool checked = false) {
  machine_options options;
  options.backend = "host";
  options.devices = devices;
  options.check_access = checked;
  return machine{options};
}

bool says(const weft::error& e, std::string_view text) { return e.what.find(text) != std::string::npos; }

TEST(periodic_halo, gives_the_bits_of_a_plain_loop_on_one_to_eight_devices) {
  samples::expect_periodic_loops(host(8));
  samples::expect_periodic_loops(host(3), {.strategy = balance::guided});
  samples::expect_periodic_loops(host(3), {.strategy = balance::work_stealing, .keep_on_device = false});
  samples::expect_periodic_loops(host(3, true), {.strategy = balance::static_equal, .peer_to_peer = false});
}

TEST(periodic_halo, a_halo_of_host_memory_or_of_one_device_is_brought_too) {
  constexpr std::int64_t n = 1'000;
  const auto from = samples::first_line(n);
  const auto expected = samples::later_line(from, 1);
  for (const int devices : {1, 3}) {
    const machine m = host(devices);
    std::vector<std::uint32_t> to(n);
    launch<periodic_line>(m, range(n), from, to).wait();
    EXPECT_EQ(to, expected);
    to.assign(n, 0);
    launch<periodic_line>(m, {.unified_memory = true}, range(n), from, to).wait();
    EXPECT_EQ(to, expected) << "in place, but for the ends";
    to.assign(n, 0);
    std::vector<weft::memory_limit> limits;
    for (const weft::device& d : m.devices()) limits.push_back({d.id(), weft::bytes{1'000}});
    launch<periodic_line>(m, {.memory_limits = limits}, range(n), from, to).wait();
    EXPECT_EQ(to, expected) << "in passes";
    weft::buffer<std::uint32_t> a{m[0], n}, b{m[0], n};
    weft::copy(a, from);
    launch<periodic_line>(m, range(n), a, b).wait();
    weft::copy(to, b);
    EXPECT_EQ(to, expected);
  }
}

TEST(periodic_halo, moves_alone_in_a_loop) {
  constexpr std::int64_t w = 64, h = 96;
  constexpr std::uint64_t row = w * sizeof(float);
  for (const std::size_t devices : {1U, 2U, 4U}) {
    const machine m = samples::simulated(samples::wired(4));
    const auto peers = weft::enable_all_peers(m);
    const spread_options how{.devices = {.at_most = devices}, .strategy = balance::static_equal};
    array<float> a{m, samples::first_plane(w, h)}, b{m, w * h};
    const auto step = [&] {
      launch<periodic_plane>(m, how, range(w, h), a, b, std::int64_t{w});
      std::swap(a, b);
    };
    step();
    step();
    const auto before_a = a.traffic(), before_b = b.traffic();
    for (int k = 0; k < 10; ++k) step();
    EXPECT_EQ(a.host(), samples::later_plane(samples::first_plane(w, h), w, 12));
    const auto after_a = a.traffic(), after_b = b.traffic();
    const auto moved = [&](std::uint64_t weft::array_traffic::* what) {
      return after_a.*what - before_a.*what + after_b.*what - before_b.*what;
    };
    const std::uint64_t halos = 10 * 2 * devices * row;
    EXPECT_EQ(moved(&weft::array_traffic::between_devices), devices == 1 ? 0 : halos) << devices;
    EXPECT_EQ(moved(&weft::array_traffic::within_devices), devices == 1 ? halos : 0) << devices;
    EXPECT_EQ(moved(&weft::array_traffic::host_to_device), 0U) << devices;
    EXPECT_EQ(moved(&weft::array_traffic::redundant), 0U) << devices;
    launch<periodic_plane>(m, how, range(w, h), a, b, std::int64_t{w}).wait();
    const auto read_once = a.traffic();
    launch<periodic_plane>(m, how, range(w, h), a, b, std::int64_t{w}).wait();
    EXPECT_EQ(a.traffic().copies, read_once.copies) << "what nobody wrote is still there";
  }
}

TEST(periodic_halo, is_fetched_again_when_the_other_end_was_written) {
  constexpr std::int64_t n = 100;
  for (const int devices : {1, 2, 3}) {
    const machine m = host(devices);
    auto values = samples::first_line(n);
    array<std::uint32_t> a{m, values}, b{m, n};
    launch<periodic_line>(m, range(n), a, b).wait();
    for (const std::size_t at : {std::size_t{0}, std::size_t{n - 1}}) {
      values[at] += 1'000;
      a.write(std::span{values}.subspan(at, 1), at);  // by the host
      launch<periodic_line>(m, range(n), a, b).wait();
      EXPECT_EQ(b.host(), samples::later_line(values, 1)) << at;
    }
    for (auto& v : values) v += 5;
    launch<periodic_add>(m, {.devices = {.ids = {device_id{devices - 1}}}}, range(n), a, 5U);  // by one device
    launch<periodic_line>(m, range(n), a, b).wait();
    EXPECT_EQ(b.host(), samples::later_line(values, 1));
    a.free_replicas();
    EXPECT_EQ(a.host(), values);
    const array<std::uint32_t> constant{m, n, 7U};
    launch<periodic_line>(m, range(n), constant, b).wait();
    EXPECT_EQ(b.host(), std::vector<std::uint32_t>(n, 7U * 16U));
  }
}

TEST(periodic_halo, is_freed_with_the_replicas) {
  const machine m = host(1);
  array<std::uint32_t> a{m, samples::first_line(1'000)}, b{m, 1'000};
  const auto free = m[0].free_memory();
  launch<periodic_line>(m, range(1'000), a, b).wait();
  const auto in_use = m[0].free_memory();
  a.free_replicas();
  EXPECT_GE(m[0].free_memory() - in_use, weft::bytes{4'000});
  EXPECT_LT(m[0].free_memory(), free) << "what was written is there alone";
  std::vector<weft::array_part> expected{{device_id{0}, 0, 1'000}};
  EXPECT_EQ(b.parts(), expected) << "parts are of the array: nothing lies before 0";
  launch<periodic_line>(m, range(1'000), b, a).wait();
  EXPECT_EQ(b.parts(), expected);
}

TEST(periodic_halo, follows_shares_that_change_between_launches) {
  weft::topology layout = samples::wired(3);
  constexpr double speeds[] = {1.35, 0.9, 0.75};
  for (std::size_t d = 0; d < 3; ++d) layout.devices[d].speed = speeds[d];
  const machine m = samples::simulated(weft::value_or_raise(weft::complete_topology(std::move(layout))));
  constexpr std::int64_t w = 32, h = 300;
  spread_options how;
  how.model = weft::kernel_cost{0, 20e-9};
  array<float> a{m, samples::first_plane(w, h)}, b{m, w * h};
  std::vector<std::int64_t> first, last;
  for (int k = 0; k < 60; ++k) {
    // by turns in one division and in the other, then as the library will have it
    how.strategy = k < 6 ? balance::weighted : balance::automatic;
    how.weights = k >= 6       ? std::vector<double>{}
                  : k % 2 == 0 ? std::vector<double>{1, 4, 2}
                               : std::vector<double>{5, 1, 1};
    const auto run = launch<periodic_plane>(m, how, range(w, h), a, b, std::int64_t{w});
    run.wait();
    std::vector<std::int64_t> items;
    for (const auto& d : run.report().devices) items.push_back(d.items);
    (k == 5 ? first : last) = items;
    std::swap(a, b);
  }
  EXPECT_NE(first, last);
  EXPECT_EQ(a.host(), samples::later_plane(samples::first_plane(w, h), w, 60));
}

TEST(periodic_halo, is_brought_to_those_who_take_over_from_a_lost_device) {
  constexpr std::int64_t n = 900;
  for (const int gone : {0, 1, 2}) {
    for (std::uint64_t nth = 1; nth <= 14; ++nth) {
      auto layout = samples::wired(3);
      weft::topology_fault fault;
      fault.what = weft::topology_fault::kind::device_lost;
      fault.device = device_id{gone};
      fault.nth = nth;
      layout.faults.push_back(fault);
      const machine m{machine_options{.machine = layout}};
      const array<std::uint32_t> from{m, samples::first_line(n)};
      for (int k = 0; k < 3; ++k) {
        array<std::uint32_t> to{m, n};
        const spread_options how{.strategy = balance::static_equal,
                                 .keep_on_device = false,
                                 .on_failure = weft::failure_policy::retry_elsewhere};
        launch<periodic_line>(m, how, range(n), from, to).wait();
        std::vector<std::uint32_t> got;
        const auto read = [&] { got = to.host(); };
        if (error_of(read).code == errc::device_lost) read();  // the copy to here may be what loses it
        ASSERT_EQ(got, samples::later_line(samples::first_line(n), 1)) << gone << ' ' << nth << ' ' << k;
      }
    }
  }
}

TEST(periodic_halo, is_checked_up_to_its_last_step_on_either_side) {
  constexpr std::int64_t n = 30;
  const auto values = samples::first_line(n);
  for (const int devices : {1, 2, 3}) {
    // each in a machine of its own, since an access that is refused loses the device
    const auto refusal = [&](int on, auto&& reading) {
      const machine m = host(devices, true);
      const array<std::uint32_t> from{m, values};
      array<std::uint32_t> to{m, n};
      const spread_options where{.devices = {.ids = on < 0 ? std::vector<device_id>{} : std::vector{device_id{on}}}};
      return error_of([&] {
        reading(m, where, from, to);
        static_cast<void>(to.host());
      });
    };
    const auto by = [](std::int64_t steps) {
      return [steps](const machine& m, const spread_options& how, const auto& from, auto& to) {
        launch<periodic_reach>(m, how, range(n), from, to, steps).wait();
      };
    };
    for (const std::int64_t inside : {-2, 2}) EXPECT_EQ(refusal(-1, by(inside)).what, "nothing failed") << inside;
    EXPECT_TRUE(says(refusal(0, by(-3)),
                     "item 0 reads element -3 of parameter 1, 'from', which reaches only elements "
                     "from -2"));
    EXPECT_TRUE(says(refusal(devices - 1, by(3)), "item 0 reads element 3 of parameter 1, 'from', which declares"));
    EXPECT_TRUE(says(refusal(-1, [&](const machine& m, const spread_options& how, const auto& from,
                                     auto& to) { launch<periodic_last_reach>(m, how, range(n), from, to, n).wait(); }),
                     "item 29 reads element 32 of parameter 1, 'from', which reaches only elements below 32"));
  }
}

TEST(periodic_halo, a_halo_without_a_source_is_refused) {
  const machine m = host(2);
  array<std::uint32_t> a{m, 2, 1U}, b{m, 2, 1U};
  auto e = error_of([&] { launch<periodic_line>(m, range(2), a, b); });
  EXPECT_EQ(e.code, errc::incompatible);
  EXPECT_TRUE(says(e, "a periodic halo of 3 goes round more than once")) << e.what;
  array<float> c{m, 65, 1.0F}, d{m, 65, 1.0F};
  e = error_of([&] { launch<periodic_plane>(m, range(8, 8), c, d, std::int64_t{8}); });
  EXPECT_EQ(e.code, errc::incompatible);
  EXPECT_TRUE(says(e, "needs whole steps")) << e.what;
  launch<periodic_line>(m, range(0), a, b).wait();

  const weft::stream order{m[0]};
  weft::buffer<std::uint32_t> x{m[0], 10}, y{m[0], 10};
  e = error_of([&] { launch<periodic_line>(order, range(10), x, y); });
  EXPECT_EQ(e.code, errc::unsupported);
  EXPECT_TRUE(says(e, "launch it over devices")) << e.what;

  weft::raw_kernel raw;
  raw.name = "periodic_writer";
  raw.entry = "entry";
  raw.parameters = {{"to", weft::element_type::uint32, weft::parameter_direction::out, weft::access::wrap(1)}};
  raw.host = [](const weft::kernel_range&, std::span<const weft::kernel_argument>) {};
  weft::kernels(m).add(weft::make_kernel_code(raw));
  e = error_of([&] { launch(m, "periodic_writer", range(2), a); });
  EXPECT_TRUE(says(e, "a periodic halo is only read")) << e.what;
}

}  // namespace periodic_halo_test
