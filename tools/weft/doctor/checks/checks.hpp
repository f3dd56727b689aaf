// SPDX-License-Identifier: Apache-2.0
// The doctor's checks: each looks at facts and says what it found, from what, why, and what to do.
#pragma once

#include "doctor/facts.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tool {

enum class verdict : std::uint8_t { ok, warning, failed, unknown, not_applicable };
[[nodiscard]] std::string_view to_string(verdict found);

/// A value, and where it was read.
struct evidence {
  std::string what, value, where;
};

/// What one check found. A finding that is ok and says what to do is a note: nothing is wrong, but it could be better.
struct finding {
  verdict found = verdict::ok;
  std::string summary{};  // one sentence; for unknown and not_applicable: why
  std::string effect{};   // what programs notice of it
  std::string cause{};
  bool is_guess = false;             // the cause is likely, not seen
  std::vector<std::string> steps{};  // in order; "$ " begins a command, "| " a line of a file
  std::vector<evidence> facts{};     // the first `decisive` ones are what the verdict rests on
  std::size_t decisive = 0;
  std::vector<std::string> about{};  // addresses of the GPUs that it is of
  /// Another check whose finding this one explains, or follows from: it is told there and not counted twice.
  std::string part_of{};

  /// One more sentence, what comes of it and what to do. The finding is as bad as the worst of its sentences.
  void add(verdict how_bad, std::string_view sentence, std::string_view its_effect = {},
           const std::vector<std::string>& its_steps = {});

  [[nodiscard]] bool is_note() const { return found == verdict::ok && !steps.empty(); }
};

struct check {
  std::string_view name;   // "pci-link": also the heading in docs/how-to/troubleshooting.md
  std::string_view title;  // what it asks
  finding (*look)(const machine_facts&);
  bool needs_work = false;  // only `weft doctor --run` knows
};

/// All of them, in the order in which they are told.
[[nodiscard]] std::span<const check> all_checks();

struct diagnosis {
  std::vector<finding> findings;  // of the checks in their order
  [[nodiscard]] std::size_t count(verdict found) const;
};

/// Every check, then what one finding explains of another. Cost: microseconds.
[[nodiscard]] diagnosis diagnose(const machine_facts& machine);

namespace doctor_checks {
finding pci_gpus(const machine_facts& machine);
finding pci_link(const machine_facts& machine);
finding pci_window(const machine_facts& machine);
finding pci_errors(const machine_facts& machine);
finding iommu(const machine_facts& machine);
finding acs(const machine_facts& machine);
finding hypervisor(const machine_facts& machine);
finding kernel_log(const machine_facts& machine);

finding driver_version(const machine_facts& machine);
finding nouveau(const machine_facts& machine);
finding device_nodes(const machine_facts& machine);
finding libraries(const machine_facts& machine);
finding toolkit(const machine_facts& machine);
finding rdma(const machine_facts& machine);

finding container(const machine_facts& machine);
finding shared_memory(const machine_facts& machine);
finding limits(const machine_facts& machine);
finding virtual_memory(const machine_facts& machine);
finding numa(const machine_facts& machine);
finding cpus(const machine_facts& machine);
finding environment(const machine_facts& machine);
finding processes(const machine_facts& machine);

finding persistence(const machine_facts& machine);
finding gpu_mode(const machine_facts& machine);
finding gpu_memory(const machine_facts& machine);
finding clocks(const machine_facts& machine);
finding nvlink(const machine_facts& machine);
finding fabric(const machine_facts& machine);
finding p2p_status(const machine_facts& machine);
finding gpu_users(const machine_facts& machine);

finding p2p_data(const machine_facts& machine);
finding p2p_rate(const machine_facts& machine);
finding host_rate(const machine_facts& machine);
finding kernels(const machine_facts& machine);
}  // namespace doctor_checks

}  // namespace weft::tool
