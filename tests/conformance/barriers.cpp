// SPDX-License-Identifier: Apache-2.0
#include "conformance/case_tools.hpp"
#include "weft/memory/fill.hpp"

namespace weft::conformance {
namespace {

std::vector<device_id> everybody(const machine& m) {
  std::vector<device_id> ids;
  for (const device& d : m.devices()) ids.push_back(d.id());
  return ids;
}

std::vector<stream> streams_of_all(const machine& m) {
  std::vector<stream> made;
  for (const device& d : m.devices()) made.emplace_back(d);
  return made;
}

verdict it_opens_when_all_have_arrived(context& c) {
  device_barrier barrier{c.m(), everybody(c.m())};
  const auto streams = streams_of_all(c.m());
  std::vector<event> arrivals;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    require_equal(barrier.status().arrived, i, "arrived");
    require_equal(barrier.status().participants, streams.size(), "participants");
    arrivals.push_back(barrier.arrive(streams[i]));
    if (i + 1 < streams.size()) {
      require(arrivals[0].wait_for(soon) == wait_outcome::timed_out, "it opened before all had arrived");
    }
  }
  for (const event& arrival : arrivals) require(arrival.wait_for(long_enough) == wait_outcome::ok, "it did not open");
  require_equal(barrier.status().generation, 1U, "openings");
  require_equal(barrier.status().arrived, 0U, "arrived in the next generation");
  return holds();
}

verdict it_covers_device_work(context& c) {
  device_barrier barrier{c.m(), everybody(c.m())};
  const auto streams = streams_of_all(c.m());
  gate closed{c.m(), streams[0]};
  std::vector<event> arrivals;
  for (const stream& s : streams) arrivals.push_back(barrier.arrive(s));
  for (const event& arrival : arrivals) {
    require(arrival.wait_for(soon) == wait_outcome::timed_out, "it opened before the work of a stream had ended");
  }
  closed.open();
  for (const event& arrival : arrivals) require(arrival.wait_for(long_enough) == wait_outcome::ok, "it did not open");
  return holds();
}

verdict it_orders_later_work(context& c) {
  const auto devices = c.m().devices();
  const auto streams = streams_of_all(c.m());
  device_barrier barrier{c.m(), everybody(c.m())};
  constexpr std::size_t size = 4099;
  std::vector<buffer<std::uint8_t>> ring;
  std::vector<std::vector<std::uint8_t>> data;
  std::vector<std::vector<std::uint8_t>> seen(devices.size(), std::vector<std::uint8_t>(size));
  for (const device& d : devices) {
    ring.push_back(filled(d, pattern(size, 99)));
    data.push_back(pattern(size, d.id().index()));
  }
  for (std::size_t i = 0; i < devices.size(); ++i) {
    copy(streams[i], ring[i], data[i]);
    barrier.arrive_and_order(streams[i]);
    copy(streams[i], seen[i],
         ring[(i + 1) % devices.size()]);  // the neighbour's, submitted before the neighbour's copy
  }
  c.m().synchronize();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    require_same(seen[i], data[(i + 1) % devices.size()], "the neighbour of gpu" + std::to_string(i));
  }
  return holds();
}

verdict it_can_be_used_again(context& c) {
  const auto streams = streams_of_all(c.m());
  device_barrier barrier{c.m(), everybody(c.m())};
  constexpr std::uint64_t rounds = 200;
  event last;
  for (std::uint64_t r = 0; r < rounds; ++r) {
    for (const stream& s : streams) last = barrier.arrive_and_order(s);
    if (r % 10 == 0) last.wait();
  }
  c.m().synchronize();
  require_equal(barrier.status().generation, rounds, "openings");
  return holds();
}

