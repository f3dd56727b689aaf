// SPDX-License-Identifier: Apache-2.0
#include "bench/launch_bench.hpp"
#include "bench/queue/queue_bench.hpp"
#include "collective_options.hpp"
#include "command_line/command_entry.hpp"
#include "command_line/commands.hpp"

namespace weft::tool {

namespace {

/// The options that all of these commands have.
struct usual_words {
  std::string sizes, pairs, budget;

  void add_budget(CLI::App& to, const char* usual) {
    to.add_option("--budget", budget, fmt::format("Stop after about this long: {}", usual))->type_name("TIME");
  }
};

void add_samples(CLI::App& to, std::optional<int>& samples, int usual) {
  to.add_option("--samples", samples, fmt::format("Samples of each row: {}", usual))->type_name("N");
}

void add_results_file(CLI::App& to, std::string& file) {
  add_output(to, file, "Also write the JSON document to a file");
}

void add_world_flag(CLI::App& to, bool& world) {
  to.add_flag("--world", world,
              "This process is a rank of several, as its launcher says (RANK, WORLD_SIZE, …); start it on each");
}

void add_copy(command_entries& to, CLI::App& bench, bool is_latency) {
  struct words : usual_words {
    std::string min_time, makers;
  };
  const auto raw = std::make_shared<words>();
  CLI::App* copy = is_latency ? bench.add_subcommand("latency", "The same with 8 B to 64 KiB: times in place of rates")
                              : bench.add_subcommand("copy", "Copy between all ordered pairs of devices, verified");
  copy_bench_options& options = to.line.bench_copy;
  copy->add_option("-s,--sizes", raw->sizes,
                   "Bytes: a list (4K,64M) or a range (8..64M in steps of four, 8..64M:2 in steps of two); K = 1024")
      ->type_name("SIZES");
  copy->add_option("--pairs", raw->pairs, "Only these pairs: 0-1,2-3; default all, each device with itself too")
      ->type_name("PAIRS");
  copy->add_option("--samples", options.samples, "Copies of each row: 15")->type_name("N");
  copy->add_option("--min-time", raw->min_time, "Go on for at least this long in each row: 100ms")->type_name("TIME");
  raw->add_budget(*copy, "10s");
  copy->add_option("--by", raw->makers, "Copies made by an engine, a kernel, or both; default both on GPUs")
      ->type_name("WHO");
  copy->add_flag("--no-p2p", options.no_p2p, "Only copies that are staged through the host");
  add_world_flag(*copy, options.world);
  add_output(*copy, options.output, "Also write the JSON document, or the matrix as .svg, to a file");
  to.add(copy, command_of<run_bench_copy, &command_line::bench_copy>, [&options, raw, is_latency]() -> complaint {
    options.latency = is_latency;
    if (auto wrong =
            first_of({read(raw->sizes, parse_sizes, options.sizes), read(raw->pairs, parse_pairs, options.pairs)}))
      return wrong;
    if (options.world && (!raw->pairs.empty() || !raw->makers.empty() || options.no_p2p))
      return "between ranks there is one way to copy, for each pair: drop --pairs, --by and --no-p2p, or --world";
    if (options.world && !raw->min_time.empty())
      return "between ranks a row has its --samples: drop --min-time, or --world";
    if (!raw->makers.empty()) {
      if (auto wrong = one_of("--by", raw->makers, {"engine", "kernel", "both"})) return wrong;
      options.by_engine = raw->makers != "kernel";
      options.by_kernel = raw->makers != "engine";
    }
    if (options.no_p2p && !options.by_engine)
      return "a kernel makes no copy that is staged through the host: drop --no-p2p, or --by kernel";
    if (options.output.ends_with(".svg") && (options.world || !options.by_engine)) {
      return fmt::format(
          "{}: a picture shows copies between devices by an engine; drop {}, or name a file that does "
          "not end with .svg",
          options.output, options.world ? "--world" : "--by kernel");
    }
    return first_of({in_range("--samples", options.samples, most_samples),
                     read(raw->min_time, parse_duration, options.min_time),
                     read(raw->budget, parse_duration, options.budget)});
  });
}

/// Why there are no messages of one of these sizes, with the nearest that there are.
complaint no_such_messages(const std::vector<std::uint64_t>& sizes) {
  const auto wrong = std::ranges::find_if(
      sizes, [](std::uint64_t size) { return std::ranges::find(queue_sizes, size) == queue_sizes.end(); });
  if (wrong == sizes.end()) return std::nullopt;
  const auto further = [size = *wrong](std::uint64_t known) {
    return known > size ? static_cast<double>(known) / static_cast<double>(size)
                        : static_cast<double>(size) / static_cast<double>(known);
  };
  return fmt::format("there are no messages of {} bytes; did you mean {}? Sizes are {}", *wrong,
                     *std::ranges::min_element(queue_sizes, {}, further), fmt::join(queue_sizes, ", "));
}

struct queue_words : usual_words {
  std::string from, to, mode = "both", ends, batches;

