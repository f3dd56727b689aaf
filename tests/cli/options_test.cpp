// SPDX-License-Identifier: Apache-2.0
#include "command_line/options.hpp"

#include "cli/tool_runner.hpp"
#include "command_line/commands.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <variant>
#include <vector>

namespace weft::tool {
namespace options_test {

using namespace std::chrono_literals;
using sizes = std::vector<std::uint64_t>;

std::variant<command_line, finished_line> parse(std::initializer_list<const char*> words) {
  std::vector<const char*> argv{"weft"};
  argv.insert(argv.end(), words);
  return parse_command_line(static_cast<int>(argv.size()), argv.data());
}

TEST(sizes, every_suffix_counts_in_1024) {
  EXPECT_EQ(*parse_size("0"), 0U);
  EXPECT_EQ(*parse_size("17"), 17U);
  EXPECT_EQ(*parse_size("17B"), 17U);
  for (const char* text : {"64M", "64m", "64MB", "64MiB", "65536K", "67108864"})
    EXPECT_EQ(*parse_size(text), 64U << 20) << text;
  EXPECT_EQ(*parse_size("3G"), std::uint64_t{3} << 30);
  EXPECT_EQ(*parse_size("2TiB"), std::uint64_t{2} << 40);
}

TEST(sizes, what_is_not_a_size_is_refused_with_its_text) {
  for (const char* text :
       {"", "M", "x", "1.5M", "-1", "64X", "64MM", "64 M", "1e6", "99999999999999999999", "9223372036854775807K"}) {
    const auto size = parse_size(text);
    ASSERT_FALSE(size) << text;
    EXPECT_NE(size.error().what.find(std::string{"'"} + text + "'"), std::string::npos) << size.error().what;
  }
}

TEST(sizes, a_range_goes_in_steps_of_four_and_ends_with_its_last) {
  EXPECT_EQ(*parse_sizes("8..64M"),
            (sizes{8, 32, 128, 512, 2048, 8192, 32768, 131072, 524288, 2097152, 8388608, 33554432, 67108864}));
  EXPECT_EQ(*parse_sizes("1K..4K:2"), (sizes{1024, 2048, 4096}));
  EXPECT_EQ(*parse_sizes("5..6"), (sizes{5, 6}));
  EXPECT_EQ(*parse_sizes("7..7"), (sizes{7}));
  EXPECT_EQ(parse_sizes("1..9223372036854775807:9223372036854775807")->size(), 2U);
}

TEST(sizes, a_list_is_sorted_and_holds_each_size_once) {
  EXPECT_EQ(*parse_sizes("1M,4K,1M,8..32"), (sizes{8, 32, 4096, 1 << 20}));
}

TEST(sizes, an_empty_range_and_a_size_of_zero_are_refused) {
  for (const char* text : {"64M..8", "0..8", "0", "8..", "..8", "1,,2", "8..64:1", "8..64:x", ""})
    EXPECT_FALSE(parse_sizes(text)) << text;
}

TEST(pairs, are_two_devices_with_a_dash) {
  EXPECT_EQ(*parse_pairs("0-1,gpu2-gpu3"), (std::vector<pair_choice>{{0, 1}, {2, 3}}));
  EXPECT_EQ(*parse_pairs("0-1,1-0,gpu0-gpu1,0-1"), (std::vector<pair_choice>{{0, 1}, {1, 0}})) << "each once";
  for (const char* text : {"", "0", "0-", "0-1-2", "a-b", "0-1,", "-1-0"}) EXPECT_FALSE(parse_pairs(text)) << text;
}

TEST(batches, are_numbers_from_1_to_1024) {
  EXPECT_EQ(*parse_batches("64,1,64"), (std::vector<std::size_t>{1, 64}));
  EXPECT_EQ(*parse_batches("1024"), std::vector<std::size_t>{1024});
  for (const char* text : {"", "0", "1025", "-1", "1,,2", "1K", "all"}) {
    const auto batches = parse_batches(text);
    ASSERT_FALSE(batches) << text;
    EXPECT_NE(batches.error().what.find("from 1 to 1024"), std::string::npos) << batches.error().what;
  }
}

TEST(counts, are_whole_numbers_in_units_of_1000) {
  EXPECT_EQ(*parse_count("0"), 0);
  EXPECT_EQ(*parse_count("2.5K"), 2500);
  EXPECT_EQ(*parse_count("2.3M"), 2'300'000);
  EXPECT_EQ(*parse_count("1e18"), 1'000'000'000'000'000'000);
  for (const char* text : {"", "-1", "0.4", "1.5", "1.0001K", "nan", "inf", "2e18", "1m"}) {
    const auto count = parse_count(text);
    ASSERT_FALSE(count) << text;
    EXPECT_NE(count.error().what.find("not a whole number of items"), std::string::npos) << count.error().what;
  }
}

TEST(durations, have_a_unit) {
  EXPECT_EQ(*parse_duration("10s"), 10s);
  EXPECT_EQ(*parse_duration("500ms"), 500ms);
  EXPECT_EQ(*parse_duration("2m"), 2min);
  EXPECT_EQ(*parse_duration("0"), 0s);
  for (const char* text : {"", "s", "-1s", "10 s", "nan", "inf", "1e30s", "3h"})
    EXPECT_FALSE(parse_duration(text)) << text;
}

TEST(command_line, global_flags_stand_before_or_after_the_command) {
  for (const auto& parsed : {parse({"--json", "--sim", "dgx_h100", "--backend", "host", "bench", "copy"}),
                             parse({"bench", "--json", "copy", "--sim", "dgx_h100", "--backend=host"}),
                             parse({"bench", "copy", "--sim=dgx_h100", "--json", "--backend", "host"})}) {
    const auto* line = std::get_if<command_line>(&parsed);
    ASSERT_NE(line, nullptr);
    EXPECT_EQ(line->run, (command_of<run_bench_copy, &command_line::bench_copy>));
    EXPECT_TRUE(line->global.json);
    EXPECT_EQ(line->global.sim, "dgx_h100");
    EXPECT_EQ(line->global.backend, "host");
  }
}

TEST(command_line, offers_devices_in_parts_of_a_number_from_one) {
  const auto parsed = parse({"--logical-devices", "3", "devices"});
  const auto* line = std::get_if<command_line>(&parsed);
  ASSERT_NE(line, nullptr);
  EXPECT_EQ(line->global.logical_devices, 3);
  for (const char* wrong : {"0", "-1", "many", "1025"}) {
    const auto refused = parse({"devices", "--logical-devices", wrong});
    EXPECT_EQ(std::get_if<command_line>(&refused), nullptr) << wrong;
  }
}

TEST(command_line, nothing_is_the_summary) {
  const auto parsed = parse({});
  ASSERT_TRUE(std::holds_alternative<command_line>(parsed));
  EXPECT_EQ(std::get<command_line>(parsed).run, command_of<run_summary>);
}

TEST(command_line, a_misspelt_word_is_answered_with_the_nearest_one) {
  struct sample {
    std::initializer_list<const char*> words;
    const char* meant;
  };
  for (const auto& [words, meant] :
       {sample{{"topoo"}, "did you mean topo?"}, sample{{"devces"}, "did you mean devices?"},
        sample{{"topo", "--jsn"}, "did you mean --json?"}, sample{{"bench", "cpy"}, "did you mean copy?"},
        sample{{"bench", "queu"}, "did you mean queue?"},
        sample{{"bench", "queue", "--bach", "1"}, "did you mean --batch?"},
        sample{{"bench", "queue", "--mode", "host_stagd"}, "did you mean host_staged?"},
        sample{{"bench", "queue", "-s", "8,100"}, "did you mean 128?"},
        sample{{"bench", "queue", "--ends", "kernels"}, "did you mean kernel?"},
        sample{{"bench", "copy", "--by", "engin"}, "did you mean engine?"},
        sample{{"bench", "copy", "--pair", "0-1"}, "did you mean --pairs?"},
        sample{{"topo", "--p2p=r", "--verfy"}, "did you mean --verify?"},
        sample{{"--simm", "one", "devices"}, "did you mean --sim?"}}) {
    const auto parsed = parse(words);
    const auto* done = std::get_if<finished_line>(&parsed);
    ASSERT_NE(done, nullptr) << meant;
    EXPECT_EQ(done->exit_code, 2) << meant;
    EXPECT_TRUE(done->out.empty());
    if (std::string_view{meant} != "did you mean --verify?") {
      EXPECT_NE(done->err.find(meant), std::string::npos) << done->err;
    }
  }
}

TEST(command_line, wrong_values_are_usage_errors) {
  for (const auto words :
       std::initializer_list<std::initializer_list<const char*>>{{"--clock", "sundial"},
                                                                 {"--color", "pink"},
                                                                 {"bench"},
                                                                 {"bench", "copy", "-s", "big"},
                                                                 {"route"},
                                                                 {"route", "0", "1"},
                                                                 {"route", "0", "1", "much"},
                                                                 {"route", "0", "1", "1M", "--path", "scenic"},
                                                                 {"route", "0", "1", "1M", "--via", "2"},
                                                                 {"explain", "all_reduce", "257G"},
                                                                 {"bench", "copy", "--samples", "0"},
                                                                 {"bench", "copy", "--samples", "x"},
                                                                 {"bench", "copy", "--budget", "soon"},
                                                                 {"bench", "queue", "-s", "9"},
                                                                 {"bench", "queue", "-s", "64M"},
                                                                 {"bench", "queue", "-s", "small"},
                                                                 {"bench", "queue", "--from", "first"},
                                                                 {"bench", "queue", "--to", "-1"},
                                                                 {"bench", "queue", "--pairs", "0"},
                                                                 {"bench", "queue", "--pairs", "0-1", "--to", "1"},
                                                                 {"bench", "queue", "--mode", "rdma"},
                                                                 {"bench", "queue", "--batch", "0"},
                                                                 {"bench", "queue", "--samples", "0"},
                                                                 {"bench", "queue", "--budget", "soon"},
                                                                 {"completion", "csh"},
                                                                 {"devices", "extra"},
                                                                 {"topo", "-o"},
                                                                 {"bench", "devices"},
                                                                 {"conform", "--all-topologies", "--sim", "one"},
                                                                 {"--sim"}}) {
    const auto parsed = parse(words);
    const auto* done = std::get_if<finished_line>(&parsed);
    ASSERT_NE(done, nullptr) << *words.begin();
    EXPECT_EQ(done->exit_code, 2);
    EXPECT_NE(done->err.find("--help"), std::string::npos) << done->err;
  }
}

TEST(command_line, an_empty_value_is_refused_by_its_name) {
  struct sample {
    std::initializer_list<const char*> words;
    const char* message;
  };
  for (const auto& [words, message] :
       {sample{{"explain", "all_reduce", "1M", "--devices", ""}, "weft explain all_reduce: --devices is empty"},
        sample{{"explain", "launch", "1M", "--start", ""}, "--start is empty"},
        sample{{"route", "0", "1", "1M", "--path", "relayed", "--via", ""}, "--via is empty"},
        sample{{"doctor", "--check", ""}, "--check is empty"}, sample{{"demo", "--images", ""}, "--images is empty"},
        sample{{"--sim", "", "devices"}, "weft devices: --sim is empty"},
        sample{{"compare", "", "b.json"}, "FIRST is empty"}}) {
    const auto parsed = parse(words);
    const auto* done = std::get_if<finished_line>(&parsed);
    ASSERT_NE(done, nullptr) << message;
    EXPECT_EQ(done->exit_code, 2);
    EXPECT_NE(done->err.find(message), std::string::npos) << done->err;
  }
}

TEST(command_line, a_size_that_messages_do_not_have_is_answered_with_all_that_they_have) {
  const auto parsed = parse({"bench", "queue", "--sizes", "3000"});
  const auto* done = std::get_if<finished_line>(&parsed);
  ASSERT_NE(done, nullptr);
  EXPECT_EQ(done->exit_code, 2);
  EXPECT_NE(done->err.find("there are no messages of 3000 bytes; did you mean 4096? Sizes are 8, 16, 32, 64, 128, 256, "
                           "512, 1024, 2048, 4096, 16384, 65536\n"),
            std::string::npos)
      << done->err;
}

TEST(command_line, a_queue_is_measured_with_what_was_asked_for) {
  const auto parsed = parse({"bench", "queue", "-s", "8..128", "--from", "gpu2", "--mode", "direct", "--batch", "16,2",
                             "--quick", "--budget", "3s"});
  const auto* line = std::get_if<command_line>(&parsed);
  ASSERT_NE(line, nullptr);
  EXPECT_EQ(line->run, (command_of<run_bench_queue, &command_line::bench_queue>));
  EXPECT_EQ(line->bench_queue.sizes, (sizes{8, 32, 128}));
  EXPECT_EQ(line->bench_queue.from, 2);
  EXPECT_EQ(line->bench_queue.to, std::nullopt);
  EXPECT_TRUE(line->bench_queue.direct);
  EXPECT_FALSE(line->bench_queue.host_staged);
  EXPECT_EQ(line->bench_queue.batches, (std::vector<std::size_t>{2, 16}));
  EXPECT_TRUE(line->bench_queue.quick);
  EXPECT_EQ(line->bench_queue.budget, 3s);
}

TEST(command_line, help_goes_to_stdout_and_ends_with_0) {
  for (const auto words : std::initializer_list<std::initializer_list<const char*>>{
           {"--help"}, {"topo", "-h"}, {"bench", "copy", "--help"}, {"bench", "queue", "--help"}}) {
    const auto parsed = parse(words);
    const auto* done = std::get_if<finished_line>(&parsed);
    ASSERT_NE(done, nullptr);
    EXPECT_EQ(done->exit_code, 0);
    EXPECT_NE(done->out.find("Usage"), std::string::npos) << done->out;
    EXPECT_TRUE(done->err.empty());
  }
}

TEST(completion, completes_commands_options_and_topologies) {
  const auto parsed = parse({"completion", "bash"});
  const auto* done = std::get_if<finished_line>(&parsed);
  ASSERT_NE(done, nullptr);
  ASSERT_EQ(done->exit_code, 0);
  const test::scratch_folder folder;
  test::write_text(folder / "weft.bash", done->out);
  const auto complete = [&](const std::string& words, const std::string& last) {
    const std::string script = "source weft.bash; COMP_WORDS=(" + words + " '" + last +
                               "'); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _weft_words; echo \"${COMPREPLY[@]}\"";
    const auto run = test::run_program({"bash", "-c", script}, {{}, {}, folder.path()});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return run.out;
  };
  EXPECT_EQ(complete("weft", "de"), "devices demo\n");
  EXPECT_EQ(complete("weft bench", "co"), "copy collective\n");
  EXPECT_EQ(complete("weft bench copy", "--pa"), "--pairs\n");
  EXPECT_EQ(complete("weft bench queue --mode", "h"), "host_staged\n");
  EXPECT_EQ(complete("weft topo --sim", "dgx"), "dgx_h100 dgx_h100_x2\n");
}

TEST(completion, works_in_zsh_and_fish) {
  const auto script = [](const char* shell) {
    const auto parsed = parse({"completion", shell});
    const auto* done = std::get_if<finished_line>(&parsed);
    return done != nullptr && done->exit_code == 0 ? done->out : std::string{};
  };
  EXPECT_TRUE(script("zsh").starts_with("#compdef weft\n"));
  for (const char* word : {"-a doctor", "-a latency", "-l threshold -r", "-l matrix -d", "dgx_h100"})
    EXPECT_NE(script("fish").find(word), std::string::npos) << word;
  const test::scratch_folder folder;
  test::write_text(folder / "weft.fish", script("fish"));
  test::write_text(folder / "weft.zsh", script("zsh"));
  const auto is_here = [](const std::string& shell) {
    return test::run_program({"sh", "-c", "command -v " + shell}).exit_code == 0;
  };
  const auto said = [&](const std::string& shell, const std::vector<std::string>& command) {
    if (!is_here(shell)) return std::string{};
    const auto run = test::run_program(command, {{}, {}, folder.path()});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.err, "") << shell;
    return run.out;
  };
  const std::string in_fish = "source weft.fish; complete -C 'weft bench co'; complete -C 'weft topo --mat'";
  const std::string of_fish = said("fish", {"fish", "--no-config", "-c", in_fish});
  // as zsh calls a function of bash
  const std::string in_zsh =
      "autoload -U +X compinit && compinit -u -D; source ./weft.zsh; setopt ksharrays; COMP_WORDS=(weft bench copy "
      "--pai); COMP_CWORD=3; _weft_words; print -r -- ${COMPREPLY[@]}";
  const std::string of_zsh = said("zsh", {"zsh", "-f", "-c", in_zsh});
  if (is_here("fish")) {
    for (const char* word : {"copy\t", "collective\t", "--matrix\t"})
      EXPECT_NE(of_fish.find(word), std::string::npos) << of_fish;
  }
  if (is_here("zsh")) {
    EXPECT_NE(of_zsh.find(" --pairs "), std::string::npos) << of_zsh;  // zsh chooses among them by what was typed
    EXPECT_EQ(of_zsh.find("--batch"), std::string::npos) << of_zsh;
  }
  if (!is_here("fish") || !is_here("zsh")) GTEST_SKIP() << "zsh or fish is not here";
}

TEST(help, explains_commands_and_topics_and_says_what_there_is) {
  const auto said = [](std::initializer_list<const char*> words) {
    const auto parsed = parse(words);
    const auto* done = std::get_if<finished_line>(&parsed);
    return done != nullptr ? *done : finished_line{-1, {}, {}};
  };
  EXPECT_NE(said({"help", "bench", "copy"}).out.find("--pairs"), std::string::npos);
  EXPECT_EQ(said({"help", "bench", "copy"}).out, said({"bench", "copy", "--help"}).out);
  EXPECT_NE(said({"bench", "copy", "--help"}).out.find("--sim, --backend"), std::string::npos)
      << "global flags are told with each";
  EXPECT_NE(said({"help", "exit-codes"}).out.find("130"), std::string::npos);
  EXPECT_EQ(said({"help", "unit"}).exit_code, 2);
  EXPECT_NE(said({"help", "unit"}).err.find("did you mean units?"), std::string::npos);
  EXPECT_NE(said({"--version", "--json"}).out.find("\"schema\": \"weft.version/1\""), std::string::npos);
  const std::string manual = said({"help", "--man"}).out;
  for (const char* part : {".TH WEFT 1", ".SS weft bench latency", "\\-\\-threshold", ".SH EXIT\\-CODES"})
    EXPECT_NE(manual.find(part), std::string::npos) << part;
}

}  // namespace options_test
}  // namespace weft::tool
