// SPDX-License-Identifier: Apache-2.0
// What it costs to use the memory of another process: opening it, touching it for the first time, copying from and to
// it; beside the same in one process.
#pragma once

#include "bench/copy/copy_bench.hpp"
#include "bench_row.hpp"
#include "weft/processes/process_group.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::tool {

enum class ipc_kind : std::uint8_t {
  open,         // until the memory can be used; it is closed again outside of the time
  first_touch,  // a kernel reads one byte of each page
  read,         // a copy whose source is in the other process
  write,        // a copy whose destination is there
};
[[nodiscard]] std::string_view to_string(ipc_kind kind);

enum class ipc_path : std::uint8_t { between_processes, one_process };
[[nodiscard]] std::string_view to_string(ipc_path path);

struct ipc_row {
  std::string name;
  ipc_kind kind = ipc_kind::open;
  ipc_path path = ipc_path::between_processes;
  device_id src;
  device_id dst;
  std::uint64_t size = 0;
  row_state state = row_state::done;
  std::optional<statistics> seconds;
  std::optional<bool> verified;
  rate_limit limit;
  std::optional<double> share_of_one_process;  // of a copy between processes
  std::string why;

  [[nodiscard]] bool is_copy() const { return kind == ipc_kind::read || kind == ipc_kind::write; }
  [[nodiscard]] std::optional<double> bytes_per_second() const;
  [[nodiscard]] std::optional<double> share() const;
};

struct ipc_plan {
  std::uint64_t open_size = std::uint64_t{1} << 30;
  std::uint64_t touch_size = std::uint64_t{64} << 20;
  std::vector<std::uint64_t> sizes;                    // of the copies
  std::vector<std::pair<device_id, device_id>> pairs;  // (src, dst)
  int samples = 15;
  std::chrono::nanoseconds budget = std::chrono::seconds{10};
};

/// The other process: it makes memory, writes and checks patterns, and gives handles. One thing at a time.
class memory_holder {
 public:
  /// Forks: there must be no machine yet. The other process opens one with the same options.
  explicit memory_holder(const session& run);
  ~memory_holder();
  memory_holder(const memory_holder&) = delete;
  memory_holder& operator=(const memory_holder&) = delete;

  /// New memory instead of what it held, with the pattern of `seed`: everywhere, or at both ends of large memory that
  /// nobody needs to have in full. Gives the 64 bytes of its handle. Errors: those of the other process.
  [[nodiscard]] std::vector<std::byte> hold(device_id on, std::uint64_t size, std::uint64_t seed, bool all);
  /// Writes the pattern of another seed.
  void write(std::uint64_t seed);
  /// Empty when the other process finds the pattern there.
  [[nodiscard]] std::string check(std::uint64_t seed);

 private:
  struct body;
  std::unique_ptr<body> body_;
};

/// Runs the plan. Stops at an interrupt, and leaves out what does not fit into the budget or the memory.
[[nodiscard]] std::vector<ipc_row> run_ipc(session& run, const machine& m, const ipc_plan& plan, memory_holder& other);

/// results[] of weft.bench.ipc/1.
[[nodiscard]] json rows_json(const std::vector<ipc_row>& rows);

}  // namespace weft::tool
