// SPDX-License-Identifier: Apache-2.0
#include "option_pages.hpp"

#include "weft/core/topology.hpp"
#include "weft/core/version.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace weft::tool {

namespace {

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

struct topic {
  std::string_view name, text;
};
constexpr topic topics[] = {
    {"exit-codes",
     "0    success\n"
     "1    a check failed: data was wrong, or the doctor found a failure\n"
     "2    usage: an unknown word, option, topology or value\n"
     "3    the backend or device that was asked for is not here\n"
     "4    an error at run time: a copy failed, a file cannot be written\n"
     "5    a device did not answer in time\n"
     "6    a benchmark measured nothing\n"
     "130  interrupted; what was finished is printed\n"},
    {"units",
     "Sizes count in 1024: 64M, 64MB and 64MiB are equal. Items and rates of items count in 1000.\n"
     "Rates are in GB/s with 1 GB = 1e9 bytes. Times take ns, us, ms, s and m.\n"
     "Sizes may be lists (4K,64M) and ranges: 8..64M goes in steps of four, 8..64M:2 in steps of two.\n"},
    {"environment",
     "WEFT_BACKEND          use this backend and no other, as --backend\n"
     "WEFT_TOPOLOGY         play this topology, as --sim\n"
     "WEFT_DEVICES          so many virtual devices of the host\n"
     "WEFT_LOGICAL_DEVICES  offer each device as so many, as --logical-devices\n"
     "WEFT_VERIFY_PEERS     never, first_use or always: when pairs of devices are verified\n"
     "WEFT_CHECK            1: check every access of kernels on the host backend\n"
     "WEFT_CUDA_DRIVER, WEFT_CUDA_NVRTC, WEFT_CUDA_NVML, WEFT_HIP_DRIVER, WEFT_HIP_HIPRTC  the libraries to open\n"
     "NO_COLOR, CLICOLOR_FORCE  as in other programs\n"},
    {"json",
     "Every command prints one JSON document with --json. Its field schema names its form, weft.NAME/1; the schemas "
     "are\n"
     "installed in share/weft/schema. A form changes only by further fields as long as its number stays.\n"},
};

}  // namespace

std::string path_of(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : path_of(*app.get_parent()) + " " + app.get_name();
}

/// Everything that a word after `app` may be: subcommands and long options.
std::vector<std::string> words_of(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    words.push_back(sub->get_name());
  for (const CLI::App* level = &app; level != nullptr; level = level->get_parent()) {
    for (const CLI::Option* option : level->get_options()) {
      for (const std::string& name : option->get_snames()) words.push_back("-" + name);
      for (const std::string& name : option->get_lnames()) {
        if (level == &app || std::ranges::find(words, "--" + name) == words.end()) words.push_back("--" + name);
      }
    }
  }
  return words;
}

namespace {

/// A bash function that completes from the same tree that parses; zsh runs it too, where `path` would be PATH.
std::string bash_completion(const CLI::App& app) {
  std::string cases;
  const auto walk = [&cases](const auto& self, const CLI::App& at) -> void {
    std::string words;
    for (const std::string& word : words_of(at)) {
      if (word.size() > 2) words += (words.empty() ? "" : " ") + word;
    }
    cases += fmt::format("    '{}') words='{}' ;;\n", path_of(at), words);
    for (const CLI::App* sub : at.get_subcommands([](const CLI::App*) { return true; })) self(self, *sub);
  };
  walk(walk, app);
  std::string topologies;
  for (const std::string_view name : shipped_topologies()) topologies += fmt::format("{} ", name);
  return fmt::format(
      R"(# bash completion for weft: source <(weft completion bash)
_weft_words() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local at=weft words='' i
  case "$previous" in
    --sim) COMPREPLY=($(compgen -W '{}' -- "$current") $(compgen -f -- "$current")); return ;;
    --clock) COMPREPLY=($(compgen -W 'wall virtual' -- "$current")); return ;;
    --mode) COMPREPLY=($(compgen -W 'direct host_staged both' -- "$current")); return ;;
    --by) COMPREPLY=($(compgen -W 'engine kernel both' -- "$current")); return ;;
    --ends) COMPREPLY=($(compgen -W 'host kernel both' -- "$current")); return ;;
    --color) COMPREPLY=($(compgen -W 'auto always never' -- "$current")); return ;;
    -o|--output|--images) COMPREPLY=($(compgen -f -- "$current")); return ;;
  esac
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$at ${{COMP_WORDS[i]}}" in
{}    esac
  done
  case "$at" in
{}  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -F _weft_words weft
)",
      topologies,
      [&app] {
        std::string paths;
        const auto collect = [&paths](const auto& self, const CLI::App& at) -> void {
          for (const CLI::App* sub : at.get_subcommands([](const CLI::App*) { return true; })) {
            paths += fmt::format("      '{}') at='{}' ;;\n", path_of(*sub), path_of(*sub));
            self(self, *sub);
          }
        };
        collect(collect, app);
        return paths;
      }(),
      cases);
}

