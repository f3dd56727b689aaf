// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "options.hpp"
#include "output.hpp"

namespace weft::tool {

// Each prints its text or its document and says how it went. Errors: failure, error_exception.
exit_code run_summary(session& run);
exit_code run_devices(session& run);
exit_code run_doctor(session& run, const doctor_options& options);
exit_code run_report(session& run, const report_options& options);
exit_code run_topo(session& run, const topo_options& options);
exit_code run_route(session& run, const route_options& options);
exit_code run_explain_launch(session& run, const explain_launch_options& options);
exit_code run_explain_collective(session& run, const explain_collective_options& options);
exit_code run_bench_copy(session& run, const copy_bench_options& options);
exit_code run_bench_queue(session& run, const queue_bench_options& options);
exit_code run_bench_launch(session& run, const launch_bench_options& options);
exit_code run_bench_ipc(session& run, const ipc_bench_options& options);
exit_code run_bench_collective(session& run, const collective_bench_options& options);
exit_code run_demo(session& run, const demo_options& options);
exit_code run_conform(session& run, const conform_options& options);
exit_code run_compare(session& run, const compare_options& options);
exit_code run_world_check(session& run, const world_check_options& options);
exit_code run_trace_view(session& run, const trace_view_options& options);

/// One of these with its options, or none, out of those of the line.
template <auto Run, auto... Options>
exit_code command_of(session& run, [[maybe_unused]] const command_line& line) {
  return Run(run, line.*Options...);
}

/// devices[] of weft.devices/1.
[[nodiscard]] json devices_json(const machine& m);
/// pairs[] of weft.topo/1: every ordered pair of different devices.
[[nodiscard]] json pairs_json(const machine& m);
/// The libraries that could carry messages between nodes: engines[] of weft.devices/1 and weft.topo/1.
[[nodiscard]] json engines_json();

}  // namespace weft::tool
