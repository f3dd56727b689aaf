// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include "command_entry.hpp"
#include "commands.hpp"
#include "option_pages.hpp"
#include "output.hpp"
#include "weft/core/topology.hpp"
#include "weft/core/version.hpp"

namespace weft::tool {

namespace {

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

/// The options that may stand before or after every command.
class global_words {
 public:
  global_words(CLI::App& app, global_options& to) : to_(to) {
    app.add_option("--sim", to.sim, "Play this topology: a shipped name (dgx_h100) or a file")->type_name("NAME|FILE");
    app.add_option("--backend", to.backend, "Use this backend and no other, or several: host,opencl")
        ->type_name("NAME[,NAME]");
    app.add_option("--logical-devices", to.logical_devices,
                   "Offer each device as so many, of a part of its compute units each")
        ->type_name("N")
        ->check(CLI::Range(1, max_devices));
    app.add_option("--clock", clock_, "wall, or virtual: times are simulated from the topology")
        ->type_name("wall|virtual");
    app.add_flag("--json", to.json, "Print one JSON document instead of text");
    app.add_flag("-q,--quiet", to.quiet, "No progress and no remarks on stderr");
    app.add_option("--color", colour_, "auto, always or never; NO_COLOR and CLICOLOR_FORCE are honoured")
        ->type_name("auto|always|never");
    app.add_flag("--version", version_, "Show the version and exit");
  }

  [[nodiscard]] complaint take() {
    if (auto wrong = first_of(
            {one_of("--clock", clock_, {"wall", "virtual"}), one_of("--color", colour_, {"auto", "always", "never"})}))
      return wrong;
    if (clock_ == "virtual") to_.clock = clock_kind::virtual_time;
    if (colour_ != "auto") to_.colour = colour_ == "always" ? colour_choice::always : colour_choice::never;
    return std::nullopt;
  }
  /// The output of --version, if it was asked for.
  [[nodiscard]] std::optional<finished_line> version() const {
    if (!version_) return std::nullopt;
    if (!to_.json)
      return finished_line{0, fmt::format("weft {} (commit {})\n", library_version(), library_commit()), {}};
    const json about{
        {"schema", "weft.version/1"}, {"name", "weft"}, {"version", library_version()}, {"commit", library_commit()}};
    return finished_line{0, about.dump(2) + "\n", {}};
  }

 private:
  global_options& to_;
  std::string clock_ = "wall", colour_ = "auto";
  bool version_ = false;
};

/// `weft help` and `weft completion`, which print and are done.
class page_words {
 public:
  explicit page_words(CLI::App& app) : app_(app) {
    complete_ = app.add_subcommand("completion", "Print a completion script: source <(weft completion bash)");
    complete_->add_option("SHELL", shell_, "bash, zsh or fish")->type_name("");
    help_ = app.add_subcommand("help", "Explain a command, or a topic: exit-codes, units, environment, json");
    help_->add_option("TOPIC", topic_, "A command (bench copy), or a topic")->type_name("");
    help_->add_flag("--man", man_, "Print the manual page of the whole tool, for man(1)");
  }

  [[nodiscard]] std::optional<finished_line> page() const {
    if (help_->parsed()) {
      if (man_) return finished_line{0, manual(app_), {}};
      if (auto text = help_about(app_, topic_)) return finished_line{0, std::move(*text), {}};
      std::vector<std::string> known = words_of(app_);
      std::erase_if(known, [](const std::string& word) { return word.starts_with('-'); });
      for (const std::string_view name : help_topics()) known.emplace_back(name);
      return usage(*help_, *one_of("TOPIC", fmt::format("{}", fmt::join(topic_, " ")), {known.begin(), known.end()}));
    }
    if (!complete_->parsed()) return std::nullopt;
    if (const auto wrong = one_of("SHELL", shell_, {"bash", "zsh", "fish"})) return usage(*complete_, *wrong);
    return finished_line{0, completion(app_, shell_), {}};
  }

 private:
  CLI::App& app_;
  CLI::App* complete_ = nullptr;
  CLI::App* help_ = nullptr;
  std::string shell_ = "bash";
  std::vector<std::string> topic_;
  bool man_ = false;
};

/// The lines below the help of the tool, and of each command.
void add_footers(CLI::App& app) {
  app.footer(
      "Exit codes: 0 ok, 1 a check failed, 2 usage, 3 backend or device absent, 4 runtime error, 5 timeout, "
      "6 nothing measured, 130 interrupted.\n"
      "Rates are in GB/s with 1 GB = 1e9 bytes; sizes count in 1024.");
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
}

/// What a script makes of a variable that is not set: it is no value, and not the default either.
std::optional<finished_line> empty_word(const CLI::App& at) {
  for (const CLI::App* level = &at; level != nullptr; level = level->get_parent()) {
    for (const CLI::Option* option : level->get_options()) {
      if (std::ranges::any_of(option->results(), &std::string::empty))
        return usage(at, fmt::format("{} is empty: give it a value", option->get_name()));
    }
  }
  return std::nullopt;
}

/// The parser's complaint about the line, or the help that was asked for.
std::optional<finished_line> parse(CLI::App& app, int argc, const char* const* argv) {
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
  return empty_word(*deepest(app));
}

}  // namespace

std::variant<command_line, finished_line> parse_command_line(int argc, const char* const* argv) {
  command_line line;
  line.run = command_of<run_summary>;
  for (int i = 0; i < argc; ++i) line.global.argv.emplace_back(argv[i]);

  CLI::App app{"Several GPUs as one machine.", "weft"};
  app.fallthrough();   // the global flags may stand after the command
  app.allow_extras();  // so that this file, not the parser, says what was meant
  app.require_subcommand(0, 1);
  app.set_help_flag("-h,--help", "Show this help and exit");
  app.failure_message([](const CLI::App*, const CLI::Error&) { return std::string{}; });
  global_words global{app, line.global};
  command_entries commands{app, line};
  add_looking_commands(commands);
  add_explain_commands(commands);
  add_bench_commands(commands);
  add_other_commands(commands);
  const page_words pages{app};
  add_footers(app);

  if (auto done = parse(app, argc, argv)) return std::move(*done);
  if (auto done = global.version()) return std::move(*done);
  if (const auto wrong = global.take()) return usage(*deepest(app), *wrong);
  if (auto done = pages.page()) return std::move(*done);
  for (const command_entry& one : commands.all) {
    if (!one.at->parsed()) continue;
    if (one.take) {
      if (const auto wrong = one.take()) return usage(*one.at, *wrong);
    }
    line.run = one.run;
  }
  return line;
}

}  // namespace weft::tool
