// SPDX-License-Identifier: Apache-2.0
#include "command_line/options.hpp"
#include "command_line/output.hpp"
#include "weft/core/raise.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <fcntl.h>
#include <new>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <variant>

namespace {

using namespace weft::tool;

/// A file or memory that is opened later must not become what messages are written to.
void fill_closed_streams() {
  // in this order, as open() takes the lowest number; a closed stdin or stdout stays an error where it is used
  for (const auto& [number, flags] :
       {std::pair{STDIN_FILENO, O_WRONLY}, std::pair{STDOUT_FILENO, O_RDONLY}, std::pair{STDERR_FILENO, O_WRONLY}}) {
    if (::fcntl(number, F_GETFD) < 0) static_cast<void>(::open("/dev/null", flags));
  }
}

exit_code run_line(const std::variant<command_line, finished_line>& parsed) {
  exit_code code = exit_code::ok;
  if (const auto* done = std::get_if<finished_line>(&parsed)) {
    show(done->out);
    say(done->err);
    code = static_cast<exit_code>(done->exit_code);
  } else {
    watch_interrupts();
    const auto& line = std::get<command_line>(parsed);
    session run{line.global};
    code = line.run(run, line);
  }
  finish_output();
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  exit_code code = exit_code::runtime;
  fill_closed_streams();
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
