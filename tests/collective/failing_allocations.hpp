// SPDX-License-Identifier: Apache-2.0
// Programs in which one allocation fails, whichever it is, on whichever thread: the program goes on, or is told by an
// exception. A sample of all places by day, all of them with WEFT_NIGHTLY=1; each in a process of its own.
#pragma once

#include "collective/allocations.hpp"
#include "support/faults.hpp"
#include "support/processes.hpp"
#include "support/rounds.hpp"
#include "support/samples.hpp"
#include "weft/weft.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <unistd.h>

namespace failing_allocations {

using samples::gpu0;
using samples::gpu1;
using weft::buffer;
using weft::clock_kind;
using weft::machine;
using weft::range;
using weft::stream;

WEFT_KERNEL(failing_double, (WEFT_IN(float) in, WEFT_OUT(float) out), { out[i] = in[i] * 2; });
constexpr std::array<weft::device_id, 2> pair{gpu0, gpu1};

/// Opens what a program runs on.
using opener = machine (*)();

/// A status tells of a failure as an exception does.
inline void must(bool well) {
  if (!well) throw std::bad_alloc{};
}

/// A machine, and access between all of its devices that can have it.
struct home {
  explicit home(opener open) : m(open()), leases(weft::enable_all_peers(m)) {}
  machine m;
  std::vector<weft::peer_access> leases;
};

// What memory an operation works with outlives it: an exception does not end what was submitted.

inline void use_memory(opener open) {
  std::vector<float> source(50'001, 3), back(50'001);
  const home on{open};
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
  if (!on.leases.empty()) {
    weft::launch<failing_double>(second, range(static_cast<std::int64_t>(size)), a, b).wait();
    const weft::peer_mapping<float> view{m, a.subspan(1000, 5000), gpu1};
    weft::launch<failing_double>(second, range(5000), b.subspan(0, 5000), view.span()).wait();
  }
  weft::device_barrier barrier{m, {gpu0, gpu1}};
  barrier.arrive_and_order(first);
  static_cast<void>(barrier.arrive_and_wait(second, samples::soon));
  const std::array parts{weft::part(pinned.subspan(0, 100), b.subspan(0, 100)),
                         weft::part(pinned.subspan(200, 100), b.subspan(200, 100))};
  weft::copy_batch(second, parts).wait();
  static_cast<void>(m.traffic());
  first.call([] {}).wait();
  if (m[0].kind() != weft::backend_kind::opencl) {  // which has neither words in every memory nor blocks
    const buffer<std::uint32_t> word{m[0], 1};
    weft::fill(word, std::uint32_t{0});
    first.write_value(word.data(), 1U);
    second.wait_value(word.data(), 1U).wait();
    weft::mapping block{weft::physical_block{m[0], weft::bytes{std::uint64_t{1} << 21}}};
    block.grant({{gpu0, weft::access_right::read_write}, {gpu1, weft::access_right::read}});
  }
  weft::copy(back, b);
  m.synchronize();
}

inline void use_launches(opener open) {
  std::vector<float> x(2000, 1), y(2000), in(100, 1), out(100);
  const home on{open};
  weft::launch<failing_double>(on.m, range(2000), x, y).wait();
  weft::array<float> ax{on.m, x}, ay{on.m, x.size()};
  weft::launch<failing_double>(on.m, range(2000), ax, ay).wait();
  static_cast<void>(ay.host());
  static_cast<void>(weft::sum(on.m, ax));
  auto line = weft::make_pipeline<float>(on.m, 100).kernel<failing_double>("a").kernel<failing_double>("b").build();
  line.push(in, out);
  line.drain();
}

/// Nobody reads without an error what a launch that failed left as it was.
inline void use_failing_launches(opener open) {
  const home on{open};
  const weft::array<float> in{on.m, 2000, 1};
  weft::array<float> out{on.m, 2000, 5};
  const auto run = weft::launch<failing_double>(on.m, {.strategy = weft::balance::static_equal}, range(2000), in, out);
  try {
    run.wait();
  } catch (const weft::error_exception&) {
    std::vector<float> one(1);
    for (std::size_t at = 0; at < out.size(); at += 100) {
      try {
        out.read(one, at);
      } catch (const weft::error_exception&) {
        continue;
      }
      if (one[0] != 2) throw std::logic_error{"what a launch did not write was read"};
    }
    throw;
  }
}

/// A stage fails for one batch, and those behind it are taken up again.
inline void use_failing_pipelines(opener open) {
  std::vector<float> in(100, 1), out(100);
  const home on{open};
  int runs = 0;
  auto line =
      weft::make_pipeline<float>(on.m, 100)
          .stage<float>("fails once",
                        [&runs](const stream& order, weft::device_span<const float> from, weft::device_span<float> to) {
                          if (runs++ == 1) order.call([] { throw std::runtime_error{"once"}; });
                          weft::copy(order, to, from);
                        })
          .kernel<failing_double>("a")
          .build();
  for (int i = 0; i < 4; ++i) line.push(in, out);
  try {
    line.drain();
  } catch (const weft::error_exception& e) {
    if (e.cause().code == weft::errc::out_of_memory) throw;
  }
  line.push(in, out);
  line.drain();
  if (out.front() != 2) throw std::logic_error{"a batch is wrong"};
}

inline void use_queues(opener open) {
  const home on{open};
  using mode = std::optional<weft::transfer_mode>;
  const bool is_host = on.m[0].kind() == weft::backend_kind::host;
  const std::vector<mode> modes = is_host
                                      ? std::vector<mode>{weft::transfer_mode::direct, weft::transfer_mode::host_staged}
                                      : std::vector<mode>{mode{}};
  for (const mode wished : modes) {
    weft::queue_options options;
    if (wished) options.mode = *wished;
    options.timeout = samples::soon;
    weft::message_queue<int> queue{on.m, gpu0, gpu1, options};
    auto tx = queue.open_sender();
    auto rx = queue.open_receiver();
    int got = 0;
    for (int i = 0; i < 100; ++i) {
      must(tx.send(i) == weft::queue_status::ok);
      must(rx.receive(got) == weft::queue_status::ok);
    }
  }
}

inline void use_collectives(opener open) {
  const home on{open};
  weft::communicator all{on.m.devices()};
  std::vector<buffer<float>> memory;
  for (const weft::device& d : on.m.devices()) memory.emplace_back(d, 3000);
  for (const auto algorithm : {weft::collective_algorithm::ring, weft::collective_algorithm::direct}) {
    weft::collective_options options;
    options.algorithm = algorithm;
    all.all_reduce(memory, weft::reduce_op::sum, options).wait();
  }
}

/// Questions of one device to another, which one thread asks and answers.
inline void use_requests(opener open) {
  const home on{open};
  weft::request_options options;
  options.outstanding = 4;
  options.timeout = samples::soon;
  auto [client, server] = weft::make_request_channel<int, int>(on.m, gpu0, gpu1, options);
  int question = 0;
  weft::call_id id;
  for (int i = 0; i < 20; ++i) {
    const weft::begun_call asked = client.begin(i);
    must(static_cast<bool>(asked));
    must(server.take(question, id) == weft::queue_status::ok &&
         server.answer(id, question / 2) == weft::queue_status::ok);
    must(static_cast<bool>(client.finish(asked.id)));
  }
  client.close();
  static_cast<void>(server.take(question, id));
}

/// Kernels whose results become one number, from arrays, from the host and from buffers.
inline void use_reductions(opener open) {
  constexpr std::int64_t size = 3000;
  std::vector<float> x(size, 1);
  const home on{open};
  weft::array<float> mapped{on.m, x};
  static_cast<void>(weft::map_reduce<failing_double>(on.m, range(size), weft::reduce_op::sum, mapped));
  static_cast<void>(weft::map_reduce<failing_double>(on.m, range(size), weft::reduce_op::max, x));
  static_cast<void>(weft::sum(on.m, x));
}

/// Replicas that two devices store to and join as one memory.
inline void use_multicast(opener open) {
  const home on{open};
  weft::multicast_object group{on.m, pair, weft::bytes{1000}};
  for (const weft::device_id id : pair) group.add(id);
  std::vector<weft::mapping> replicas;
  for (const weft::device_id id : pair) {
    const weft::physical_block block{on.m[id], group.size()};
    must(static_cast<bool>(group.bind(block, samples::soon)));
    replicas.emplace_back(block).grant(id, weft::access_right::read_write);
  }
  const stream order{on.m[0]};
  std::vector<float> host(100, 1), joined(100);
  const buffer<float> mine{on.m[0], 100};
  group.store(order, 0, host).wait();
  group.store(order, 10, mine).wait();
  group.load(order, joined, 0).wait();
  group.load(order, mine, 0).wait();
  group.unbind(gpu1);
}

/// What one process shares, under the names with which others open it.
struct shared_names : processes::steps {
  enum : int { offered = 1, over = 2 };
  struct name {
    std::array<std::byte, weft::share_handle::max_wire_size> wire{};
    std::size_t size = 0;
    void keep(const weft::share_handle& handle) {
      const auto made = handle.to_bytes();
      std::ranges::copy(made, wire.begin());
      size = made.size();
    }
    [[nodiscard]] weft::share_handle get() const { return weft::share_handle::from_bytes(std::span{wire}.first(size)); }
  };
  name allocation, block, pooled;
  weft::shared_bytes memory{}, pool{}, pool_memory{}, event{};
};

/// Shares an allocation, a block, a pool with memory of it, and an event, until the others are over.
inline int share_everything(opener open, shared_names& names) {
  const machine m = open();
  const weft::shareable_buffer<int> mine{m[0], 1000};
  const weft::mapping block{
      weft::physical_block{m[0], weft::bytes{std::uint64_t{1} << 21}, weft::sharing::with_processes}};
  weft::pool_options shareable;
  shareable.shareable = true;
  const weft::memory_pool pool{m[0], shareable};
  const buffer<int> pooled{pool, 1000};
  const weft::ipc_event event{m};
  event.record(stream{m[0]});
  m.synchronize();
  names.allocation.keep(weft::share(mine));
  names.block.keep(weft::share(block));
  names.pooled.keep(weft::share(pooled));
  names.memory = mine.handle().bytes();
  names.pool = pool.handle().bytes();
  names.pool_memory = pool.handle_of(pooled).bytes();
  names.event = event.handle().bytes();
  names.say(shared_names::offered);
  return names.hear(shared_names::over, std::chrono::hours{2}) ? 0 : 1;
}

/// Opens all of it, each thing in each way in which it can be had.
inline void open_everything(opener open, const shared_names& names) {
  const home on{open};
  const weft::device& here = on.m[1];
  for (const auto* one : {&names.allocation, &names.block, &names.pooled}) {
    const weft::opened<int> seen = weft::open<int>(here, one->get());
    weft::fill(seen.span().first(100), 1);
  }
  const weft::opened_memory<int> memory{here, weft::memory_handle{names.memory}};
  weft::fill(memory.span().first(10), 3);
  const weft::opened_pool pool{on.m, weft::pool_handle{names.pool}};
  const weft::opened_memory<int> pooled = pool.open<int>(weft::pool_memory_handle{names.pool_memory});
  pool.set_access(here, weft::access_right::read_write);
  weft::fill(pooled.span().first(10), 2);
  const weft::ipc_event done{on.m, weft::event_handle{names.event}};
  const stream order{here};
  done.wait(order, 1, samples::soon).wait();
  static_cast<void>(done.record(order));
  on.m.synchronize();
}

/// What is given to other processes, and to other devices.
inline void use_sharing(opener open) {
  const home on{open};
  const machine& m = on.m;
  const weft::profiler watch{m};
  const stream order{m[0]};
  const weft::shareable_buffer<int> mine{m[0], 1000};
  static_cast<void>(mine.handle());
  const weft::share_handle offered = weft::share(mine);
  const weft::physical_block block{m[0], weft::bytes{std::uint64_t{1} << 21}, weft::sharing::with_processes};
  const weft::mapping seen{block};
  static_cast<void>(weft::share(seen));
  const weft::access_grant right = weft::grant(seen, m[1], weft::access_right::read);
  weft::fill(mine, 7);
  const weft::ipc_event done{m};
  const std::uint64_t number = done.record(order);
  order.synchronize();
  static_cast<void>(done.wait(number, samples::soon));
  done.wait(order, number, samples::soon).wait();
  const std::vector<weft::queue_edge> edges{{gpu0, gpu1}, {gpu1, gpu0}};
  weft::queue_network<int> net{m, edges};
  weft::router<int> away{net, gpu0};
  static_cast<void>(away);
  static_cast<void>(watch.profile());
}

/// What became of a program: it went on, an exception told it, it has fewer places, or it throws though none failed.
enum : int { well = 0, told = 1, not_reached = 2, broken = 3 };

/// Runs `program` in this process with that place failing. What it came to.
template <class F>
int run(F program, long place) {
  ::alarm(static_cast<unsigned>(std::chrono::seconds{samples::only_a_hang}.count()));
  allocations::until_failure = place;
  int came_to = well;
  try {
    program();
  } catch (const weft::error_exception& e) {
    came_to = told;
    if (allocations::until_failure >= 0)
      std::fprintf(stderr, "%s\n", e.what());  // nothing failed: the program is wrong
  } catch (const std::bad_alloc&) {
    came_to = told;
  }
  if (allocations::until_failure < 0) return came_to;
  return came_to == well ? not_reached : broken;
}

/// Tries every `step`-th place, by night each, until `attempt` says that it was not reached.
template <class F>
void expect_told_at(F attempt, long step) {
  if (samples::by_night()) step = 1;
  int last = well;
  int wrong = 0;
  long place = 0;
  for (; last != not_reached; place += step) {
    last = attempt(place);
    if (last == well || last == told || last == not_reached) continue;
    ADD_FAILURE() << "allocation " << place << (last < 0 ? ": signal " : ": ended with ") << std::abs(last);
    if (++wrong == 20) return;
  }
  EXPECT_GT(place, 5 * step) << "the program hardly began";
  samples::played_faults(static_cast<std::uint64_t>(place / step));
}

/// As expect_told_everywhere, of what opens memory that a process of its own shares, which must live through all of it.
inline void expect_told_where_opened(opener open, long step) {
  const processes::shared<shared_names> names;
  processes::child owner{[&] { return share_everything(open, *names); }};
  ASSERT_TRUE(names->hear(shared_names::offered));
  expect_told_at(
      [&](long place) {
        processes::child one{[&] { return run([&] { open_everything(open, *names); }, place); }};
        return one.wait();
      },
      step);
  names->say(shared_names::over);
  EXPECT_EQ(owner.wait(), 0) << "the process that shares is not to be hurt";
}

inline void expect_told_everywhere(void (*program)(opener), opener open, long step) {
  expect_told_at(
      [=](long place) {
        processes::child one{[=] { return run([=] { program(open); }, place); }};
        return one.wait();
      },
      step);
}

}  // namespace failing_allocations
