// SPDX-License-Identifier: Apache-2.0
// What is made of the tree that parses the command line: completion for shells, the manual, topics of help.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// NOLINTNEXTLINE(readability-identifier-naming): the parser's own names
namespace CLI {
class App;  // NOLINT(readability-identifier-naming)
}

namespace weft::tool {

/// "weft bench copy".
[[nodiscard]] std::string path_of(const CLI::App& app);
/// Everything that a word after `app` may be: subcommands and long options.
[[nodiscard]] std::vector<std::string> words_of(const CLI::App& app);

/// A completion script: bash, zsh or fish. Empty for another shell.
[[nodiscard]] std::string completion(const CLI::App& app, std::string_view shell);

/// weft.1, in the language of man(7).
[[nodiscard]] std::string manual(const CLI::App& app);

/// Help about a command ("bench copy") or a topic ("exit-codes"); nothing for a word that is neither.
[[nodiscard]] std::optional<std::string> help_about(const CLI::App& app, const std::vector<std::string>& words);
[[nodiscard]] std::vector<std::string_view> help_topics();

}  // namespace weft::tool
