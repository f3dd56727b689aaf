// SPDX-License-Identifier: Apache-2.0
#include "command_line/command_entry.hpp"
#include "command_line/commands.hpp"

namespace weft::tool {

namespace {

void add_doctor(command_entries& to) {
  CLI::App* doctor =
      to.app.add_subcommand("doctor", "Look for what is wrong with this computer's GPUs, and say what to do");
  doctor_options& options = to.line.doctor;
  doctor->add_flag("--run", options.run, "Use the GPUs too, for about ten seconds: data, rates, a kernel on each");
  doctor->add_option("--check", options.check, "Only this check, with all that it has seen")->type_name("NAME");
  add_output(*doctor, options.output, "Also write a page: one HTML file, pictures inside");
  const CLI::Validator has_a_name{
      [](const std::string& name) { return name.empty() ? "the name of a file is empty" : ""; }, "", "name"};
  doctor->add_option("--collect", options.collect, "Write what was read to a JSON file, for a bug report")
      ->type_name("FILE")
      ->check(has_a_name);
  doctor->add_option("--from", options.from, "Look at such a file, not at this computer")
      ->type_name("FILE")
      ->check(has_a_name);
  to.add(doctor, command_of<run_doctor, &command_line::doctor>, [&options, &line = to.line]() -> complaint {
    const global_options& of = line.global;
    const bool chooses = of.sim || of.backend || of.logical_devices || of.clock == clock_kind::virtual_time;
    if (!options.from.empty() && (options.run || chooses))
      return "--from looks at a file: drop --run, --sim, --backend, --logical-devices and --clock virtual";
    if (chooses && !options.run)
      return "--sim, --backend, --logical-devices and --clock virtual choose what --run uses: add --run, or drop them";
    return names_a_page(options.output);
  });
}

void add_report(command_entries& to) {
  CLI::App* report = to.app.add_subcommand("report", "Devices, links, doctor, copies and collectives as one HTML page");
  report_options& options = to.line.report;
  add_output(*report, options.output, "Write it here: weft-report.html");
  report->add_flag("--quick", options.quick, "Small sizes and three samples: a look, not figures to quote");
  const auto budget = std::make_shared<std::string>();
  report->add_option("--budget", *budget, "Measure for about this long: 30s")->type_name("TIME");
  to.add(report, command_of<run_report, &command_line::report>, [&options, budget] {
    return first_of({read(*budget, parse_duration, options.budget), names_a_page(options.output)});
  });
}

void add_topo(command_entries& to) {
  CLI::App* topo = to.app.add_subcommand("topo", "Show how devices are linked: the matrix of nvidia-smi topo -m");
  topo_options& options = to.line.topo;
  topo->add_flag("-m,--matrix", options.matrix_only, "The matrix and its legend, tab separated, and nothing else");
  topo->add_flag("--p2p", options.p2p, "The matrix of peer access, with a legend");
  topo->add_flag("--verify", options.verify, "Write and read back a pattern over every offered pair first");
  topo->add_flag("--measure", options.measure, "Measure bandwidth and latency of every pair first");
  add_output(*topo, options.output, "Also write a .svg, .json, .dot or .txt file");
  to.add(topo, command_of<run_topo, &command_line::topo>);
}

void add_route(command_entries& to) {
  CLI::App* route = to.app.add_subcommand("route", "Show which way a copy takes, and why the other ways lost");
  route_options& options = to.line.route;
  const auto size = std::make_shared<std::string>();
  route->add_option("FROM", options.from, "Device that has the data: 0 or gpu0")->required()->type_name("");
  route->add_option("TO", options.to, "Device that gets it")->required()->type_name("");
  route->add_option("SIZE", *size, "Bytes, with K, M, G, T (1024 each): 64M")->required()->type_name("");
  route->add_option("--path", options.path, "Insist on this way: automatic, direct, staged or relayed")
      ->type_name("PATH");
  route->add_flag("--measure", options.measure, "Measure the rates first, and keep them for later commands");
  route->add_option("--via", options.via, "The device in the middle of a relayed copy")->type_name("DEVICE");
  to.add(route, command_of<run_route, &command_line::route>, [&options, size]() -> complaint {
    const auto bytes = parse_size(*size);
    if (!bytes) return bytes.error().what;
    options.size = *bytes;
    if (auto wrong = one_of("--path", options.path, {"automatic", "direct", "staged", "relayed"})) return wrong;
    if (!options.via.empty() && options.path != "relayed")
      return "--via is the device in the middle of a relayed copy: add --path relayed, or drop --via";
    return std::nullopt;
  });
}

}  // namespace

void add_looking_commands(command_entries& to) {
  to.add(to.app.add_subcommand("devices", "List devices, and backends with the reason why they are absent"),
         command_of<run_devices>);
  add_doctor(to);
  add_report(to);
  add_topo(to);
  add_route(to);
}

}  // namespace weft::tool