  [[nodiscard]] complaint take(queue_bench_options& options) const {
    if (auto wrong = read(sizes, parse_sizes, options.sizes)) return wrong;
    if (auto wrong = no_such_messages(options.sizes)) return wrong;
    if (!pairs.empty() && (!from.empty() || !to.empty()))
      return "--pairs names both devices of each pair: give it, or --from and --to";
    if (auto wrong =
            first_of({read(pairs, parse_pairs, options.pairs), read(from, parse_device, options.from),
                      read(to, parse_device, options.to), one_of("--mode", mode, {"direct", "host_staged", "both"})}))
      return wrong;
    if (options.world &&
        (!pairs.empty() || !from.empty() || !to.empty() || mode != "both" || !ends.empty() || !batches.empty()))
      return "between ranks each pair has one queue: drop --pairs, --from, --to, --mode, --ends and --batch, or "
             "--world";
    options.direct = mode != "host_staged";
    options.host_staged = mode != "direct";
    if (!ends.empty()) {
      if (auto wrong = one_of("--ends", ends, {"host", "kernel", "both"})) return wrong;
      options.host_ends = ends != "kernel";
      options.kernel_ends = ends != "host";
    }
    return first_of({read(batches, parse_batches, options.batches),
                     in_range("--samples", options.samples, most_samples),
                     read(budget, parse_duration, options.budget)});
  }
};

void add_queue(command_entries& to, CLI::App& bench) {
  const auto raw = std::make_shared<queue_words>();
  CLI::App* queue = bench.add_subcommand("queue", "Send messages between pairs of devices, verified");
  queue_bench_options& options = to.line.bench_queue;
  queue
      ->add_option("-s,--sizes", raw->sizes,
                   fmt::format("Bytes of a message: a list or a range of {}; default 8,64,256,4096",
                               fmt::join(queue_sizes, ", ")))
      ->type_name("SIZES");
  queue->add_option("--from", raw->from, "Only from this device: 0 or gpu0")->type_name("DEVICE");
  queue->add_option("--to", raw->to, "Only to this device")->type_name("DEVICE");
  queue->add_option("--pairs", raw->pairs, "Only these pairs: 0-1,2-3; default all of different devices")
      ->type_name("PAIRS");
  queue->add_option("--mode", raw->mode, "direct, host_staged, or both")->type_name("MODE");
  queue->add_option("--ends", raw->ends, "Messages of host threads, of kernels, or both; default both on GPUs of CUDA")
      ->type_name("WHO");
  queue->add_option("--batch", raw->batches, "Messages of a call where the rate is measured: 1,64")->type_name("LIST");
  add_samples(*queue, options.samples, 15);
  queue->add_flag("--quick", options.quick, "Fewer and shorter samples: a look, not a figure to quote");
  add_world_flag(*queue, options.world);
  raw->add_budget(*queue, "10s");
  add_results_file(*queue, options.output);
  to.add(queue, command_of<run_bench_queue, &command_line::bench_queue>,
         [&options, raw] { return raw->take(options); });
}

void add_launch(command_entries& to, CLI::App& bench) {
  struct words : usual_words {
    std::string strategies, scenarios;
  };
  const auto raw = std::make_shared<words>();
  CLI::App* launch = bench.add_subcommand("launch", "Divide one kernel over devices: balance and overhead");
  launch_bench_options& options = to.line.bench_launch;
  launch->add_option("--strategy", raw->strategies, "Only these: static_equal, guided, automatic, …; default all")
      ->type_name("LIST");
  launch->add_option("--scenario", raw->scenarios, "Only these: A,B,C,D,D2,E (simulated) and overhead; default all")
      ->type_name("LIST");
  launch->add_option("--seeds", options.seeds, "Runs of a scenario with noise: 100")->type_name("N");
  launch->add_option("--samples", options.samples, "Samples of the overhead: 15")->type_name("N");
  launch->add_flag("--quick", options.quick, "Three seeds and samples: a look, not a figure to quote");
  raw->add_budget(*launch, "30s");
  add_output(*launch, options.output, "Also write what was measured to a JSON file");
  to.add(launch, command_of<run_bench_launch, &command_line::bench_launch>, [&options, raw] {
    return first_of({read(raw->strategies, parse_strategies, options.strategies),
                     read(raw->scenarios, parse_scenarios, options.scenarios),
                     in_range("--seeds", options.seeds, 10'000), in_range("--samples", options.samples, most_samples),
                     read(raw->budget, parse_duration, options.budget)});
  });
}

void add_ipc(command_entries& to, CLI::App& bench) {
  const auto raw = std::make_shared<usual_words>();
  CLI::App* ipc = bench.add_subcommand("ipc", "Open, touch and copy the memory of another process, verified");
  ipc_bench_options& options = to.line.bench_ipc;
  ipc->add_option("-s,--sizes", raw->sizes, "Bytes of the copies: a list or a range, as for copy; default 1M,64M")
      ->type_name("SIZES");
  ipc->add_option("--pairs", raw->pairs, "From which device to which: 0-1,1-0; default 0-1")->type_name("PAIRS");
  add_samples(*ipc, options.samples, 31);
  ipc->add_flag("--quick", options.quick, "Less memory and three samples: a look, not a figure to quote");
  raw->add_budget(*ipc, "10s");
  add_results_file(*ipc, options.output);
  to.add(ipc, command_of<run_bench_ipc, &command_line::bench_ipc>, [&options, raw] {
    return first_of({read(raw->sizes, parse_sizes, options.sizes), read(raw->pairs, parse_pairs, options.pairs),
                     in_range("--samples", options.samples, most_samples),
                     read(raw->budget, parse_duration, options.budget)});
  });
}

struct measured_words : usual_words, collective_words {
  std::string what, operation;

  [[nodiscard]] complaint take_all(collective_bench_options& options) const {
    if (auto wrong =
            first_of({take(options), read(what, parse_collectives, options.collectives),
                      read(algorithm, parse_algorithms, options.algorithms),
                      read(operation, parse_operation, options.operation), read(sizes, parse_sizes, options.sizes),
                      in_range("--processes", options.processes, process_group::max_size)}))
      return wrong;
    if (options.world && (options.processes || options.ranks))
      return "the launcher says how many ranks a world has: drop --processes and --ranks, or --world";
    if (options.processes && options.ranks) return "every process is a rank: give --processes, or --ranks";
    if (options.processes && !options.devices.empty() &&
        options.devices.size() != static_cast<std::size_t>(*options.processes)) {
      return fmt::format("--devices names {} ranks, and there are {} processes", options.devices.size(),
                         *options.processes);
    }
    return first_of({in_range("--samples", options.samples, 4096), read(budget, parse_duration, options.budget)});
  }
};

void add_collective(command_entries& to, CLI::App& bench) {
  const auto raw = std::make_shared<measured_words>();
  CLI::App* collectives = bench.add_subcommand("collective", "All-reduce and its family, every element verified");
  collective_bench_options& options = to.line.bench_collective;
  collectives->add_option("--collective", raw->what, "A list of all_reduce, broadcast, …, or all: all_reduce")
      ->type_name("LIST");
  collectives
      ->add_option("-s,--sizes", raw->sizes,
                   "Bytes of the whole array: a list or a range, as for copy; default 4..64M:16, to 4M past four ranks")
      ->type_name("SIZES");
  raw->add_to(*collectives, "A list, or all");
  collectives->add_option("--op", raw->operation, "sum, product, min, max or average: sum")->type_name("NAME");
  collectives->add_flag("--in-place", options.in_place, "Results go where the inputs are");
  collectives
      ->add_option("--processes", options.processes,
                   "A caller for each rank, in a process of its own; default one caller for all ranks")
      ->type_name("N");
  add_world_flag(*collectives, options.world);
  add_samples(*collectives, options.samples, 15);
  collectives->add_flag("--quick", options.quick, "Three samples: a look, not a figure to quote");
  raw->add_budget(*collectives, "30s");
  add_results_file(*collectives, options.output);
  to.add(collectives, command_of<run_bench_collective, &command_line::bench_collective>,
         [&options, raw] { return raw->take_all(options); });
}

}  // namespace

void add_bench_commands(command_entries& to) {
  CLI::App* bench = to.app.add_subcommand("bench", "Measure this machine");
  to.add_group(bench, "what is to be measured? weft bench copy, latency, queue, launch, ipc, or collective");
  add_copy(to, *bench, false);
  add_copy(to, *bench, true);
  add_queue(to, *bench);
  add_launch(to, *bench);
  add_ipc(to, *bench);
  add_collective(to, *bench);
}

}  // namespace weft::tool
