// SPDX-License-Identifier: Apache-2.0
// A user who stops a command, whichever it is and whatever it does at that moment.
#include "command_line/interruption.hpp"

#include "cli/tool_runner.hpp"
#include "command_line/forked_process.hpp"
#include "command_line/output.hpp"
#include "support/paths.hpp"
#include "support/processes.hpp"
#include "support/samples.hpp"

#include <gtest/gtest.h>

#include <cctype>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

namespace interruption_test {

using weft::test::run_program;
using weft::test::run_tool;
using weft::test::scratch_folder;
using weft::test::tool_result;
using weft::test::words;
using weft::tool::exit_code;

/// Each takes many seconds when it is left alone.
class command : public testing::TestWithParam<words> {};

TEST_P(command, an_interrupted_command_ends_with_130_and_keeps_its_document) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const scratch_folder folder;
    weft::test::tool_environment how;
    how.folder = folder.path();
    how.signal_once_it_listens = signal;
    how.set = {"WEFT_INTERRUPT_GRACE=600000"};  // on a busy machine as well
    const bool measures = GetParam().front() == "bench";
    const auto start = std::chrono::steady_clock::now();
    const auto run = run_tool(measures ? weft::test::with(GetParam(), {"--json"}) : GetParam(), how);
    const auto took = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(run.exit_code, 130) << run.err;
    if (measures) {
      EXPECT_EQ(run.field("complete"), false) << "the document is kept: " << run.out;
    }
    RecordProperty("ms_after_signal_" + std::to_string(signal),
                   std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(took).count()));
  }
}

INSTANTIATE_TEST_SUITE_P(every, command,
                         testing::Values(words{"topo", "--measure", "--sim", "dgx_h100"},
                                         words{"bench", "copy", "--sim", "dgx_h100"},
                                         words{"bench", "queue", "--sim", "dgx_h100"}, words{"bench", "launch"},
                                         words{"bench", "ipc"}, words{"bench", "collective", "--sim", "dgx_h100"},
                                         words{"bench", "collective", "--processes", "3"}, words{"demo"},
                                         words{"conform", "--all-topologies"}),
                         [](const auto& info) {
                           std::string name;
                           for (const std::string& word : info.param) {
                             for (const char c : word + "_")
                               name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           }
                           return name;
                         });

TEST(grace_of_an_interrupt, a_wrong_grace_is_refused_by_its_name) {
  for (const char* const wrong : {"soon", "0", "-5"}) {
    weft::test::tool_environment how;
    how.set = {std::string{"WEFT_INTERRUPT_GRACE="} + wrong};
    const auto run = run_tool({"devices"}, how);
    EXPECT_EQ(run.exit_code, static_cast<int>(exit_code::usage)) << wrong;
    EXPECT_TRUE(weft::test::has(run.err, "WEFT_INTERRUPT_GRACE")) << run.err;
  }
}

// In the middle of what cannot be stopped.
TEST(command, a_command_that_does_not_look_ends_with_130) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto deaf = [] {
    weft::tool::watch_interrupts(std::chrono::milliseconds{1});
    std::fputs("written\n", stdout);
    ::raise(SIGINT);
    for (;;) ::pause();
  };
  EXPECT_EXIT(deaf(), ::testing::ExitedWithCode(130), "weft: interrupted");
}

/// Starts the tool where no further thread or process can be: root has no such limit, so as another user.
tool_result run_alone(const words& arguments) {
  words command{"prlimit", "--nproc=1", samples::tool()};
  if (::geteuid() == 0) {
    const words other_user{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"};
    command.insert(command.begin(), other_user.begin(), other_user.end());
  }
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_program(command);
}

TEST(command, without_room_for_a_thread_or_process_names_the_limit) {
  if (const auto possible = run_alone({"--version"}); possible.exit_code != 0)
    GTEST_SKIP() << "no other user can run the tool here: " << possible.err;
  for (const words& arguments :
       {words{"bench", "copy", "--sim", "dgx_h100"}, words{"bench", "collective", "--processes", "2"}}) {
    const tool_result run = run_alone(arguments);
    EXPECT_EQ(run.exit_code, static_cast<int>(exit_code::runtime)) << arguments.front();
    EXPECT_NE(run.err.find("raise the limit (ulimit -u, or pids.max of the cgroup)"), std::string::npos) << run.err;
  }
}

TEST(forked_process, a_killed_process_tells_the_signal_and_one_that_ends_by_itself_none) {
  weft::tool::forked_process killed{[] {
    for (;;) ::pause();
    return 0;
  }};
  EXPECT_EQ(killed.killed_by(), std::nullopt) << "it runs";
  ::kill(killed.pid(), SIGSEGV);
  std::optional<std::string> how;
  EXPECT_TRUE(processes::comes_true([&] { return (how = killed.killed_by()).has_value(); }));
  EXPECT_EQ(how, "signal 11 (Segmentation fault)");
  weft::tool::forked_process well{[] { return 3; }};
  EXPECT_TRUE(processes::comes_true([&] { return !well.killed_by() && well.pid() < 0; }));
}

TEST(unfinished_file, is_removed_when_an_interrupted_command_is_ended) {
  GTEST_FLAG_SET(death_test_style, "fast");  // the same folder in both processes
  const scratch_folder folder;
  const std::string file = (folder / "half").string();
  const auto deaf = [&file] {
    weft::test::write_text(file, "half");
    weft::tool::remove_when_ended(file);
    weft::tool::watch_interrupts(std::chrono::milliseconds{1});
    std::fputs(std::filesystem::exists(file) ? "it is there\n" : "it is not there\n", stderr);
    ::raise(SIGINT);
    for (;;) ::pause();
  };
  EXPECT_EXIT(deaf(), ::testing::ExitedWithCode(130), "it is there");
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(text_from_outside, is_printed_without_what_a_terminal_obeys) {
  EXPECT_EQ(weft::tool::printable("a\x1b]0;title\x07"), "a\\x1b]0;title\\x07");
  EXPECT_EQ(weft::tool::printable("two\nlines\tand \x1b[1;31mred\x1b[0m"), "two\nlines\tand \x1b[1;31mred\x1b[0m");
  EXPECT_EQ(weft::tool::printable("\x1b[2J \x1b["), "\\x1b[2J \\x1b[");
  const auto run = run_tool({"topo", "--sim", "no\x1b[2J\x07.json"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find("no\\x1b[2J\\x07.json: no such file"), std::string::npos) << run.err;
}

TEST(text_from_outside, names_of_a_topology_are_shown_without_control_characters) {
  const scratch_folder folder;
  weft::test::write_text(folder / "bell.json", R"({"schema": "weft.topology/1", "name": "ring\u0007",
    "devices": [{"memory": "1GiB"}]})");
  const auto run = run_tool({"topo", "--sim", (folder / "bell.json").string()});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find("bell.json:1: name: has a control character in \"ring?\""), std::string::npos) << run.err;
}

TEST(backend, without_a_name_is_a_usage_error) {
  const auto run = run_tool({"devices", "--backend", ","});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.err.find("names no backend"), std::string::npos) << run.err;
}

}  // namespace interruption_test