/// Fish asks for each option by itself.
std::string fish_completion(const CLI::App& app) {
  const auto quoted = [](const std::string& text) {
    std::string safe;
    for (const char letter : text) safe += letter == '\'' ? std::string{"\\'"} : std::string{letter};
    return safe;
  };
  std::string script = "# fish completion for weft: weft completion fish | source\n";
  const auto walk = [&](const auto& self, const CLI::App& at, const std::string& when) -> void {
    std::string names;
    for (const CLI::App* sub : commands_of(at)) names += (names.empty() ? "" : " ") + sub->get_name();
    for (const CLI::App* sub : commands_of(at)) {
      script += fmt::format("complete -c weft -f -n '{}; and not __fish_seen_subcommand_from {}' -a {} -d '{}'\n", when,
                            names, sub->get_name(), quoted(sub->get_description()));
      self(self, *sub, fmt::format("{}; and __fish_seen_subcommand_from {}", when, sub->get_name()));
    }
    for (const CLI::Option* option : at.get_options()) {
      for (const std::string& name : option->get_lnames())
        script += fmt::format("complete -c weft -n '{}' -l {} {}-d '{}'\n", when, name,
                              option->get_items_expected_max() > 0 ? "-r " : "", quoted(option->get_description()));
    }
  };
  walk(walk, app, "true");
  std::string topologies;
  for (const std::string_view name : shipped_topologies()) topologies += fmt::format("{} ", name);
  return script + fmt::format("complete -c weft -l sim -x -a '{}(__fish_complete_suffix .json)'\n", topologies);
}

/// Letters that man(7) would read as commands.
std::string escaped(std::string_view text) {
  std::string safe;
  for (const char letter : text) {
    if (letter == '\\' || letter == '-') safe += '\\';
    if (letter == '\n' || (safe.empty() && (letter == '.' || letter == '\''))) safe += "\\&";
    safe += letter;
  }
  return safe;
}

}  // namespace

std::string completion(const CLI::App& app, std::string_view shell) {
  if (shell == "bash") return bash_completion(app);
  if (shell == "fish") return fish_completion(app);
  if (shell == "zsh") {  // which runs functions of bash; the first time it has loaded this file as the function _weft
    return "#compdef weft\nautoload -U +X bashcompinit && bashcompinit\n" + bash_completion(app) +
           "if [[ $funcstack[1] == _weft ]]; then _bash_complete -F _weft_words; fi\n";
  }
  return {};
}

std::string manual(const CLI::App& app) {
  std::string page = fmt::format(
      ".TH WEFT 1 \"\" \"weft {}\" \"User Commands\"\n.SH NAME\nweft \\- {}\n.SH SYNOPSIS\n.B weft\n"
      "[OPTIONS] [COMMAND]\n",
      library_version(), escaped(app.get_description()));
  const auto options = [&](const CLI::App& at) {
    for (const CLI::Option* option : at.get_options()) {
      std::string names;
      for (const std::string& name : option->get_snames()) names += (names.empty() ? "" : ", ") + ("-" + name);
      for (const std::string& name : option->get_lnames()) names += (names.empty() ? "" : ", ") + ("--" + name);
      if (names.empty()) names = option->get_name();
      page += fmt::format(".TP\n.B {}\n{}\n", escaped(names), escaped(option->get_description()));
    }
  };
  page += ".SH OPTIONS\nThey stand before or after the command.\n";
  options(app);
  page += ".SH COMMANDS\n";
  const auto walk = [&](const auto& self, const CLI::App& at) -> void {
    for (const CLI::App* sub : commands_of(at)) {
      page += fmt::format(".SS {}\n{}\n", escaped(path_of(*sub)), escaped(sub->get_description()));
      options(*sub);
      self(self, *sub);
    }
  };
  walk(walk, app);
  for (const topic& one : topics) {
    std::string name{one.name};
    std::ranges::transform(name, name.begin(),
                           [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
    page += fmt::format(".SH {}\n.nf\n{}.fi\n", escaped(name), escaped(one.text));
  }
  return page;
}

std::vector<std::string_view> help_topics() {
  std::vector<std::string_view> names;
  for (const topic& one : topics) names.push_back(one.name);
  return names;
}

std::optional<std::string> help_about(const CLI::App& app, const std::vector<std::string>& words) {
  if (words.empty())
    return app.help() + fmt::format("\nMore: weft help COMMAND, or one of {}\n", fmt::join(help_topics(), ", "));
  if (words.size() == 1) {
    const auto found = std::ranges::find(topics, std::string_view{words.front()}, &topic::name);
    if (found != std::end(topics)) return std::string{found->text};
  }
  const CLI::App* at = &app;
  for (const std::string& word : words) {
    const auto commands = commands_of(*at);
    const auto found = std::ranges::find(commands, word, [](const CLI::App* one) { return one->get_name(); });
    if (found == commands.end()) return std::nullopt;
    at = *found;
  }
  return at->help(path_of(*at->get_parent()));
}

}  // namespace weft::tool
