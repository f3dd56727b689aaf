// SPDX-License-Identifier: Apache-2.0
// A ring of processes in which a kernel of each one writes into memory of the next.
#pragma once

#include "command_line/output.hpp"

#include <cstdint>
#include <string>
#include <sys/types.h>
#include <vector>

namespace weft::tool {

struct ring_report {
  /// What the process `to` found in its memory.
  struct passage {
    int from = 0;
    int to = 0;
    pid_t process = 0;        // that of `to`
    std::int32_t device = 0;  // where the memory is
    std::uint64_t wrong = 0;  // words
  };
  std::uint64_t size = 0;  // bytes that each one passes on
  std::vector<passage> passages;
  std::string why;  // what ended the ring early; or why all processes use one device

  [[nodiscard]] bool verified() const;
};

/// Forks: there must be no machine yet. Each process, of which this is one, opens a machine with the options of the run
/// and lets it go. Every wait ends after 20 s. Errors: failure, error_exception where no machine can be opened here.
[[nodiscard]] ring_report run_process_ring(const session& run, int processes);

[[nodiscard]] std::string ring_text(const session& run, const ring_report& report);
/// processes of weft.demo/1.
[[nodiscard]] json ring_json(const ring_report& report);

}  // namespace weft::tool
