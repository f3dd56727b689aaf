// SPDX-License-Identifier: Apache-2.0
#include "command_line/command_entry.hpp"
#include "command_line/commands.hpp"

namespace weft::tool {

namespace {

void add_demo(command_entries& to) {
  CLI::App* demo = to.app.add_subcommand(
      "demo", "A tour: devices, links, copies, messages, a balanced kernel, and images blurred on four devices");
  demo_options& options = to.line.demo;
  demo->add_option("--images", options.images, "Take the JPEG and PNG images of this folder")->type_name("DIR");
  add_output(*demo, options.output, "Write into this folder: weft-demo", "DIR");
  demo->add_option("--processes", options.processes, "End with a ring of so many processes, 2 to 16")->type_name("N");
  to.add(demo, command_of<run_demo, &command_line::demo>,
         [&options] { return in_range("--processes", options.processes, 16, 2); });
}

void add_conform(command_entries& to) {
  CLI::App* conform = to.app.add_subcommand("conform", "Check what a backend promises, one sentence after the other");
  conform_options& options = to.line.conform;
  conform->add_flag("--all-topologies", options.all_topologies, "On the host backend, over every shipped topology");
  to.add(conform, command_of<run_conform, &command_line::conform>, [&options, &line = to.line]() -> complaint {
    if (options.all_topologies && line.global.sim)
      return "--sim names one topology and --all-topologies means every one: give one of them";
    return std::nullopt;
  });
}

void add_trace(command_entries& to) {
  CLI::App* trace = to.app.add_subcommand("trace", "Look at what a program recorded");
  to.add_group(trace, "what is to be done with it? weft trace view");
  CLI::App* view = trace->add_subcommand("view", "Draw a Chrome trace, as weft::profiler writes it, as a picture");
  trace_view_options& options = to.line.trace_view;
  view->add_option("FILE", options.input, "The trace: JSON")->required()->type_name("");
  add_output(*view, options.output, "Write the SVG here: FILE with .svg", "SVG");
  to.add(view, command_of<run_trace_view, &command_line::trace_view>);
}

void add_compare(command_entries& to) {
  CLI::App* compare = to.app.add_subcommand("compare", "Two files of results: what became slower, faster, or wrong");
  compare_options& options = to.line.compare;
  const auto threshold = std::make_shared<std::string>();
  compare->add_option("FIRST", options.first, "Results that weft bench … -o has written")->required()->type_name("");
  compare->add_option("SECOND", options.second, "Those that are compared with them")->required()->type_name("");
  compare->add_option("--threshold", *threshold, "A row counts from this difference on: 10%")->type_name("SHARE");
  compare->add_flag("--all", options.all, "Show the rows that are the same too");
  to.add(compare, command_of<run_compare, &command_line::compare>,
         [&options, threshold] { return read(*threshold, parse_share, options.threshold); });
}

void add_world(command_entries& to) {
  CLI::App* world = to.app.add_subcommand("world", "The processes of a program on several nodes");
  to.add_group(world, "what is to be done with it? weft world check");
  CLI::App* check = world->add_subcommand(
      "check", "Started as every rank by torchrun, mpirun or srun: each pair sends and verifies; rank 0 prints");
  world_check_options& options = to.line.world_check;
  const auto timeout = std::make_shared<std::string>();
  check->add_option("--timeout", *timeout, "How long to wait for the ranks, and for each message: 60s")
      ->type_name("TIME");
  to.add(check, command_of<run_world_check, &command_line::world_check>,
         [&options, timeout] { return read(*timeout, parse_duration, options.timeout); });
}

}  // namespace

void add_other_commands(command_entries& to) {
  add_demo(to);
  add_conform(to);
  add_trace(to);
  add_compare(to);
  add_world(to);
}

}  // namespace weft::tool
