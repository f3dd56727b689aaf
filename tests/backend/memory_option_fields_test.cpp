// SPDX-License-Identifier: Apache-2.0
// Each field of the options of copies, pools, streams, profilers and collectives changes something, or is refused.
#include "runtime/machine_state.hpp"
#include "support/option_rows.hpp"
#include "support/threads.hpp"
#include "weft/collective/communicator.hpp"
#include "weft/collective/rank_communicator.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/memory/pool.hpp"
#include "weft/processes/rendezvous.hpp"
#include "weft/profile/profiler.hpp"

#include <chrono>
#include <future>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace memory_option_fields_test {

using samples::byte_buffer;
using samples::error_of;
using weft::bytes;
using weft::device_id;
using weft::errc;
using weft::machine;
using weft::rank;
using namespace std::chrono_literals;

std::stop_token stopped() {
  std::stop_source source;
  source.request_stop();
  return source.get_token();
}

class memory_option_fields : public samples::option_test {};
INSTANTIATE_TEST_SUITE_P(memory, memory_option_fields, samples::each_backend, samples::name_of_backend);

TEST_P(memory_option_fields, each_option_of_a_copy_has_an_effect) {
  const auto copy = [](const machine& m, const weft::copy_options& how) {
    const byte_buffer from = samples::filled(m[0], samples::pattern(4'096, 1)), to{m[1], 4'096};
    return weft::copy(to, from, how);
  };
  const samples::option_row rows[] = {
      {"route", "the way",
       [&](const machine& m) {
         return copy(m, {.route = {.path = weft::copy_path::staged}}).path == weft::copy_path::staged;
       }},
      {"stop", "whether it begins",
       [&](const machine& m) { return error_of([&] { copy(m, {.stop = stopped()}); }).code == errc::cancelled; }},
      {"verify", "what is read back",
       [&](const machine&) {  // a link that changes data, and is used all the same
         weft::machine_options options;
         options.machine = samples::shipped("pair_nvlink");
         weft::topology_fault fault;
         fault.what = weft::topology_fault::kind::corrupts;
         fault.from = device_id{0}, fault.to = device_id{1};
         fault.nth = 0;
         options.machine->faults.push_back(fault);
         options.verify_peers = weft::peer_verification::never;
         const machine changes{options};
         const auto leases = weft::enable_all_peers(changes);
         const auto said = [&](weft::verification how) { return error_of([&] { copy(changes, {.verify = how}); }); };
         return said(weft::verification::full).code == errc::corrupt &&
                said(weft::verification::none).what == "nothing failed";
       }},
  };
  samples::expect_each<weft::copy_options>(open(), rows);
}

TEST_P(memory_option_fields, each_option_of_pools_streams_and_profilers_has_an_effect) {
  const auto used = [](const weft::memory_pool& pool, std::size_t size) {
    const byte_buffer memory{pool, size};
    return memory.size();
  };
  const samples::option_row of_pools[] = {
      {"max_size", "what it hands out",
       [&](const machine& m) {
         const weft::memory_pool pool{m[0], {.max_size = bytes{4'096}}};
         return error_of([&] { used(pool, 1U << 20); }).code == errc::out_of_memory;
       }},
      {"keep", "what it keeps",
       [&](const machine& m) {
         const auto kept = [&](const weft::pool_options& how) {
           const weft::memory_pool pool{m[0], how};
           used(pool, 1U << 20);
           m.synchronize();
           return pool.statistics().reserved;
         };
         return kept({.keep = bytes{0}}) < kept({});
       }},
      {"shareable", "who may open it",
       [](const machine& m) {
         const auto named = [&](bool shareable) {
           const weft::memory_pool pool{m[0], {.shareable = shareable}};
           return error_of([&] { static_cast<void>(pool.handle()); }).what == "nothing failed";
         };
         return named(true) && !named(false);
       }},
  };
  const machine m = open();
  samples::expect_each<weft::pool_options>(m, of_pools);
  const samples::option_row of_streams[] = {
      {"priority", "who goes first, where the device has priorities",
       [](const machine& on) {
         if (!on[0].has(weft::capability::priorities)) return true;  // the capability says so
         if (on[0].kind() == weft::backend_kind::cuda) {
           const weft::stream low{on[0], {.priority = 1}}, high{on[0], {.priority = 3}};
           const samples::virtual_cuda driver;
           return driver.priority(low.driver_queue()) == -1 && driver.priority(high.driver_queue()) == -3;
         }
         const machine one_at_a_time{{.backend = "host", .max_in_flight = 1}};
         std::promise<void> begun, may_end;
         const weft::stream held{one_at_a_time[0]}, low{one_at_a_time[0]}, high{one_at_a_time[0], {.priority = 5}};
         held.call([&] {  // one operation, which has the place when it says so
           begun.set_value();
           may_end.get_future().wait_for(samples::only_a_hang);
         });
         begun.get_future().wait();
         std::string order;
         low.call([&] { order += 'l'; });
         high.call([&] { order += 'h'; });
         may_end.set_value();
         one_at_a_time.synchronize();
         return order == "hl";
       }},
  };
  samples::expect_each<weft::stream_options>(m, of_streams);
  const samples::option_row of_profilers[] = {
      {"capacity", "how much is recorded",
       [](const machine& on) {
         const weft::profiler some{on, {.capacity = 2}};
         for (int k = 0; k < 8; ++k) samples::filled(on[0], samples::pattern(64, 1));
         on.synchronize();
         return some.dropped() > 0;
       }},
      {"paused", "when it begins",
       [](const machine& on) { return !weft::profiler{on, {.paused = true}}.is_recording(); }},
  };
  samples::expect_each<weft::profiler_options>(m, of_profilers);
}

/// A sum over two ranks of a machine.
struct ranks {
  explicit ranks(const machine& m) : on{m[0], m[1]} {
    for (const weft::device& d : on) {
      memory.emplace_back(d, 1'000);
      weft::copy(memory.back(), std::vector<float>(1'000, 1.0F));
    }
  }
  std::vector<weft::device> on;
  std::vector<weft::buffer<float>> memory;
};

TEST_P(memory_option_fields, each_option_of_collectives_by_one_caller_has_an_effect) {
  using weft::collective_algorithm;
  const machine m = open();
  const samples::option_row of_communicators[] = {
      {"timeout", "how long a call may take",
       [](const machine& on) {
         ranks r{on};
         samples::gate gate;
         gate.hold(r.on[0].default_stream());
         weft::communicator all{r.on, {.timeout = 5ms}};
         const errc said = error_of([&] { all.all_reduce(r.memory, weft::reduce_op::sum).wait(); }).code;
         gate.open();
         return said == errc::timed_out;
       }},
      {"peer_access", "the pairs that are enabled",
       [](const machine& on) {
         const auto enabled = [&](bool peers) {
           const ranks r{on};
           const weft::communicator all{r.on, {.peer_access = peers}};
           return weft::detail::state_of(on)->backend_of(device_id{0}).peer_enabled(device_id{0}, device_id{1});
         };
         return enabled(true) && !enabled(false);
       }},
  };
  samples::expect_each<weft::communicator_options>(m, of_communicators);
  const samples::option_row of_calls[] = {
      {"algorithm", "the algorithm",
       [](const machine& on) {
         ranks r{on};
         weft::communicator all{r.on};
         const auto run = all.all_reduce(r.memory, weft::reduce_op::sum, {.algorithm = collective_algorithm::naive});
         run.wait();
         return run.algorithm() == collective_algorithm::naive;
       }},
      {"order", "which algorithms may combine",
       [](const machine& on) {
         ranks r{on};
         weft::communicator all{r.on};
         const auto why = [&](weft::reduction_order order) {
           const auto run = all.all_reduce(r.memory, weft::reduce_op::sum, {.order = order});
           run.wait();
           std::string all;
           for (const auto& one : run.choice().candidates) all += one.why + '\n';
           return all;
         };
         return why(weft::reduction_order::rank) != why(weft::reduction_order::any);
       }},
      {"root", "whose data it is",
       [](const machine& on) {
         ranks r{on};
         weft::copy(r.memory[1], std::vector<float>(1'000, 5.0F));
         weft::communicator all{r.on};
         all.broadcast(r.memory, {.root = rank{1}}).wait();
         std::vector<float> got(1'000);
         weft::copy(got, r.memory[0]);
         return got[0] == 5.0F;
       }},
      {"streams", "what it comes after",
       [](const machine& on) {
         ranks r{on};
         samples::gate gate;
         std::vector<weft::stream> order;
         for (const weft::device& d : r.on) order.emplace_back(d);
         gate.hold(order[0]);
         weft::communicator all{r.on};
         const auto run = all.all_reduce(r.memory, weft::reduce_op::sum, {.streams = order});
         const bool waits = run.wait_for(20ms) == weft::wait_outcome::timed_out;
         gate.open();
         run.wait();
         return waits;
       }},
      {"counts", "the sizes of the blocks",
       [](const machine& on) {
         ranks r{on};
         weft::copy(r.memory[0], std::vector<float>(1'000, 5.0F));
         weft::communicator all{r.on};
         const std::vector<weft::device_span<float>> in{r.memory[0].span().first(30), r.memory[1].span().first(70)};
         std::vector<weft::buffer<float>> out;
         for (const std::size_t size : {40U, 60U}) out.emplace_back(r.on[out.size()], size);
         const std::int64_t counts[] = {10, 20, 30, 40};
         all.all_to_all(in, out, {.counts = counts}).wait();
         std::vector<float> got(60);
         weft::copy(got, out[1]);
         return got[19] == 5.0F && got[20] != 5.0F;
       }},
      {"timeout", "how long it may take",
       [](const machine& on) {
         ranks r{on};
         samples::gate gate;
         gate.hold(r.on[0].default_stream());
         weft::communicator all{r.on};
         const errc said =
             error_of([&] { all.all_reduce(r.memory, weft::reduce_op::sum, {.timeout = 5ms}).wait(); }).code;
         gate.open();
         return said == errc::timed_out;
       }},
  };
  samples::expect_each<weft::collective_options>(m, of_calls);
}

/// What two ranks, threads of one machine, do; rank 0 tells.
template <class F>
bool as_ranks(const machine& m, const weft::rank_communicator_options& how, F&& f) {
  auto places = weft::rendezvous::connected(2);
  const auto be = [&](std::size_t r) {
    auto group = std::make_shared<weft::process_group>(weft::value_or_raise(std::move(places[r]).join()));
    auto all = weft::rank_communicator::join(group, m[static_cast<int>(r)], how);
    return f(all, r == 0);
  };
  auto other = std::async(std::launch::async, [&] { be(1); });
  const bool told = be(0);
  other.get();
  return told;
}

TEST_P(memory_option_fields, each_option_of_collectives_by_ranks_has_an_effect) {
  const auto footprint = [](const machine& m, bytes staging) {
    bytes held;
    as_ranks(m, {.staging = staging}, [&](weft::rank_communicator& all, bool is_first) {
      if (is_first) held = all.footprint();
      return true;
    });
    return held;
  };
  const samples::option_row rows[] = {
      {"timeout", "how long a call may take",
       [](const machine& m) {
         std::promise<void> done;
         auto ended = done.get_future();
         // long enough for both to join, which the limit is for, too
         return as_ranks(m, {.timeout = 3s}, [&](weft::rank_communicator& all, bool is_first) {
           if (!is_first) return ended.wait(), true;  // does not come
           const auto said = error_of([&] { all.barrier(); });
           done.set_value();
           return said.code == errc::timed_out;
         });
       }},
      {"staging", "the memory that is shared",
       [&](const machine& m) { return footprint(m, bytes{1U << 22}) > footprint(m, bytes{1U << 16}); }},
      {"wait_policy", "whether a rank that waits gives its processor away",
       [](const machine& m) {
         const auto slept = [&](weft::waiting policy) {
           long took = 0;
           as_ranks(m, {.wait_policy = policy}, [&](weft::rank_communicator& all, bool is_first) {
             all.barrier();
             if (!is_first) {
               std::promise<void> nobody;
               static_cast<void>(nobody.get_future().wait_for(40ms));
             }
             const long before = samples::sleeps_of_this_thread();
             all.barrier();
             if (is_first) took = samples::sleeps_of_this_thread() - before;
             return true;
           });
           return took;
         };
         return slept(weft::waiting::park) > slept(weft::waiting::spin);
       }},
  };
  samples::expect_each<weft::rank_communicator_options>(open(), rows);
}

}  // namespace memory_option_fields_test
