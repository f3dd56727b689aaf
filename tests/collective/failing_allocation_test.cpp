// SPDX-License-Identifier: Apache-2.0
// One allocation of a program fails, whichever it is, on whichever thread: the program goes on, or is told by an
// exception. A sample of all places by day, all of them with WEFT_NIGHTLY=1; each in a process of its own.
#include "collective/allocations.hpp"
#include "support/processes.hpp"
#include "support/samples.hpp"
#include "weft/weft.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <unistd.h>

namespace failing_allocation_test {

using samples::gpu0;
using samples::gpu1;
using weft::buffer;
using weft::clock_kind;
using weft::machine;
using weft::range;
using weft::stream;

WEFT_KERNEL(failing_double, (WEFT_IN(float) in, WEFT_OUT(float) out), { out[i] = in[i] * 2; });

/// Three devices, and access between all of them.
struct home {
  explicit home(clock_kind clock) : m(samples::play(samples::wired(3), clock)), leases(weft::enable_all_peers(m)) {}
  machine m;
  std::vector<weft::peer_access> leases;
};

// What memory an operation works with outlives it: an exception does not end what was submitted.

void memory(clock_kind clock) {
  std::vector<float> source(50'001, 3), back(50'001);
  const home on{clock};
  const machine& m = on.m;
  const std::size_t size = source.size();
  const stream first{m[0]}, second{m[1], {.priority = 1}};
  const buffer<float> a{m[0], size}, b{m[1], size};
  const weft::memory_pool pool{m[0]};
  const buffer<float> pooled{pool, size};
  const weft::pinned_buffer<float> pinned{m[1], size};
  weft::copy(first, a, source).wait();
  weft::fill(second, b, 0.0F).wait();
  weft::copy(pooled, a);
  weft::copy_options staged;
  staged.route.path = weft::copy_path::staged;
  weft::copy(b, pooled, staged);
  weft::copy(first, b, a, staged).wait();
  weft::launch<failing_double>(second, range(static_cast<std::int64_t>(size)), a, b).wait();
  weft::device_barrier barrier{m, {gpu0, gpu1}};
  barrier.arrive_and_order(first);
  static_cast<void>(barrier.arrive_and_wait(second, samples::soon));
  {
    const weft::peer_mapping<float> view{m, a.subspan(1000, 5000), gpu1};
    weft::launch<failing_double>(second, range(5000), b.subspan(0, 5000), view.span()).wait();
  }
  const std::array parts{weft::part(pinned.subspan(0, 100), b.subspan(0, 100)),
                         weft::part(pinned.subspan(200, 100), b.subspan(200, 100))};
  weft::copy_batch(second, parts).wait();
  static_cast<void>(m.traffic());
  const buffer<std::uint32_t> word{m[0], 1};
  weft::fill(word, std::uint32_t{0});
  first.write_value(word.data(), 1U);
  second.wait_value(word.data(), 1U).wait();
  first.call([] {}).wait();
  weft::mapping block{weft::physical_block{m[0], weft::bytes{std::uint64_t{1} << 20}}};
  block.grant({{gpu0, weft::access_right::read_write}, {gpu1, weft::access_right::read}});
  weft::copy(back, b);
  m.synchronize();
}

void execution(clock_kind clock) {
  std::vector<float> x(2000, 1), y(2000), in(100, 1), out(100);
  const home on{clock};
  weft::launch<failing_double>(on.m, range(2000), x, y).wait();
  weft::array<float> ax{on.m, x}, ay{on.m, x.size()};
  weft::launch<failing_double>(on.m, range(2000), ax, ay).wait();
  static_cast<void>(ay.host());
  static_cast<void>(weft::sum(on.m, ax));
  auto line = weft::make_pipeline<float>(on.m, 100).kernel<failing_double>("a").kernel<failing_double>("b").build();
  line.push(in, out);
  line.drain();
}

void messages(clock_kind clock) {
  const home on{clock};
  for (const auto mode : {weft::transfer_mode::direct, weft::transfer_mode::host_staged}) {
    weft::queue_options options;
    options.mode = mode;
    options.timeout = samples::soon;
    weft::message_queue<int> queue{on.m, gpu0, gpu1, options};
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    int got = 0;
    for (int i = 0; i < 100; ++i) {
      if (tx.send(i) != weft::queue_status::ok || rx.receive(got) != weft::queue_status::ok) return;
    }
  }
}

void collectives(clock_kind clock) {
  const home on{clock};
  weft::communicator all{on.m.devices()};
  std::vector<buffer<float>> memory;
  for (const weft::device& d : on.m.devices()) memory.emplace_back(d, 3000);
  for (const auto algorithm : {weft::collective_algorithm::ring, weft::collective_algorithm::direct}) {
    weft::collective_options options;
    options.algorithm = algorithm;
    all.all_reduce(memory, weft::reduce_op::sum, options).wait();
  }
}

enum : int { well = 0, told = 1, not_reached = 2 };

int run(void (*program)(clock_kind), clock_kind clock, long place) {
  ::alarm(static_cast<unsigned>(std::chrono::seconds{samples::only_a_hang}.count()));
  allocations::until_failure = place;
  int came_to = well;
  try {
    program(clock);
  } catch (const weft::error_exception&) {
    came_to = told;
  } catch (const std::bad_alloc&) {
    came_to = told;
  }
  return allocations::until_failure >= 0 ? not_reached : came_to;
}

void expect_told_everywhere(void (*program)(clock_kind), long step, bool on_wall_clock = true) {
  const bool by_night = std::getenv("WEFT_NIGHTLY") != nullptr;
  if (by_night) step = 1;
  for (const auto clock : {clock_kind::wall, clock_kind::virtual_time}) {
    if (clock == clock_kind::wall && !on_wall_clock && !by_night) continue;
    int last = well;
    long place = 0;
    for (; last != not_reached; place += step) {
      processes::child one{[&] { return run(program, clock, place); }};
      last = one.wait();
      ASSERT_TRUE(last == well || last == told || last == not_reached)
          << "allocation " << place << (clock == clock_kind::wall ? "" : ", virtual time")
          << (last < 0 ? ": signal " : ": ended with ") << std::abs(last);
    }
    EXPECT_GT(place, 10 * step) << "the program hardly began";
  }
}

TEST(failing_allocation, of_memory_streams_and_copies_ends_no_process) { expect_told_everywhere(memory, 3); }
// On the wall clock places differ from run to run: all of them, and by night only.
TEST(failing_allocation, of_launches_arrays_and_pipelines_ends_no_process) {
  expect_told_everywhere(execution, 17, false);
}
TEST(failing_allocation, of_messages_ends_no_process) { expect_told_everywhere(messages, 3); }
TEST(failing_allocation, of_collectives_ends_no_process) { expect_told_everywhere(collectives, 11); }

}  // namespace failing_allocation_test