verdict a_double_arrival_is_refused(context& c) {
  const auto streams = streams_of_all(c.m());
  device_barrier barrier{c.m(), everybody(c.m())};
  const event first = barrier.arrive(streams[0]);
  const std::string what =
      expect_error({errc::invalid_argument}, "arriving twice", [&] { barrier.arrive(streams[0]); });
  require(what.find("gpu0") != std::string::npos, "the error does not name the device: " + what);
  require_equal(barrier.status().arrived, 1U, "arrived after a refused arrival");
  for (std::size_t i = 1; i < streams.size(); ++i) barrier.arrive(streams[i]);
  require(first.wait_for(long_enough) == wait_outcome::ok, "it did not open after a refused arrival");
  barrier.arrive(streams[0]);  // a new generation
  require_equal(barrier.status().arrived, 1U, "arrived in the next generation");
  return holds();
}

verdict an_outsider_is_refused(context& c) {
  device_barrier barrier{c.m(), {device_id{0}}};
  const stream outsider{c.m()[1]};
  expect_error({errc::invalid_argument}, "a device that does not take part", [&] { barrier.arrive(outsider); });
  require_equal(barrier.status().arrived, 0U, "arrived after a refused arrival");
  return holds();
}

verdict wrong_participants_are_refused(context& c) {
  const device_id zero{0};
  expect_error({errc::invalid_argument}, "a barrier of nobody", [&] { const device_barrier none(c.m(), {}); });
  expect_error({errc::invalid_argument}, "a device named twice",
               [&] { const device_barrier twice(c.m(), {zero, zero}); });
  expect_error({errc::invalid_device}, "an unknown device",
               [&] { const device_barrier unknown(c.m(), {zero, unknown_device(c.m())}); });
  return holds();
}

verdict a_timeout_leaves_the_arrival_standing(context& c) {
  const auto streams = streams_of_all(c.m());
  device_barrier barrier{c.m(), everybody(c.m())};
  require(barrier.arrive_and_wait(streams[0], soon) == wait_outcome::timed_out, "it opened with one arrival");
  require_equal(barrier.status().arrived, 1U, "arrived after a timeout");
  require_equal(barrier.status().generation, 0U, "openings after a timeout");
  expect_error({errc::invalid_argument}, "arriving again after a timeout", [&] { barrier.arrive(streams[0]); });
  event last;
  for (std::size_t i = 1; i < streams.size(); ++i) last = barrier.arrive(streams[i]);
  require(last.wait_for(long_enough) == wait_outcome::ok, "the others came and it did not open");
  require_equal(barrier.status().generation, 1U, "openings");
  return holds();
}

verdict a_reset_cancels_who_has_arrived(context& c) {
  const auto streams = streams_of_all(c.m());
  device_barrier barrier{c.m(), everybody(c.m())};
  const event waiting_one = barrier.arrive(streams[0]);
  barrier.reset();
  expect_error({errc::cancelled}, "an arrival before the reset", [&] { waiting_one.wait(); });
  require_equal(barrier.status().arrived, 0U, "arrived after the reset");
  event last;
  for (const stream& s : streams) last = barrier.arrive(s);
  require(last.wait_for(long_enough) == wait_outcome::ok, "it does not open after a reset");
  return holds();
}

}  // namespace

void add_barriers(case_list& list) {
  constexpr std::string_view group = "barriers";
  constexpr auto pair = feature::two_devices;
  list.insert(
      list.end(),
      {{"a barrier opens when every device has arrived, not before", group, it_opens_when_all_have_arrived},
       {"a barrier covers the work that was submitted before the arrival", group, it_covers_device_work},
       {"a barrier orders later work without the host", group, it_orders_later_work, pair},
       {"a barrier can be used again at once", group, it_can_be_used_again},
       {"a second arrival in one generation is refused and changes nothing", group, a_double_arrival_is_refused, pair},
       {"a device that does not take part is refused", group, an_outsider_is_refused, pair},
       {"a barrier of nobody, of a device twice or of an unknown one is refused", group,
        wrong_participants_are_refused},
       {"a timeout leaves the arrival standing", group, a_timeout_leaves_the_arrival_standing, pair},
       {"a reset cancels those who have arrived, and begins again", group, a_reset_cancels_who_has_arrived, pair}});
}

}  // namespace weft::conformance
