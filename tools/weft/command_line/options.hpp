// SPDX-License-Identifier: Apache-2.0
// The command line as values. Only the sources of this folder know the parser behind it.
#pragma once

#include "option_values.hpp"
#include "weft/backend/registry.hpp"
#include "weft/collective/collective_cost.hpp"
#include "weft/collective/data_type.hpp"
#include "weft/collective/reduction_op.hpp"
#include "weft/core/result.hpp"
#include "weft/exec/balance.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace weft::tool {

enum class colour_choice : std::uint8_t { automatic, always, never };

/// The options that may stand before or after any command.
struct global_options {
  std::optional<std::string> sim;
  std::optional<std::string> backend;
  std::optional<int> logical_devices;
  clock_kind clock = clock_kind::wall;
  bool json = false;
  bool quiet = false;
  colour_choice colour = colour_choice::automatic;
  std::vector<std::string> argv;
};

struct topo_options {
  bool matrix_only = false;
  bool p2p = false;
  bool verify = false;
  bool measure = false;
  std::string output;
};

struct doctor_options {
  bool run = false;
  std::string check;    // empty: all
  std::string output;   // an HTML page
  std::string collect;  // writes what was read
  std::string from;     // reads that in place of this computer
};

struct report_options {
  std::string output = "weft-report.html";
  bool quick = false;
  std::chrono::nanoseconds budget = std::chrono::seconds{30};
};

struct route_options {
  std::string from;
  std::string to;
  std::uint64_t size = 0;
  std::string path = "automatic";
  std::string via;
  bool measure = false;
};

struct explain_launch_options {
  std::int64_t items = 0;
  double items_per_second = 200e6;  // of the fastest device; the others by their speeds
  std::vector<std::chrono::nanoseconds> starts{std::chrono::microseconds{20}};  // of each device; the last one goes on
  balance strategy = balance::automatic;
  std::int64_t granularity = 1;
  bool streamed = false;  // from host memory and back
};

struct explain_collective_options {
  collective what = collective::all_reduce;
  std::uint64_t size = 0;
  std::vector<int> devices;  // rank by rank; empty: `ranks` of them, neighbours side by side
  std::optional<int> ranks;  // empty: one for each device
  data_type type = data_type::float32;
  reduction_order order = reduction_order::any;
  collective_algorithm algorithm = collective_algorithm::automatic;
  bool measure = false;
};

struct copy_bench_options {
  std::vector<std::uint64_t> sizes;  // empty: 1 MiB and 64 MiB, or 8 MiB on more than four devices
  std::vector<pair_choice> pairs;    // empty: all
  int samples = 15;
  std::chrono::nanoseconds min_time{0};
  std::chrono::nanoseconds budget = std::chrono::seconds{10};
  bool no_p2p = false;
  bool by_engine = true;
  std::optional<bool> by_kernel;  // empty: where a device is not the host's
  bool latency = false;           // small sizes, and times in place of rates
  bool world = false;             // between the ranks of a world, of which this process is one
  std::string output;
};

struct queue_bench_options {
  std::vector<std::uint64_t> sizes{8, 64, 256, 4096};
  std::vector<pair_choice> pairs;  // empty: all of different devices
  std::optional<int> from;         // only pairs from this device
  std::optional<int> to;           // only pairs to this device
  bool direct = true;
  bool host_staged = true;
  std::vector<std::size_t> batches{1, 64};
  bool host_ends = true;
  std::optional<bool> kernel_ends;  // empty: where a device is a GPU of CUDA
  std::optional<int> samples;       // empty: 15, or 3 when quick
  bool quick = false;
  bool world = false;  // between the ranks of a world, of which this process is one
  std::chrono::nanoseconds budget = std::chrono::seconds{10};
  std::string output;
};

struct launch_bench_options {
  std::vector<balance> strategies;     // empty: all
  std::vector<std::string> scenarios;  // "A" … "E", "overhead"; empty: all
  std::optional<int> seeds;            // of a scenario with noise; empty: 100, or 3 when quick
  std::optional<int> samples;          // of the overhead; empty: 15, or 3 when quick
  bool quick = false;
  std::chrono::nanoseconds budget = std::chrono::seconds{30};
  std::string output;
};

struct ipc_bench_options {
  std::vector<std::uint64_t> sizes;  // of the copies; empty: 1 MiB and 64 MiB, or 8 MiB when quick
  std::vector<pair_choice> pairs;    // empty: from the first device to the second
  std::optional<int> samples;        // empty: 31, or 3 when quick
  bool quick = false;
  std::chrono::nanoseconds budget = std::chrono::seconds{10};
  std::string output;
};

struct collective_bench_options {
  std::vector<collective> collectives{collective::all_reduce};
  std::vector<collective_algorithm> algorithms{collective_algorithm::automatic};
  std::vector<std::uint64_t> sizes;  // empty: 4 B to 64 MiB in steps of 16, or to 4 MiB with more than four ranks
  std::vector<int> devices;          // rank by rank; empty: `ranks` of them
  std::optional<int> ranks;
  std::optional<int> processes;  // instead: a caller for each rank, in a process of its own
  bool world = false;            // instead: this process is a rank of a world, as its launcher says
  data_type type = data_type::float32;
  reduction_op::kind operation = reduction_op::kind::sum;
  reduction_order order = reduction_order::any;
  bool in_place = false;
  std::optional<int> samples;  // empty: 15, or 3 when quick
  bool quick = false;
  std::chrono::nanoseconds budget = std::chrono::seconds{30};
  std::string output;
};

struct demo_options {
  std::string images;
  std::string output = "weft-demo";
  std::optional<int> processes;  // of the ring at the end; empty: none
};

struct conform_options {
  bool all_topologies = false;
};

struct compare_options {
  std::string first, second;
  double threshold = 0.1;
  bool all = false;  // rows that are the same too
};

struct world_check_options {
  std::chrono::nanoseconds timeout = std::chrono::seconds{60};  // to meet, and for each message
};

struct trace_view_options {
  std::string input;
  std::string output;  // empty: beside the input, with .svg
};

class session;
enum class exit_code : int;
struct command_line;
using command_function = exit_code (*)(session&, const command_line&);

struct command_line {
  command_function run = nullptr;  // never null once a line was parsed
  global_options global;
  topo_options topo;
  doctor_options doctor;
  report_options report;
  route_options route;
  explain_launch_options explain_launch;
  explain_collective_options explain_collective;
  copy_bench_options bench_copy;
  queue_bench_options bench_queue;
  launch_bench_options bench_launch;
  ipc_bench_options bench_ipc;
  collective_bench_options bench_collective;
  demo_options demo;
  conform_options conform;
  trace_view_options trace_view;
  world_check_options world_check;
  compare_options compare;
};

/// Help, the version, a completion script or a usage error: there is nothing to run.
struct finished_line {
  int exit_code = 0;
  std::string out;
  std::string err;
};

[[nodiscard]] std::variant<command_line, finished_line> parse_command_line(int argc, const char* const* argv);

}  // namespace weft::tool
