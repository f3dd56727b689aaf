// SPDX-License-Identifier: Apache-2.0
// The suite where a driver may hang, or end the process: a process for each group, which is replaced where it does.
#pragma once

#include "conformance/conformance.hpp"

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace weft {

struct isolation {
  std::vector<std::string> arguments;  // with which this program answers a group; the number of a case goes behind them
  std::chrono::seconds limit{90};      // of each case: longer than a wait in it, which says what it waited for
};

/// As run_conformance(), which it never calls: this process opens no machine. A case that does not end in time, or ends
/// its process, falls short, and the rest of its group goes on in a new process. A process that does not end well
/// behind its last case gives one result more.
[[nodiscard]] std::vector<case_result> run_isolated(const isolation& how, const run_options& options);

/// In a process of run_isolated(): runs the cases of one group from this number on, and tells each.
void answer_group(std::size_t first, const std::function<machine()>& open, const run_options& options);

}  // namespace weft
