// SPDX-License-Identifier: Apache-2.0
// The MPI that a program runs, called without a header of it: Open MPI, the MPICH family (MPICH, Intel MPI) and the
// standard ABI differ in a few constants, and in whether a handle is a pointer or an int.
#pragma once

#include "weft/core/result.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::detail::mpi {

/// A handle of any ABI. Where it is an int, the callee reads and writes the lower half.
using handle = std::uintptr_t;
inline constexpr int success = 0;

/// Room for the status of any ABI; read by MPI_Get_count alone.
struct status {
  alignas(8) std::array<std::byte, 64> bytes{};
};

struct library {
  std::string name;  // as it calls itself, without what follows a comma or a line
  handle world = 0, byte = 0, errors_return = 0;
  std::size_t handle_bytes = sizeof(handle);
  std::array<handle, 12> types{};  // by data_type; 0: MPI has none such
  std::array<handle, 4> ops{};     // by reduction_op::kind
  int any_source = -1;
  int thread_multiple = 3;

  int (*query_thread)(int*) = nullptr;
  int (*initialized)(int*) = nullptr;
  int (*finalized)(int*) = nullptr;
  int (*comm_idup)(handle, handle*, handle* request) = nullptr;
  int (*comm_free)(handle*) = nullptr;
  int (*comm_rank)(handle, int*) = nullptr;
  int (*comm_size)(handle, int*) = nullptr;
  int (*comm_set_errhandler)(handle, handle) = nullptr;
  int (*isend)(const void*, int, handle, int to, int tag, handle comm, handle* request) = nullptr;
  int (*irecv)(void*, int, handle, int from, int tag, handle comm, handle* request) = nullptr;
  int (*iallgather)(const void*, int, handle, void*, int, handle, handle comm, handle* request) = nullptr;
  int (*iallreduce)(const void*, void*, int, handle, handle op, handle comm, handle* request) = nullptr;
  int (*ireduce)(const void*, void*, int, handle, handle op, int root, handle comm, handle* request) = nullptr;
  int (*ireduce_scatter)(const void*, void*, const int*, handle, handle op, handle comm, handle* request) = nullptr;
  int (*ibcast)(void*, int, handle, int root, handle comm, handle* request) = nullptr;
  int (*iallgatherv)(const void*, int, handle, void*, const int*, const int*, handle, handle comm, handle*) = nullptr;
  int (*igatherv)(const void*, int, handle, void*, const int*, const int*, handle, int, handle comm, handle*) = nullptr;
  int (*iscatterv)(const void*, const int*, const int*, handle, void*, int, handle, int, handle comm,
                   handle*) = nullptr;
  int (*ialltoallv)(const void*, const int*, const int*, handle, void*, const int*, const int*, handle, handle comm,
                    handle*) = nullptr;
  int (*test)(handle*, int* is_over, status*) = nullptr;
  int (*cancel)(handle*) = nullptr;
  int (*test_cancelled)(const status*, int*) = nullptr;
  int (*get_count)(const status*, handle, int*) = nullptr;
  int (*error_string)(int, char*, int*) = nullptr;
  int (*get_library_version)(char*, int*) = nullptr;

  [[nodiscard]] std::string text_of(int failed) const;
};

/// Errors: not_found where this process has no MPI, or has not called MPI_Init, or has called MPI_Finalize.
[[nodiscard]] result<const library*> running();

}  // namespace weft::detail::mpi
