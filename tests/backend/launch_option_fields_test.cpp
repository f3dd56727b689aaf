// SPDX-License-Identifier: Apache-2.0
// Each field of the options of launches and pipelines changes something, or somebody says that it does not.
#include "exec/balance/split.hpp"
#include "support/option_rows.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/exec/pipeline.hpp"
#include "weft/memory/peer_access.hpp"

#include <chrono>
#include <future>
#include <numeric>
#include <stop_token>
#include <vector>

namespace launch_option_fields_test {

using samples::error_of;
using weft::array;
using weft::balance;
using weft::device_id;
using weft::errc;
using weft::launch;
using weft::machine;
using weft::range;

WEFT_KERNEL(fields_add_one, (WEFT_INOUT(int32_t) values), { values[i] = values[i] + 1; });
WEFT_KERNEL(fields_twice, (WEFT_IN(int32_t) from, WEFT_OUT(int32_t) to), { to[i] = from[i] * 2; });

constexpr std::int64_t n = 1'000;
using ints = std::vector<std::int32_t>;

std::stop_token stopped() {
  std::stop_source source;
  source.request_stop();
  return source.get_token();
}
/// Four devices on a virtual clock, of which one is lost at its first operation.
machine played(bool loses = false) {
  auto layout = samples::wired(4);
  if (loses) {
    weft::topology_fault fault;
    fault.what = weft::topology_fault::kind::device_lost;
    fault.device = device_id{1};
    layout.faults.push_back(fault);
  }
  return samples::play(std::move(layout), weft::clock_kind::virtual_time);
}

weft::launch_report report_of(const machine& m, const weft::spread_options& how) {
  array<std::int32_t> values{m, n, 1};
  const auto run = launch<fields_add_one>(m, how, range(n), values);
  run.wait();
  return run.report();
}
std::int64_t items_on(const weft::launch_report& report, int device) {
  for (const auto& d : report.devices) {
    if (d.device == device_id{device}) return d.items;
  }
  return 0;
}
std::int64_t pieces_of(const weft::launch_report& report) {
  std::int64_t sum = 0;
  for (const auto& d : report.devices) sum += d.pieces;
  return sum;
}

class option_fields : public samples::option_test {};
INSTANTIATE_TEST_SUITE_P(launches, option_fields, samples::each_backend, samples::name_of_backend);

TEST_P(option_fields, each_option_of_a_launch_over_devices_has_an_effect) {
  using weft::spread_options;
  const auto equal = balance::static_equal;
  const samples::option_row rows[] = {
      {"devices", "who works",
       [&](const machine& m) {
         return items_on(report_of(m, {.devices = {.ids = {device_id{1}}}, .strategy = equal}), 1) == n;
       }},
      {"strategy", "the pieces",
       [&](const machine& m) {
         return pieces_of(report_of(m, {.strategy = balance::guided})) > pieces_of(report_of(m, {.strategy = equal}));
       }},
      {"weights", "the shares",
       [](const machine& m) {
         return items_on(report_of(m, {.devices = {.ids = {device_id{0}, device_id{1}}},
                                       .strategy = balance::weighted,
                                       .weights = {1, 4}}),
                         1) == n / 5 * 4;
       }},
      {"memory_limits", "who has room",
       [&](const machine& m) {
         return items_on(report_of(m, {.strategy = equal, .memory_limits = {{device_id{0}, weft::bytes{400}}}}), 0) <=
                100;
       }},
      {"keep_on_device", "where results lie",
       [](const machine& m) {
         array<std::int32_t> values{m, n, 1};
         launch<fields_add_one>(m, {.keep_on_device = false}, range(n), values).wait();
         const auto parts = values.parts();
         return parts.size() == 1 && parts[0].device == device_id{};
       }},
      {"asynchronous", "when the call returns",
       [](const machine& m) {
         samples::gate gate;
         gate.hold(m[0].default_stream());
         array<std::int32_t> values{m, n, 1};
         const auto submitted = launch<fields_add_one>(m, {.devices = {.ids = {device_id{0}}}}, range(n), values);
         const bool returns = !submitted.ready();
         auto call = std::async(std::launch::async, [&] {
           launch<fields_add_one>(m, {.devices = {.ids = {device_id{0}}}, .asynchronous = false}, range(n), values);
         });
         const bool waits = call.wait_for(std::chrono::milliseconds{30}) == std::future_status::timeout;
         gate.open();
         call.get();
         return returns && waits;
       }},
      {"unified_memory", "whether host memory is copied",
       [](const machine& m) {
         const auto copied = [&](bool in_place) {
           ints values(n, 1);
           const auto before = weft::counters(m);
           launch<fields_add_one>(m, {.unified_memory = in_place}, range(n), values).wait();
           return weft::counters(m).host_to_device.bytes - before.host_to_device.bytes;
         };
         return copied(true) < copied(false);
       }},
      {"peer_to_peer", "the way of data between devices",
       [](const machine& m) {
         const auto peers = weft::enable_all_peers(m);
         const auto staged = [&](bool peer_to_peer) {
           array<std::int32_t> values{m, n, 1};
           const auto before = weft::counters(m);
           for (const int d : {0, 1})
             launch<fields_add_one>(m, {.devices = {.ids = {device_id{d}}}, .peer_to_peer = peer_to_peer}, range(n),
                                    values)
                 .wait();
           return weft::counters(m).staged.bytes - before.staged.bytes;
         };
         return staged(false) > staged(true);
       }},
      {"block", "the borders of pieces",
       [&](const machine& m) { return items_on(report_of(m, {.strategy = equal, .block = {64, 0, 0}}), 0) % 64 == 0; }},
      {"granularity", "the borders of pieces",
       [&](const machine& m) { return items_on(report_of(m, {.strategy = equal, .granularity = 64}), 0) % 64 == 0; }},
      {"on_failure", "what becomes of a lost device's pieces",
       [&](const machine&) {  // whichever backend: the launch decides
         const machine loses = played(true), again = played(true);
         const auto go_on = weft::failure_policy::retry_elsewhere;
         ints values(n, 1);  // the host keeps them
         const auto run = launch<fields_add_one>(again, {.strategy = equal, .on_failure = go_on}, range(n), values);
         run.wait();
         return error_of([&] { report_of(loses, {.strategy = equal}); }).code == errc::device_lost &&
                items_on(run.report(), 1) == 0 && values == ints(n, 2);
       }},
      {"stop", "whether it begins",
       [](const machine& m) { return error_of([&] { report_of(m, {.stop = stopped()}); }).code == errc::cancelled; }},
      {"model", "the time on a virtual clock, and on a real one somebody says that it does not",
       [](const machine& real) {
         const machine m = played();
         const weft::spread_options modelled{.model = weft::kernel_cost{1, 0}};
         const auto notes = report_of(real, modelled).notes;
         return report_of(m, modelled).seconds >= 1 && report_of(m, modelled).notes.empty() && notes.size() == 1 &&
                notes[0].find("model") != std::string::npos;
       }},
  };
  samples::expect_each<spread_options>(open(), rows);
}

TEST_P(option_fields, each_option_of_a_launch_in_a_stream_has_an_effect) {
  const auto run = [](const machine& m, const weft::launch_options& how) {
    const weft::stream order{m[0]};
    weft::buffer<std::int32_t> values{m[0], n};
    weft::copy(values, ints(n, 1));
    launch<fields_add_one>(order, how, range(n), values).wait();
  };
  const samples::option_row rows[] = {
      {"stop", "whether it begins",
       [&](const machine& m) { return error_of([&] { run(m, {.stop = stopped()}); }).code == errc::cancelled; }},
      {"model", "the time on a virtual clock",
       [&](const machine&) {
         const machine m = played();
         const auto before = m.now();
         run(m, {.model = weft::kernel_cost{1, 0}});
         return m.now() - before >= std::chrono::seconds{1};
       }},
      {"block", "the threads of a block, where there are blocks, and is checked everywhere",
       [&](const machine& m) {
         run(m, {.block = {64, 0, 0}});
         if (m[0].kind() == weft::backend_kind::cuda && samples::virtual_cuda{}.last_launch().block.x != 64)
           return false;
         return error_of([&] { run(m, {.block = {2'048, 0, 0}}); }).code == errc::invalid_argument;
       }},
  };
  samples::expect_each<weft::launch_options>(open(), rows);
}

auto line_of(const machine& m, const weft::pipeline_options& how, weft::stage_options first = {}) {
  weft::stage_options second;
  second.cost = first.cost;
  return weft::make_pipeline<std::int32_t>(m, n, how)
      .kernel<fields_twice>("one", std::move(first))
      .kernel<fields_twice>("two", std::move(second))
      .build();
}
weft::pipeline_report line_report(const machine& m, const weft::pipeline_options& how, weft::stage_options first = {}) {
  auto line = line_of(m, how, std::move(first));
  const ints batch(n, 3);
  std::vector<ints> results(4, ints(line.results_of(n)));
  for (ints& result : results) line.push(batch, result);
  line.drain();
  return line.report();
}

TEST_P(option_fields, each_option_of_a_pipeline_and_its_stages_has_an_effect) {
  const std::vector<device_id> spread{device_id{0}, device_id{1}};
  const samples::option_row rows[] = {
      {"depth", "the buffers",
       [&](const machine& m) {
         return line_report(m, {.depth = 1, .placement = spread}).edges[0].buffers <
                line_report(m, {.depth = 3, .placement = spread}).edges[0].buffers;
       }},
      {"devices", "who takes part",
       [](const machine& m) {
         return line_report(m, {.devices = {.ids = {device_id{1}}}}).stages[0].device == device_id{1};
       }},
      {"placement", "who does which stage",
       [](const machine& m) {
         const auto told = line_report(m, {.placement = {device_id{1}, device_id{0}}});
         return told.stages[0].device == device_id{1} && told.stages[1].device == device_id{0};
       }},
      {"overlap_hops", "the streams, and with them the time",
       [&](const machine&) {
         const auto time = [&](bool overlap) {
           const machine m = played();
           return line_report(m, {.placement = spread, .overlap_hops = overlap}, {.cost = weft::kernel_cost{1e-6, 0}})
               .elapsed;
         };
         return time(true) < time(false);
       }},
      {"stop", "whether batches go on",
       [](const machine& m) { return error_of([&] { line_report(m, {.stop = stopped()}); }).code == errc::cancelled; }},
      {"keep_batches", "what the report remembers",
       [](const machine& m) {
         return line_report(m, {}).batches.size() == 4 && line_report(m, {.keep_batches = 2}).batches.size() == 2;
       }},
  };
  samples::expect_each<weft::pipeline_options>(open(), rows);
  const samples::option_row of_stages[] = {
      {"cost", "the plan",
       [](const machine& m) {
         return line_report(m, {}, {.cost = weft::kernel_cost{1e-3, 0}}).has_costs && !line_report(m, {}).has_costs;
       }},
      {"count", "how much comes out",
       [](const machine& m) {
         const auto half = [](std::size_t items) { return items / 2; };
         return line_of(m, {}, {.count = half}).results_of(n) == n / 2;
       }},
  };
  samples::expect_each<weft::stage_options>(open(), of_stages);
}

TEST(option_fields, each_option_of_a_split_has_an_effect) {
  std::vector<weft::split_device> two(2);
  two[0].id = device_id{0}, two[1].id = device_id{1};
  const auto first = [&](std::int64_t cap, const weft::split_options& how) {
    two[0].cap = cap;
    return weft::value_or_raise(weft::split(100, two, how)).shares[0];
  };
  const samples::option_row rows[] = {
      {"granularity", "the borders",
       [&](const machine&) { return first(100, {.granularity = 64}).count == 64 && first(100, {}).count == 50; }},
      {"keeps_data", "what a cap limits",
       [&](const machine&) { return first(10, {}).count == 10 && first(10, {.keeps_data = false}).count > 10; }},
  };
  samples::expect_each<weft::split_options>(played(), rows);
}

}  // namespace launch_option_fields_test
