// SPDX-License-Identifier: Apache-2.0
#include "tool_runner.hpp"

#include "support/paths.hpp"
#include "support/processes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <poll.h>
#include <pty.h>
#include <stdexcept>
#include <string_view>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

namespace weft::test {

namespace {

struct pipe_ends {
  int read = -1;
  int write = -1;
};

pipe_ends make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error{"no pipe"};
  return {ends[0], ends[1]};
}

/// A terminal without echo, whose other end is read as a pipe is.
pipe_ends make_terminal(int columns) {
  pipe_ends ends;
  winsize size{};
  size.ws_col = static_cast<unsigned short>(columns);
  size.ws_row = 50;
  if (::openpty(&ends.read, &ends.write, nullptr, nullptr, &size) != 0) throw std::runtime_error{"no terminal"};
  for (const int end : {ends.read, ends.write}) ::fcntl(end, F_SETFD, FD_CLOEXEC);
  termios mode{};
  ::tcgetattr(ends.write, &mode);
  ::cfmakeraw(&mode);
  ::tcsetattr(ends.write, TCSANOW, &mode);
  return ends;
}

std::vector<std::string> child_environment(const tool_environment& wanted) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text{*entry};
    const bool ours = text.starts_with("WEFT_") || text.starts_with("NO_COLOR=") || text.starts_with("CLICOLOR");
    if (!ours) all.emplace_back(text);
  }
  all.insert(all.end(), wanted.set.begin(), wanted.set.end());
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

}  // namespace

namespace {

/// Whether the process has a handler for a signal, or has ended.
bool listens(pid_t process, int signal) {
  std::ifstream status{"/proc/" + std::to_string(process) + "/status"};
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("State:") && line.find('Z') != std::string::npos) return true;
    if (line.starts_with("SigCgt:")) return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
  }
  return true;
}

}  // namespace

bool has_terminals() {
  int read = -1;
  int write = -1;
  if (::openpty(&read, &write, nullptr, nullptr, nullptr) != 0) return false;
  ::close(read);
  ::close(write);
  return true;
}

tool_result run_program(const std::vector<std::string>& command, const tool_environment& environment) {
  std::vector<std::string> words = command;
  std::vector<std::string> variables = child_environment(environment);
  const std::vector<char*> argv = pointers(words);
  const std::vector<char*> envp = pointers(variables);
  const std::string target = environment.standard_output.string();
  const std::string folder = environment.folder.string();
  const pipe_ends out = environment.terminal_columns > 0 ? make_terminal(environment.terminal_columns) : make_pipe();
  const pipe_ends err = make_pipe();

  const pid_t child = ::fork();
  if (child == 0) {
    const int output = target.empty() ? out.write : ::open(target.c_str(), O_WRONLY | O_CLOEXEC);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(err.write, STDERR_FILENO);
    const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::dup2(nothing, STDIN_FILENO);
    if (!folder.empty() && ::chdir(folder.c_str()) != 0) ::_exit(126);
    ::execvpe(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  ::close(out.write);
  ::close(err.write);

  if (const int signal = environment.signal_once_it_listens; signal != 0) {
    processes::comes_true([&] { return listens(child, signal); });
    ::kill(child, signal);
  }
  tool_result result;
  std::array<pollfd, 2> open{pollfd{out.read, POLLIN, 0}, pollfd{err.read, POLLIN, 0}};
  std::array<std::string*, 2> texts{&result.out, &result.err};
  while (open[0].fd >= 0 || open[1].fd >= 0) {
    if (::poll(open.data(), open.size(), -1) < 0 && errno != EINTR) break;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i].fd < 0 || open[i].revents == 0) continue;
      std::array<char, 65536> part{};
      const ssize_t size = ::read(open[i].fd, part.data(), part.size());
      if (size > 0) {
        texts[i]->append(part.data(), static_cast<std::size_t>(size));
      } else if (size == 0 || errno != EINTR) {
        ::close(open[i].fd);
        open[i].fd = -1;
      }
    }
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

tool_result run_tool(const std::vector<std::string>& arguments, const tool_environment& environment) {
  std::vector<std::string> command{samples::tool()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_program(command, environment);
}

tool_result check_documents(const std::vector<tool_result>& runs) {
  const scratch_folder folder;
  const std::string checker =
      "import json, os, sys, jsonschema\n"
      "bad = 0\n"
      "def no_nan(x): raise ValueError(x)\n"
      "for path in sys.argv[2:]:\n"
      "  doc = json.load(open(path), parse_constant=no_nan)\n"
      "  schema = json.load(open(os.path.join(sys.argv[1], doc['schema'].replace('/', '-') + '.json')))\n"
      "  jsonschema.Draft7Validator.check_schema(schema)\n"
      "  for e in jsonschema.Draft7Validator(schema).iter_errors(doc):\n"
      "    bad += 1\n"
      "    print(path, list(e.absolute_path), e.message[:300])\n"
      "sys.exit(1 if bad else 0)\n";
  std::string python;
  for (const char* candidate : {"/usr/bin/python3", "python3"}) {
    if (python.empty() && run_program({candidate, "-c", "import jsonschema"}).exit_code == 0) python = candidate;
  }
  if (python.empty()) return {no_checker, {}, "python3-jsonschema is not here"};
  std::vector<std::string> command{python, "-c", checker, samples::source_folder() + "/share/weft/schema"};
  for (const tool_result& run : runs) {
    command.push_back((folder / ("document" + std::to_string(command.size() - 4) + ".json")).string());
    write_text(command.back(), run.out);
  }
  return run_program(command);
}

void expect_valid(const std::vector<words>& lines) {
  std::vector<tool_result> runs;
  for (const words& line : lines) {
    runs.push_back(run_tool(line));
    ASSERT_TRUE(runs.back().document().contains("schema")) << runs.back().out.substr(0, 200) << runs.back().err;
  }
  const tool_result checked = check_documents(runs);
  if (checked.exit_code == no_checker) GTEST_SKIP() << checked.err;
  EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
}

nlohmann::json tool_result::document() const {
  auto parsed = nlohmann::json::parse(out, nullptr, false);
  return parsed.is_discarded() ? nlohmann::json::object() : parsed;
}

nlohmann::json tool_result::field(const std::string& name) const { return document().value(name, nlohmann::json{}); }

scratch_folder::scratch_folder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "weft-cli-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error{"no folder for temporary files"};
  path_ = pattern;
}

scratch_folder::~scratch_folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<std::string> scratch_folder::names() const {
  std::vector<std::string> list;
  for (const auto& entry : std::filesystem::directory_iterator{path_}) list.push_back(entry.path().filename().string());
  std::ranges::sort(list);
  return list;
}

std::string read_text(const std::filesystem::path& file) {
  std::ifstream in{file, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

void write_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream out{file, std::ios::binary};
  out << text;
}

}  // namespace weft::test
