// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "command_line/output.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace weft::tool {

/// This computer as a weft.machine/1 document: below half a second, without root, without a context on a GPU. Serial
/// numbers, the name of the computer and addresses of its network are not read; paths and variables may hold more.
[[nodiscard]] json gather_system();

/// What the management library of NVIDIA's driver knows, part of the document; {"why": …} where it is not there.
[[nodiscard]] json gather_nvml();

/// The files of AMD's driver about each GPU: its temperatures, and how much memory other processes have. GPUs by
/// address. `root`: in front of /sys.
[[nodiscard]] json gather_amd(const std::string& root = {});

/// Access Control Services of a bridge, from its configuration space: PCI Express Base Specification, extended
/// capability 0x000d.
struct acs_state {
  std::uint16_t can = 0;
  std::uint16_t does = 0;
};
/// None where the bridge has no such capability. Only root can read beyond the first 64 bytes.
[[nodiscard]] std::optional<acs_state> acs_of(std::span<const std::byte> configuration);

/// Whether a line of the kernel's log is about a GPU, its link, or what stands between it and memory.
[[nodiscard]] bool is_about_gpus(const std::string& line);

}  // namespace weft::tool
