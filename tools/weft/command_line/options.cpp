// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include "bench/collective/collective_words.hpp"
#include "bench/launch_bench.hpp"
#include "bench/queue_bench.hpp"
#include "option_pages.hpp"
#include "output.hpp"
#include "weft/collective/communicator.hpp"
#include "weft/core/nearest.hpp"
#include "weft/core/topology.hpp"
#include "weft/core/version.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace weft::tool {

namespace {

/// What `explain all_reduce` and `bench collective` are told of a collective.
struct collective_words {
  std::string what;
  std::string size;
  std::string devices;
  std::optional<int> ranks;
  std::string type;
  std::string operation;
  std::string order;
  std::string algorithm;
};

/// What the parser fills in before texts become values.
struct raw_line {
  std::string clock = "wall";
  std::string colour = "auto";
  std::string route_size;
  std::string items;
  std::string rate;
  std::string start;
  std::string granularity;
  std::string one_strategy;
  std::string sizes;
  std::string pairs;
  std::string min_time;
  std::string budget;
  std::string makers;
  std::string queue_sizes;
  std::string ends;
  std::string queue_pairs;
  std::string from;
  std::string to;
  std::string mode = "both";
  std::string batches;
  std::string queue_budget;
  std::string strategies;
  std::string scenarios;
  std::string launch_budget;
  std::string ipc_sizes;
  std::string ipc_pairs;
  std::string ipc_budget;
  collective_words explained;
  collective_words measured;
  std::string collective_sizes;
  std::string collective_budget;
  std::string threshold;
  std::vector<std::string> topic;
  bool man = false;
  std::string report_budget;
  std::string shell = "bash";
  bool version = false;
};

const CLI::App* deepest(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? &app : deepest(*chosen.front());
}

finished_line usage(const CLI::App& at, const std::string& message) {
  return {static_cast<int>(exit_code::usage),
          {},
          fmt::format("{}: {}\nTry '{} --help'.\n", path_of(at), message, path_of(at))};
}

finished_line unexpected(const CLI::App& at, const std::string& word) {
  const bool option = word.starts_with('-');
  const std::string name = word.substr(0, option ? word.find('=') : std::string::npos);
  std::vector<std::string> words = words_of(at);
  std::erase_if(words, [option](const std::string& w) { return w.starts_with('-') != option; });
  const std::vector<std::string_view> known{words.begin(), words.end()};
  const auto nearest = nearest_name(name, known);
  const std::string hint = nearest ? fmt::format("; did you mean {}?", *nearest) : std::string{};
  const bool a_command = !option && !words.empty();
  return usage(at, fmt::format("{} {}{}",
                               a_command ? "no command"
                               : option  ? "no option"
                                         : "did not expect",
                               name, hint));
}

/// Why there are no messages of this size, with the nearest that there are.
std::string no_such_messages(std::uint64_t size) {
  const auto further = [size](std::uint64_t known) {
    return known > size ? static_cast<double>(known) / static_cast<double>(size)
                        : static_cast<double>(size) / static_cast<double>(known);
  };
  const std::uint64_t nearest = *std::ranges::min_element(queue_sizes, {}, further);
  return fmt::format("there are no messages of {} bytes; did you mean {}? Sizes are {}", size, nearest,
                     fmt::join(queue_sizes, ", "));
}

/// Options that both commands have. `algorithms` says how many of them --algorithm takes.
void add_collective_options(CLI::App& to, collective_words& words, std::string_view algorithms) {
  to.add_option("--ranks", words.ranks, "How many; default one for each device")->type_name("N");
  to.add_option("--devices", words.devices, "The devices of the ranks, in order: 0,2,1,3")->type_name("LIST");
  to.add_option("--type", words.type, "float32, bfloat16, int8, …: float32")->type_name("TYPE");
  to.add_option("--order", words.order, "any: the fastest; rank: the same bits, whatever is chosen")
      ->type_name("any|rank");
  to.add_option("--algorithm", words.algorithm,
                fmt::format("{}: automatic, naive, tree, ring, halving_doubling, direct", algorithms))
      ->type_name("NAME");
}

/// What both commands take from their words; the first thing wrong with them.
template <class Options>
std::optional<std::string> take_collective(const collective_words& words, Options& to) {
  if (!words.devices.empty()) {
    if (words.ranks) return "--devices names every rank: give it, or --ranks";
    auto devices = parse_devices(words.devices);
    if (!devices) return devices.error().what;
    to.devices = std::move(devices).value();
  }
  constexpr int most = communicator::max_size;
  if (words.ranks && (*words.ranks < 1 || *words.ranks > most))
    return fmt::format("--ranks is a number from 1 to {}", most);
  to.ranks = words.ranks;
  if (!words.type.empty()) {
    const auto type = parse_type(words.type);
    if (!type) return type.error().what;
    to.type = *type;
  }
  if (!words.order.empty()) {
    const auto order = parse_order(words.order);
    if (!order) return order.error().what;
    to.order = *order;
  }
  return std::nullopt;
}

std::optional<std::string> take_explained(const collective_words& words, explain_collective_options& to) {
  if (auto wrong = take_collective(words, to)) return wrong;
  const auto size = parse_size(words.size);
  if (!size) return size.error().what;
  to.size = *size;
  if (words.algorithm.empty()) return std::nullopt;
  const auto algorithms = parse_algorithms(words.algorithm);
  if (!algorithms) return algorithms.error().what;
  if (algorithms->size() != 1) return "--algorithm is one of them; all of them are shown anyhow";
  to.algorithm = algorithms->front();
  return std::nullopt;
}

std::optional<std::string> take_measured(const raw_line& raw, collective_bench_options& to) {
  const collective_words& words = raw.measured;
  if (auto wrong = take_collective(words, to)) return wrong;
  if (!words.what.empty()) {
    auto collectives = parse_collectives(words.what);
    if (!collectives) return collectives.error().what;
    to.collectives = std::move(collectives).value();
  }
  if (!words.algorithm.empty()) {
    auto algorithms = parse_algorithms(words.algorithm);
    if (!algorithms) return algorithms.error().what;
    to.algorithms = std::move(algorithms).value();
  }
  if (!words.operation.empty()) {
    const auto operation = parse_operation(words.operation);
    if (!operation) return operation.error().what;
    to.operation = *operation;
  }
  if (!raw.collective_sizes.empty()) {
    auto sizes = parse_sizes(raw.collective_sizes);
    if (!sizes) return sizes.error().what;
    to.sizes = std::move(sizes).value();
  }
  if (to.processes && (*to.processes < 1 || *to.processes > process_group::max_size))
    return fmt::format("--processes is a number from 1 to {}", process_group::max_size);
  if (to.processes && to.ranks) return "every process is a rank: give --processes, or --ranks";
  if (to.processes && !to.devices.empty() && to.devices.size() != static_cast<std::size_t>(*to.processes))
    return fmt::format("--devices names {} ranks, and there are {} processes", to.devices.size(), *to.processes);
  if (to.samples && (*to.samples < 1 || *to.samples > 4096)) return "--samples is a number from 1 to 4096";
  if (!raw.collective_budget.empty()) {
    const auto time = parse_duration(raw.collective_budget);
    if (!time) return time.error().what;
    to.budget = *time;
  }
  return std::nullopt;
}

}  // namespace

