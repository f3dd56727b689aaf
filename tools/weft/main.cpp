// SPDX-License-Identifier: Apache-2.0
#include "command_line/commands.hpp"
#include "command_line/options.hpp"
#include "command_line/output.hpp"
#include "weft/core/raise.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <new>
#include <system_error>
#include <variant>

namespace {

using namespace weft::tool;

exit_code run_command(const command_line& line) {
  session run{line.global};
  switch (line.what) {
    case command::summary:
      return run_summary(run);
    case command::devices:
      return run_devices(run);
    case command::doctor:
      return run_doctor(run, line.doctor);
    case command::report:
      return run_report(run, line.report);
    case command::topo:
      return run_topo(run, line.topo);
    case command::route:
      return run_route(run, line.route);
    case command::explain_launch:
      return run_explain_launch(run, line.explain_launch);
    case command::explain_collective:
      return run_explain_collective(run, line.explain_collective);
    case command::bench_copy:
      return run_bench_copy(run, line.bench_copy);
    case command::bench_queue:
      return run_bench_queue(run, line.bench_queue);
    case command::bench_launch:
      return run_bench_launch(run, line.bench_launch);
    case command::bench_ipc:
      return run_bench_ipc(run, line.bench_ipc);
    case command::bench_collective:
      return run_bench_collective(run, line.bench_collective);
    case command::demo:
      return run_demo(run, line.demo);
    case command::conform:
      return run_conform(run, line.conform);
    case command::compare:
      return run_compare(run, line.compare);
    case command::world_check:
      return run_world_check(run, line.world_check);
    case command::trace_view:
      return run_trace_view(run, line.trace_view);
  }
  return exit_code::usage;
}

exit_code run_line(const std::variant<command_line, finished_line>& parsed) {
  exit_code code = exit_code::ok;
  if (const auto* done = std::get_if<finished_line>(&parsed)) {
    fmt::print("{}", done->out);
    say(done->err);
    code = static_cast<exit_code>(done->exit_code);
  } else {
    watch_interrupts();
    code = run_command(std::get<command_line>(parsed));
  }
  finish_output();
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  exit_code code = exit_code::runtime;
  try {
    code = run_line(parse_command_line(argc, argv));
  } catch (const failure& e) {
    say(fmt::format("weft: {}\n", e.what()));
    code = e.code();
  } catch (const weft::error_exception& e) {
    say(fmt::format("weft: {}\n", e.cause().what));
    code = exit_code_of(e.cause());
  } catch (const std::bad_alloc&) {
    std::fputs("weft: the host is out of memory\n", stderr);
  } catch (const std::system_error& e) {
    const bool is_limit = e.code() == std::errc::resource_unavailable_try_again;
    say(fmt::format("weft: {}\n", is_limit ? "no further thread or process can be started: raise the limit (ulimit -u, "
                                             "or pids.max of the cgroup)"
                                           : e.what()));
  } catch (const std::exception& e) {
    say(fmt::format("weft: {}\n", e.what()));
  }
  return static_cast<int>(interrupted() ? exit_code::interrupted : code);
}
