// SPDX-License-Identifier: Apache-2.0
// What only the host backend does of the options of a machine, and what is said where another one is opened.
#pragma once

#include "weft/core/error.hpp"
#include "weft/runtime/machine.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::detail {

/// Why no machine has these options; none if one can. Errors: invalid_argument.
[[nodiscard]] std::optional<error> contradiction(const machine_options& asked);

/// Made before the environment fills what the program has left open, so that it knows who asked.
class host_options {
 public:
  explicit host_options(const machine_options& asked);

  /// A variable that was taken.
  void take(std::string_view variable) { wishes_.emplace_back(variable); }

  /// Why a machine of this backend alone cannot be opened; none if it can. Errors: unsupported.
  [[nodiscard]] std::optional<error> refusal(std::string_view backend) const;
  /// What has no effect on a backend, each a sentence.
  [[nodiscard]] std::vector<std::string> notes(std::string_view backend, bool is_mixed) const;

 private:
  std::vector<std::string> demands_;  // a program relies on their effect
  std::vector<std::string> wishes_;   // without effect nothing is wrong
};

}  // namespace weft::detail