std::variant<command_line, finished_line> parse_command_line(int argc, const char* const* argv) {
  command_line line;
  raw_line raw;
  for (int i = 0; i < argc; ++i) line.global.argv.emplace_back(argv[i]);

  const CLI::Validator has_a_name{
      [](const std::string& name) { return name.empty() ? "the name of a file is empty" : ""; }, "", "name"};
  CLI::App app{"Several GPUs as one machine.", "weft"};
  app.fallthrough();   // the global flags may stand after the command
  app.allow_extras();  // so that this file, not the parser, says what was meant
  app.require_subcommand(0, 1);
  app.set_help_flag("-h,--help", "Show this help and exit");
  app.failure_message([](const CLI::App*, const CLI::Error&) { return std::string{}; });
  app.add_option("--sim", line.global.sim, "Play this topology: a shipped name (dgx_h100) or a file")
      ->type_name("NAME|FILE");
  app.add_option("--backend", line.global.backend, "Use this backend and no other, or several: host,opencl")
      ->type_name("NAME[,NAME]");
  app.add_option("--logical-devices", line.global.logical_devices,
                 "Offer each device as so many, of a part of its compute units each")
      ->type_name("N")
      ->check(CLI::Range(1, max_devices));
  app.add_option("--clock", raw.clock, "wall, or virtual: times are simulated from the topology")
      ->type_name("wall|virtual");
  app.add_flag("--json", line.global.json, "Print one JSON document instead of text");
  app.add_flag("-q,--quiet", line.global.quiet, "No progress and no remarks on stderr");
  app.add_option("--color", raw.colour, "auto, always or never; NO_COLOR and CLICOLOR_FORCE are honoured")
      ->type_name("auto|always|never");
  app.add_flag("--version", raw.version, "Show the version and exit");

  app.add_subcommand("devices", "List devices, and backends with the reason why they are absent");

  CLI::App* doctor =
      app.add_subcommand("doctor", "Look for what is wrong with this computer's GPUs, and say what to do");
  doctor->add_flag("--run", line.doctor.run, "Use the GPUs too, for about ten seconds: data, rates, a kernel on each");
  doctor->add_option("--check", line.doctor.check, "Only this check, with all that it has seen")->type_name("NAME");
  doctor->add_option("-o,--output", line.doctor.output, "Also write a page: one HTML file, pictures inside")
      ->type_name("FILE")
      ->check(has_a_name);
  doctor->add_option("--collect", line.doctor.collect, "Write what was read to a JSON file, for a bug report")
      ->type_name("FILE")
      ->check(has_a_name);
  doctor->add_option("--from", line.doctor.from, "Look at such a file, not at this computer")
      ->type_name("FILE")
      ->check(has_a_name);
  CLI::App* report = app.add_subcommand("report", "Devices, links, doctor, copies and collectives as one HTML page");
  report->add_option("-o,--output", line.report.output, "Write it here: weft-report.html")
      ->type_name("FILE")
      ->check(has_a_name);
  report->add_flag("--quick", line.report.quick, "Small sizes and three samples: a look, not figures to quote");
  report->add_option("--budget", raw.report_budget, "Measure for about this long: 30s")->type_name("TIME");

  CLI::App* topo = app.add_subcommand("topo", "Show how devices are linked: the matrix of nvidia-smi topo -m");
  topo->add_flag("-m,--matrix", line.topo.matrix_only, "The matrix and its legend, tab separated, and nothing else");
  topo->add_flag("--p2p", line.topo.p2p, "The matrix of peer access: OK, NS (not supported)");
  topo->add_flag("--verify", line.topo.verify, "Write and read back a pattern over every offered pair first");
  topo->add_flag("--measure", line.topo.measure, "Measure bandwidth and latency of every pair first");
  topo->add_option("-o,--output", line.topo.output, "Also write a .svg, .json, .dot or .txt file")
      ->type_name("FILE")
      ->check(has_a_name);

  CLI::App* route = app.add_subcommand("route", "Show which way a copy takes, and why the other ways lost");
  route->add_option("FROM", line.route.from, "Device that has the data: 0 or gpu0")->required()->type_name("");
  route->add_option("TO", line.route.to, "Device that gets it")->required()->type_name("");
  route->add_option("SIZE", raw.route_size, "Bytes, with K, M, G, T (1024 each): 64M")->required()->type_name("");
  route->add_option("--path", line.route.path, "Insist on this way: automatic, direct, staged or relayed")
      ->type_name("PATH");
  route->add_flag("--measure", line.route.measure, "Measure the rates first, and keep them for later commands");
  route->add_option("--via", line.route.via, "The device in the middle of a relayed copy")->type_name("DEVICE");

  CLI::App* explain = app.add_subcommand("explain", "Show what would be decided, and why");
  explain->require_subcommand(0, 1);
  CLI::App* explain_launch = explain->add_subcommand("launch", "How a launch of so many items would be divided");
  explain_launch->add_option("ITEMS", raw.items, "Items, with K, M, G, T (1000 each): 1M")->required()->type_name("");
  explain_launch->add_option("--rate", raw.rate, "Items per second of the fastest device: 200M")->type_name("COUNT");
  explain_launch
      ->add_option("--start", raw.start,
                   "What each piece costs whatever its size: 20us, or 20us,120us for unlike devices")
      ->type_name("LIST");
  explain_launch->add_option("--strategy", raw.one_strategy, "automatic, static_equal, guided, …")->type_name("NAME");
  explain_launch->add_option("--granularity", raw.granularity, "Borders are multiples of this: 1")->type_name("COUNT");
  explain_launch->add_flag("--streamed", line.explain_launch.streamed,
                           "Data comes from host memory and goes back; default: it stays on the devices");

  for (int i = 0; i < collective_count; ++i) {
    const std::string name{to_string(static_cast<collective>(i))};
    CLI::App* one = explain->add_subcommand(name, "Which algorithm does it, and why the others lost");
    one->add_option("SIZE", raw.explained.size, "Bytes of the whole array, with K, M, G, T (1024 each): 100M")
        ->required()
        ->type_name("");
    add_collective_options(*one, raw.explained, "Insist on one");
    one->add_flag("--measure", line.explain_collective.measure,
                  "Measure the rates first, and keep them for later commands");
  }

  CLI::App* bench = app.add_subcommand("bench", "Measure this machine");
  bench->require_subcommand(0, 1);
  CLI::App* copy = bench->add_subcommand("copy", "Copy between all ordered pairs of devices, verified");
  CLI::App* latency = bench->add_subcommand("latency", "The same with 8 B to 64 KiB: times in place of rates");
  for (CLI::App* one : {copy, latency}) {
    one->add_option("-s,--sizes", raw.sizes,
                    "Bytes: a list (4K,64M) or a range (8..64M in steps of four, 8..64M:2 in steps of two); K = 1024")
        ->type_name("SIZES");
    one->add_option("--pairs", raw.pairs, "Only these pairs: 0-1,2-3; default all, each device with itself too")
        ->type_name("PAIRS");
    one->add_option("--samples", line.bench_copy.samples, "Copies of each row")->type_name("N");
    one->add_option("--min-time", raw.min_time, "Go on for at least this long in each row: 100ms")->type_name("TIME");
    one->add_option("--budget", raw.budget, "Stop after about this long: 10s")->type_name("TIME");
    one->add_option("--by", raw.makers, "Copies made by an engine, a kernel, or both; default both on GPUs")
        ->type_name("WHO");
    one->add_flag("--no-p2p", line.bench_copy.no_p2p, "Only copies that are staged through the host");
    one->add_option("-o,--output", line.bench_copy.output,
                    "Also write the JSON document, or the matrix as .svg, to a file")
        ->type_name("FILE")
        ->check(has_a_name);
  }

  CLI::App* queue = bench->add_subcommand("queue", "Send messages between pairs of devices, verified");
  queue
      ->add_option("-s,--sizes", raw.queue_sizes,
                   fmt::format("Bytes of a message: a list or a range of {}; default 8,64,256,4096",
                               fmt::join(queue_sizes, ", ")))
      ->type_name("SIZES");
  queue->add_option("--from", raw.from, "Only from this device: 0 or gpu0")->type_name("DEVICE");
  queue->add_option("--to", raw.to, "Only to this device")->type_name("DEVICE");
  queue->add_option("--pairs", raw.queue_pairs, "Only these pairs: 0-1,2-3; default all of different devices")
      ->type_name("PAIRS");
  queue->add_option("--mode", raw.mode, "direct, host_staged, or both")->type_name("MODE");
  queue->add_option("--ends", raw.ends, "Messages of host threads, of kernels, or both; default both on GPUs of CUDA")
      ->type_name("WHO");
  queue->add_option("--batch", raw.batches, "Messages of a call where the rate is measured: 1,64")->type_name("LIST");
  queue->add_option("--samples", line.bench_queue.samples, "Samples of each row: 15")->type_name("N");
  queue->add_flag("--quick", line.bench_queue.quick, "Fewer and shorter samples: a look, not a figure to quote");
  queue->add_option("--budget", raw.queue_budget, "Stop after about this long: 10s")->type_name("TIME");
  queue->add_option("-o,--output", line.bench_queue.output, "Also write the JSON document to a file")
      ->type_name("FILE")
      ->check(has_a_name);

  CLI::App* launching = bench->add_subcommand("launch", "Divide one kernel over devices: balance and overhead");
  launching->add_option("--strategy", raw.strategies, "Only these: static_equal, guided, automatic, …; default all")
      ->type_name("LIST");
  launching->add_option("--scenario", raw.scenarios, "Only these: A,B,C,D,D2,E (simulated) and overhead; default all")
      ->type_name("LIST");
  launching->add_option("--seeds", line.bench_launch.seeds, "Runs of a scenario with noise: 100")->type_name("N");
  launching->add_option("--samples", line.bench_launch.samples, "Samples of the overhead: 15")->type_name("N");
  launching->add_flag("--quick", line.bench_launch.quick, "Three seeds and samples: a look, not a figure to quote");
  launching->add_option("--budget", raw.launch_budget, "Stop after about this long: 30s")->type_name("TIME");
  launching->add_option("-o,--output", line.bench_launch.output, "Also write what was measured to a JSON file")
      ->type_name("FILE")
      ->check(has_a_name);

  CLI::App* ipc = bench->add_subcommand("ipc", "Open, touch and copy the memory of another process, verified");
  ipc->add_option("-s,--sizes", raw.ipc_sizes, "Bytes of the copies: a list or a range, as for copy; default 1M,64M")
      ->type_name("SIZES");
  ipc->add_option("--pairs", raw.ipc_pairs, "From which device to which: 0-1,1-0; default 0-1")->type_name("PAIRS");
  ipc->add_option("--samples", line.bench_ipc.samples, "Samples of each row: 31")->type_name("N");
  ipc->add_flag("--quick", line.bench_ipc.quick, "Less memory and three samples: a look, not a figure to quote");
  ipc->add_option("--budget", raw.ipc_budget, "Stop after about this long: 10s")->type_name("TIME");
  ipc->add_option("-o,--output", line.bench_ipc.output, "Also write the JSON document to a file")
      ->type_name("FILE")
      ->check(has_a_name);

  CLI::App* collectives = bench->add_subcommand("collective", "All-reduce and its family, every element verified");
  collectives->add_option("--collective", raw.measured.what, "A list of all_reduce, broadcast, …, or all: all_reduce")
      ->type_name("LIST");
  collectives
      ->add_option("-s,--sizes", raw.collective_sizes,
                   "Bytes of the whole array: a list or a range, as for copy; default 4..64M:16, to 4M past four ranks")
      ->type_name("SIZES");
  add_collective_options(*collectives, raw.measured, "A list, or all");
  collectives->add_option("--op", raw.measured.operation, "sum, product, min, max or average: sum")->type_name("NAME");
  collectives->add_flag("--in-place", line.bench_collective.in_place, "Results go where the inputs are");
  collectives
      ->add_option("--processes", line.bench_collective.processes,
                   "A caller for each rank, in a process of its own; default one caller for all ranks")
      ->type_name("N");
  collectives->add_option("--samples", line.bench_collective.samples, "Samples of each row: 15")->type_name("N");
  collectives->add_flag("--quick", line.bench_collective.quick, "Three samples: a look, not a figure to quote");
  collectives->add_option("--budget", raw.collective_budget, "Stop after about this long: 30s")->type_name("TIME");
  collectives->add_option("-o,--output", line.bench_collective.output, "Also write the JSON document to a file")
      ->type_name("FILE")
      ->check(has_a_name);

  CLI::App* guide = bench->add_subcommand(
      "guide", "The tables of a published multi-GPU guide: its figures, simulated, measured here");
  guide->add_flag("--quick", line.bench_guide.quick, "Small sizes: a look, not figures to quote");
  guide->add_flag("--simulated-only", line.bench_guide.simulated_only, "Measure nothing");

  CLI::App* demo = app.add_subcommand(
      "demo", "A tour: devices, links, copies, messages, a balanced kernel, and images blurred on four devices");
  demo->add_option("--images", line.demo.images, "Take the JPEG and PNG images of this folder")->type_name("DIR");
  demo->add_option("-o,--output", line.demo.output, "Write into this folder: weft-demo")
      ->type_name("DIR")
      ->check(has_a_name);
  demo->add_option("--processes", line.demo.processes, "End with a ring of so many processes, 2 to 16")->type_name("N");

  CLI::App* conform = app.add_subcommand("conform", "Check what a backend promises, one sentence after the other");
  conform->add_flag("--all-topologies", line.conform.all_topologies,
                    "On the host backend, over every shipped topology");

  CLI::App* trace = app.add_subcommand("trace", "Look at what a program recorded");
  trace->require_subcommand(0, 1);
  CLI::App* view = trace->add_subcommand("view", "Draw a Chrome trace, as weft::profiler writes it, as a picture");
  view->add_option("FILE", line.trace_view.input, "The trace: JSON")->required()->type_name("");
  view->add_option("-o,--output", line.trace_view.output, "Write the SVG here: FILE with .svg")
      ->type_name("SVG")
      ->check(has_a_name);

  CLI::App* compared = app.add_subcommand("compare", "Two files of results: what became slower, faster, or wrong");
  compared->add_option("FIRST", line.compare.first, "Results that weft bench … -o has written")
      ->required()
      ->type_name("");
  compared->add_option("SECOND", line.compare.second, "Those that are compared with them")->required()->type_name("");
  compared->add_option("--threshold", raw.threshold, "A row counts from this difference on: 10%")->type_name("SHARE");
  compared->add_flag("--all", line.compare.all, "Show the rows that are the same too");

  CLI::App* complete = app.add_subcommand("completion", "Print a completion script: source <(weft completion bash)");
  complete->add_option("SHELL", raw.shell, "bash, zsh or fish")->type_name("");

  CLI::App* help = app.add_subcommand("help", "Explain a command, or a topic: exit-codes, units, environment, json");
  help->add_option("TOPIC", raw.topic, "A command (bench copy), or a topic")->type_name("");
  help->add_flag("--man", raw.man, "Print the manual page of the whole tool, for man(1)");

  app.footer(
      "Exit codes: 0 ok, 1 a check failed, 2 usage, 3 backend or device absent, 4 runtime error, 5 timeout, "
      "6 nothing measured, 130 interrupted.\n"
      "Rates are in GB/s with 1 GB = 1e9 bytes; sizes count in 1024.");  // what stands before or after each command is
                                                                         // told with each
  std::string global;
  for (const std::string& word : words_of(app)) {
    if (word.starts_with("--") && word != "--help" && word != "--version")
      global += (global.empty() ? "" : ", ") + word;
  }
  const auto tell_global = [&](const auto& self, CLI::App& at) -> void {
    for (CLI::App* sub : at.get_subcommands([](CLI::App*) { return true; })) {
      sub->footer("Flags of every command (weft --help): " + global);
      self(self, *sub);
    }
  };
  tell_global(tell_global, app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return finished_line{0, app.help(), {}};
  } catch (const CLI::ParseError& problem) {
    const auto extras = app.remaining(true);
    if (!extras.empty()) return unexpected(*deepest(app), extras.front());
    return usage(*deepest(app), problem.what());
  }
  if (const auto extras = app.remaining(true); !extras.empty()) return unexpected(*deepest(app), extras.front());
  if (raw.version && line.global.json) {
    const json about{
        {"schema", "weft.version/1"}, {"name", "weft"}, {"version", library_version()}, {"commit", library_commit()}};
    return finished_line{0, about.dump(2) + "\n", {}};
  }
  if (raw.version) {
    return finished_line{0, fmt::format("weft {} (commit {})\n", library_version(), library_commit()), {}};
  }

  const auto wrong = [&app](std::string_view option, std::string_view value, std::vector<std::string_view> known) {
    const auto nearest = nearest_name(value, known);
    return usage(*deepest(app), fmt::format("{} is one of {}, not '{}'{}", option, fmt::join(known, ", "), value,
                                            nearest ? fmt::format("; did you mean {}?", *nearest) : ""));
  };
  if (raw.clock == "virtual") {
    line.global.clock = clock_kind::virtual_time;
  } else if (raw.clock != "wall") {
    return wrong("--clock", raw.clock, {"wall", "virtual"});
  }
  if (raw.colour == "always" || raw.colour == "never") {
    line.global.colour = raw.colour == "always" ? colour_choice::always : colour_choice::never;
  } else if (raw.colour != "auto") {
    return wrong("--color", raw.colour, {"auto", "always", "never"});
  }

  if (topo->parsed()) line.what = command::topo;
  if (report->parsed()) {
    line.what = command::report;
    if (!raw.report_budget.empty()) {
      const auto time = parse_duration(raw.report_budget);
      if (!time) return usage(*report, time.error().what);
      line.report.budget = *time;
    }
    if (!line.report.output.ends_with(".html") && !line.report.output.starts_with("/dev/"))
      return usage(*report, line.report.output + ": a page is HTML, and its name ends with .html");
  }
  if (doctor->parsed()) {
    line.what = command::doctor;
    const doctor_options& to = line.doctor;
    if (!to.from.empty() && (to.run || line.global.sim))
      return usage(*doctor, "--from looks at a file: neither --run nor --sim has anything to do there");
    if (line.global.sim && !to.run) return usage(*doctor, "a simulated machine has nothing to look at without --run");
    if (!to.output.empty() && !to.output.ends_with(".html") && !to.output.starts_with("/dev/"))
      return usage(*doctor, to.output + ": a page is HTML, and its name ends with .html");
  }
  if (app.get_subcommand("devices")->parsed()) line.what = command::devices;
  if (demo->parsed()) line.what = command::demo;
  if (trace->parsed() && !view->parsed()) return usage(*trace, "what is to be done with it? weft trace view");
  if (view->parsed()) line.what = command::trace_view;
  if (compared->parsed()) {
    line.what = command::compare;
    if (!raw.threshold.empty()) {
      const auto share = parse_share(raw.threshold);
      if (!share) return usage(*compared, share.error().what);
      line.compare.threshold = *share;
    }
  }
  if (conform->parsed()) {
    line.what = command::conform;
    if (line.conform.all_topologies && line.global.sim) {
      return usage(*conform, "--sim names one topology and --all-topologies means every one: give one of them");
    }
  }
  if (help->parsed()) {
    if (raw.man) return finished_line{0, manual(app), {}};
    if (auto text = help_about(app, raw.topic)) return finished_line{0, std::move(*text), {}};
    std::vector<std::string> known = words_of(app);
    std::erase_if(known, [](const std::string& word) { return word.starts_with('-'); });
    for (const std::string_view name : help_topics()) known.emplace_back(name);
    return wrong("TOPIC", fmt::format("{}", fmt::join(raw.topic, " ")), {known.begin(), known.end()});
  }
  if (complete->parsed()) {
    const std::string script = completion(app, raw.shell);
    if (script.empty()) return wrong("SHELL", raw.shell, {"bash", "zsh", "fish"});
    return finished_line{0, script, {}};
  }
  if (route->parsed()) {
    line.what = command::route;
    const auto size = parse_size(raw.route_size);
    if (!size) return usage(*route, size.error().what);
    line.route.size = *size;
    const std::string& path = line.route.path;
    if (path != "automatic" && path != "direct" && path != "staged" && path != "relayed") {
      return wrong("--path", path, {"automatic", "direct", "staged", "relayed"});
    }
  }
  if (explain->parsed() && explain->get_subcommands().empty()) {
    return usage(*explain, "what is to be explained? weft explain launch, or a collective: weft explain all_reduce");
  }
  if (explain->parsed() && !explain_launch->parsed()) {
    const CLI::App* one = explain->get_subcommands().front();
    line.what = command::explain_collective;
    line.explain_collective.what = parse_collectives(one->get_name())->front();
    if (const auto problem = take_explained(raw.explained, line.explain_collective)) return usage(*one, *problem);
  }
  if (explain_launch->parsed()) {
    line.what = command::explain_launch;
    explain_launch_options& to = line.explain_launch;
    const auto items = parse_count(raw.items);
    if (!items) return usage(*explain_launch, items.error().what);
    to.items = *items;
    if (!raw.rate.empty()) {
      const auto rate = parse_count(raw.rate);
      if (!rate) return usage(*explain_launch, rate.error().what);
      if (*rate == 0) return usage(*explain_launch, "--rate is at least 1 item per second");
      to.items_per_second = static_cast<double>(*rate);
    }
    if (!raw.granularity.empty()) {
      const auto granularity = parse_count(raw.granularity);
      if (!granularity) return usage(*explain_launch, granularity.error().what);
      if (*granularity == 0) return usage(*explain_launch, "--granularity is at least 1 item");
      to.granularity = *granularity;
    }
    if (!raw.start.empty()) {
      to.starts.clear();
      for (const std::string_view text : split(raw.start, ',')) {
        const auto start = parse_duration(text);
        if (!start) return usage(*explain_launch, start.error().what);
        to.starts.push_back(*start);
      }
    }
    if (!raw.one_strategy.empty()) {
      const auto strategies = parse_strategies(raw.one_strategy);
      if (!strategies) return usage(*explain_launch, strategies.error().what);
      if (strategies->size() != 1) return usage(*explain_launch, "--strategy is one of them");
      to.strategy = strategies->front();
    }
  }
  if (bench->parsed() && bench->get_subcommands().empty()) {
    return usage(*bench, "what is to be measured? weft bench copy, latency, queue, launch, ipc, collective, or guide");
  }
  if (copy->parsed() || latency->parsed()) {
    const CLI::App* const asked = copy->parsed() ? copy : latency;
    line.what = command::bench_copy;
    copy_bench_options& to = line.bench_copy;
    to.latency = latency->parsed();
    if (!raw.sizes.empty()) {
      auto sizes = parse_sizes(raw.sizes);
      if (!sizes) return usage(*asked, sizes.error().what);
      to.sizes = std::move(sizes).value();
    }
    if (!raw.pairs.empty()) {
      auto pairs = parse_pairs(raw.pairs);
      if (!pairs) return usage(*asked, pairs.error().what);
      to.pairs = std::move(pairs).value();
    }
    if (!raw.makers.empty()) {
      if (raw.makers != "engine" && raw.makers != "kernel" && raw.makers != "both") {
        return wrong("--by", raw.makers, {"engine", "kernel", "both"});
      }
      to.by_engine = raw.makers != "kernel";
      to.by_kernel = raw.makers != "engine";
    }
    if (to.samples < 1 || to.samples > 1'000'000) return usage(*asked, "--samples is a number from 1 to 1000000");
    for (const auto& [text, target] : {std::pair{&raw.min_time, &to.min_time}, std::pair{&raw.budget, &to.budget}}) {
      if (text->empty()) continue;
      const auto time = parse_duration(*text);
      if (!time) return usage(*asked, time.error().what);
      *target = *time;
    }
  }
  if (queue->parsed()) {
    line.what = command::bench_queue;
    queue_bench_options& to = line.bench_queue;
    if (!raw.queue_sizes.empty()) {
      auto sizes = parse_sizes(raw.queue_sizes);
      if (!sizes) return usage(*queue, sizes.error().what);
      to.sizes = std::move(sizes).value();
    }
    for (const std::uint64_t size : to.sizes) {
      if (std::ranges::find(queue_sizes, size) == queue_sizes.end()) return usage(*queue, no_such_messages(size));
    }
    if (!raw.queue_pairs.empty()) {
      if (!raw.from.empty() || !raw.to.empty()) {
        return usage(*queue, "--pairs names both devices of each pair: give it, or --from and --to");
      }
      auto pairs = parse_pairs(raw.queue_pairs);
      if (!pairs) return usage(*queue, pairs.error().what);
      to.pairs = std::move(pairs).value();
    }
    for (const auto& [text, target] : {std::pair{&raw.from, &to.from}, std::pair{&raw.to, &to.to}}) {
      if (text->empty()) continue;
      const auto device = parse_device(*text);
      if (!device) return usage(*queue, device.error().what);
      *target = *device;
    }
    if (raw.mode != "direct" && raw.mode != "host_staged" && raw.mode != "both") {
      return wrong("--mode", raw.mode, {"direct", "host_staged", "both"});
    }
    to.direct = raw.mode != "host_staged";
    to.host_staged = raw.mode != "direct";
    if (!raw.ends.empty()) {
      if (raw.ends != "host" && raw.ends != "kernel" && raw.ends != "both") {
        return wrong("--ends", raw.ends, {"host", "kernel", "both"});
      }
      to.host_ends = raw.ends != "kernel";
      to.kernel_ends = raw.ends != "host";
    }
    if (!raw.batches.empty()) {
      auto batches = parse_batches(raw.batches);
      if (!batches) return usage(*queue, batches.error().what);
      to.batches = std::move(batches).value();
    }
    if (to.samples && (*to.samples < 1 || *to.samples > 1'000'000)) {
      return usage(*queue, "--samples is a number from 1 to 1000000");
    }
    if (!raw.queue_budget.empty()) {
      const auto time = parse_duration(raw.queue_budget);
      if (!time) return usage(*queue, time.error().what);
      to.budget = *time;
    }
  }
  if (demo->parsed() && line.demo.processes && (*line.demo.processes < 2 || *line.demo.processes > 16)) {
    return usage(*demo, "--processes is a number from 2 to 16");
  }
  if (ipc->parsed()) {
    line.what = command::bench_ipc;
    ipc_bench_options& to = line.bench_ipc;
    if (!raw.ipc_sizes.empty()) {
      auto sizes = parse_sizes(raw.ipc_sizes);
      if (!sizes) return usage(*ipc, sizes.error().what);
      to.sizes = std::move(sizes).value();
    }
    if (!raw.ipc_pairs.empty()) {
      auto pairs = parse_pairs(raw.ipc_pairs);
      if (!pairs) return usage(*ipc, pairs.error().what);
      to.pairs = std::move(pairs).value();
    }
    if (to.samples && (*to.samples < 1 || *to.samples > 1'000'000)) {
      return usage(*ipc, "--samples is a number from 1 to 1000000");
    }
    if (!raw.ipc_budget.empty()) {
      const auto time = parse_duration(raw.ipc_budget);
      if (!time) return usage(*ipc, time.error().what);
      to.budget = *time;
    }
  }
  if (collectives->parsed()) {
    line.what = command::bench_collective;
    if (const auto problem = take_measured(raw, line.bench_collective)) return usage(*collectives, *problem);
  }
  if (guide->parsed()) line.what = command::bench_guide;
  if (launching->parsed()) {
    line.what = command::bench_launch;
    launch_bench_options& to = line.bench_launch;
    if (!raw.strategies.empty()) {
      auto strategies = parse_strategies(raw.strategies);
      if (!strategies) return usage(*launching, strategies.error().what);
      to.strategies = std::move(strategies).value();
    }
    if (!raw.scenarios.empty()) {
      auto scenarios = parse_scenarios(raw.scenarios);
      if (!scenarios) return usage(*launching, scenarios.error().what);
      to.scenarios = std::move(scenarios).value();
    }
    if (to.seeds && (*to.seeds < 1 || *to.seeds > 10'000)) {
      return usage(*launching, "--seeds is a number from 1 to 10000");
    }
    if (to.samples && (*to.samples < 1 || *to.samples > 1'000'000)) {
      return usage(*launching, "--samples is a number from 1 to 1000000");
    }
    if (!raw.launch_budget.empty()) {
      const auto time = parse_duration(raw.launch_budget);
      if (!time) return usage(*launching, time.error().what);
      to.budget = *time;
    }
  }
  return line;
}

}  // namespace weft::tool
