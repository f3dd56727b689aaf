// SPDX-License-Identifier: Apache-2.0
#include "command_line/commands.hpp"
#include "command_line/json_parts.hpp"
#include "core/text/nearest.hpp"
#include "doctor/gather.hpp"
#include "doctor/report.hpp"
#include "doctor/work.hpp"
#include "pictures/html_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>

namespace weft::tool {

namespace {

void expect_check(const std::string& name) {
  std::vector<std::string_view> known;
  for (const check& one : all_checks()) known.push_back(one.name);
  if (name.empty() || std::ranges::find(known, name) != known.end()) return;
  const auto nearest = nearest_name(name, known);
  throw failure{exit_code::usage, fmt::format("there is no check {}{}", name,
                                              nearest ? fmt::format("; did you mean {}?", *nearest)
                                                      : fmt::format("; they are {}", fmt::join(known, ", ")))};
}

/// Whether what is written to the second would take the place of the first.
bool is_one_file(const std::string& first, const std::string& second) {
  std::error_code ignored;
  if (first.empty() || second.empty()) return false;
  if (std::filesystem::exists(first, ignored) && !std::filesystem::is_regular_file(first, ignored)) return false;
  return first == second || std::filesystem::equivalent(first, second, ignored);
}

void expect_files(const doctor_options& options) {
  const char* lost = is_one_file(options.from, options.output)      ? "--from"
                     : is_one_file(options.collect, options.output) ? "--collect"
                                                                    : nullptr;
  if (lost != nullptr)
    throw failure{exit_code::usage,
                  fmt::format("{} is the file of {} too: name another one for the page", options.output, lost)};
}

json observed(session& run, const doctor_options& options) {
  if (!options.from.empty()) return read_json(options.from);
  if (!options.run) return gather_system();
  // pairs are looked at, whatever an earlier run knows of them
  return gather_with_work(run, run.open_machine(peer_verification::never));
}

}  // namespace

exit_code run_doctor(session& run, const doctor_options& options) {
  expect_check(options.check);
  expect_files(options);
  const auto start = std::chrono::steady_clock::now();
  const std::string source = options.from.empty() ? "this computer" : options.from;
  const system_record record{observed(run, options), source};
  if (!options.collect.empty()) {
    write_file(options.collect, record.document().dump(1, ' ', false, json::error_handler_t::replace) + "\n");
    run.note(
        fmt::format("wrote {}: read it before you send it on: paths and variables may hold names", options.collect));
  }
  const machine_facts machine{record};
  const diagnosis found = diagnose(machine);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  json document = run.document("weft.doctor/1");
  document["source"] = source;
  document["seconds"] = seconds;
  add_diagnosis(document, machine, found, options.check);
  run.emit(document);
  constexpr std::size_t usual = 100, fewest = 60;
  const std::size_t columns = terminal_columns();
  const std::string title = options.run ? run.machine_title() + "\n" : std::string{};
  run.print(
      title + fmt::format("weft doctor: {}\n\n", headline(machine, found)) +
      doctor_text(run, machine, found, options.check, std::max<std::size_t>(columns == 0 ? usual : columns, fewest)));
  if (!options.output.empty()) {
    html_page page{"weft doctor: " + source};
    add_doctor(page, machine, found, options.check);
    write_file(options.output, page.finish());
    run.note("wrote " + options.output);
  }

  const auto is_asked_for = [&](std::size_t i) {
    return options.check.empty() || all_checks()[i].name == options.check;
  };
  for (std::size_t i = 0; i < found.findings.size(); ++i) {
    if (is_asked_for(i) && found.findings[i].found == verdict::failed) return exit_code::falls_short;
  }
  const bool has_nothing = machine.gpus().empty() && !record.at("/work").is_object();
  return has_nothing ? exit_code::absent : exit_code::ok;
}

}  // namespace weft::tool
