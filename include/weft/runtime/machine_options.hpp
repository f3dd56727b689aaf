// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weft/backend/registry.hpp"
#include "weft/core/topology.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft {

/// When a machine finds out whether what one device writes into the memory of another arrives there.
enum class peer_verification : std::uint8_t {
  never,      // only by verify_peers()
  first_use,  // once for each ordered pair that is used; what another process found since the boot holds
  always,     // the same, and what other processes found is not believed
};

/// How a machine is put together. Everything has a default; the environment fills what is left open: WEFT_BACKEND,
/// WEFT_TOPOLOGY (name or file), WEFT_DEVICES (number of host devices), WEFT_LOGICAL_DEVICES, WEFT_VERIFY_PEERS
/// (never, first_use or always), WEFT_STRICT, WEFT_CHECK and WEFT_CHECK_ORDER (0 or 1).
///
/// Some options only the host backend has. Where a program relies on one (check_access, check_order, fill_new_memory,
/// max_in_flight), another backend is not opened: unsupported, or the host where none was named. On a mixed machine
/// only check_order is refused; the others hold for the host's devices alone, and notes() say so. What changes no
/// result there (devices, strict, model, and all that the environment says) is a remark in notes().
struct machine_options {
  /// "host", "opencl", …; empty is the best one present. Several, as in "host,opencl", make a mixed machine: the
  /// devices of the first come first. Errors: not_found, or what a backend says, naming it; unsupported with virtual
  /// time or check_order, which are the host backend's alone.
  std::optional<std::string> backend{};
  bool backend_required = true;      // false: what is absent is left out or replaced, and notes() say so
  bool keep_duplicates = false;      // true: a device that two backends see appears with both, not with the first alone
  std::optional<std::string> sim{};  // topology, by name or file, played by the host backend
  std::optional<topology> machine{};  // the same, as a value
  std::optional<int> devices{};       // number of host devices without a topology; 4 unless set
  std::optional<bytes> memory_per_device{};
  /// Each device is offered as so many, with a part of its compute units each; 1 unless set. One that cannot be split
  /// so stays whole, and notes() say why; so do those of the host, of which there are as many as `devices` asks for.
  std::optional<int> logical_devices{};
  clock_kind clock = clock_kind::wall;
  std::optional<bool> strict{};  // device pointers fault when the host follows them; see docs/reference/memory.md
  /// Kernels on the host backend check every access to their views; unless set, so they do in a debug build of weft.
  std::optional<bool> check_access{};
  bool check_order = false;  // the host backend reports accesses that nothing orders; see docs/reference/memory.md
  std::optional<std::byte> fill_new_memory{};
  int max_in_flight = 0;
  /// Backends of the program's own, asked before those of the build: how a port is tried out without changing weft.
  std::vector<backend_entry> more_backends{};
  /// first_use unless set. A pair that loses data is reported by the log hook, and not used any more: copies take
  /// another route, and kernels get no memory over it.
  std::optional<peer_verification> verify_peers{};
  waiting wait_policy = waiting::adaptive;
  simulation model{};  // of the virtual clock
};

}  // namespace weft
